//! The ring of a backend set: the backend of each bucket. Pure.
//!
//! The result equals a comparison of all scores in all buckets (`contiv_abi::rendezvous`), but takes about as many steps
//! for 10 backends as for 10,000. The weights of a backend are a permutation of the buckets, as in Maglev (Eisenbud et
//! al., NSDI 2016, section 3.4). In rounds, from the highest weight to the lowest, each backend takes the bucket in which
//! it has this weight, if the bucket is free. Unlike in Maglev, a backend whose bucket is taken gets no other bucket in
//! that round. So the buckets of a backend do not depend on the order of the backends, and a change of the set moves only
//! the buckets of the backends that are added or removed.

use std::sync::OnceLock;

use contiv_abi::{
    Member, RingBlock,
    rendezvous::{BUCKETS, Contender},
};

/// Maximum number of backends of a ring: a slot has 16 bits, and one value marks a free bucket.
pub(crate) const MAX_BACKENDS: usize = FREE as usize;

const FREE: u16 = u16::MAX;

/// Index in `backends` of the backend of each bucket. Empty without backends, and for more than [`MAX_BACKENDS`].
pub(crate) fn owners(backends: &[Contender]) -> Vec<u16> {
    if backends.is_empty() || backends.len() > MAX_BACKENDS {
        return vec![];
    }
    let mut owners = vec![FREE; BUCKETS as usize];
    let mut weights = vec![0; BUCKETS as usize];
    let mut free = BUCKETS;
    let mut walks: Vec<Walk> = backends.iter().map(|backend| Walk::new(*backend)).collect();
    for weight in (0..BUCKETS).rev() {
        if free == 0 {
            break;
        }
        for (index, walk) in (0..FREE).zip(&mut walks) {
            let bucket = walk.next();
            let owner = owners[bucket];
            if owner == FREE {
                free -= 1;
            } else if weights[bucket] != weight
                || backends[usize::from(owner)].rank() >= backends[usize::from(index)].rank()
            {
                continue;
            }
            (owners[bucket], weights[bucket]) = (index, weight);
        }
    }
    owners
}

/// The words of the ring of a member list, whose words are `list`. A slot is an index in the list.
pub(crate) fn words(list: &[u32], ip6: bool) -> Vec<u32> {
    let member = |pair: &[u32]| Member::from_word(u64::from(pair[1]) << 32 | u64::from(pair[0]));
    let contenders: Vec<Contender> = list.chunks_exact(2).map(|pair| member(pair).contender(ip6)).collect();
    let slots = owners(&contenders);
    let word = |pair: &[u16]| u32::from(pair[0]) | u32::from(pair.get(1).copied().unwrap_or(0)) << u16::BITS;
    let mut words: Vec<u32> = slots.chunks(2).map(word).collect();
    words.resize(RingBlock::RING as usize * RingBlock::LEN, 0);
    words
}

/// FNV-1a of a list and its ring, by words. Collision resistance is not required.
pub(crate) fn digest(list: &[u32], ring: &[u32]) -> u64 {
    list.iter().chain(ring).fold(0xcbf2_9ce4_8422_2325, |hash: u64, word| {
        (hash ^ u64::from(*word)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Walks over the buckets in the order of a backend's weights, from the highest.
struct Walk {
    /// Cube of the bucket plus the shift.
    cube: u32,
    /// Difference between the cubes of two successive weights.
    step: u32,
    shift: u32,
    roots: &'static [u16],
}

impl Walk {
    fn new(backend: Contender) -> Walk {
        let step = inverse(backend.factor());
        // The cube of weight zero. The first step leads to the cube of the highest weight.
        let offset = backend.offset() % FIELD;
        let cube = (FIELD - offset) * step % FIELD;
        let shift = (backend.shift() % FIELD) as u32;
        Walk { cube: cube as u32, step: step as u32, shift, roots: cube_roots() }
    }

    fn next(&mut self) -> usize {
        self.cube = subtract(self.cube, self.step);
        subtract(u32::from(self.roots[self.cube as usize]), self.shift) as usize
    }
}

const FIELD: u64 = BUCKETS as u64;

/// The difference modulo [`BUCKETS`] of two numbers below it.
fn subtract(a: u32, b: u32) -> u32 {
    if a >= b { a - b } else { a + BUCKETS - b }
}

/// The inverse modulo [`BUCKETS`], by Fermat's little theorem.
fn inverse(number: u64) -> u64 {
    let (mut power, mut square, mut exponent) = (1, number % FIELD, FIELD - 2);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power * square % FIELD;
        }
        square = square * square % FIELD;
        exponent >>= 1;
    }
    power
}

/// The cube root modulo [`BUCKETS`] of each number.
fn cube_roots() -> &'static [u16] {
    static ROOTS: OnceLock<Vec<u16>> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = vec![0; BUCKETS as usize];
        for (root, number) in (0..).zip(0..FIELD) {
            roots[(number * number % FIELD * number % FIELD) as usize] = root;
        }
        roots
    })
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use contiv_abi::mix;
    use proptest::{
        collection::{btree_set, vec},
        prelude::*,
    };

    use super::*;

    fn contenders(identities: &[u64]) -> Vec<Contender> {
        identities.iter().map(|identity| Contender::new(*identity)).collect()
    }

    /// The backend of each bucket.
    fn owners_of(set: &BTreeSet<u64>) -> Vec<u64> {
        let identities: Vec<u64> = set.iter().copied().collect();
        owners(&contenders(&identities)).into_iter().map(|index| identities[usize::from(index)]).collect()
    }

    /// Computes the owner as the program does for a list without a ring.
    fn highest(backends: &[Contender], bucket: u32) -> u16 {
        let mut best = (0, 0);
        for (index, backend) in (0..).zip(backends) {
            let score = backend.score(bucket);
            if index == 0 || score > best.0 {
                best = (score, index);
            }
        }
        best.1
    }

    #[test]
    fn no_backends_have_no_ring() {
        assert_eq!(owners(&[]), [0_u16; 0]);
    }

    #[test]
    fn contenders_with_one_identity_are_ordered_as_in_the_program() {
        let twins = contenders(&[7, 7]);
        assert!(owners(&twins).iter().all(|owner| *owner == 0));
        assert_eq!(highest(&twins, 1), 0);
    }

    /// The largest and the smallest share, in units of the average.
    fn balance(count: u64) -> (f64, f64) {
        let mut shares: BTreeMap<u64, u32> = (0..count).map(|n| (mix(n + 1), 0)).collect();
        let set = shares.keys().copied().collect();
        owners_of(&set).into_iter().for_each(|owner| *shares.entry(owner).or_default() += 1);
        let average = f64::from(BUCKETS) / count as f64;
        let of = |share: Option<&u32>| f64::from(*share.unwrap()) / average;
        (of(shares.values().max()), of(shares.values().min()))
    }

    #[test]
    fn the_buckets_are_shared_as_evenly_as_by_chance() {
        for count in [2, 9, 64, 100, 500, 1000, 10_000] {
            let (most, least) = balance(count);
            println!(
                "{count} backends: the largest share is {most:.2} of the average, the smallest {least:.2}"
            );
            // Five standard deviations of a share.
            let margin = 5.0 * (count as f64 / f64::from(BUCKETS)).sqrt();
            assert!(most < 1.0 + margin && least > 1.0 - margin, "{count}: {most} {least}");
        }
    }

    /// Every 64th bucket.
    fn sample() -> impl Iterator<Item = u32> {
        (0..BUCKETS).step_by(64)
    }

    /// The owners of the sample.
    fn owners_in_sample(set: &BTreeMap<u64, Vec<u64>>) -> Vec<u64> {
        let mut best = vec![(0, 0); sample().count()];
        for (backend, scores) in set {
            for (best, score) in best.iter_mut().zip(scores) {
                *best = (*best).max((*score, *backend));
            }
        }
        best.into_iter().map(|(_, backend)| backend).collect()
    }

    #[test]
    fn no_change_moves_a_connection_of_a_backend_that_stays() {
        // 1,000 changes of sets of 1 to 500 backends: usually a few are added and removed, sometimes many.
        let mut random = (0..).map(|n: u64| mix(0x5eed + n));
        let mut draw = |limit: usize| random.next().unwrap() as usize % limit;
        let scores = |backend| sample().map(|bucket| Contender::new(backend).score(bucket)).collect();
        let mut set: BTreeMap<u64, Vec<u64>> = [(1, scores(1))].into();
        let mut before = owners_in_sample(&set);
        let (mut added, mut sizes, mut moves) = (1, BTreeSet::new(), 0);
        for change in 0..1000 {
            let limit = if change % 10 == 0 { 250 } else { 4 };
            let (adds, removes) = (draw(limit), draw(limit));
            let old = set.clone();
            for _ in 0..removes.min(set.len() - 1) {
                let nth = *set.keys().nth(draw(set.len())).unwrap();
                set.remove(&nth);
            }
            for _ in 0..adds.min(500 - set.len()) {
                added += 1;
                set.insert(mix(added), scores(mix(added)));
            }
            let after = owners_in_sample(&set);
            for (was, is) in before.iter().zip(&after).filter(|(was, is)| was != is) {
                let changed = !set.contains_key(was) || !old.contains_key(is);
                assert!(changed, "{} to {} backends", old.len(), set.len());
                moves += 1;
            }
            (before, _) = (after, sizes.insert(set.len()));
        }
        println!("{} to {} backends, {moves} moves", sizes.first().unwrap(), sizes.last().unwrap());
        assert!(sizes.first() < Some(&9) && sizes.last() > Some(&300) && moves > 10_000);
    }

    #[test]
    fn one_backend_more_moves_its_share() {
        let shares = [1, 8, 9, 64, 65, 499].map(|count| {
            let before: BTreeSet<u64> = (1..=count).map(mix).collect();
            let after: BTreeSet<u64> = (1..=count + 1).map(mix).collect();
            let pairs = owners_of(&before).into_iter().zip(owners_of(&after));
            let share = pairs.filter(|(old, new)| old != new).count() as f64 / f64::from(BUCKETS);
            assert!(share <= 1.0 / (count + 1) as f64 + 0.01, "{count}: {share}");
            (count, share)
        });
        println!("moved: {shares:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn a_ring_has_the_scores_of_the_program(
            set in btree_set(any::<u64>(), 1..300),
            buckets in vec(0..BUCKETS, 100)
        ) {
            let backends = contenders(&set.into_iter().collect::<Vec<_>>());
            let owners = owners(&backends);
            prop_assert_eq!(owners.len(), BUCKETS as usize);
            for bucket in buckets {
                prop_assert_eq!(owners[bucket as usize], highest(&backends, bucket));
            }
        }
    }
}
