//! Rings: which backend of a set has which slot, so that connections spread evenly and a change of the set
//! moves few of them. Pure.
//!
//! Maglev's way of filling (Eisenbud et al., NSDI 2016, 3.4): the backends take turns, each taking the next
//! free slot of its own permutation of all slots. Here the number of slots is a power of two, so that the
//! program finds one by a mask; any odd stride is a permutation then.

use contiv_abi::mix;

/// Slots for each backend, at least. More is more even and moves less.
const SLOTS_PER_BACKEND: usize = 16;
/// Slots of the largest ring; 64 Ki backends are the most that a set can have.
const MOST_SLOTS: usize = 1 << 16;

/// How many slots the ring of so many backends has: a power of two; zero for none.
pub(crate) fn slots(backends: usize) -> u32 {
    match backends {
        0 => 0,
        // At most 2^16.
        n => (n * SLOTS_PER_BACKEND).next_power_of_two().min(MOST_SLOTS) as u32,
    }
}

/// For each slot, the place of its backend in the list. `names` are the backends' bytes, in any order that is
/// the same on every node: equal sets have equal rings everywhere.
pub(crate) fn fill<N: AsRef<[u8]>>(names: &[N]) -> Vec<u32> {
    let size = slots(names.len()) as usize;
    if size == 0 {
        return vec![];
    }
    let mask = size - 1;
    let mut walks: Vec<Walk> = names.iter().map(|name| Walk::new(name.as_ref(), mask)).collect();
    let mut ring = vec![u32::MAX; size];
    let mut free = size;
    loop {
        for (backend, walk) in walks.iter_mut().enumerate() {
            while ring[walk.at] != u32::MAX {
                walk.at = (walk.at + walk.stride) & mask;
            }
            ring[walk.at] = backend as u32;
            free -= 1;
            if free == 0 {
                return ring;
            }
        }
    }
}

/// A backend's permutation of the slots.
struct Walk {
    at: usize,
    stride: usize,
}

impl Walk {
    fn new(name: &[u8], mask: usize) -> Self {
        let hash = hash(name);
        Walk { at: hash as usize & mask, stride: ((hash >> 32) as usize & mask) | 1 }
    }
}

/// FNV-1a, finished as MurmurHash3 does it: FNV's low bits alone are not even.
fn hash(name: &[u8]) -> u64 {
    mix(name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_set, prelude::*};

    use super::*;

    fn names(backends: &[u32]) -> Vec<[u8; 4]> {
        backends.iter().map(|backend| backend.to_be_bytes()).collect()
    }

    /// Whom each slot belongs to.
    fn owners(backends: &[u32]) -> Vec<u32> {
        fill(&names(backends)).into_iter().map(|place| backends[place as usize]).collect()
    }

    #[test]
    fn sizes_are_powers_of_two_in_proportion() {
        assert_eq!([0, 1, 2, 3, 4, 5, 4096, 60_000].map(slots), [0, 16, 32, 64, 64, 128, 65_536, 65_536]);
        assert_eq!(fill::<[u8; 4]>(&[]), [0_u32; 0]);
    }

    proptest! {
        #[test]
        fn every_backend_has_its_share(backends in btree_set(any::<u32>(), 1..200)) {
            let backends: Vec<u32> = backends.into_iter().collect();
            let ring = fill(&names(&backends));
            prop_assert_eq!(ring.len(), slots(backends.len()) as usize);
            let mut shares = vec![0_usize; backends.len()];
            ring.iter().for_each(|place| shares[*place as usize] += 1);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", shares);
        }

        #[test]
        fn the_ring_of_a_set_is_always_the_same(backends in btree_set(any::<u32>(), 1..50)) {
            let backends: Vec<u32> = backends.into_iter().collect();
            prop_assert_eq!(owners(&backends), owners(&backends));
        }

        #[test]
        fn one_that_goes_takes_little_with_it(backends in btree_set(any::<u32>(), 9..16), gone in any::<prop::sample::Index>()) {
            // Between 9 and 16 backends the number of slots is the same.
            let before: Vec<u32> = backends.into_iter().collect();
            let mut after = before.clone();
            let gone = after.remove(gone.index(before.len()));
            prop_assume!(slots(before.len()) == slots(after.len()));
            let (old, new) = (owners(&before), owners(&after));
            let moved = old.iter().zip(&new).filter(|(old, new)| **old != gone && old != new).count();
            // What was not its own stays for the most part.
            prop_assert!(moved * 2 < old.len(), "{} of {} slots moved", moved, old.len());
        }
    }
}
