//! The program arrays by which programs continue in others (`contiv_abi::maps::STAGES`).
//!
//! Each load has its own array: a program must not tail-call a program of another build, whose per-CPU maps may have
//! another layout. The array of the previous load stays pinned, and so keeps its entries, until no interface has a
//! program that uses it.

use aya::maps::{Array, Map, MapData};
use contiv_abi::maps::{STAGES, Stage};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{pins::Pins, rcu, writes::Writes},
    },
};

/// Numbers of the pinned arrays, in ascending order. The last one belongs to the latest load.
fn numbers(pins: &Pins) -> Result<Vec<u32>, Error> {
    let number = |name: &String| name.strip_prefix(STAGES)?.strip_prefix('-')?.parse().ok();
    let mut numbers: Vec<u32> = pins.map_names()?.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}

/// Name of the pin.
fn pin(number: u32) -> String {
    format!("{STAGES}-{number}")
}

/// Name of the pin of the next load's array.
pub(crate) fn next(pins: &Pins) -> Result<String, Error> {
    Ok(pin(numbers(pins)?.last().map_or(1, |last| last + 1)))
}

/// Whether the latest array has a program for each stage.
pub(crate) fn is_complete(pins: &Pins) -> Result<bool, Error> {
    let Some(latest) = numbers(pins)?.pop() else { return Ok(false) };
    let name = pin(latest);
    // A lookup returns the id of the program, or ENOENT.
    let ids: Array<MapData, u32> = Array::try_from(Map::Array(pins.open_data(&name)?))
        .map_err(|error| failed(format!("open the map {name}"), error))?;
    Ok(Stage::ALL.iter().all(|stage| ids.get(&(*stage as u32), 0).is_ok()))
}

/// Names of the pins of earlier loads' arrays.
pub(crate) fn superseded(pins: &Pins) -> Result<Vec<String>, Error> {
    let mut numbers = numbers(pins)?;
    numbers.pop();
    Ok(numbers.into_iter().map(pin).collect())
}

/// Removes the arrays of earlier loads. No interface may have a program that uses them.
pub(crate) fn remove_superseded(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    let names = superseded(pins)?;
    if names.is_empty() {
        return Ok(());
    }
    // A replaced program may still run.
    rcu::synchronize();
    for name in names {
        writes.count();
        pins.unpin(&pins.map(&name))?;
    }
    Ok(())
}
