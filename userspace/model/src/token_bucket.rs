//! Token bucket: the definition of a rate limit, against which datapaths that limit rates
//! themselves are tested.

use crate::group::Rate;

/// A token bucket: full at first, filled at the rate up to the burst. A packet passes if the level
/// is not negative, and takes all its bytes, so that the level may become negative.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    rate: Rate,
    /// Level at time `at`, in units of 1e-9 bit.
    level: i128,
    /// In nanoseconds.
    at: u64,
}

impl TokenBucket {
    const SECOND: i128 = 1_000_000_000;

    /// A full bucket at time `at`, in nanoseconds.
    pub fn full(rate: Rate, at: u64) -> TokenBucket {
        TokenBucket { rate, level: TokenBucket::bits(rate.burst_bytes), at }
    }

    /// Returns true if a packet passes at time `now`, in nanoseconds. `now` must not be before the
    /// last packet.
    pub fn admits(&self, now: u64) -> bool {
        self.level(now) >= 0
    }

    /// Accounts for a packet of `bytes` that has passed at `now`, in nanoseconds.
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
    fn excess_delays_later_packets() {
        // A byte in a millisecond.
        let mut bucket = TokenBucket::full(Rate { bits_per_second: 8000, burst_bytes: 10 }, 5);
        let at = |milliseconds: u64| 5 + milliseconds * 1_000_000;
        assert!(bucket.admits(at(0)));
        bucket.take(at(0), 14);
        assert!(!bucket.admits(at(4) - 1));
        assert!(bucket.admits(at(4)));
        bucket.take(at(4), 1);
        assert!(!bucket.admits(at(5) - 1));
        // The bucket holds no more than the burst.
        bucket.take(at(1000), 11);
        assert!(!bucket.admits(at(1001) - 1) && bucket.admits(at(1001)));
    }
}
