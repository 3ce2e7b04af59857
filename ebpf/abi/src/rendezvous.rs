//! Rendezvous hashing: which backend a connection to a service goes to.
//!
//! The hash of a connection selects one of [`BUCKETS`] buckets. Each backend has a score in each
//! bucket, and the highest score wins (Thaler and Ravishankar, 1998). A score depends on the
//! backend and the bucket only. So all nodes choose equally, and a change of the set moves no
//! connection from one backend that stays to another, whatever the number of backends.
//!
//! The program computes the scores of a small set for each connection. For a large set, the agent
//! stores the winner of each bucket in a ring.

/// Number of buckets, and of slots of a ring: at least 100 for each of 655 backends.
///
/// A prime, so that the weights of a backend are a permutation; less than 2^16, so that a slot has 16
/// bits; and not 1 modulo 3, so that each number has one cube root modulo it.
pub const BUCKETS: u32 = 65_519;

const FIELD: u64 = BUCKETS as u64;

/// Bucket of a connection with this hash.
#[inline(always)]
pub const fn bucket(hash: u64) -> u32 {
    (((hash >> 32) * FIELD) >> 32) as u32
}

/// A backend's part in the choice, from a number that identifies it on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    key: u64,
}

impl Contender {
    /// The contender with this identity.
    #[inline(always)]
    pub const fn new(identity: u64) -> Self {
        Contender { key: mix(identity.wrapping_mul(0x9e37_79b9_7f4a_7c15)) }
    }

    /// Score in a bucket: the weight, and what decides between equal weights.
    #[inline(always)]
    pub const fn score(self, bucket: u32) -> u64 {
        (self.weight(bucket) as u64) << 48 | self.rank()
    }

    /// Decides between contenders with equal weights in a bucket: the highest rank wins. 48 bits.
    #[inline(always)]
    pub const fn rank(self) -> u64 {
        self.key >> 16
    }

    /// Weight in a bucket: `factor * (bucket + shift)^3 + offset` modulo [`BUCKETS`]. Each weight
    /// from zero to `BUCKETS - 1` occurs in one bucket.
    #[inline(always)]
    pub const fn weight(self, bucket: u32) -> u32 {
        // Less than 2^17, so that the cube is less than 2^51.
        let shifted = bucket as u64 + self.shift();
        reduce(self.factor() * reduce(shifted * shifted * shifted) + self.offset()) as u32
    }

    /// 1 to 2^15, so never zero modulo [`BUCKETS`].
    #[inline(always)]
    pub const fn factor(self) -> u64 {
        (self.key & 0x7fff) + 1
    }

    /// Less than 2^16.
    #[inline(always)]
    pub const fn shift(self) -> u64 {
        self.key >> 16 & 0xffff
    }

    /// Less than 2^16.
    #[inline(always)]
    pub const fn offset(self) -> u64 {
        self.key >> 32 & 0xffff
    }
}

/// The remainder modulo [`BUCKETS`] of a number below 2^51, without a division and without a branch:
/// 2^16 is 17 modulo `BUCKETS`, so the upper bits are worth 17 times as much as the lower ones.
#[inline(always)]
const fn reduce(number: u64) -> u64 {
    // Below 2^51, 2^40, 2^29, 2^18, and then below twice the modulus.
    let number = fold(fold(fold(fold(number)))).wrapping_sub(FIELD);
    // Adds the modulus again to a negative number.
    number.wrapping_add(FIELD & ((number as i64 >> 63) as u64))
}

#[inline(always)]
const fn fold(number: u64) -> u64 {
    (number & 0xffff) + (number >> 16) * ((1 << 16) - FIELD)
}

/// The finalizer of MurmurHash3, which distributes the input over all bits.
#[inline(always)]
pub const fn mix(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, vec::Vec};

    use super::*;

    #[test]
    fn the_number_of_buckets_has_the_properties_that_the_weights_need() {
        assert!((2..256).all(|divisor| !BUCKETS.is_multiple_of(divisor)), "prime");
        const { assert!(BUCKETS < 1 << 16 && BUCKETS % 3 != 1) };
    }

    #[test]
    fn remainders_are_exact() {
        let limits = [0, 1, FIELD - 1, FIELD, FIELD + 1, 1 << 16, 2 * FIELD - 1, 2 * FIELD, (1 << 51) - 1];
        let spread = (0..100_000).map(|n: u64| mix(n) >> 13);
        for number in limits.into_iter().chain(spread) {
            assert_eq!(reduce(number), number % FIELD, "{number}");
        }
    }

    #[test]
    fn the_weights_of_a_contender_are_a_permutation() {
        for identity in [0, 1, 7, u64::MAX] {
            let contender = Contender::new(identity);
            let weights: BTreeSet<u32> = (0..BUCKETS).map(|bucket| contender.weight(bucket)).collect();
            assert_eq!((weights.len(), weights.last()), (BUCKETS as usize, Some(&(BUCKETS - 1))));
        }
    }

    #[test]
    fn hashes_are_spread_evenly_over_the_buckets() {
        assert_eq!([bucket(0), bucket(u64::MAX)], [0, BUCKETS - 1]);
        let mut halves = [0_u32; 2];
        (0..100_000).for_each(|n| halves[(bucket(mix(n)) >= BUCKETS / 2) as usize] += 1);
        assert!(halves[0].abs_diff(halves[1]) < 2000, "{halves:?}");
    }

    #[test]
    fn small_sets_share_the_buckets_evenly() {
        for seed in 0..20 {
            for count in [2, 3, 8] {
                let set: Vec<Contender> = (0..count).map(|n| Contender::new(seed << 8 | n)).collect();
                let mut shares: Vec<u32> = (0..count).map(|_| 0).collect();
                for bucket in 0..BUCKETS {
                    let best = (0..set.len()).max_by_key(|n| set[*n].score(bucket)).unwrap_or(0);
                    shares[best] += 1;
                }
                let fair = BUCKETS / count as u32;
                assert!(shares.iter().all(|share| share.abs_diff(fair) * 10 < fair), "{seed}: {shares:?}");
            }
        }
    }
}
