//! From the rules of a group to the trees that the programs search. Pure.
//!
//! ```text
//! kinds    which rules are put into one tree: all, unless some would have to be repeated too often
//! layers   prefixes in each other -> for each range of addresses what is left to be told apart by group and port
//! tree     rules -> ranges of groups, of protocols and ports, of addresses; ranges -> branches
//! ranges   prefixes -> ranges of addresses that do not overlap, each with the rule that decides there
//! ```

mod kinds;
mod layers;
mod ranges;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use contiv_abi::policy::{Branch, RuleEntry, RuleSet};
use contiv_model::{
    name::RuleId,
    policy::{Action, Direction, ICMP, ICMPV6, Rule},
};
use ipnet::IpNet;

pub(crate) use self::kinds::Limit;
use self::{kinds::Tree, tree::Trees};

/// The rules of a group in one direction, with numbers of its own, all from zero: of sets in [`RuleSet::number`] and in
/// entries that are sets, of branches in entries that are such, of rules in all other entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Compiled {
    /// The first is for all endpoints, the others each for those with an address.
    pub(crate) sets: Vec<RuleSet>,
    /// Each is led to by others before it, or after it, or by a set.
    pub(crate) branches: Vec<Branch>,
    /// By number.
    pub(crate) rules: Vec<RuleId>,
    /// Within [`Limit::TIGHT`] it would be smaller.
    pub(crate) roomy: bool,
}

/// What a rule asks for of the connection, but for the addresses of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Asked {
    group: Option<u16>,
    about: About,
    subnet: Option<IpNet>,
}

/// Protocol and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum About {
    All,
    Protocol(u8),
    Port(u8, u16),
}

/// What is asked for, and the rule that decides of those that ask for just this.
type Case = (Asked, RuleEntry);

/// Compiles the rules of one direction; no rules come to no set.
pub(crate) fn compile(rules: &[Rule], direction: Direction, limit: Limit) -> Compiled {
    let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.direction == direction).collect();
    if rules.is_empty() {
        return Compiled::default();
    }
    // In order of names, so that the number of a rule is its place among equals, too.
    let mut names: Vec<&RuleId> = rules.iter().map(|rule| &rule.id).collect();
    names.sort_unstable();
    names.dedup();
    let numbers: HashMap<&RuleId, u32> = names.iter().copied().zip(0..).collect();
    let entry = |rule: &Rule| {
        let number = numbers.get(&rule.id).copied().unwrap_or_default();
        RuleEntry::new(rule.priority.get(), rule.action == Action::Allow, number, number)
    };

    let narrow: BTreeSet<IpNet> = rules.iter().filter_map(|rule| rule.own).collect();
    let mut trees = Trees::new(limit);
    let wide = rules.iter().filter(|rule| rule.own.is_none());
    let mut wide = trees.set(0, wide.map(|rule| (*rule, entry(rule))));
    wide.rules = rules.len() as u32;
    let own = trees.own(narrow.iter().copied().zip(1..));
    if let Some(root) = wide.roots.iter_mut().find(|root| !root.is_some()) {
        *root = own;
    }
    let mut sets = vec![wide];
    for (net, number) in narrow.iter().zip(1..) {
        let here = rules.iter().filter(|rule| rule.own.is_some_and(|own| own.contains(net)));
        sets.push(trees.set(number, here.map(|rule| (*rule, entry(rule)))));
    }
    // Asked of the first alone, for all of them.
    let by_group = sets.iter().any(|set| set.by_group != 0);
    sets[0].by_group = by_group.into();
    let rules = names.into_iter().cloned().collect();
    Compiled { sets, branches: trees.branches, rules, roomy: trees.roomy }
}

impl Trees {
    fn set<'a>(&mut self, number: u32, rules: impl Iterator<Item = (&'a Rule, RuleEntry)>) -> RuleSet {
        let mut cases: BTreeMap<Asked, RuleEntry> = BTreeMap::new();
        let mut count = 0;
        for (rule, entry) in rules {
            count += 1;
            for asked in Asked::by(rule) {
                let decides = cases.entry(asked).or_insert(entry);
                *decides = entry.min(*decides);
            }
        }
        let cases: Vec<Case> = cases.into_iter().collect();
        let by_group = cases.iter().any(|(asked, _)| asked.group.is_some());
        let mut set = RuleSet { number, rules: count, by_group: by_group.into(), ..RuleSet::EMPTY };
        for (root, tree) in set.roots.iter_mut().zip(kinds::together(&cases, self.limit)) {
            *root = match tree {
                Tree::ByGroup(cases) => self.of_groups(&cases),
                Tree::ByAddress(layers) => self.of_layers(&layers),
            };
        }
        set
    }
}

impl Asked {
    fn by(rule: &Rule) -> impl Iterator<Item = Asked> {
        // ICMP of a rule is that of both families.
        let alias = (rule.protocol == Some(ICMP)).then_some(Some(ICMPV6));
        std::iter::once(rule.protocol).chain(alias).map(|protocol| Asked {
            group: rule.peer.group.map(|group| group.get() as u16),
            about: match (protocol, rule.port) {
                (None, _) => About::All,
                (Some(protocol), None) => About::Protocol(protocol),
                (Some(protocol), Some(port)) => About::Port(protocol, port),
            },
            subnet: rule.peer.subnet,
        })
    }
}

#[cfg(test)]
mod tests;
