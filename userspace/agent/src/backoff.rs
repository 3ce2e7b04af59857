//! Exponential backoff.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses that double from 100 ms up to 10 s.
#[derive(Clone, Debug, Default)]
pub struct Backoff(u32);

impl Backoff {
    /// Returns the pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = SHORTEST.saturating_mul(1 << self.0.min(16)).min(LONGEST);
        self.0 += 1;
        pause
    }

    /// Starts over with the shortest pause after a success.
    pub fn reset(&mut self) {
        self.0 = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..12).map(|_| backoff.pause()).collect();
        assert_eq!(pauses[..3], [SHORTEST, SHORTEST * 2, SHORTEST * 4]);
        assert_eq!(pauses[11], LONGEST);
        backoff.reset();
        assert_eq!(backoff.pause(), SHORTEST);
    }
}
