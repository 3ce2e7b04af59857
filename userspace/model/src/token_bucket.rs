//! What passes by a rate: the one definition, which datapaths that count packets themselves are held to.

use crate::group::Rate;

/// A bucket: full at first, and filled at the rate up to the burst. As long as it owes nothing, a packet passes and takes its
/// bytes, also those that are not there.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// What was in it then, in billionths of a bit.
    level: i128,
    /// Nanoseconds.
    at: u64,
}

impl TokenBucket {
    const SECOND: i128 = 1_000_000_000;

    /// A full one at this time, in nanoseconds.
    pub fn full(rate: Rate, at: u64) -> TokenBucket {
        TokenBucket { rate, level: TokenBucket::bits(rate.burst_bytes), at }
    }

    /// Whether a packet passes at this time, which is not before that of the last one.
    pub fn admits(&self, now: u64) -> bool {
        self.level(now) >= 0
    }

    /// A packet of so many bytes has passed.
    pub fn take(&mut self, now: u64, bytes: u64) {
        (self.level, self.at) = (self.level(now) - TokenBucket::bits(bytes), now);
    }

    fn level(&self, now: u64) -> i128 {
        let filled = i128::from(self.rate.bits_per_second) * i128::from(now.saturating_sub(self.at));
        (self.level + filled).min(TokenBucket::bits(self.rate.burst_bytes))
    }

    fn bits(bytes: u64) -> i128 {
        i128::from(bytes) * 8 * TokenBucket::SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_paid_for_by_what_follows() {
        // A byte in a millisecond.
        let mut bucket = TokenBucket::full(Rate { bits_per_second: 8000, burst_bytes: 10 }, 5);
        let at = |milliseconds: u64| 5 + milliseconds * 1_000_000;
        assert!(bucket.admits(at(0)));
        bucket.take(at(0), 14);
        assert!(!bucket.admits(at(4) - 1));
        assert!(bucket.admits(at(4)));
        bucket.take(at(4), 1);
        assert!(!bucket.admits(at(5) - 1));
        // No more than the burst comes together.
        bucket.take(at(1000), 11);
        assert!(!bucket.admits(at(1001) - 1) && bucket.admits(at(1001)));
    }
}
