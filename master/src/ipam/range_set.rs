//! Sets of numbers stored as ranges.

use std::collections::BTreeMap;
use std::ops::{Add, Sub};

/// Compact if numbers are allocated in order: consecutive numbers are one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSet<N> {
    /// First to last number, both included. Ranges neither touch nor overlap.
    ranges: BTreeMap<N, N>,
}

/// `usize` or `u128`.
pub trait Number: Copy + Ord + Add<Output = Self> + Sub<Output = Self> + From<u8> {}
impl Number for usize {}
impl Number for u128 {}

impl<N> Default for RangeSet<N> {
    fn default() -> Self {
        RangeSet { ranges: BTreeMap::new() }
    }
}

impl<N: Number> RangeSet<N> {
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn ranges_len(&self) -> usize {
        self.ranges.len()
    }

    /// Range that contains `n`.
    pub fn range_of(&self, n: N) -> Option<(N, N)> {
        let (first, last) = self.ranges.range(..=n).next_back()?;
        (n <= *last).then_some((*first, *last))
    }

    pub fn contains(&self, n: N) -> bool {
        self.range_of(n).is_some()
    }

    /// Lowest number that is at least `n`.
    pub fn next_from(&self, n: N) -> Option<N> {
        if self.contains(n) { Some(n) } else { self.ranges.range(n..).next().map(|(first, _)| *first) }
    }

    pub fn first(&self) -> Option<N> {
        self.ranges.keys().next().copied()
    }

    /// Returns false if the number was in the set.
    pub fn insert(&mut self, n: N) -> bool {
        if self.contains(n) {
            return false;
        }
        let one = N::from(1);
        let before = self.ranges.range(..n).next_back().filter(|(_, last)| **last + one == n);
        let first = before.map_or(n, |(first, _)| *first);
        let after = self.ranges.range(n..).next().map(|(first, last)| (*first, *last));
        let last = match after.filter(|(first, _)| *first - one == n) {
            Some((first, last)) => {
                self.ranges.remove(&first);
                last
            }
            None => n,
        };
        self.ranges.insert(first, last);
        true
    }

    /// Inserts all numbers from `first` to `last`.
    pub fn insert_range(&mut self, first: N, last: N) {
        let one = N::from(1);
        let (mut first, mut last) = (first, last);
        // Merges ranges that overlap or touch it.
        while let Some((a, b)) = self.ranges.range(..=last).next_back().map(|(a, b)| (*a, *b)) {
            if b < first && first - b > one {
                break;
            }
            self.ranges.remove(&a);
            (first, last) = (first.min(a), last.max(b));
        }
        if let Some((a, b)) =
            self.ranges.range(last..).next().map(|(a, b)| (*a, *b)).filter(|(a, _)| *a - last == one)
        {
            self.ranges.remove(&a);
            last = b;
        }
        self.ranges.insert(first, last);
    }

    /// Returns false if the number was not in the set.
    pub fn remove(&mut self, n: N) -> bool {
        let Some((first, last)) = self.range_of(n) else { return false };
        let one = N::from(1);
        self.ranges.remove(&first);
        if first < n {
            self.ranges.insert(first, n - one);
        }
        if n < last {
            self.ranges.insert(n + one, last);
        }
        true
    }

    /// Removes all numbers from `first` to `last`.
    pub fn remove_range(&mut self, first: N, last: N) {
        let one = N::from(1);
        let cut: Vec<(N, N)> = self.overlapping(first, last).collect();
        for (a, b) in cut {
            self.ranges.remove(&a);
            if a < first {
                self.ranges.insert(a, first - one);
            }
            if last < b {
                self.ranges.insert(last + one, b);
            }
        }
    }

    /// Removes all numbers from `first` to `last`. Returns the ranges that were not in the set, ascending.
    pub fn cut(&mut self, first: N, last: N) -> Vec<(N, N)> {
        let missing = self.gaps_within(first, last).collect();
        self.remove_range(first, last);
        missing
    }

    /// Merges a later change of numbers, which takes some and frees others, into an earlier one. What one takes and the other
    /// frees is as it was before both.
    pub fn merge_change([taken, freed]: [&mut Self; 2], [later_taken, later_freed]: [&Self; 2]) {
        for (first, last) in later_taken.ranges() {
            for (a, b) in freed.cut(first, last) {
                taken.insert_range(a, b);
            }
        }
        for (first, last) in later_freed.ranges() {
            for (a, b) in taken.cut(first, last) {
                freed.insert_range(a, b);
            }
        }
    }

    /// Ranges of numbers from `first` to `last` that are not in the set, ascending.
    pub fn gaps_within(&self, first: N, last: N) -> impl Iterator<Item = (N, N)> + '_ {
        let one = N::from(1);
        let mut ranges = self.ranges_within(first, last);
        // None after the last number.
        let mut next = Some(first);
        std::iter::from_fn(move || {
            while let Some(start) = next {
                let Some((a, b)) = ranges.next() else {
                    next = None;
                    return Some((start, last));
                };
                next = (b < last).then(|| b + one);
                if start < a {
                    return Some((start, a - one));
                }
            }
            None
        })
    }

    /// Ranges with numbers from `first` to `last`, cut off there, ascending.
    pub fn ranges_within(&self, first: N, last: N) -> impl Iterator<Item = (N, N)> + '_ {
        self.overlapping(first, last).map(move |(a, b)| (a.max(first), b.min(last)))
    }

    /// Whole ranges with numbers from `first` to `last`, ascending.
    fn overlapping(&self, first: N, last: N) -> impl Iterator<Item = (N, N)> + '_ {
        let before = self.ranges.range(..first).next_back().filter(|(_, b)| **b >= first);
        before.into_iter().chain(self.ranges.range(first..=last)).map(|(a, b)| (*a, *b))
    }

    /// First and last number of each range, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (N, N)> + '_ {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }

    /// All numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = N> + '_ {
        self.ranges().flat_map(|(first, last)| {
            std::iter::successors(Some(first), move |n| (*n < last).then(|| *n + N::from(1)))
        })
    }
}

impl<N: Number> Extend<N> for RangeSet<N> {
    fn extend<I: IntoIterator<Item = N>>(&mut self, numbers: I) {
        for n in numbers {
            self.insert(n);
        }
    }
}

impl<N: Number> FromIterator<N> for RangeSet<N> {
    fn from_iter<I: IntoIterator<Item = N>>(numbers: I) -> Self {
        let mut ranges = RangeSet::default();
        ranges.extend(numbers);
        ranges
    }
}

/// IPv4 host numbers as the store has them, such as `1-5000, 5007`.
pub(super) fn addresses_text(numbers: &RangeSet<usize>) -> String {
    text(numbers, |n| n.to_string())
}

/// Parses [`addresses_text`]. Returns the text if it is invalid.
pub(super) fn read_addresses(text: &str) -> Result<RangeSet<usize>, String> {
    read(text, |n| n.parse().ok())
}

/// IPv6 host numbers as the store has them: as [`addresses_text`], in hexadecimal.
pub(super) fn hosts_text(numbers: &RangeSet<u128>) -> String {
    text(numbers, |n| format!("{n:x}"))
}

/// Parses [`hosts_text`]. Returns the text if it is invalid.
pub(super) fn read_hosts(text: &str) -> Result<RangeSet<u128>, String> {
    read(text, |n| u128::from_str_radix(n, 16).ok())
}

fn text<N: Number>(numbers: &RangeSet<N>, number: impl Fn(N) -> String) -> String {
    let range = |(a, b)| if a == b { number(a) } else { format!("{}-{}", number(a), number(b)) };
    numbers.ranges().map(range).collect::<Vec<_>>().join(", ")
}

fn read<N: Number>(text: &str, number: impl Fn(&str) -> Option<N>) -> Result<RangeSet<N>, String> {
    let mut numbers = RangeSet::default();
    for range in text.split(", ").filter(|range| !range.is_empty()) {
        let (a, b) = range.split_once('-').unwrap_or((range, range));
        let bounds = number(a).zip(number(b)).filter(|(a, b)| a <= b);
        let (a, b) = bounds.ok_or_else(|| text.to_owned())?;
        numbers.insert_range(a, b);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gaps_end_at_the_greatest_number() {
        let mut ranges: RangeSet<u128> = [5].into_iter().collect();
        let all = |ranges: &RangeSet<u128>| ranges.gaps_within(0, u128::MAX).collect::<Vec<_>>();
        assert_eq!(all(&ranges), [(0, 4), (6, u128::MAX)]);
        ranges.insert_range(6, u128::MAX);
        assert_eq!(all(&ranges), [(0, 4)]);
        assert_eq!(all(&RangeSet::default()), [(0, u128::MAX)]);
    }

    proptest! {
        #[test]
        fn ranges_are_inserted(spans in prop::collection::vec((0usize..60, 0usize..9), 0..20)) {
            let (mut ranges, mut model) = (RangeSet::default(), BTreeSet::new());
            for (first, more) in spans {
                ranges.insert_range(first, first + more);
                model.extend(first..=first + more);
            }
            let listed: Vec<_> = crate::tags::ranges(model.into_iter()).collect();
            prop_assert_eq!(ranges.ranges().collect::<Vec<_>>(), listed);
        }

        #[test]
        fn ranges_are_cut_out(
            numbers in prop::collection::btree_set(0usize..60, 0..50),
            first in 0usize..60,
            more in 0usize..30,
        ) {
            let (last, ranges): (_, RangeSet<usize>) = (first + more, numbers.iter().copied().collect());
            let inside: Vec<_> = crate::tags::ranges(numbers.range(first..=last).copied()).collect();
            prop_assert_eq!(ranges.ranges_within(first, last).collect::<Vec<_>>(), inside);
            let mut rest = ranges.clone();
            let missing: Vec<_> =
                crate::tags::ranges((first..=last).filter(|n| !numbers.contains(n))).collect();
            prop_assert_eq!(&ranges.gaps_within(first, last).collect::<Vec<_>>(), &missing);
            prop_assert_eq!(rest.cut(first, last), missing);
            let outside = numbers.iter().copied().filter(|n| !(first..=last).contains(n));
            let outside: Vec<_> = crate::tags::ranges(outside).collect();
            prop_assert_eq!(rest.ranges().collect::<Vec<_>>(), outside);
        }

        #[test]
        fn range_sets_behave_like_sets(ops in prop::collection::vec((any::<bool>(), 0usize..60), 0..300)) {
            let (mut ranges, mut model) = (RangeSet::default(), BTreeSet::new());
            for (add, n) in ops {
                if add {
                    prop_assert_eq!(ranges.insert(n), model.insert(n));
                } else {
                    prop_assert_eq!(ranges.remove(n), model.remove(&n));
                }
                prop_assert_eq!(ranges.contains(n), model.contains(&n));
                prop_assert_eq!(ranges.first(), model.first().copied());
            }
            prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
            let listed: Vec<_> = crate::tags::ranges(model.into_iter()).collect();
            prop_assert_eq!(ranges.ranges().collect::<Vec<_>>(), listed);
        }
    }
}
