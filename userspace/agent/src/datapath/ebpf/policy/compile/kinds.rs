//! Which rules are put into one tree.
//!
//! In a tree by ports, what is about any port is repeated in the range of each port that some rule names, and likewise with
//! groups. Mostly that is little, and a search has one tree to go through. Where rules about many subnets meet many ports or
//! groups it would multiply. Then a tree is by addresses first, if few of the subnets are in one another: [`Layers`]. If that would multiply, too,
//! they are kept apart, and a search goes through each.

use std::collections::{BTreeMap, BTreeSet};

use super::{About, Case, layers::Layers};

/// How much of a tree may be repetition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// What may come of a rule.
    growth: usize,
    /// What may come of few.
    small: usize,
    /// Branches for each rule behind those of addresses, when these come first.
    left: usize,
}

/// Rules of one tree, by what they are told apart first.
#[derive(Debug)]
pub(super) enum Tree {
    /// Groups, then ports, then addresses.
    ByGroup(Vec<Case>),
    /// Addresses, then groups, then ports.
    ByAddress(Layers),
}

impl Limit {
    /// For few, some kilobytes. Behind addresses come about half as many branches as are allowed for, most of them having few ways.
    pub(crate) const USUAL: Limit = Limit { growth: 3, small: 64, left: 8 };
    /// When there is little room: searches take longer.
    pub(crate) const TIGHT: Limit = Limit { left: 0, ..Limit::USUAL };
    /// Nothing is put together.
    #[cfg(test)]
    pub(super) const NOTHING: Limit = Limit { growth: 0, small: 0, left: 0 };
    /// Addresses are first.
    #[cfg(test)]
    pub(super) const ADDRESSES: Limit = Limit { growth: 0, small: 0, left: 1000 };

    /// Branches behind those of addresses.
    pub(super) fn left(self, cases: usize) -> usize {
        self.left * cases
    }
}

/// The cases by trees: at most `RuleSet::ROOTS`, none of them empty.
pub(super) fn together(cases: &[Case], limit: Limit) -> Vec<Tree> {
    if let Some(tree) = one(cases, limit) {
        return vec![tree];
    }
    let (by_group, others): (Vec<Case>, Vec<Case>) =
        cases.iter().partition(|(asked, _)| asked.group.is_some());
    let mut trees = vec![];
    for cases in [by_group, others].into_iter().filter(|cases| !cases.is_empty()) {
        if let Some(tree) = one(&cases, limit) {
            trees.push(tree);
            continue;
        }
        let mut kinds: [Vec<Case>; 3] = Default::default();
        for case in cases {
            let kind = match case.0.about {
                About::Port(..) => 0,
                About::Protocol(_) => 1,
                About::All => 2,
            };
            kinds[kind].push(case);
        }
        trees.extend(kinds.into_iter().filter(|cases| !cases.is_empty()).map(Tree::ByGroup));
    }
    trees
}

/// One tree that is not much larger than the cases are.
fn one(cases: &[Case], limit: Limit) -> Option<Tree> {
    if fit(cases, limit) {
        return Some(Tree::ByGroup(cases.to_vec()));
    }
    Layers::of(cases, limit).map(Tree::ByAddress)
}

/// Whether one tree of these by groups is not much larger than they are.
fn fit(cases: &[Case], limit: Limit) -> bool {
    let limit = limit.growth * cases.len() + limit.small;
    let mut by_group: BTreeMap<Option<u16>, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        by_group.entry(case.0.group).or_default().push(case);
    }
    let of_any = by_group.remove(&None).unwrap_or_default();
    let mut size = 0;
    for of_group in by_group.values().map(Vec::as_slice).chain([&[][..]]) {
        size += of_ports(of_group.iter().chain(&of_any).copied());
        if size > limit {
            return false;
        }
    }
    true
}

/// How many ranges of ports there are, and how often subnets are in one.
fn of_ports<'a>(cases: impl Iterator<Item = &'a Case>) -> usize {
    let mut ranges: BTreeSet<About> = BTreeSet::new();
    let (mut of_all, mut of_ports) = (0, 0);
    let mut of_protocols: BTreeMap<u8, usize> = BTreeMap::new();
    for (asked, _) in cases {
        ranges.insert(asked.about);
        let subnets = usize::from(asked.subnet.is_some());
        match asked.about {
            About::All => of_all += subnets,
            About::Protocol(protocol) => *of_protocols.entry(protocol).or_default() += subnets,
            About::Port(..) => of_ports += subnets,
        }
    }
    let of_protocol = |protocol: &u8| of_protocols.get(protocol).copied().unwrap_or(0);
    let repeated: usize = ranges
        .iter()
        .map(|range| match range {
            About::All => 0,
            About::Protocol(protocol) | About::Port(protocol, _) => of_protocol(protocol) + of_all,
        })
        .sum();
    ranges.len() + of_ports + of_all + repeated
}
