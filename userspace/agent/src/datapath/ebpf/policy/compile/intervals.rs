//! Intervals of overlapping port ranges.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::policy::PortRange;

/// Splits the ports from the first range to the last into intervals that lie within or outside of each range. Calls `visit`
/// for each in ascending order, with its first port and the values of the ranges around it. The last interval, which is
/// outside of all ranges, can begin at 65536.
pub(super) fn intervals<T: Copy>(ranges: &[(PortRange, T)], mut visit: impl FnMut(u32, Vec<T>)) {
    // Ranges that begin and that have ended, by port.
    let mut bounds: BTreeMap<u32, [Vec<usize>; 2]> = BTreeMap::new();
    for (index, (range, _)) in ranges.iter().enumerate() {
        let [begin, _] = bounds.entry(range.first().into()).or_default();
        begin.push(index);
        let [_, end] = bounds.entry(u32::from(range.last()) + 1).or_default();
        end.push(index);
    }
    let mut around: BTreeSet<usize> = BTreeSet::new();
    for (port, [begin, end]) in bounds {
        around.extend(begin);
        for index in &end {
            around.remove(index);
        }
        visit(port, around.iter().filter_map(|index| ranges.get(*index)).map(|(_, value)| *value).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_within_or_outside_of_each_range() {
        let range = |first, last| PortRange::new(first, last).unwrap();
        let ranges =
            [(range(80, 90), 'a'), (range(85, 85), 'b'), (range(91, u16::MAX), 'c'), (range(0, 3), 'd')];
        let mut found = vec![];
        intervals(&ranges, |port, values| found.push((port, values)));
        let expected = [
            (0, vec!['d']),
            (4, vec![]),
            (80, vec!['a']),
            (85, vec!['a', 'b']),
            (86, vec!['a']),
            (91, vec!['c']),
            (65_536, vec![]),
        ];
        assert_eq!(found, expected);
    }
}
