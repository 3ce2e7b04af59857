//! What packets have left behind: counts of rules and services, and how full the maps are that the programs fill.

use std::collections::HashMap;

use aya::{Pod, maps::MapData, util::nr_cpus};
use contiv_abi::{
    AffinityBlock, Flow, FlowKey, FragmentKey, FragmentPorts, Relay, Shortcut, TimedFlow,
    maps::{
        AFFINITY, AFFINITY_CAPACITY, FLOWS, FRAGMENTS, METERS, NEW_FLOWS, RELAYS, RULE_COUNTS,
        SERVICE_COUNTS, SERVICE_COUNTS_CAPACITY,
    },
    policy::{Meter, MeterKey, RuleCount},
};

use super::{
    batch,
    counts::Counts,
    failure::failed,
    kernel::open_data,
    mapping::Mapping,
    names::{RuleNames, ServiceNames},
    pins::Pins,
    shortcuts,
};
use crate::datapath::{
    Error, Fill,
    sight::{Tallies, Traffic},
};

/// Reads them; nothing is written by it.
pub(super) fn read(pins: &Pins, rules: &RuleNames, services: &ServiceNames) -> Result<Tallies, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    let by_rule = sums(pins, RULE_COUNTS, cpus, |counts: &[RuleCount]| {
        traffic(counts.iter().map(|count| (count.packets, count.bytes)))
    })?;
    let counts = Counts::new(open_data(pins, SERVICE_COUNTS)?)?;
    let (mut by_service, rests) = shortcuts::with_rests(pins, || Ok(counts.sums()))?;
    let mut rests_by_service: HashMap<u32, Vec<&Shortcut>> = HashMap::new();
    for rest in &rests {
        rests_by_service.entry(rest.service).or_default().push(rest);
    }
    for (number, served) in &mut by_service {
        for rest in rests_by_service.get(number).into_iter().flatten() {
            let side = if rest.side == 0 { &mut served.to_backends } else { &mut served.to_clients };
            side.packets += rest.packets;
            side.bytes += rest.bytes;
        }
    }
    let mut tables = vec![
        flows(pins)?,
        fill::<FlowKey, Flow>(pins, NEW_FLOWS, 1)?,
        fill::<FragmentKey, FragmentPorts>(pins, FRAGMENTS, 1)?,
        clients(pins)?,
        fill::<FlowKey, Relay>(pins, RELAYS, 1)?,
        fill::<MeterKey, Meter>(pins, METERS, 1)?,
    ];
    let rules_room = room(RULE_COUNTS, &open_data(pins, RULE_COUNTS)?)?;
    tables.push(Fill { table: RULE_COUNTS, entries: by_rule.len(), room: rules_room });
    tables.push(Fill { table: SERVICE_COUNTS, entries: by_service.len(), room: SERVICE_COUNTS_CAPACITY });
    let (mut rules, mut services) = (rules.named(by_rule), services.named(by_service));
    rules.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    services.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(Tallies { rules, services, tables })
}

fn traffic(counts: impl Iterator<Item = (u64, u64)>) -> Traffic {
    counts.fold(Traffic::default(), |sum, (packets, bytes)| Traffic {
        packets: sum.packets + packets,
        bytes: sum.bytes + bytes,
    })
}

/// The entries of a map that each CPU has its own values in, summed up.
fn sums<V: Pod, S>(
    pins: &Pins,
    name: &'static str,
    cpus: usize,
    sum: impl Fn(&[V]) -> S,
) -> Result<Vec<(u32, S)>, Error> {
    // The kernel gives out each CPU's value rounded up to eight bytes.
    const { assert!(size_of::<V>().is_multiple_of(8)) };
    let mut counts = vec![];
    batch::read(name, &open_data(pins, name)?, cpus, |number, values| {
        counts.push((number, sum(values)));
        true
    })?;
    Ok(counts)
}

/// Entries that are counted one by one; of more than these, the number is an estimate.
const SAMPLE: usize = 16_384;

/// How full a map is that the programs fill.
///
/// The kernel tells nobody how many entries a map has, and to walk a million takes a second. Hashes spread evenly over
/// the buckets, so the first buckets tell how many there are in all: within 1 in 100 in two cases of three, since the
/// number in a share of the buckets varies by its square root.
fn fill<K: Pod, V: Pod>(pins: &Pins, table: &'static str, copies: usize) -> Result<Fill, Error> {
    let map = open_data(pins, table)?;
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
    Ok(Fill { table, entries, room })
}

/// How full the table of flows that were answered is.
pub(super) fn flows(pins: &Pins) -> Result<Fill, Error> {
    fill::<FlowKey, TimedFlow>(pins, FLOWS, 1)
}

/// Clients that are remembered, counted one by one: four megabytes, which nobody has to be asked for.
fn clients(pins: &Pins) -> Result<Fill, Error> {
    let blocks: Mapping<AffinityBlock> = Mapping::new(open_data(pins, AFFINITY)?, AFFINITY_CAPACITY)
        .map_err(|error| failed(format!("map {AFFINITY} into memory"), error))?;
    let taken = |block: AffinityBlock| block.clients.iter().filter(|client| client.tag != 0).count();
    let entries = (0..AFFINITY_CAPACITY as u32).filter_map(|block| blocks.get(block)).map(taken).sum();
    Ok(Fill { table: AFFINITY, entries, room: AFFINITY_CAPACITY * AffinityBlock::LEN })
}

fn room(name: &'static str, map: &MapData) -> Result<usize, Error> {
    let info = map.info().map_err(|error| failed(format!("look at the map {name}"), error))?;
    Ok(info.max_entries() as usize)
}
