//! Room of blocks whose sizes are powers of two: buddies. Pure.

use std::collections::BTreeSet;

/// Which ranges of slots are free. A block of `n` slots begins at a multiple of `n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arena {
    capacity: u32,
    /// By the power of two: where free blocks begin.
    free: Vec<BTreeSet<u32>>,
}

impl Arena {
    /// All of it free; `capacity` is a power of two.
    pub(crate) fn new(capacity: u32) -> Self {
        let top = capacity.trailing_zeros() as usize;
        let mut free = vec![BTreeSet::new(); top + 1];
        free[top].insert(0);
        Arena { capacity, free }
    }

    /// Takes a block of `size` slots, a power of two; none when there is no room in one piece.
    pub(crate) fn take(&mut self, size: u32) -> Option<u32> {
        let order = size.trailing_zeros() as usize;
        let found = (order..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let at = self.free[found].pop_first()?;
        self.split(at, found, order, at);
        Some(at)
    }

    /// Takes a block that is known to be in use; false when a part of it is taken already, or it cannot be.
    pub(crate) fn reserve(&mut self, at: u32, size: u32) -> bool {
        if !size.is_power_of_two()
            || !at.is_multiple_of(size)
            || size > self.capacity
            || at > self.capacity - size
        {
            return false;
        }
        let order = size.trailing_zeros() as usize;
        let around = (order..self.free.len()).find_map(|order| {
            let begins = at >> order << order;
            self.free[order].contains(&begins).then_some((order, begins))
        });
        let Some((found, begins)) = around else { return false };
        self.free[found].remove(&begins);
        self.split(begins, found, order, at);
        true
    }

    /// Frees what of the block at `begins` is not the smaller block at `keep`.
    fn split(&mut self, mut begins: u32, from: usize, to: usize, keep: u32) {
        for order in (to..from).rev() {
            let middle = begins + (1 << order);
            if keep < middle {
                self.free[order].insert(middle);
            } else {
                self.free[order].insert(begins);
                begins = middle;
            }
        }
    }

    /// Gives a block back.
    pub(crate) fn give(&mut self, mut at: u32, size: u32) {
        let mut order = size.trailing_zeros() as usize;
        while order + 1 < self.free.len() && self.free[order].remove(&(at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(at);
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        let free: u32 =
            self.free.iter().enumerate().map(|(order, blocks)| (blocks.len() as u32) << order).sum();
        self.capacity - free
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_come_back(steps in prop::collection::vec((any::<bool>(), 0..6_u32), 0..80)) {
            let mut arena = Arena::new(256);
            let mut blocks: Vec<(u32, u32)> = vec![];
            for (takes, order) in steps {
                let size = 1 << order;
                if takes {
                    if let Some(at) = arena.take(size) {
                        prop_assert!(at % size == 0 && at + size <= 256);
                        prop_assert!(blocks.iter().all(|(a, s)| at + size <= *a || a + s <= at));
                        blocks.push((at, size));
                    }
                } else if !blocks.is_empty() {
                    let (at, size) = blocks.swap_remove(order as usize % blocks.len());
                    arena.give(at, size);
                }
                prop_assert_eq!(arena.used(), blocks.iter().map(|(_, size)| size).sum::<u32>());
                // Another that is told what is in use says the same.
                let mut again = Arena::new(256);
                prop_assert!(blocks.iter().all(|(at, size)| again.reserve(*at, *size)));
                prop_assert_eq!(&again, &arena);
            }
            blocks.iter().for_each(|(at, size)| arena.give(*at, *size));
            prop_assert_eq!(arena, Arena::new(256));
        }
    }

    #[test]
    fn what_cannot_be_is_not_reserved() {
        let mut arena = Arena::new(16);
        assert!(
            !arena.reserve(1, 2) && !arena.reserve(0, 3) && !arena.reserve(16, 1) && !arena.reserve(0, 32)
        );
        assert!(arena.reserve(4, 4) && !arena.reserve(4, 1) && !arena.reserve(0, 8));
    }
}
