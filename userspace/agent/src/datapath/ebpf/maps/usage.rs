//! Number of entries in the maps that the programs fill.

use aya::{Pod, maps::MapData};
use contiv_abi::{
    AffinityBlock, DsrEntry, DsrSet,
    maps::{AFFINITY, AFFINITY_CAPACITY, DSR_FLOWS, DSR_FLOWS_CAPACITY},
};

use super::{batch, mmap::MmapArray, pins::Pins};
use crate::datapath::{Error, ebpf::failure::failed, telemetry::TableUsage};

/// Number of entries that are counted exactly; above it the result is an estimate.
const SAMPLE: usize = 16_384;

/// Usage of a hash map.
///
/// The kernel does not report the number of entries of a hash map, and a walk over a million entries takes a second.
/// Hashes are uniformly distributed over the buckets, so the density of the first buckets gives the total. The standard
/// deviation is 1 %.
pub(crate) fn of_hash<K: Pod, V: Pod>(
    pins: &Pins,
    table: &'static str,
    copies: usize,
) -> Result<TableUsage, Error> {
    let map = pins.open_data(table)?;
    let capacity = capacity(table, &map)?;
    let mut entries = 0;
    let stopped = batch::read(table, &map, copies, |_: K, _: &[V]| {
        entries += 1;
        entries < SAMPLE
    })?;
    if let Some(buckets) = stopped {
        // The number of buckets as `htab_map_alloc` in kernel/bpf/hashtab.c chooses it.
        let all = capacity.next_power_of_two();
        entries = (entries * all / (buckets as usize).max(1)).min(capacity);
    }
    Ok(TableUsage { table, entries, capacity })
}

/// Usage of the session affinity table. Reads the whole mapping (4 MB).
pub(crate) fn of_affinity(pins: &Pins) -> Result<TableUsage, Error> {
    let blocks: MmapArray<AffinityBlock> = MmapArray::new(pins.open_data(AFFINITY)?, AFFINITY_CAPACITY)
        .map_err(|error| failed(format!("map {AFFINITY} into memory"), error))?;
    let used = |block: AffinityBlock| block.clients.iter().filter(|client| client.tag != 0).count();
    let entries = (0..AFFINITY_CAPACITY as u32).filter_map(|block| blocks.get(block)).map(used).sum();
    Ok(TableUsage { table: AFFINITY, entries, capacity: AFFINITY_CAPACITY * AffinityBlock::LEN })
}

/// The entries of the table of connections that are forwarded to other nodes, set by set, in the memory of the process.
pub(crate) fn dsr_entries(pins: &Pins) -> Result<MmapArray<DsrEntry>, Error> {
    MmapArray::new(pins.open_data(DSR_FLOWS)?, DSR_FLOWS_CAPACITY * DsrSet::LEN)
        .map_err(|error| failed(format!("map {DSR_FLOWS} into memory"), error))
}

/// Usage of that table. Reads the whole mapping (2 MiB).
pub(crate) fn of_dsr(pins: &Pins) -> Result<TableUsage, Error> {
    let (table, capacity) = (dsr_entries(pins)?, DSR_FLOWS_CAPACITY * DsrSet::LEN);
    let entries = (0..capacity as u32).filter_map(|number| table.get(number));
    Ok(TableUsage { table: DSR_FLOWS, entries: entries.filter(DsrEntry::is_used).count(), capacity })
}

/// Maximum number of entries of a map.
pub(crate) fn capacity(name: &'static str, map: &MapData) -> Result<usize, Error> {
    let info = map.info().map_err(|error| failed(format!("query the map {name}"), error))?;
    Ok(info.max_entries() as usize)
}
