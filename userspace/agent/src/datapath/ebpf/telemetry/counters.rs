//! Counters of rules and services, and usage of the maps that the programs fill.

use aya::{Pod, util::nr_cpus};
use contiv_abi::{
    FragmentKey, FragmentPorts,
    maps::{FRAGMENTS, METERS, RULE_COUNTS, SERVICE_COUNTS},
    policy::{Meter, MeterKey, RuleCount},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{
            batch, flows,
            names::{RuleNames, ServiceNames},
            pins::Pins,
            sizes::Sizes,
            usage,
        },
        service::counters::CounterMap,
    },
    telemetry::{Counters, TableUsage, Traffic},
};

/// Reads all counters. Writes nothing.
pub(crate) fn read(pins: &Pins, rules: &RuleNames, services: &ServiceNames) -> Result<Counters, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    let by_rule = sums(pins, RULE_COUNTS, cpus, |counts: &[RuleCount]| {
        traffic(counts.iter().map(|count| (count.packets, count.bytes)))
    })?;
    let rows = Sizes::default().of_pinned(pins)?.service_counts()?;
    let counters = CounterMap::new(pins.open_data(SERVICE_COUNTS)?, rows)?;
    let by_service = counters.sums();
    let mut tables = vec![
        flows::usage(pins)?,
        usage::of_hash::<FragmentKey, FragmentPorts>(pins, FRAGMENTS, 1)?,
        usage::of_affinity(pins)?,
        usage::of_dsr(pins)?,
        usage::of_hash::<MeterKey, Meter>(pins, METERS, 1)?,
    ];
    let capacity = usage::capacity(RULE_COUNTS, &pins.open_data(RULE_COUNTS)?)?;
    tables.push(TableUsage { table: RULE_COUNTS, entries: by_rule.len(), capacity });
    tables.push(TableUsage {
        table: SERVICE_COUNTS,
        entries: by_service.len(),
        capacity: counters.capacity(),
    });
    let (mut rules, mut services) = (rules.resolve(by_rule), services.resolve(by_service));
    rules.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    services.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    Ok(Counters { rules, services, tables, drops: vec![] })
}

fn traffic(counts: impl Iterator<Item = (u64, u64)>) -> Traffic {
    counts.fold(Traffic::default(), |sum, (packets, bytes)| Traffic {
        packets: sum.packets + packets,
        bytes: sum.bytes + bytes,
    })
}

/// Entries of a per-CPU map, with the values of all CPUs summed.
fn sums<V: Pod, S>(
    pins: &Pins,
    name: &'static str,
    cpus: usize,
    sum: impl Fn(&[V]) -> S,
) -> Result<Vec<(u32, S)>, Error> {
    // The kernel pads the value of each CPU to eight bytes.
    const { assert!(size_of::<V>().is_multiple_of(8)) };
    let mut counts = vec![];
    batch::read(name, &pins.open_data(name)?, cpus, |number, values| {
        counts.push((number, sum(values)));
        true
    })?;
    Ok(counts)
}
