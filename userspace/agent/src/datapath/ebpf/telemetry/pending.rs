//! What has taken the programs' shortcuts and is not counted elsewhere yet.
//!
//! A shortcut that is in use hands over what it has let through once in a second. One that no packet takes any more keeps the
//! rest until its place is needed; so whoever reads counts adds that. What has passed in the last two seconds may be missing;
//! nothing is ever told twice, and no count goes back.

use std::mem::MaybeUninit;

use aya::util::nr_cpus;
use contiv_abi::{FlowCacheEntry, maps::FLOW_CACHE};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{batch, pins::Pins},
    },
};

/// How often counts are read until nothing was handed over meanwhile.
const TRIES: usize = 5;

/// Reads counts, and the rests that belong to them.
pub(crate) fn with_rests<T>(
    pins: &Pins,
    mut read: impl FnMut() -> Result<T, Error>,
) -> Result<(T, Vec<FlowCacheEntry>), Error> {
    let mut tries = 0;
    loop {
        let now = since_boot();
        let before = rests(pins, now)?;
        let counts = read()?;
        tries += 1;
        if rests(pins, now)? == before || tries == TRIES {
            return Ok((counts, before));
        }
    }
}

/// Of shortcuts that were at rest at this time.
fn rests(pins: &Pins, now: u64) -> Result<Vec<FlowCacheEntry>, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    let mut found = vec![];
    batch::read(
        FLOW_CACHE,
        &pins.open_data(FLOW_CACHE)?,
        cpus,
        |_place: u32, shortcuts: &[FlowCacheEntry]| {
            found.extend(
                shortcuts.iter().filter(|shortcut| shortcut.packets != 0 && shortcut.is_at_rest(now)),
            );
            true
        },
    )?;
    Ok(found)
}

/// In nanoseconds, as the programs tell the time.
fn since_boot() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills what it is given; it fails only for clocks that are not there.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
