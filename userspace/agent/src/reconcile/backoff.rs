use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Pauses that double.
#[derive(Clone, Debug, Default)]
pub struct Backoff(u32);

impl Backoff {
    /// The pause before the next attempt.
    pub fn pause(&mut self) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.0.min(16)).min(LONGEST);
        self.0 += 1;
        pause
    }

    /// It worked.
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
        assert_eq!(pauses[..3], [FIRST, FIRST * 2, FIRST * 4]);
        assert_eq!(pauses[11], LONGEST);
        backoff.reset();
        assert_eq!(backoff.pause(), FIRST);
    }
}
