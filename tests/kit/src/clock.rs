//! Jumps of the wall clock. It cannot be namespaced, so only virtual machines of the tests have them.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::time::ClockId;

/// Parameter of the kernel in the guests of `cargo xtask vm`, which no process can set.
const MARK: &str = "contiv.guest";

/// Whether this machine is a guest of `cargo xtask vm`, whose clock no other program needs.
pub fn is_guest() -> bool {
    fs::read_to_string("/proc/cmdline").is_ok_and(|parameters| is_marked(&parameters))
}

fn is_marked(parameters: &str) -> bool {
    parameters.split_whitespace().any(|parameter| parameter == MARK)
}

/// A wrong wall clock (`CLOCK_REALTIME`). It shows the right time again when this is dropped.
#[derive(Debug)]
pub struct ClockJump {
    /// Time since the epoch right before the jump.
    wall: Duration,
    /// Monotonic time of the jump.
    at: Instant,
    reverted: bool,
}

impl ClockJump {
    /// Sets the wall clock forwards by so many seconds, or backwards if they are negative. Fails outside of a guest.
    pub fn by(seconds: i64) -> Result<ClockJump> {
        if !is_guest() {
            bail!(
                "set the wall clock: only the guests of `cargo xtask vm` have one that no other program needs"
            );
        }
        let now = ClockId::CLOCK_REALTIME.now().context("read the wall clock")?;
        let (wall, at) = (Duration::from(now), Instant::now());
        set(shifted(wall, seconds)
            .with_context(|| format!("set the wall clock by {seconds} s: out of range"))?)?;
        Ok(ClockJump { wall, at, reverted: false })
    }

    /// Sets the wall clock to the right time.
    pub fn revert(mut self) -> Result<()> {
        self.reset()
    }

    fn reset(&mut self) -> Result<()> {
        set(self.wall + self.at.elapsed())?;
        self.reverted = true;
        Ok(())
    }
}

impl Drop for ClockJump {
    fn drop(&mut self) {
        if !self.reverted
            && let Err(error) = self.reset()
        {
            eprintln!("{error:#}");
        }
    }
}

fn shifted(time: Duration, seconds: i64) -> Option<Duration> {
    let by = Duration::from_secs(seconds.unsigned_abs());
    if seconds < 0 { time.checked_sub(by) } else { time.checked_add(by) }
}

fn set(time: Duration) -> Result<()> {
    ClockId::CLOCK_REALTIME.set_time(time.into()).context("set the wall clock")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ClockJump, is_guest, is_marked, shifted};

    #[test]
    fn only_a_guest_may_set_its_clock() {
        assert!(is_marked("console=ttyS0 contiv.guest possible_cpus=4\n"));
        assert!(!is_marked("BOOT_IMAGE=/vmlinuz contiv.guest=0 quiet\n"));
        if !is_guest() {
            assert!(ClockJump::by(0).is_err());
        }
    }

    #[test]
    fn jumps_go_both_ways() {
        let time = Duration::from_millis(5500);
        assert_eq!(shifted(time, 3), Some(Duration::from_millis(8500)));
        assert_eq!(shifted(time, -3), Some(Duration::from_millis(2500)));
        assert_eq!(shifted(time, -6), None);
    }
}
