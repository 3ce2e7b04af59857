//! The flow table, in the memory of the process. The programs write it at any time.

use std::sync::atomic::{Ordering, fence};

use aya::maps::MapData;
use contiv_abi::{
    Flow, FlowCollector, FlowTableSize,
    maps::{FLOW_BITMAP, FLOW_COLLECTOR, FLOW_COUNTS, FLOW_INDEX, FLOW_LOCKS, FLOWS, NODE},
};

use super::{mmap::MmapArray, pins::Pins, usage, writes::Writes};
use crate::datapath::{Error, ebpf::failure::failed, telemetry::TableUsage};

/// Maps that make up the table, without those that do not depend on its size.
const SIZED: [&str; 4] = [FLOWS, FLOW_INDEX, FLOW_LOCKS, FLOW_BITMAP];

/// Maximum number of attempts to read a record that changes.
const MAX_ATTEMPTS: usize = 5;

/// Numbers of entries of the maps of a table with `flows` records.
pub(crate) fn sizes(flows: u32) -> [(&'static str, u32); 4] {
    let size = FlowTableSize { flows };
    [(FLOWS, flows), (FLOW_INDEX, size.buckets()), (FLOW_LOCKS, size.pages()), (FLOW_BITMAP, size.words())]
}

/// The records.
pub(crate) struct FlowTable {
    records: MmapArray<Flow>,
    bitmap: MmapArray<u64>,
    words: u32,
}

impl FlowTable {
    pub(crate) fn open(pins: &Pins) -> Result<FlowTable, Error> {
        let map = |name: &'static str| -> Result<(MapData, usize), Error> {
            let data = pins.open_data(name)?;
            let capacity = usage::capacity(name, &data)?;
            Ok((data, capacity))
        };
        let (records, flows) = map(FLOWS)?;
        let (bitmap, words) = map(FLOW_BITMAP)?;
        let mapped = |name, error| failed(format!("map {name} into memory"), error);
        Ok(FlowTable {
            records: MmapArray::new(records, flows).map_err(|error| mapped(FLOWS, error))?,
            bitmap: MmapArray::new(bitmap, words).map_err(|error| mapped(FLOW_BITMAP, error))?,
            words: words as u32,
        })
    }

    /// All flows.
    pub(crate) fn read(&self) -> impl Iterator<Item = Flow> {
        let used = (0..self.words).flat_map(|word| {
            let bits = self.bitmap.get(word).unwrap_or(0);
            (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| word * 64 + bit)
        });
        used.filter_map(|number| self.record(number))
    }

    /// Returns the flow in a record; `None` if the record is free or changes during each attempt.
    fn record(&self, number: u32) -> Option<Flow> {
        for _ in 0..MAX_ATTEMPTS {
            let flow = self.records.get(number)?;
            fence(Ordering::Acquire);
            if !flow.head.exists() {
                return None;
            }
            if self.records.get(number)?.head == flow.head {
                return Some(flow);
            }
        }
        None
    }

    fn used(&self) -> usize {
        (0..self.words).filter_map(|word| self.bitmap.get(word)).map(|bits| bits.count_ones() as usize).sum()
    }
}

/// Number of flows, and of records.
pub(crate) fn usage(pins: &Pins) -> Result<TableUsage, Error> {
    let capacity = usage::capacity(FLOWS, &pins.open_data(FLOWS)?)?;
    Ok(TableUsage { table: FLOWS, entries: FlowTable::open(pins)?.used(), capacity })
}

/// The flow table before the programs are loaded.
pub(crate) struct Prepared {
    /// Capacity after the load.
    pub(crate) capacity: u32,
    /// A table of another capacity, whose flows are to be imported.
    pub(crate) resized: Option<Pins>,
}

/// Reports whether a table of `capacity` records can hold this number of flows. Records are allocated near the position
/// of their hash, so a table cannot be filled completely.
pub(crate) fn fits(flows: usize, capacity: u32) -> bool {
    flows <= capacity as usize / 4 * 3
}

/// Moves the pins of a table whose capacity is not `desired` away, so that the load creates a new one. Keeps a table with
/// more flows than the new one can hold.
pub(crate) fn prepare(pins: &Pins, desired: u32, writes: &Writes) -> Result<Prepared, Error> {
    let resized = pins.resized();
    finish_removal(pins, &resized, writes)?;
    // A process may have stopped in between. Maps that have not been moved yet belong to the old table.
    if table_maps().any(|name| resized.map(name).exists()) {
        move_away(pins, writes)?;
        if is_consistent(pins)? {
            let capacity = usage(pins)?.capacity as u32;
            return Ok(Prepared { capacity, resized: Some(resized) });
        }
        unpin(pins, writes)?;
        return Ok(Prepared { capacity: desired, resized: Some(resized) });
    }
    let mut capacity = desired;
    if SIZED.iter().any(|name| pins.map(name).exists()) {
        if !is_consistent(pins)? {
            unpin(pins, writes)?;
        } else {
            let current = usage(pins)?;
            if current.capacity != desired as usize && fits(current.entries, desired) {
                tracing::info!(
                    "change the capacity of the map {FLOWS} from {} to {desired}; import {} flows",
                    current.capacity,
                    current.entries
                );
                move_away(pins, writes)?;
                return Ok(Prepared { capacity: desired, resized: Some(resized) });
            }
            capacity = current.capacity as u32;
        }
    }
    Ok(Prepared { capacity, resized: None })
}

/// Removes the remaining maps of an old table if its import has ended. All maps of the new table are created after the
/// first map of the old table has been moved away and before the first of them is removed. So only after the import, some
/// maps are missing there and none here.
fn finish_removal(pins: &Pins, resized: &Pins, writes: &Writes) -> Result<(), Error> {
    let left = table_maps().filter(|name| resized.map(name).exists()).count();
    let is_partial = left > 0 && left < table_maps().count();
    let is_complete = table_maps().all(|name| pins.map(name).exists());
    if is_partial && is_complete && is_consistent(pins)? {
        let removed = resized.remove_all()?;
        (0..removed).for_each(|_| writes.count());
    }
    Ok(())
}

/// Maps that are replaced together: those of the table, and the settings that its programs read.
fn table_maps() -> impl Iterator<Item = &'static str> {
    SIZED.into_iter().chain([FLOW_COUNTS, FLOW_COLLECTOR, NODE])
}

fn move_away(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    for name in table_maps() {
        writes.count();
        pins.move_to_resized(name)?;
    }
    Ok(())
}

fn unpin(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    for name in SIZED.into_iter().chain([FLOW_COUNTS]) {
        writes.count();
        // Attached programs use the unpinned map until the load replaces them.
        pins.unpin(&pins.map(name))?;
    }
    Ok(())
}

/// Reports whether all maps of the table exist and fit together. A process may have stopped between two pins.
fn is_consistent(pins: &Pins) -> Result<bool, Error> {
    if !SIZED.iter().chain([&FLOW_COUNTS]).all(|name| pins.map(name).exists()) {
        return Ok(false);
    }
    let flows = usage::capacity(FLOWS, &pins.open_data(FLOWS)?)? as u32;
    for (name, entries) in sizes(flows) {
        if usage::capacity(name, &pins.open_data(name)?)? != entries as usize {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Cancels the timer that removes expired flows; the next flow arms it with the current programs.
pub(crate) fn reset_collector(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    let mut collector: aya::maps::Array<MapData, FlowCollector> = pins.open_map(FLOW_COLLECTOR)?;
    writes.count();
    collector
        .set(0, FlowCollector::default(), 0)
        .map_err(|error| failed(format!("write to the map {FLOW_COLLECTOR}"), error))
}
