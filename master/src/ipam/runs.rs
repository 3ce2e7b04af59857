//! A set of numbers as runs of neighbours.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

/// Small where numbers are taken in order, as addresses are: a thousand neighbours are one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs<N> {
    /// First to last, both included; runs neither touch nor overlap.
    runs: BTreeMap<N, N>,
}

/// `usize` or `u128`.
pub trait Number: Copy + Ord + Add<Output = Self> + Sub<Output = Self> + From<u8> {}
impl Number for usize {}
impl Number for u128 {}

impl<N> Default for Runs<N> {
    fn default() -> Self {
        Runs { runs: BTreeMap::new() }
    }
}

impl<N: Number> Runs<N> {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// How many runs there are.
    pub fn runs_len(&self) -> usize {
        self.runs.len()
    }

    /// The run that `n` is in.
    pub fn run_of(&self, n: N) -> Option<(N, N)> {
        let (first, last) = self.runs.range(..=n).next_back()?;
        (n <= *last).then_some((*first, *last))
    }

    pub fn contains(&self, n: N) -> bool {
        self.run_of(n).is_some()
    }

    /// The lowest that is `n` or more.
    pub fn next_from(&self, n: N) -> Option<N> {
        if self.contains(n) { Some(n) } else { self.runs.range(n..).next().map(|(first, _)| *first) }
    }

    pub fn first(&self) -> Option<N> {
        self.runs.keys().next().copied()
    }

    /// False if it was there.
    pub fn insert(&mut self, n: N) -> bool {
        if self.contains(n) {
            return false;
        }
        let one = N::from(1);
        let before = self.runs.range(..n).next_back().filter(|(_, last)| **last + one == n);
        let first = before.map_or(n, |(first, _)| *first);
        let after = self.runs.range(n..).next().map(|(first, last)| (*first, *last));
        let last = match after.filter(|(first, _)| *first - one == n) {
            Some((first, last)) => {
                self.runs.remove(&first);
                last
            }
            None => n,
        };
        self.runs.insert(first, last);
        true
    }

    /// Adds all from `first` to `last`.
    pub fn insert_run(&mut self, first: N, last: N) {
        let one = N::from(1);
        let (mut first, mut last) = (first, last);
        // Whatever it overlaps or touches becomes part of it.
        while let Some((a, b)) = self.runs.range(..=last).next_back().map(|(a, b)| (*a, *b)) {
            if b < first && first - b > one {
                break;
            }
            self.runs.remove(&a);
            (first, last) = (first.min(a), last.max(b));
        }
        if let Some((a, b)) =
            self.runs.range(last..).next().map(|(a, b)| (*a, *b)).filter(|(a, _)| *a - last == one)
        {
            self.runs.remove(&a);
            last = b;
        }
        self.runs.insert(first, last);
    }

    /// False if it was not there.
    pub fn remove(&mut self, n: N) -> bool {
        let Some((first, last)) = self.run_of(n) else { return false };
        let one = N::from(1);
        self.runs.remove(&first);
        if first < n {
            self.runs.insert(first, n - one);
        }
        if n < last {
            self.runs.insert(n + one, last);
        }
        true
    }

    /// First and last of each run, in order.
    pub fn runs(&self) -> impl Iterator<Item = (N, N)> + '_ {
        self.runs.iter().map(|(first, last)| (*first, *last))
    }

    /// Every number, in order.
    pub fn iter(&self) -> impl Iterator<Item = N> + '_ {
        self.runs().flat_map(|(first, last)| {
            std::iter::successors(Some(first), move |n| (*n < last).then(|| *n + N::from(1)))
        })
    }
}

impl<N: Number> Extend<N> for Runs<N> {
    fn extend<I: IntoIterator<Item = N>>(&mut self, numbers: I) {
        for n in numbers {
            self.insert(n);
        }
    }
}

impl<N: Number> FromIterator<N> for Runs<N> {
    fn from_iter<I: IntoIterator<Item = N>>(numbers: I) -> Self {
        let mut runs = Runs::default();
        runs.extend(numbers);
        runs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_are_added_whole(spans in prop::collection::vec((0usize..60, 0usize..9), 0..20)) {
            let (mut runs, mut model) = (Runs::default(), BTreeSet::new());
            for (first, more) in spans {
                runs.insert_run(first, first + more);
                model.extend(first..=first + more);
            }
            let listed: Vec<_> = crate::tags::runs(model.into_iter()).collect();
            prop_assert_eq!(runs.runs().collect::<Vec<_>>(), listed);
        }

        #[test]
        fn it_is_a_set(ops in prop::collection::vec((any::<bool>(), 0usize..60), 0..300)) {
            let (mut runs, mut model) = (Runs::default(), BTreeSet::new());
            for (add, n) in ops {
                if add {
                    prop_assert_eq!(runs.insert(n), model.insert(n));
                } else {
                    prop_assert_eq!(runs.remove(n), model.remove(&n));
                }
                prop_assert_eq!(runs.contains(n), model.contains(&n));
                prop_assert_eq!(runs.first(), model.first().copied());
            }
            prop_assert_eq!(runs.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            let listed: Vec<_> = crate::tags::runs(model.into_iter()).collect();
            prop_assert_eq!(runs.runs().collect::<Vec<_>>(), listed);
        }
    }
}
