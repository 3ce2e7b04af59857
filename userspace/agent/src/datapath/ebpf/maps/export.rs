//! The flow table of another ABI version, or of another size, read by the names of its fields.

use std::{
    io,
    mem::offset_of,
    sync::atomic::{Ordering, fence},
};

use aya::maps::MapData;
use bytemuck::Zeroable as _;
use contiv_abi::{
    Flow, FlowHalf,
    maps::{FLOW_BITMAP, FLOWS, NODE},
};

use super::{
    btf::{self, Field, Layout},
    mmap::MmapValues,
    pins::Pins,
    syscall,
    usage::capacity,
};
use crate::datapath::{Error, ebpf::failure::failed};

/// A flow of another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportedFlow {
    /// Number of the record in the other table.
    pub(crate) record: u32,
    /// The flow in the layout of this version, with the generation that the record has in the other table.
    pub(crate) flow: Flow,
}

/// A field of [`Flow`] and its path in the other layout.
struct FlowField {
    path: String,
    offset: usize,
    size: usize,
    /// Without the field, the flow cannot be imported.
    required: bool,
}

macro_rules! fields {
    ($type:ty, $prefix:expr, $base:expr, $required:expr, $($field:ident: $size:expr),*) => {
        [$(FlowField {
            path: format!("{}{}", $prefix, stringify!($field)),
            offset: $base + offset_of!($type, $field),
            size: $size,
            required: $required,
        }),*]
    };
}

/// The fields of a flow that are imported. Numbers of rules are those of one version's policies.
fn flow_fields() -> Vec<FlowField> {
    let mut fields: Vec<FlowField> = vec![];
    fields.extend(fields!(Flow, "", 0, true,
        client: 16, destination: 16, backend: 16,
        client_port: 2, destination_port: 2, nat_port: 2, backend_port: 2
    ));
    fields.extend(fields!(contiv_abi::FlowHead, "head.", offset_of!(Flow, head), true,
        domain: 4, protocol: 1, flags: 1, generation: 2
    ));
    for half in 0..2 {
        let (prefix, base) =
            (format!("halves[{half}]."), offset_of!(Flow, halves) + half * size_of::<FlowHalf>());
        fields.extend(fields!(FlowHalf, prefix, base, true,
            groups: 4, seen: 4, end: 4, acknowledged: 4, sent: 1, other: 1
        ));
        fields.extend(fields!(FlowHalf, prefix, base, false,
            packets: 8, bytes: 8, verdict: 8, service: 4, rule: 4, made: 4, owner: 4
        ));
    }
    fields
}

/// Moves bytes of a field of the other layout to that of this one.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: usize,
    to: usize,
    len: usize,
}

/// Largest size of a record that is read.
const MAX_RECORD: usize = 4096;
/// Maximum number of attempts to read a record that changes.
const MAX_ATTEMPTS: usize = 5;

/// The flow table of other pins.
pub(crate) struct FlowExport {
    records: MmapValues,
    bitmap: MmapValues,
    size: usize,
    generation: usize,
    moves: Vec<Move>,
}

impl FlowExport {
    /// Opens the table.
    ///
    /// # Errors
    /// The table does not exist, has no BTF, or lacks a field.
    pub(crate) fn open(pins: &Pins) -> Result<FlowExport, Error> {
        let records = pins.open_data(FLOWS)?;
        let what = |name| format!("read the map {}", pins.map(name).display());
        let [_, layout] = btf::layouts(&records).map_err(|error| failed(what(FLOWS), error))?;
        let (moves, generation) = moves(&layout).map_err(|missing| {
            let missing = format!("its values have no field {missing}");
            failed(what(FLOWS), io::Error::new(io::ErrorKind::Unsupported, missing))
        })?;
        if layout.size > MAX_RECORD {
            return Err(failed(what(FLOWS), format!("its values have {} bytes", layout.size)));
        }
        let bitmap = pins.open_data(FLOW_BITMAP)?;
        let map = |name, data: MapData, size| {
            let len = capacity(name, &data)?;
            MmapValues::new(data, len, size).map_err(|error| failed(format!("map {name} into memory"), error))
        };
        Ok(FlowExport {
            records: map(FLOWS, records, layout.size)?,
            bitmap: map(FLOW_BITMAP, bitmap, size_of::<u64>())?,
            size: layout.size,
            generation,
            moves,
        })
    }

    /// All flows.
    pub(crate) fn read(&self) -> impl Iterator<Item = ExportedFlow> {
        let words = (0..self.bitmap.len() as u32).map(|word| {
            let mut bits = [0; 8];
            self.bitmap.read(word, 0, &mut bits);
            (word, u64::from_ne_bytes(bits))
        });
        let used = words.flat_map(|(word, bits)| {
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
        });
        used.filter_map(|record| Some(ExportedFlow { record, flow: self.record(record)? }))
    }

    /// The flow in a record; `None` if the record is free, or changes all the time.
    pub(crate) fn record(&self, number: u32) -> Option<Flow> {
        let mut value = [0; MAX_RECORD];
        let value = value.get_mut(..self.size)?;
        for _ in 0..MAX_ATTEMPTS {
            if !self.records.read(number, 0, value) {
                return None;
            }
            fence(Ordering::Acquire);
            let mut after = [0; 2];
            self.records.read(number, self.generation, &mut after);
            let mut flow = Flow::zeroed();
            let bytes = bytemuck::bytes_of_mut(&mut flow);
            for Move { from, to, len } in &self.moves {
                bytes[*to..to + len].copy_from_slice(&value[*from..from + len]);
            }
            if !flow.head.exists() {
                return None;
            }
            if flow.head.generation == u16::from_ne_bytes(after) {
                return Some(flow);
            }
        }
        None
    }
}

/// The moves of all fields, and the offset of the generation; or the path of a field that is missing. Numbers are in the order
/// of bytes of this machine, which is little-endian on all that the programs are compiled for: a number that has grown
/// begins with its lower bytes.
fn moves(layout: &Layout) -> Result<(Vec<Move>, usize), String> {
    let mut moves = vec![];
    let mut generation = 0;
    for FlowField { path, offset, size, required } in flow_fields() {
        match layout.field(&path) {
            Some(Field { offset: from, size: found }) => {
                if path == "head.generation" {
                    generation = from;
                }
                moves.push(Move { from, to: offset, len: size.min(found) });
            }
            None if required => return Err(path),
            None => {}
        }
    }
    Ok((moves, generation))
}

/// `Node::phase` of other pins.
pub(crate) struct PhaseSwitch {
    map: MapData,
    field: Field,
    size: usize,
}

impl PhaseSwitch {
    /// Opens the map. `None` if programs of this version do not read a phase.
    pub(crate) fn open(pins: &Pins) -> Option<PhaseSwitch> {
        let map = pins.open_data(NODE).ok()?;
        let [_, layout] = btf::layouts(&map).ok()?;
        let field = layout.field("phase").filter(|field| field.size == size_of::<u32>())?;
        Some(PhaseSwitch { map, field, size: layout.size })
    }

    pub(crate) fn get(&self) -> Result<u32, Error> {
        let value = self.read()?;
        let bytes = value.get(self.field.offset..).and_then(|bytes| bytes.first_chunk());
        Ok(bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes)))
    }

    /// Sets the phase. Only one agent writes the map at a time.
    pub(crate) fn set(&self, phase: u32) -> Result<(), Error> {
        let mut value = self.read()?;
        if let Some(bytes) = value.get_mut(self.field.offset..self.field.offset + size_of::<u32>()) {
            bytes.copy_from_slice(&phase.to_ne_bytes());
        }
        syscall::write_array(self.map.fd(), 0, &value)
            .map_err(|error| failed(format!("write to the map {NODE} of another ABI version"), error))
    }

    fn read(&self) -> Result<Vec<u8>, Error> {
        let mut value = vec![0; self.size];
        syscall::read_array(self.map.fd(), 0, &mut value)
            .map_err(|error| failed(format!("read the map {NODE} of another ABI version"), error))?;
        Ok(value)
    }
}
