//! What packets have left behind: counts of rules and services, and how full the maps are that the programs fill.

use std::collections::HashMap;

use aya::{Pod, util::nr_cpus};
use contiv_abi::{
    DsrEntry, Flow, FlowCacheEntry, FlowKey, FragmentKey, FragmentPorts,
    maps::{DSR_FLOWS, FRAGMENTS, METERS, NEW_FLOWS, RULE_COUNTS, SERVICE_COUNTS, SERVICE_COUNTS_CAPACITY},
    policy::{Meter, MeterKey, RuleCount},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{
            batch,
            names::{RuleNames, ServiceNames},
            pins::Pins,
            usage,
        },
        service::counts::Counts,
        telemetry::pending,
    },
    telemetry::{Counters, TableUsage, Traffic},
};

/// Reads them; nothing is written by it.
pub(crate) fn read(pins: &Pins, rules: &RuleNames, services: &ServiceNames) -> Result<Counters, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    let by_rule = sums(pins, RULE_COUNTS, cpus, |counts: &[RuleCount]| {
        traffic(counts.iter().map(|count| (count.packets, count.bytes)))
    })?;
    let counts = Counts::new(pins.open_data(SERVICE_COUNTS)?)?;
    let (mut by_service, rests) = pending::with_rests(pins, || Ok(counts.sums()))?;
    let mut rests_by_service: HashMap<u32, Vec<&FlowCacheEntry>> = HashMap::new();
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
        usage::flows(pins)?,
        usage::fill::<FlowKey, Flow>(pins, NEW_FLOWS, 1)?,
        usage::fill::<FragmentKey, FragmentPorts>(pins, FRAGMENTS, 1)?,
        usage::clients(pins)?,
        usage::fill::<FlowKey, DsrEntry>(pins, DSR_FLOWS, 1)?,
        usage::fill::<MeterKey, Meter>(pins, METERS, 1)?,
    ];
    let rules_room = usage::room(RULE_COUNTS, &pins.open_data(RULE_COUNTS)?)?;
    tables.push(TableUsage { table: RULE_COUNTS, entries: by_rule.len(), capacity: rules_room });
    tables.push(TableUsage {
        table: SERVICE_COUNTS,
        entries: by_service.len(),
        capacity: SERVICE_COUNTS_CAPACITY,
    });
    let (mut rules, mut services) = (rules.named(by_rule), services.named(by_service));
    rules.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    services.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(Counters { rules, services, tables })
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
    batch::read(name, &pins.open_data(name)?, cpus, |number, values| {
        counts.push((number, sum(values)));
        true
    })?;
    Ok(counts)
}
