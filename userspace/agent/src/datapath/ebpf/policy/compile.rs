//! Compiles the rules of a group into search trees for the programs. Pure. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`clause`] | a rule without its local subnet, for one identity and one prefix |
//! | [`intervals`] | overlapping port ranges to intervals |
//! | [`overlap`] | limit of overlapping port ranges |
//! | [`ranges`] | nested prefixes to disjoint ranges |
//! | [`address_first`] | clauses partitioned by peer address |
//! | [`partition`] | clauses to trees: one, unless clauses would be repeated too often |
//! | [`tree`] | clauses to ranges of groups, of ports and of addresses; ranges to tree nodes |

mod address_first;
mod clause;
mod intervals;
mod overlap;
mod partition;
mod ranges;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contiv_abi::policy::{Branch, RuleEntry, RuleSet};
use contiv_model::{
    name::RuleId,
    policy::{Action, Direction, Layer, Priority, Rule},
};
use ipnet::IpNet;

use self::clause::{Clause, Match};
pub(crate) use self::{
    overlap::{OverlappingPorts, check_ports},
    partition::Limit,
};
use self::{partition::Tree, tree::Trees};

/// The compiled rules of a group in one direction. Sets, tree nodes and rules are numbered from zero; the numbers are in
/// [`RuleSet::number`] and in the entries that refer to sets, nodes and rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Compiled {
    /// The first set applies to all endpoints, each other set to endpoints in one local subnet.
    pub(crate) sets: Vec<RuleSet>,
    /// Tree nodes. Each is referenced by another node or by a set, which may be at any position.
    pub(crate) nodes: Vec<Branch>,
    /// Rules by number.
    pub(crate) rules: Vec<RuleId>,
    /// A tree searches addresses first. With [`Limit::COMPACT`] the result would be smaller.
    pub(crate) address_first: bool,
}

/// Compiles the rules of one direction. Without rules, the result has no sets.
pub(crate) fn compile(rules: &[Rule], direction: Direction, limit: Limit) -> Compiled {
    let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.direction == direction).collect();
    if rules.is_empty() {
        return Compiled::default();
    }
    // Ordered by name, so that among rules of equal priority and action the name decides.
    let mut names: Vec<&RuleId> = rules.iter().map(|rule| &rule.id).collect();
    names.sort_unstable();
    names.dedup();
    let numbers: HashMap<&RuleId, u32> = names.iter().copied().zip(0..).collect();
    let entry = |rule: &Rule| {
        let number = numbers.get(&rule.id).copied().unwrap_or_default();
        RuleEntry::new(rank(rule), rule.action == Action::Allow, number, number)
    };

    let subnets: BTreeSet<IpNet> = rules.iter().filter_map(|rule| rule.own).collect();
    let mut trees = Trees::new(limit);
    let global = rules.iter().filter(|rule| rule.own.is_none());
    let mut global = trees.set(0, global.map(|rule| (*rule, entry(rule))));
    global.rules = names.len() as u32;
    let local = trees.local_subnets(subnets.iter().copied().zip(1..));
    if let Some(root) = global.roots.iter_mut().find(|root| !root.is_some()) {
        *root = local;
    }
    let mut sets = vec![global];
    for (net, number) in subnets.iter().zip(1..) {
        let matching = rules.iter().filter(|rule| rule.own.is_some_and(|own| own.contains(net)));
        sets.push(trees.set(number, matching.map(|rule| (*rule, entry(rule)))));
    }
    // The programs read the flags of the first set only.
    let by_group = sets.iter().any(|set| set.by_group != 0);
    sets[0].by_group = by_group.into();
    sets[0].by_peer = rules.iter().any(|rule| rule.peer.names_any()).into();
    let rules = names.into_iter().cloned().collect();
    Compiled { sets, nodes: trees.nodes, rules, address_first: trees.address_first }
}

/// Rank of a rule among the layers, 1 to 102. The highest rank of the matching rules decides. At equal rank a rule that
/// denies decides, so the isolation by network policies has a lower rank than the rules that allow.
fn rank(rule: &Rule) -> u8 {
    let priority = rule.tier.priority().map_or(0, Priority::get);
    match (rule.tier.layer(), rule.action) {
        (Layer::AfterNetworkPolicy, _) => priority,
        (Layer::NetworkPolicy, Action::Deny) => 51,
        (Layer::NetworkPolicy, Action::Allow) => 52,
        (Layer::BeforeNetworkPolicy, _) => priority + 2,
    }
}

impl Trees {
    fn set<'a>(&mut self, number: u32, rules: impl Iterator<Item = (&'a Rule, RuleEntry)>) -> RuleSet {
        let mut clauses: BTreeMap<Match, RuleEntry> = BTreeMap::new();
        let (mut count, mut by_group) = (0, false);
        for (rule, entry) in rules {
            count += 1;
            by_group |= rule.peer.names_identity();
            for condition in Match::of(rule) {
                let decides = clauses.entry(condition).or_insert(entry);
                *decides = entry.min(*decides);
            }
        }
        let clauses: Vec<Clause> = clauses.into_iter().collect();
        let mut set = RuleSet { number, rules: count, by_group: by_group.into(), ..RuleSet::EMPTY };
        for (root, tree) in set.roots.iter_mut().zip(partition::partition(&clauses, self.limit)) {
            *root = match tree {
                Tree::GroupFirst(clauses) => self.of_groups(&clauses),
                Tree::AddressFirst(partition) => self.of_addresses_first(&partition),
            };
        }
        set
    }
}

#[cfg(test)]
mod tests;
