//! Partitions clauses by the address of the peer: prefixes are nested, and in each disjoint range few clauses remain, which
//! differ in group, protocol and port.

use std::collections::{BTreeMap, HashMap};

use contiv_abi::policy::{RuleEntry, WAYS};
use ipnet::IpNet;

use super::{
    clause::{Clause, L4Match},
    ranges::{Span, flatten},
};

/// The deciding rule for each group, protocol and port in a range.
type Residual = BTreeMap<(Option<u16>, L4Match), RuleEntry>;

/// Ranges of all IPv4 and IPv6 addresses, each with the index of its residual.
#[derive(Debug)]
pub(super) struct AddressPartition {
    pub(super) residuals: Vec<Residual>,
    pub(super) ranges: [Vec<(u128, usize)>; 2],
}

/// An [`AddressPartition`] under construction.
struct Builder {
    residuals: Vec<Residual>,
    indices: HashMap<Residual, usize>,
    /// Number of tree nodes that may be added; `None` after the limit was exceeded.
    budget: Option<usize>,
}

impl AddressPartition {
    /// Partitions the clauses. `None` if the residuals need more than `max_nodes` tree nodes.
    pub(super) fn of(clauses: &[Clause], max_nodes: usize) -> Option<AddressPartition> {
        let mut nets: BTreeMap<Option<IpNet>, Vec<Clause>> = BTreeMap::new();
        for clause in clauses {
            nets.entry(clause.0.subnet).or_default().push(*clause);
        }
        let mut builder = Builder { residuals: vec![], indices: HashMap::new(), budget: Some(max_nodes) };
        let all = builder.add(Residual::new(), &nets.remove(&None).unwrap_or_default());
        let (ip4, ip6): (Vec<_>, Vec<_>) =
            nets.into_iter().partition(|(net, _)| matches!(net, Some(IpNet::V4(_))));
        let ranges = [ip4, ip6].map(|nets| {
            let spans =
                nets.into_iter().filter_map(|(net, clauses)| Some((Span::of(net?), clauses))).collect();
            flatten(all, spans, |around, clauses| builder.nest(around, &clauses)).into_inner()
        });
        builder.budget.map(|_| AddressPartition { residuals: builder.residuals, ranges })
    }
}

impl Builder {
    /// Index of the residual in a prefix with these clauses, which lies in a range with the residual `around`.
    fn nest(&mut self, around: usize, clauses: &[Clause]) -> usize {
        match self.residuals.get(around) {
            Some(residual) if self.budget.is_some() => {
                let residual = residual.clone();
                self.add(residual, clauses)
            }
            _ => around,
        }
    }

    /// Index of the residual with the clauses added.
    fn add(&mut self, mut residual: Residual, clauses: &[Clause]) -> usize {
        for (condition, entry) in clauses {
            let decides = residual.entry((condition.group, condition.l4)).or_insert(*entry);
            *decides = (*decides).min(*entry);
        }
        if let Some(index) = self.indices.get(&residual) {
            return *index;
        }
        self.budget = self.budget.and_then(|budget| budget.checked_sub(nodes(&residual)));
        self.indices.insert(residual.clone(), self.residuals.len());
        self.residuals.push(residual);
        self.residuals.len() - 1
    }
}

/// Maximum number of tree nodes of a residual: a tree by group, and one by port for each group and for all others.
fn nodes(residual: &Residual) -> usize {
    // Each number is a range, and so is each gap.
    let tree = |numbers: usize| (2 * numbers).div_ceil(WAYS - 1);
    let ports = |l4: &L4Match| usize::from(*l4 != L4Match::Any);
    let of_any: usize = residual.keys().filter(|(group, _)| group.is_none()).map(|(_, l4)| ports(l4)).sum();
    let mut groups: BTreeMap<u16, usize> = BTreeMap::new();
    for (group, l4) in residual.keys() {
        if let Some(group) = group {
            *groups.entry(*group).or_insert(of_any) += ports(l4);
        }
    }
    tree(of_any) + tree(groups.len()) + groups.into_values().map(tree).sum::<usize>()
}
