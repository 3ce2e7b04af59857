//! Jumps of the wall clock.

use std::{thread, time::Instant};

use anyhow::Result;
use testkit::ClockJump;

use super::{Fault, Kind, MAX_PAUSE, duration, during, pause_at_most};
use crate::faults::random::Random;

/// Seconds and what statistics call them.
const JUMPS: [(i64, &str); 6] = [
    (-2 * 86_400, "-2 days"),
    (-3600, "-1 h"),
    (-10, "-10 s"),
    (10, "+10 s"),
    (3600, "+1 h"),
    (2 * 86_400, "+2 days"),
];

/// Sets the clock of the machine to a wrong time and back, one time after the other, until `end`. There is nothing to get over: the
/// programs go on.
pub(super) fn jumps(kinds: &[Kind], seed: u64, end: Instant) -> Result<Vec<Fault>> {
    let mut random = Random::new(seed);
    let mut faults = Vec::new();
    while kinds.contains(&Kind::ClockJump) && pause_at_most(MAX_PAUSE, &mut random, end)? {
        let (seconds, name) = *random.pick(&JUMPS).unwrap_or(&JUMPS[0]);
        let duration = duration(&mut random);
        faults.push(during(Kind::ClockJump, name, || {
            let jump = ClockJump::by(seconds)?;
            thread::sleep(duration);
            jump.revert()
        })?);
    }
    Ok(faults)
}
