//! Buddy allocator: blocks of slots whose sizes are powers of two. Pure.

use std::collections::BTreeSet;

/// Allocator of slots 0 to capacity - 1. A block of `n` slots starts at a multiple of `n`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BuddyAllocator {
    capacity: u32,
    /// First slots of the free blocks, by binary logarithm of the size.
    free: Vec<BTreeSet<u32>>,
}

impl BuddyAllocator {
    /// An allocator without allocated blocks. `capacity` must be a power of two.
    pub(crate) fn new(capacity: u32) -> Self {
        let top = capacity.trailing_zeros() as usize;
        let mut free = vec![BTreeSet::new(); top + 1];
        free[top].insert(0);
        BuddyAllocator { capacity, free }
    }

    /// Allocates a block of `size` slots, a power of two. `None` if no free block is large enough.
    pub(crate) fn allocate(&mut self, size: u32) -> Option<u32> {
        let order = size.trailing_zeros() as usize;
        let found = (order..self.free.len()).find(|order| !self.free[*order].is_empty())?;
        let at = self.free[found].pop_first()?;
        self.split(at, found, order, at);
        Some(at)
    }

    /// Reports whether no allocated block contains the slot.
    pub(crate) fn is_free(&self, at: u32) -> bool {
        self.containing(at, 0).is_some()
    }

    /// Returns order and first slot of the free block that contains the block of this order at `at`.
    fn containing(&self, at: u32, order: usize) -> Option<(usize, u32)> {
        (order..self.free.len()).find_map(|order| {
            let start = at >> order << order;
            self.free[order].contains(&start).then_some((order, start))
        })
    }

    /// Allocates the given block. False if the block is invalid or a part of it is allocated.
    pub(crate) fn reserve(&mut self, at: u32, size: u32) -> bool {
        if !size.is_power_of_two()
            || !at.is_multiple_of(size)
            || size > self.capacity
            || at > self.capacity - size
        {
            return false;
        }
        let order = size.trailing_zeros() as usize;
        let Some((found, start)) = self.containing(at, order) else { return false };
        self.free[found].remove(&start);
        self.split(start, found, order, at);
        true
    }

    /// Splits the block at `start`, of order `from`, and frees all parts except the block at `keep`, of order `to`.
    fn split(&mut self, mut start: u32, from: usize, to: usize, keep: u32) {
        for order in (to..from).rev() {
            let middle = start + (1 << order);
            if keep < middle {
                self.free[order].insert(middle);
            } else {
                self.free[order].insert(start);
                start = middle;
            }
        }
    }

    /// Frees a block, and merges it with its free buddies.
    pub(crate) fn free(&mut self, mut at: u32, size: u32) {
        let mut order = size.trailing_zeros() as usize;
        while order + 1 < self.free.len() && self.free[order].remove(&(at ^ (1 << order))) {
            at &= !(1 << order);
            order += 1;
        }
        self.free[order].insert(at);
    }

    /// Number of allocated slots.
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
        fn blocks_never_overlap_and_are_merged_when_freed(steps in prop::collection::vec((any::<bool>(), 0..6_u32), 0..80)) {
            let mut allocator = BuddyAllocator::new(256);
            let mut blocks: Vec<(u32, u32)> = vec![];
            for (allocate, order) in steps {
                let size = 1 << order;
                if allocate {
                    if let Some(at) = allocator.allocate(size) {
                        prop_assert!(at % size == 0 && at + size <= 256);
                        prop_assert!(blocks.iter().all(|(a, s)| at + size <= *a || a + s <= at));
                        blocks.push((at, size));
                    }
                } else if !blocks.is_empty() {
                    let (at, size) = blocks.swap_remove(order as usize % blocks.len());
                    allocator.free(at, size);
                }
                prop_assert_eq!(allocator.used(), blocks.iter().map(|(_, size)| size).sum::<u32>());
                // A new allocator with the same blocks reserved has the same state.
                let mut other = BuddyAllocator::new(256);
                prop_assert!(blocks.iter().all(|(at, size)| other.reserve(*at, *size)));
                prop_assert_eq!(&other, &allocator);
            }
            blocks.iter().for_each(|(at, size)| allocator.free(*at, *size));
            prop_assert_eq!(allocator, BuddyAllocator::new(256));
        }
    }

    #[test]
    fn invalid_blocks_are_not_reserved() {
        let mut allocator = BuddyAllocator::new(16);
        assert!(
            !allocator.reserve(1, 2)
                && !allocator.reserve(0, 3)
                && !allocator.reserve(16, 1)
                && !allocator.reserve(0, 32)
        );
        assert!(allocator.reserve(4, 4) && !allocator.reserve(4, 1) && !allocator.reserve(0, 8));
        assert_eq!([3, 4, 7, 8, 16].map(|at| allocator.is_free(at)), [true, false, false, true, false]);
    }
}
