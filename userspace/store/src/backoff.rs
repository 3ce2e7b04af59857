//! Waiting between attempts: twice as long each time, bounded, and never in step with others.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// How long to wait after one more failure: between half and all of the current step.
    pub(crate) fn next(&mut self) -> Duration {
        let step = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        // A fresh `RandomState` is seeded at random, which is all the randomness jitter needs.
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

    /// True for the 1st, 2nd, 4th, 8th... failure: often enough to be seen, too rare to flood.
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
