//! Number of entries in the maps that the programs fill.

use aya::{Pod, maps::MapData};
use contiv_abi::{
    AffinityBlock, FlowKey, TimedFlow,
    maps::{AFFINITY, AFFINITY_CAPACITY, FLOWS},
};

use super::{batch, mmap::Mapping, pins::Pins};
use crate::datapath::{Error, ebpf::failure::failed, telemetry::TableUsage};

/// Entries that are counted one by one; of more than these, the number is an estimate.
const SAMPLE: usize = 16_384;

/// How full a map is that the programs fill.
///
/// The kernel tells nobody how many entries a map has, and to walk a million takes a second. Hashes spread evenly over
/// the buckets, so the first buckets tell how many there are in all: within 1 in 100 in two cases of three, since the
/// number in a share of the buckets varies by its square root.
pub(crate) fn fill<K: Pod, V: Pod>(
    pins: &Pins,
    table: &'static str,
    copies: usize,
) -> Result<TableUsage, Error> {
    let map = pins.open_data(table)?;
    let room = room(table, &map)?;
    let mut entries = 0;
    let stopped = batch::read(table, &map, copies, |_: K, _: &[V]| {
        entries += 1;
        entries < SAMPLE
    })?;
    if let Some(buckets) = stopped {
        // As the kernel does (`htab_map_alloc`).
        let all = room.next_power_of_two();
        entries = (entries * all / (buckets as usize).max(1)).min(room);
    }
    Ok(TableUsage { table, entries, capacity: room })
}

/// How full the table of flows that were answered is.
pub(crate) fn flows(pins: &Pins) -> Result<TableUsage, Error> {
    fill::<FlowKey, TimedFlow>(pins, FLOWS, 1)
}

/// Clients that are remembered, counted one by one: four megabytes, which nobody has to be asked for.
pub(crate) fn clients(pins: &Pins) -> Result<TableUsage, Error> {
    let blocks: Mapping<AffinityBlock> = Mapping::new(pins.open_data(AFFINITY)?, AFFINITY_CAPACITY)
        .map_err(|error| failed(format!("map {AFFINITY} into memory"), error))?;
    let taken = |block: AffinityBlock| block.clients.iter().filter(|client| client.tag != 0).count();
    let entries = (0..AFFINITY_CAPACITY as u32).filter_map(|block| blocks.get(block)).map(taken).sum();
    Ok(TableUsage { table: AFFINITY, entries, capacity: AFFINITY_CAPACITY * AffinityBlock::LEN })
}

pub(crate) fn room(name: &'static str, map: &MapData) -> Result<usize, Error> {
    let info = map.info().map_err(|error| failed(format!("look at the map {name}"), error))?;
    Ok(info.max_entries() as usize)
}
