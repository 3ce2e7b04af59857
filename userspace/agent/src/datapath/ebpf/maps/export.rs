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
    /// The flow cannot be imported without the field.
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

/// Returns the fields of a flow that are imported. Rule numbers are not imported: they are valid only for the policies of
/// one version.
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
            packets: 8, bytes: 8, verdict: 8, service: 4, rule: 4, made: 4, owner: 4, identities: 4
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
    decoder: Decoder,
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
        let decoder = Decoder::new(&layout).map_err(|missing| {
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
            decoder,
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

    /// Returns the flow in a record; `None` if the record is free or changes during each attempt.
    pub(crate) fn record(&self, number: u32) -> Option<Flow> {
        let mut value = [0; MAX_RECORD];
        let value = value.get_mut(..self.decoder.size)?;
        for _ in 0..MAX_ATTEMPTS {
            if !self.records.read(number, 0, value) {
                return None;
            }
            fence(Ordering::Acquire);
            let mut after = [0; 2];
            self.records.read(number, self.decoder.generation, &mut after);
            let flow = self.decoder.decode(value);
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

/// Reads flows of one layout. Numbers are in the byte order of this machine, which is little-endian on all targets of the
/// programs: a number that has grown begins with its lower bytes.
struct Decoder {
    /// Size of a record in bytes.
    size: usize,
    /// Offset of the generation.
    generation: usize,
    moves: Vec<Move>,
    /// The records have the groups of endpoints in another field.
    has_identities: bool,
}

impl Decoder {
    /// Returns the path of a field that is missing, if there is one.
    fn new(layout: &Layout) -> Result<Decoder, String> {
        let mut moves = vec![];
        for FlowField { path, offset, size, required } in flow_fields() {
            match layout.field(&path) {
                Some(Field { offset: from, size: found }) => {
                    moves.push(Move { from, to: offset, len: size.min(found) });
                }
                None if required => return Err(path),
                None => {}
            }
        }
        Ok(Decoder {
            size: layout.size,
            generation: layout.field("head.generation").map_or(0, |field| field.offset),
            moves,
            has_identities: layout.field("halves[0].identities").is_some(),
        })
    }

    /// The flow in a record of `size` bytes.
    fn decode(&self, value: &[u8]) -> Flow {
        let mut flow = Flow::zeroed();
        let bytes = bytemuck::bytes_of_mut(&mut flow);
        for Move { from, to, len } in &self.moves {
            if let Some(field) = value.get(*from..from + len) {
                bytes[*to..to + len].copy_from_slice(field);
            }
        }
        if !self.has_identities {
            for half in &mut flow.halves {
                half.identities = half.groups.map(|group| if group == 0 { FlowHalf::UNKNOWN } else { group });
            }
        }
        flow
    }
}

/// `Node::phase` of other pins.
pub(crate) struct PhaseSwitch {
    map: MapData,
    field: Field,
    size: usize,
}

impl PhaseSwitch {
    /// Opens the map. Returns `None` if the programs of these pins do not read a phase.
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

#[cfg(test)]
mod tests {
    use bytemuck::bytes_of;
    use contiv_abi::{Address, Be16};

    use super::*;

    /// The fields of this version in another order, each followed by four bytes.
    fn reordered(without: &str) -> Layout {
        let mut layout = Layout::default();
        for FlowField { path, size, .. } in flow_fields().into_iter().rev() {
            if !path.ends_with(without) {
                layout.insert(&path, Field { offset: layout.size, size: size + 4 });
                layout.size += size + 4;
            }
        }
        layout
    }

    fn flow() -> Flow {
        let mut flow = Flow::zeroed();
        for (index, byte) in bytemuck::bytes_of_mut(&mut flow).iter_mut().enumerate() {
            *byte = index as u8;
        }
        for half in &mut flow.halves {
            half.receiver = 0;
        }
        (flow.client, flow.nat_port) = (Address::v4([10, 1, 1, 1]), Be16::new(4000));
        flow.halves[0].groups = [7, 0];
        flow
    }

    /// A record of the layout.
    fn encode(flow: &Flow, layout: &Layout) -> Vec<u8> {
        let mut value = vec![0; layout.size];
        for FlowField { path, offset, size, .. } in flow_fields() {
            if let Some(field) = layout.field(&path) {
                value[field.offset..field.offset + size]
                    .copy_from_slice(&bytes_of(flow)[offset..offset + size]);
            }
        }
        value
    }

    #[test]
    fn flows_of_any_layout_are_read_by_the_names_of_their_fields() {
        let layout = reordered("none");
        let decoder = Decoder::new(&layout).unwrap();
        assert_eq!(decoder.decode(&encode(&flow(), &layout)), flow());
        assert_eq!(Some(decoder.generation), layout.field("head.generation").map(|field| field.offset));
    }

    #[test]
    fn a_version_without_identities_knows_local_groups_only() {
        let layout = reordered("identities");
        let read = Decoder::new(&layout).unwrap().decode(&encode(&flow(), &layout));
        assert_eq!(read.halves[0].identities, [7, FlowHalf::UNKNOWN]);
    }

    #[test]
    fn a_missing_field_is_named() {
        let missing = Decoder::new(&reordered("acknowledged")).err();
        assert_eq!(missing.as_deref(), Some("halves[0].acknowledged"));
        assert!(Decoder::new(&reordered("bytes")).is_ok(), "a counter may be missing");
    }
}
