//! Bitmap of allocated numbers, and staged changes of it.

use contiv_model::bitset::Bitset;

use super::RangeSet;
use super::chunk::{CHUNK_ADDRESSES, addresses_of};

/// Allocated numbers of a subnet, or of a group's pool in it.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    bits: Bitset,
    /// No number below this is free. Searches start here.
    low: usize,
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
    pub fn new(bits: Bitset) -> Pool {
        let mut pool = Pool { bits, low: 0 };
        pool.advance();
        pool
    }

    pub fn bits(&self) -> &Bitset {
        &self.bits
    }

    /// Applies `change`.
    pub fn apply(&mut self, change: &PoolChange) {
        for n in change.taken.iter() {
            self.bits.insert(n);
        }
        for n in change.freed.iter() {
            self.bits.remove(n);
            self.low = self.low.min(n);
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
            for bit in a - first..=b - first {
                bits.remove(bit);
            }
        }
        bits
    }

    /// Replaces the bits of chunk `n`. Returns false if the chunk is not one of this pool.
    pub fn set_chunk(&mut self, n: usize, bits: &Bitset) -> bool {
        let (first, _) = addresses_of(n);
        let is_whole = bits.len() == self.bits.part(first, CHUNK_ADDRESSES).len() && !bits.is_empty();
        if !is_whole || !self.bits.set_part(first, bits) {
            return false;
        }
        self.low = self.low.min(first);
        self.advance();
        true
    }

    fn advance(&mut self) {
        self.low = self.bits.next_clear(self.low).unwrap_or(self.bits.len());
    }

    /// The bitmap with `change` applied.
    pub fn with(&self, change: &PoolChange) -> Bitset {
        let mut bits = self.bits.clone();
        change.taken.iter().for_each(|n| {
            bits.insert(n);
        });
        change.freed.iter().for_each(|n| {
            bits.remove(n);
        });
        bits
    }
}

impl PoolChange {
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.freed.is_empty()
    }

    pub fn is_taken(&self, pool: &Pool, n: usize) -> bool {
        self.taken.contains(n) || pool.bits.contains(n) && !self.freed.contains(n)
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
        if n >= pool.bits.len() || self.is_taken(pool, n) {
            return false;
        }
        if !self.freed.remove(n) {
            self.taken.insert(n);
        }
        true
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

    /// Removes the changes of chunk `n`.
    pub fn drop_chunk(&mut self, n: usize) {
        let (first, last) = addresses_of(n);
        self.taken.remove_range(first, last);
        self.freed.remove_range(first, last);
        self.searched = 0;
    }

    /// Merges a later change, which was made after this one, into this one.
    pub fn merge(&mut self, later: &PoolChange) {
        for n in later.taken.iter() {
            if !self.freed.remove(n) {
                self.taken.insert(n);
            }
        }
        for n in later.freed.iter() {
            if !self.taken.remove(n) {
                self.freed.insert(n);
            }
        }
        self.searched = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Next,
        Take(usize),
        Free(usize),
        Write,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => Just(Step::Next),
            2 => (0usize..150).prop_map(Step::Take),
            3 => (0usize..150).prop_map(Step::Free),
            1 => Just(Step::Write),
        ]
    }

    proptest! {
        #[test]
        fn chunks_and_the_changes_of_others_are_the_whole_change(
            used in prop::collection::btree_set(0usize..40_000, 0..100),
            changed in prop::collection::btree_set(0usize..40_000, 0..100),
            chunks in prop::collection::btree_set(0usize..3, 0..3),
        ) {
            let mut bits = Bitset::new(40_000);
            used.iter().for_each(|n| { bits.insert(*n); });
            let (base, mut change) = (Pool::new(bits), PoolChange::default());
            for n in changed.into_iter().chain(used.into_iter().step_by(2)) {
                if !change.take(&base, n) {
                    change.free(&base, n);
                }
            }
            let mut whole = base.clone();
            whole.apply(&change);
            let (mut parts, mut left) = (base.clone(), change.clone());
            for n in chunks {
                prop_assert!(parts.set_chunk(n, &base.chunk_with(&change, n)));
                left.drop_chunk(n);
            }
            prop_assert!(!parts.set_chunk(2, &Bitset::new(CHUNK_ADDRESSES)), "the last chunk is shorter");
            prop_assert!(!parts.set_chunk(3, &Bitset::new(0)));
            parts.apply(&left);
            prop_assert_eq!(parts.bits(), whole.bits());
            let lowest = |pool: &Pool| PoolChange::default().lowest_free(pool);
            prop_assert_eq!(lowest(&parts), lowest(&whole));
        }

        #[test]
        fn the_lowest_free_number_is_allocated_and_none_twice(
            len in 1usize..140,
            used in prop::collection::btree_set(0usize..140, 0..60),
            steps in prop::collection::vec(step(), 0..300),
        ) {
            let mut model: BTreeSet<usize> = used.into_iter().filter(|n| *n < len).collect();
            let mut bits = Bitset::new(len);
            for n in &model {
                bits.insert(*n);
            }
            let start = Pool::new(bits);
            let (mut pool, mut change, mut journal) = (start.clone(), PoolChange::default(), PoolChange::default());
            for step in steps {
                match step {
                    Step::Next => {
                        let n = change.lowest_free(&pool);
                        prop_assert_eq!(n, (0..len).find(|n| !model.contains(n)));
                        if let Some(n) = n {
                            prop_assert!(change.take(&pool, n));
                            model.insert(n);
                        }
                    }
                    Step::Take(n) => prop_assert_eq!(change.take(&pool, n), n < len && model.insert(n)),
                    Step::Free(n) => prop_assert_eq!(change.free(&pool, n), model.remove(&n)),
                    Step::Write => {
                        prop_assert_eq!(&pool.with(&change), &{ let mut p = pool.clone(); p.apply(&change); p.bits });
                        journal.merge(&change);
                        pool.apply(&change);
                        change = PoolChange::default();
                    }
                }
            }
            journal.merge(&change);
            pool.apply(&change);
            prop_assert_eq!(pool.bits().iter().collect::<BTreeSet<_>>(), model);
            prop_assert_eq!(start.with(&journal), pool.bits().clone());
        }
    }
}
