//! Maglev lookup tables: assign slots to backends so that connections are distributed evenly, and a change of the
//! backends moves few of them. Pure.
//!
//! Population as in Eisenbud et al., NSDI 2016, section 3.4: in turn, each backend takes the next free slot of its own
//! permutation of all slots. The number of slots is a power of two, so the program finds a slot with a mask, and every odd
//! stride gives a permutation.

use contiv_abi::mix;

/// Minimum number of slots per backend. More slots distribute more evenly, and a change moves fewer connections.
const SLOTS_PER_BACKEND: usize = 16;
/// Slots of the largest table, and the maximum number of backends.
const MAX_SLOTS: usize = 1 << 16;

/// Number of slots for a number of backends: a power of two, or zero without backends.
pub(crate) fn slots(backends: usize) -> u32 {
    match backends {
        0 => 0,
        // At most 2^16.
        n => (n * SLOTS_PER_BACKEND).next_power_of_two().min(MAX_SLOTS) as u32,
    }
}

/// Index in `names` of the backend of each slot. `names` are the backends as bytes. All nodes must use the same order, so
/// that equal sets have equal tables everywhere.
pub(crate) fn populate<N: AsRef<[u8]>>(names: &[N]) -> Vec<u32> {
    let size = slots(names.len()) as usize;
    if size == 0 {
        return vec![];
    }
    let mask = size - 1;
    let mut permutations: Vec<Permutation> =
        names.iter().map(|name| Permutation::new(name.as_ref(), mask)).collect();
    let mut table = vec![u32::MAX; size];
    let mut free = size;
    loop {
        for (backend, permutation) in permutations.iter_mut().enumerate() {
            while table[permutation.at] != u32::MAX {
                permutation.at = (permutation.at + permutation.stride) & mask;
            }
            table[permutation.at] = backend as u32;
            free -= 1;
            if free == 0 {
                return table;
            }
        }
    }
}

/// Permutation of the slots that belongs to a backend.
struct Permutation {
    at: usize,
    stride: usize,
}

impl Permutation {
    fn new(name: &[u8], mask: usize) -> Self {
        let hash = hash(name);
        Permutation { at: hash as usize & mask, stride: ((hash >> 32) as usize & mask) | 1 }
    }
}

/// FNV-1a with the finalizer of MurmurHash3, because the low bits of FNV-1a are not uniformly distributed.
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

    /// The backend of each slot.
    fn owners(backends: &[u32]) -> Vec<u32> {
        populate(&names(backends)).into_iter().map(|index| backends[index as usize]).collect()
    }

    #[test]
    fn sizes_are_powers_of_two_in_proportion() {
        assert_eq!([0, 1, 2, 3, 4, 5, 4096, 60_000].map(slots), [0, 16, 32, 64, 64, 128, 65_536, 65_536]);
        assert_eq!(populate::<[u8; 4]>(&[]), [0_u32; 0]);
    }

    proptest! {
        #[test]
        fn every_backend_has_an_equal_number_of_slots(backends in btree_set(any::<u32>(), 1..200)) {
            let backends: Vec<u32> = backends.into_iter().collect();
            let table = populate(&names(&backends));
            prop_assert_eq!(table.len(), slots(backends.len()) as usize);
            let mut shares = vec![0_usize; backends.len()];
            table.iter().for_each(|index| shares[*index as usize] += 1);
            let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", shares);
        }

        #[test]
        fn equal_sets_have_equal_tables(backends in btree_set(any::<u32>(), 1..50)) {
            let backends: Vec<u32> = backends.into_iter().collect();
            prop_assert_eq!(owners(&backends), owners(&backends));
        }

        #[test]
        fn a_removed_backend_moves_few_slots(backends in btree_set(any::<u32>(), 9..16), removed in any::<prop::sample::Index>()) {
            // For 9 to 16 backends the number of slots is the same.
            let before: Vec<u32> = backends.into_iter().collect();
            let mut after = before.clone();
            let removed = after.remove(removed.index(before.len()));
            prop_assume!(slots(before.len()) == slots(after.len()));
            let (old, new) = (owners(&before), owners(&after));
            let moved = old.iter().zip(&new).filter(|(old, new)| **old != removed && old != new).count();
            // Most slots of the other backends stay.
            prop_assert!(moved * 2 < old.len(), "{} of {} slots moved", moved, old.len());
        }
    }
}
