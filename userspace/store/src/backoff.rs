//! Exponential backoff with jitter between attempts.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// Returns the pause before the next attempt: between half and all of the current step. Starts
    /// at 50 ms, doubles, and stays below 5 s.
    pub(crate) fn next(&mut self) -> Duration {
        let step = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // A fresh `RandomState` has a random seed, which is sufficient for jitter.
        let share = RandomState::new().hash_one(self.failures) % 1024;
        let half = step / 2;
        half + half.mul_f64(share as f64 / 1024.0)
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns true for failure 1, 2, 4, 8 and so on, which bounds the number of log lines.
    pub(crate) fn worth_logging(&self) -> bool {
        self.failures.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_and_stays_bounded() {
        let mut backoff = Backoff::default();
        assert!(backoff.next() <= FIRST);
        for _ in 0..40 {
            assert!(backoff.next() <= LONGEST);
        }
        assert!(backoff.next() >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
