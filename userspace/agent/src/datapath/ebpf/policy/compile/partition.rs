//! Partitions the clauses into trees.
//!
//! A tree repeats a clause in each interval of ports that its port range contains, and likewise for groups. If that adds
//! little, there is one tree to search. If many subnets meet many ports or groups, the size would multiply. The tree then
//! searches addresses first, if few subnets are nested ([`AddressPartition`]). If that would multiply as well, the
//! clauses go to several trees, and the programs search all of them.

use std::collections::BTreeMap;

use contiv_model::policy::PortRange;

use super::{
    address_first::AddressPartition,
    clause::{Clause, L4Match},
    intervals::intervals,
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
                L4Match::Ports(..) => 0,
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
    /// Clauses of one protocol.
    #[derive(Default)]
    struct OfProtocol {
        /// 1 if there are clauses for any port.
        any_port: usize,
        /// Number of subnets of clauses for any port.
        subnets: usize,
        /// Port ranges with their number of subnets.
        ports: Vec<(PortRange, usize)>,
    }
    let (mut any, mut of_all) = (0, 0);
    let mut protocols: BTreeMap<u8, OfProtocol> = BTreeMap::new();
    for (condition, _) in clauses {
        let subnets = usize::from(condition.subnet.is_some());
        match condition.l4 {
            L4Match::Any => (any, of_all) = (1, of_all + subnets),
            L4Match::Protocol(protocol) => {
                let of_protocol = protocols.entry(protocol).or_default();
                (of_protocol.any_port, of_protocol.subnets) = (1, of_protocol.subnets + subnets);
            }
            L4Match::Ports(protocol, ports) => {
                protocols.entry(protocol).or_default().ports.push((ports, subnets));
            }
        }
    }
    let of_protocols = protocols.into_values().map(|OfProtocol { any_port, subnets, ports }| {
        let (mut ranges, mut of_ports) = (any_port, 0);
        intervals(&ports, |_, of_interval| {
            ranges += usize::from(!of_interval.is_empty());
            of_ports += of_interval.into_iter().sum::<usize>();
        });
        ranges + of_ports + ranges * (subnets + of_all)
    });
    any + of_all + of_protocols.sum::<usize>()
}
