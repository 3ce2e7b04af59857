//! Pending counters of the programs' flow cache.
//!
//! A cache entry in use flushes its counters to the flow and the service once per second. An idle entry keeps its counters
//! until it is evicted, so readers add them. The result may lack the traffic of the last two seconds. It never counts a
//! packet twice, and never decreases.

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

/// Maximum number of attempts to read a consistent snapshot.
const MAX_ATTEMPTS: usize = 5;

/// Reads counters together with the pending counters of idle cache entries. Repeats the read if an entry was flushed
/// meanwhile.
pub(crate) fn with_pending<T>(
    pins: &Pins,
    mut read: impl FnMut() -> Result<T, Error>,
) -> Result<(T, Vec<FlowCacheEntry>), Error> {
    let mut attempts = 0;
    loop {
        let now = since_boot();
        let before = pending(pins, now)?;
        let counters = read()?;
        attempts += 1;
        if pending(pins, now)? == before || attempts == MAX_ATTEMPTS {
            return Ok((counters, before));
        }
    }
}

/// Cache entries with pending counters that are idle at the time `now`.
fn pending(pins: &Pins, now: u64) -> Result<Vec<FlowCacheEntry>, Error> {
    let cpus = nr_cpus().map_err(|(_, error)| failed("count the CPUs", error))?;
    let mut found = vec![];
    batch::read(
        FLOW_CACHE,
        &pins.open_data(FLOW_CACHE)?,
        cpus,
        |_index: u32, entries: &[FlowCacheEntry]| {
            found.extend(entries.iter().filter(|entry| entry.packets != 0 && entry.is_at_rest(now)));
            true
        },
    )?;
    Ok(found)
}

/// `CLOCK_MONOTONIC` in nanoseconds, the clock of the programs.
fn since_boot() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the structure; it fails only for unknown clocks.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
        time.assume_init()
    };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
