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
        prop_assert_eq!(&parts.bits, &whole.bits);
        prop_assert_eq!(parts.free_count(), whole.free_count());
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
                    let mut applied = pool.clone();
                    applied.apply(&change);
                    prop_assert_eq!(&pool.with(&change), &*applied.bits);
                    journal.merge(&change);
                    pool.apply(&change);
                    change = PoolChange::default();
                }
            }
        }
        journal.merge(&change);
        pool.apply(&change);
        prop_assert_eq!(pool.bits.set_ranges(0..len).flatten().collect::<BTreeSet<_>>(), model);
        prop_assert_eq!(start.with(&journal), (*pool.bits).clone());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Ranges change as their numbers one by one, in a pool of which a window is kept as in one of which
    /// all is kept.
    #[test]
    fn ranges_are_their_numbers_one_by_one(
        clear in (0usize..20_000, 1usize..9_000),
        steps in prop::collection::vec(range_step(), 0..20),
    ) {
        let size = 20_000;
        let window = BitWindow::with_clear(size, clear.0..clear.0 + clear.1);
        let (mut pool, mut change, mut journal) = (Pool::new(window.clone()), PoolChange::default(), PoolChange::default());
        let (start, mut naive) = (pool.clone(), Naive::new(window.into_bitset()));
        for step in steps {
            match step {
                RangeStep::Take(first, last) => {
                    change.take_range(&pool, first, last);
                    (first..=last).for_each(|n| { naive.change.take(&naive.pool, n); });
                }
                RangeStep::Free(first, last) => {
                    change.free_range(&pool, first, last);
                    (first..=last).for_each(|n| { naive.change.free(&naive.pool, n); });
                }
                RangeStep::Next => {
                    let n = change.lowest_free(&pool);
                    prop_assert_eq!(n, naive.change.lowest_free(&naive.pool));
                    if let Some(n) = n {
                        prop_assert!(change.take(&pool, n) && naive.change.take(&naive.pool, n));
                    }
                }
                RangeStep::Write => {
                    journal.merge(&change);
                    pool.apply(&std::mem::take(&mut change));
                    naive.write();
                }
            }
            prop_assert_eq!((&change.taken, &change.freed), (&naive.change.taken, &naive.change.freed));
            prop_assert_eq!((pool.free_count(), pool.low), (naive.pool.free_count(), naive.pool.low));
            let untaken: Vec<usize> = change.untaken(&pool, 7_000, 8_000).iter().collect();
            let one_by_one = (7_000..=8_000).filter(|n| !change.is_taken(&pool, *n));
            prop_assert_eq!(untaken, one_by_one.collect::<Vec<_>>());
        }
        prop_assert_eq!(&journal.taken, &naive.journal.taken);
        prop_assert_eq!(&journal.freed, &naive.journal.freed);
        prop_assert_eq!(&pool.bits, &naive.pool.bits);
        prop_assert_eq!(&start.with(&journal), &*pool.bits);
        let first = pool.first_allocated(clear.0, 19_000);
        prop_assert_eq!(first, (clear.0..=19_000).find(|n| pool.bits.contains(*n)));
        let allocated = pool.allocated_ranges(100, 19_000).collect::<Vec<_>>();
        let one_by_one = (100..=19_000).filter(|n| pool.bits.contains(*n));
        prop_assert_eq!(allocated, crate::tags::ranges(one_by_one).collect::<Vec<_>>());
        let free = (0..size).filter(|n| !pool.bits.contains(*n));
        prop_assert_eq!(pool.free_ranges().collect::<Vec<_>>(), crate::tags::ranges(free).collect::<Vec<_>>());
    }
}

/// A pool of which all is kept, changed number by number.
struct Naive {
    pool: Pool,
    change: PoolChange,
    journal: PoolChange,
}

impl Naive {
    fn new(bits: Bitset) -> Naive {
        Naive { pool: Pool::new(bits), change: PoolChange::default(), journal: PoolChange::default() }
    }

    /// Merges and applies the change.
    fn write(&mut self) {
        let change = std::mem::take(&mut self.change);
        for n in change.taken.iter() {
            if !self.journal.freed.remove(n) {
                self.journal.taken.insert(n);
            }
        }
        for n in change.freed.iter() {
            if !self.journal.taken.remove(n) {
                self.journal.freed.insert(n);
            }
        }
        let mut bits = self.pool.bits.part(0, self.pool.size());
        change.taken.iter().for_each(|n| {
            bits.insert(n);
        });
        change.freed.iter().for_each(|n| {
            bits.remove(n);
        });
        self.pool = Pool::new(bits);
    }
}

#[derive(Clone, Copy, Debug)]
enum RangeStep {
    Take(usize, usize),
    Free(usize, usize),
    Next,
    Write,
}

fn range_step() -> impl Strategy<Value = RangeStep> {
    // Some end beyond the last number.
    let range = || (0usize..20_000, 0usize..1_500).prop_map(|(first, more)| (first, first + more));
    prop_oneof![
        3 => range().prop_map(|(first, last)| RangeStep::Take(first, last)),
        3 => range().prop_map(|(first, last)| RangeStep::Free(first, last)),
        2 => Just(RangeStep::Next),
        1 => Just(RangeStep::Write),
    ]
}
