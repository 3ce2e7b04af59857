//! Bitmap of allocated numbers, and staged changes of it.
//!
//! The cost of every operation follows the number of ranges of numbers, and at worst the size of the
//! bitmap in words, not the number of addresses.

use std::sync::Arc;

use contiv_model::bitset::{BitWindow, Bitset};

use super::RangeSet;
use super::chunk::{CHUNK_ADDRESSES, addresses_of};

/// Allocated numbers of a subnet, or of a group's pool in it.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    /// A clone of the pool shares it until one of them changes.
    bits: Arc<BitWindow>,
    /// No number below this is free. Searches start here.
    low: usize,
    /// Number of free numbers.
    free: usize,
}

/// Staged change of a [`Pool`]. Its cost in memory and time does not depend on the size of the
/// pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolChange {
    /// Numbers to allocate; free in the pool.
    pub taken: RangeSet<usize>,
    /// Numbers to free; allocated in the pool.
    pub freed: RangeSet<usize>,
    /// All numbers below this that are free in the pool are in `taken`.
    searched: usize,
}

impl Pool {
    pub fn new(bits: impl Into<BitWindow>) -> Pool {
        let bits = bits.into();
        let free = bits.count_clear();
        let mut pool = Pool { bits: Arc::new(bits), low: 0, free };
        pool.advance();
        pool
    }

    /// Number of numbers, free and allocated.
    pub fn size(&self) -> usize {
        self.bits.len()
    }

    /// Number of numbers in the window of the bitmap. The others are allocated.
    pub fn window_size(&self) -> usize {
        self.bits.kept()
    }

    /// Number of free numbers.
    pub fn free_count(&self) -> usize {
        self.free
    }

    /// Lowest allocated number from `first` to `last`.
    pub fn first_allocated(&self, first: usize, last: usize) -> Option<usize> {
        self.bits.next_set(first).filter(|n| *n <= last)
    }

    /// Ranges of allocated numbers from `first` to `last`, cut off there, ascending.
    pub fn allocated_ranges(&self, first: usize, last: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let ranges = self.bits.set_ranges(first..last.saturating_add(1));
        ranges.map(|range| (range.start, range.end - 1))
    }

    /// Ranges of free numbers, ascending.
    pub fn free_ranges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.free_ranges_within(0, usize::MAX)
    }

    /// Ranges of free numbers from `first` to `last`, cut off there, ascending.
    fn free_ranges_within(&self, first: usize, last: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let ranges = self.bits.clear_ranges(first..last.saturating_add(1));
        ranges.map(|range| (range.start, range.end - 1))
    }

    /// Applies `change`.
    pub fn apply(&mut self, change: &PoolChange) {
        if change.is_empty() {
            return;
        }
        let bits = Arc::make_mut(&mut self.bits);
        for (first, last) in change.taken.ranges() {
            self.free -= bits.insert_range(first..last.saturating_add(1));
        }
        for (first, last) in change.freed.ranges() {
            self.free += bits.remove_range(first..last.saturating_add(1));
            self.low = self.low.min(first);
        }
        self.advance();
    }

    /// The bits of chunk `n` with `change` applied.
    pub fn chunk_with(&self, change: &PoolChange, n: usize) -> Bitset {
        let (first, last) = addresses_of(n);
        let mut bits = self.bits.part(first, CHUNK_ADDRESSES);
        for (a, b) in change.taken.ranges_within(first, last) {
            bits.insert_range(a - first..b - first + 1);
        }
        for (a, b) in change.freed.ranges_within(first, last) {
            bits.remove_range(a - first..b - first + 1);
        }
        bits
    }

    /// Replaces the bits of chunk `n`. Returns false if the chunk is not one of this pool.
    pub fn set_chunk(&mut self, n: usize, bits: &Bitset) -> bool {
        let (first, _) = addresses_of(n);
        let old = self.bits.part(first, CHUNK_ADDRESSES);
        let is_whole = bits.len() == old.len() && !bits.is_empty();
        if !is_whole || !Arc::make_mut(&mut self.bits).set_part(first, bits) {
            return false;
        }
        self.free = self.free + old.count() - bits.count();
        self.low = self.low.min(first);
        self.advance();
        true
    }

    fn advance(&mut self) {
        self.low = self.bits.next_clear(self.low).unwrap_or(self.bits.len());
    }

    /// The bitmap with `change` applied.
    pub fn with(&self, change: &PoolChange) -> BitWindow {
        let mut changed = self.clone();
        changed.apply(change);
        Arc::unwrap_or_clone(changed.bits)
    }
}

impl PoolChange {
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.freed.is_empty()
    }

    pub fn is_taken(&self, pool: &Pool, n: usize) -> bool {
        self.taken.contains(n) || pool.bits.contains(n) && !self.freed.contains(n)
    }

    /// The numbers from `first` to `last` that are not taken.
    pub fn untaken(&self, pool: &Pool, first: usize, last: usize) -> RangeSet<usize> {
        let mut untaken = RangeSet::default();
        untaken.insert_range(first, last);
        for (a, b) in pool.allocated_ranges(first, last) {
            untaken.remove_range(a, b);
        }
        for (a, b) in self.freed.ranges_within(first, last) {
            untaken.insert_range(a, b);
        }
        for (a, b) in self.taken.ranges_within(first, last) {
            untaken.remove_range(a, b);
        }
        untaken
    }

    /// Lowest free number, in amortised constant time.
    pub fn lowest_free(&mut self, pool: &Pool) -> Option<usize> {
        self.searched = self.searched.max(pool.low);
        let never_taken = loop {
            match pool.bits.next_clear(self.searched) {
                Some(n) => match self.taken.range_of(n) {
                    Some((_, last)) => self.searched = last + 1,
                    None => break Some(n),
                },
                None => break None,
            }
        };
        let freed = self.freed.first();
        never_taken.into_iter().chain(freed).min()
    }

    /// Allocates `n`. Returns false if it is already allocated or out of range.
    pub fn take(&mut self, pool: &Pool, n: usize) -> bool {
        if n >= pool.size() || self.is_taken(pool, n) {
            return false;
        }
        if !self.freed.remove(n) {
            self.taken.insert(n);
        }
        true
    }

    /// Allocates the numbers from `first` to `last` that are free.
    pub fn take_range(&mut self, pool: &Pool, first: usize, last: usize) {
        if first > last {
            return;
        }
        self.freed.remove_range(first, last);
        for (a, b) in pool.free_ranges_within(first, last) {
            self.taken.insert_range(a, b);
        }
    }

    /// Frees `n`. Returns false if it is already free.
    pub fn free(&mut self, pool: &Pool, n: usize) -> bool {
        if !self.is_taken(pool, n) {
            return false;
        }
        if self.taken.remove(n) {
            self.searched = self.searched.min(n);
        } else {
            self.freed.insert(n);
        }
        true
    }

    /// Frees the numbers from `first` to `last` that are allocated.
    pub fn free_range(&mut self, pool: &Pool, first: usize, last: usize) {
        if first > last {
            return;
        }
        self.taken.remove_range(first, last);
        self.searched = self.searched.min(first);
        for (a, b) in pool.allocated_ranges(first, last) {
            self.freed.insert_range(a, b);
        }
    }

    /// Removes the changes of chunk `n`.
    pub fn drop_chunk(&mut self, n: usize) {
        let (first, last) = addresses_of(n);
        self.taken.remove_range(first, last);
        self.freed.remove_range(first, last);
        self.searched = 0;
    }

    /// Merges a later change, which was made after this one, into this one.
    pub fn merge(&mut self, later: &PoolChange) {
        RangeSet::merge_change([&mut self.taken, &mut self.freed], [&later.taken, &later.freed]);
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests;
