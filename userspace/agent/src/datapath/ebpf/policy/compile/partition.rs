//! Partitions the clauses into trees.
//!
//! A tree repeats the clauses for any port in the range of each port that occurs, and likewise for groups. If that adds
//! little, there is one tree to search. If many subnets meet many ports or groups, the size would multiply. The tree then
//! searches addresses first, if few subnets are nested ([`AddressPartition`]). If that would multiply as well, the
//! clauses go to several trees, and the programs search all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    address_first::AddressPartition,
    clause::{Clause, L4Match},
};

/// Limit of the repetition in a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// Ranges per clause.
    growth: usize,
    /// Additional ranges, for few clauses.
    small: usize,
    /// Tree nodes per clause below the address nodes, in an address-first tree.
    residual: usize,
}

/// The clauses of one tree, by the field that is searched first.
#[derive(Debug)]
pub(super) enum Tree {
    /// Groups, then ports, then addresses.
    GroupFirst(Vec<Clause>),
    /// Addresses, then groups, then ports.
    AddressFirst(AddressPartition),
}

impl Limit {
    /// Default. A few kilobytes for few clauses. Address-first trees use about half of the allowed nodes.
    pub(crate) const DEFAULT: Limit = Limit { growth: 3, small: 64, residual: 8 };
    /// For nearly full tables: smaller trees, slower searches.
    pub(crate) const COMPACT: Limit = Limit { residual: 0, ..Limit::DEFAULT };
    /// No common trees.
    #[cfg(test)]
    pub(super) const SEPARATE: Limit = Limit { growth: 0, small: 0, residual: 0 };
    /// Address-first trees.
    #[cfg(test)]
    pub(super) const ADDRESS_FIRST: Limit = Limit { growth: 0, small: 0, residual: 1000 };

    /// Maximum number of tree nodes below the address nodes.
    fn residual_nodes(self, clauses: usize) -> usize {
        self.residual * clauses
    }
}

/// Partitions the clauses into at most `RuleSet::ROOTS` trees, none of them empty.
pub(super) fn partition(clauses: &[Clause], limit: Limit) -> Vec<Tree> {
    if let Some(tree) = one(clauses, limit) {
        return vec![tree];
    }
    let (by_group, others): (Vec<Clause>, Vec<Clause>) =
        clauses.iter().partition(|(condition, _)| condition.group.is_some());
    let mut trees = vec![];
    for clauses in [by_group, others].into_iter().filter(|clauses| !clauses.is_empty()) {
        if let Some(tree) = one(&clauses, limit) {
            trees.push(tree);
            continue;
        }
        let mut by_l4: [Vec<Clause>; 3] = Default::default();
        for clause in clauses {
            let index = match clause.0.l4 {
                L4Match::Port(..) => 0,
                L4Match::Protocol(_) => 1,
                L4Match::Any => 2,
            };
            by_l4[index].push(clause);
        }
        trees.extend(by_l4.into_iter().filter(|clauses| !clauses.is_empty()).map(Tree::GroupFirst));
    }
    trees
}

/// One tree for all clauses, if it stays within the limit.
fn one(clauses: &[Clause], limit: Limit) -> Option<Tree> {
    if fits(clauses, limit) {
        return Some(Tree::GroupFirst(clauses.to_vec()));
    }
    AddressPartition::of(clauses, limit.residual_nodes(clauses.len())).map(Tree::AddressFirst)
}

/// Whether a group-first tree of the clauses stays within the limit.
fn fits(clauses: &[Clause], limit: Limit) -> bool {
    let limit = limit.growth * clauses.len() + limit.small;
    let mut by_group: BTreeMap<Option<u16>, Vec<&Clause>> = BTreeMap::new();
    for clause in clauses {
        by_group.entry(clause.0.group).or_default().push(clause);
    }
    let of_any = by_group.remove(&None).unwrap_or_default();
    let mut size = 0;
    for of_group in by_group.values().map(Vec::as_slice).chain([&[][..]]) {
        size += port_ranges(of_group.iter().chain(&of_any).copied());
        if size > limit {
            return false;
        }
    }
    true
}

/// Number of port ranges, plus the number of subnets in all of them.
fn port_ranges<'a>(clauses: impl Iterator<Item = &'a Clause>) -> usize {
    let mut ranges: BTreeSet<L4Match> = BTreeSet::new();
    let (mut of_all, mut of_ports) = (0, 0);
    let mut of_protocols: BTreeMap<u8, usize> = BTreeMap::new();
    for (condition, _) in clauses {
        ranges.insert(condition.l4);
        let subnets = usize::from(condition.subnet.is_some());
        match condition.l4 {
            L4Match::Any => of_all += subnets,
            L4Match::Protocol(protocol) => *of_protocols.entry(protocol).or_default() += subnets,
            L4Match::Port(..) => of_ports += subnets,
        }
    }
    let of_protocol = |protocol: &u8| of_protocols.get(protocol).copied().unwrap_or(0);
    let repeated: usize = ranges
        .iter()
        .map(|range| match range {
            L4Match::Any => 0,
            L4Match::Protocol(protocol) | L4Match::Port(protocol, _) => of_protocol(protocol) + of_all,
        })
        .sum();
    ranges.len() + of_ports + of_all + repeated
}
