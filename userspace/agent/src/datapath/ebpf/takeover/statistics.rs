//! Counters of another ABI version, which operators graph.

use std::ops::AddAssign;

use aya::{
    Pod,
    maps::{MapData, PerCpuArray, PerCpuValues},
    util::nr_cpus,
};
use contiv_abi::{
    DropCount, ServiceCountRows,
    maps::{DROPS, DSR_STATS, FLOW_STATS, SERVICE_COUNTS},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{btf, pins::Pins, usage},
        service::counters::CounterMap,
    },
};

/// Adds the counters of `other` to those of `own`: drops, events of flows, forwarded frames, and services that have the
/// same number. Counters of another layout are not added.
///
/// Counts by programs of `own` on other CPUs between a read and the write, some microseconds, are lost.
pub(super) fn add(own: &Pins, other: &Pins) -> Result<(), Error> {
    add_array::<DropCount>(own, other, DROPS, add_frames)?;
    add_array::<DropCount>(own, other, DSR_STATS, add_frames)?;
    add_array::<u64>(own, other, FLOW_STATS, u64::add_assign)?;
    if btf::are_alike(&own.open_data(SERVICE_COUNTS)?, &other.open_data(SERVICE_COUNTS)?) {
        service_counts(own)?.add(&service_counts(other)?);
    }
    Ok(())
}

/// Opens the counters of services. The number of entries determines their layout.
fn service_counts(pins: &Pins) -> Result<CounterMap, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))? as u32;
    let data = pins.open_data(SERVICE_COUNTS)?;
    let slots = usage::capacity(SERVICE_COUNTS, &data)? as u32 / cpus;
    CounterMap::new(data, ServiceCountRows { slots, rows: cpus })
}

fn add_frames(to: &mut DropCount, from: DropCount) {
    to.packets += from.packets;
    to.bytes += from.bytes;
}

fn add_array<V: Pod>(
    own: &Pins,
    other: &Pins,
    name: &'static str,
    add: impl Fn(&mut V, V),
) -> Result<(), Error> {
    if !btf::are_alike(&own.open_data(name)?, &other.open_data(name)?) {
        return Ok(());
    }
    let read = |error| failed(format!("read the map {name}"), error);
    let mut to: PerCpuArray<MapData, V> = own.open_map(name)?;
    let from: PerCpuArray<MapData, V> = other.open_map(name)?;
    for index in 0..to.len().min(from.len()) {
        let mut sums: Vec<V> = to.get(&index, 0).map_err(read)?.iter().copied().collect();
        for (sum, more) in sums.iter_mut().zip(from.get(&index, 0).map_err(read)?.iter()) {
            add(sum, *more);
        }
        let write = |error| failed(format!("write to the map {name}"), error);
        let sums = PerCpuValues::try_from(sums)
            .map_err(|error| failed(format!("write to the map {name}"), error))?;
        to.set(index, sums, 0).map_err(write)?;
    }
    Ok(())
}
