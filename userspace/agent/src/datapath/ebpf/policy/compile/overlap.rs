//! Limit of overlapping port ranges.

use std::collections::BTreeMap;

use contiv_model::policy::{Direction, Rule};

use super::clause::{L4Match, Match};

/// A tree repeats a clause in each interval of its port range: with many ranges that overlap, the size of the tree would
/// grow with the square of the number of clauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the port ranges of {direction} rules overlap too much: {clauses} conditions become {repeated}, at most {limit}; \
     use fewer distinct ranges"
)]
pub(crate) struct OverlappingPorts {
    direction: Direction,
    clauses: usize,
    repeated: usize,
    limit: usize,
}

/// Maximum number of intervals per clause.
const GROWTH: usize = 16;
/// Additional intervals, for few clauses.
const SMALL: usize = 1 << 16;

/// Checks that the trees of the rules do not grow with the square of the number of rules.
pub(crate) fn check_ports(rules: &[Rule]) -> Result<(), OverlappingPorts> {
    for direction in [Direction::In, Direction::Out] {
        let (mut clauses, mut repeated) = (0, 0);
        // By protocol and port: the clauses whose range begins, less those whose range has ended.
        let mut bounds: BTreeMap<u8, BTreeMap<u32, [usize; 2]>> = BTreeMap::new();
        for condition in rules.iter().filter(|rule| rule.direction == direction).flat_map(Match::of) {
            if let L4Match::Ports(protocol, range) = condition.l4 {
                clauses += 1;
                let bounds = bounds.entry(protocol).or_default();
                bounds.entry(range.first().into()).or_default()[0] += 1;
                bounds.entry(u32::from(range.last()) + 1).or_default()[1] += 1;
            }
        }
        for bounds in bounds.into_values() {
            let mut around = 0_usize;
            for [begin, end] in bounds.into_values() {
                around = around + begin - end;
                repeated += around;
            }
        }
        let limit = GROWTH * clauses + SMALL;
        if repeated > limit {
            return Err(OverlappingPorts { direction, clauses, repeated, limit });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use contiv_model::policy::{Action, PortRange, TCP};

    use super::*;

    #[test]
    fn only_nested_ranges_multiply() {
        let rules = |count: u16, range: &dyn Fn(u16) -> PortRange| -> Vec<Rule> {
            let rule = |n| Rule {
                protocol: Some(TCP),
                ports: Some(range(n)),
                ..Rule::new(format!("r{n}"), Direction::In, Action::Deny, 1.try_into().unwrap())
            };
            (0..count).map(rule).collect()
        };
        let nested = |n| PortRange::new(n, u16::MAX - n).unwrap();
        assert_eq!(check_ports(&rules(30_000, &PortRange::from)), Ok(()));
        assert_eq!(check_ports(&rules(30_000, &|_| nested(7))), Ok(()));
        assert_eq!(check_ports(&rules(250, &nested)), Ok(()));
        let error = check_ports(&rules(1000, &nested)).unwrap_err();
        assert!(
            error.to_string().starts_with("the port ranges of in rules overlap too much: 1000 conditions"),
            "{error}"
        );
    }
}
