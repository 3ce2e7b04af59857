//! Allocator of slots in an array. Pure.

use std::collections::BTreeSet;

/// Free slots. An allocation of several slots need not be contiguous.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotAllocator {
    capacity: u32,
    /// All slots from this one on are free.
    unused: u32,
    /// Free slots below `unused`.
    free: Vec<u32>,
}

impl SlotAllocator {
    pub(super) fn new(capacity: u32) -> SlotAllocator {
        SlotAllocator { capacity, unused: 0, free: vec![] }
    }

    /// Returns an allocator in which these slots are allocated.
    pub(super) fn with_used(capacity: u32, used: &BTreeSet<u32>) -> SlotAllocator {
        let unused = used.last().map_or(0, |last| last + 1);
        let free = (0..unused).filter(|slot| !used.contains(slot)).rev().collect();
        SlotAllocator { capacity, unused, free }
    }

    pub(super) fn used(&self) -> usize {
        self.unused as usize - self.free.len()
    }

    /// Allocates `count` slots; `None` if fewer are free.
    pub(super) fn allocate(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.capacity as usize - self.used() < count {
            return None;
        }
        let reused = self.free.len().min(count);
        let mut slots = self.free.split_off(self.free.len() - reused);
        let fresh = self.unused..self.unused + (count - reused) as u32;
        self.unused = fresh.end;
        slots.extend(fresh);
        Some(slots)
    }

    /// Frees allocated slots.
    pub(super) fn free(&mut self, slots: Vec<u32>) {
        self.free.extend(slots);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_slots_are_reused_and_no_slot_is_allocated_twice() {
        let mut slots = SlotAllocator::new(8);
        let first = slots.allocate(5).unwrap();
        assert_eq!(slots.allocate(4), None);
        assert_eq!(slots.used(), 5);
        let second = slots.allocate(3).unwrap();
        slots.free(first);
        let mut all = [second, slots.allocate(5).unwrap()].concat();
        all.sort_unstable();
        assert_eq!(all, (0..8).collect::<Vec<u32>>());
        assert_eq!(slots.allocate(1), None);
        assert_eq!(slots.allocate(0), Some(vec![]));
    }

    #[test]
    fn used_slots_are_not_allocated() {
        let mut slots = SlotAllocator::with_used(5, &[1, 3].into());
        assert_eq!(slots.used(), 2);
        let mut all = slots.allocate(3).unwrap();
        all.sort_unstable();
        assert_eq!(all, [0, 2, 4]);
        assert_eq!(SlotAllocator::with_used(5, &[].into()), SlotAllocator::new(5));
    }
}
