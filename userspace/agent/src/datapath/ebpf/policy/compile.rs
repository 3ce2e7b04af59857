//! From the rules of a group to the entries that the programs look up. Pure, and linear in the rules.

use std::collections::{BTreeMap, BTreeSet};

use contiv_abi::{
    Address,
    policy::{Asks, Bits, Family, RuleEntry, RuleKey, RuleSet, SHAPES, Tree, shape},
};
use contiv_model::{
    name::RuleId,
    policy::{Action, Direction, ICMP, ICMPV6, Rule},
};
use ipnet::IpNet;

use super::lengths;

/// The rules of a group in one direction, with numbers of its own, all from zero: those of sets in [`RuleKey::set`] and in
/// entries of [`shape::OWN`], those of rules in all other entries.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Compiled {
    /// The first is for all endpoints, the others each for those with an address.
    pub(in super::super) sets: Vec<RuleSet>,
    /// No key twice.
    pub(in super::super) entries: Vec<(RuleKey, RuleEntry)>,
    /// By number.
    pub(in super::super) rules: Vec<RuleId>,
}

/// Compiles the rules of one direction; no rules come to no set.
pub(in super::super) fn compile(rules: &[Rule], direction: Direction) -> Compiled {
    let rules: Vec<&Rule> = rules.iter().filter(|rule| rule.direction == direction).collect();
    let names: BTreeSet<&RuleId> = rules.iter().map(|rule| &rule.id).collect();
    let mut compiled = Compiled { rules: names.into_iter().cloned().collect(), ..Compiled::default() };
    if rules.is_empty() {
        return compiled;
    }
    // In order of names, so that the number of a rule is its place among equals, too.
    let numbers: BTreeMap<RuleId, u32> = compiled.rules.iter().cloned().zip(0..).collect();
    let entry = |rule: &Rule| {
        let number = numbers.get(&rule.id).copied().unwrap_or_default();
        RuleEntry::new(rule.priority.get(), rule.action == Action::Allow, number, number)
    };

    let narrow: BTreeSet<IpNet> = rules.iter().filter_map(|rule| rule.own).collect();
    let own = narrow.iter().zip(1..).map(|(net, set)| {
        // Of addresses, the longest prefix decides.
        let order = 128 - u32::from(net.prefix_len());
        (Prefix::of(*net), RuleEntry { order, rule: set })
    });
    let own: Vec<(Prefix, RuleEntry)> = own.collect();
    let wide = rules.iter().filter(|rule| rule.own.is_none());
    compiled.add(wide.map(|rule| (*rule, entry(rule))), &own);
    for net in &narrow {
        let here = rules.iter().filter(|rule| rule.own.is_some_and(|own| own.contains(net)));
        compiled.add(here.map(|rule| (*rule, entry(rule))), &[]);
    }
    compiled
}

impl Compiled {
    /// Adds a set.
    fn add<'a>(&mut self, rules: impl Iterator<Item = (&'a Rule, RuleEntry)>, own: &[(Prefix, RuleEntry)]) {
        let number = self.sets.len() as u32;
        let mut count = 0;
        let mut shapes: [BTreeMap<RuleKey, Vec<(Prefix, RuleEntry)>>; SHAPES] = Default::default();
        for (rule, entry) in rules {
            count += 1;
            let prefixes =
                rule.peer.subnet.map_or(Prefix::ANY.to_vec(), |net| Prefix::of(net).split().collect());
            // ICMP of a rule is that of both families.
            let alias = (rule.protocol == Some(ICMP)).then_some(ICMPV6);
            for protocol in std::iter::once(rule.protocol).chain(alias.map(Some)) {
                let key = key(number, rule, protocol);
                if let Some(shape) = shapes.get_mut(usize::from(key.shape)) {
                    shape.entry(key).or_default().extend(prefixes.iter().map(|prefix| (*prefix, entry)));
                }
            }
        }
        if !own.is_empty() {
            let key = RuleKey { shape: shape::OWN, ..blank(number) };
            let own = own.iter().flat_map(|(prefix, set)| prefix.split().map(|prefix| (prefix, *set)));
            shapes[usize::from(shape::OWN)].insert(key, own.collect());
        }
        let mut used = [Asks { shape: Asks::END, ..Asks::default() }; 10];
        let in_use = (0..shape::OWN).filter(|shape| !shapes[usize::from(*shape)].is_empty());
        used.iter_mut().zip(in_use).for_each(|(place, shape)| *place = Asks::of(shape));
        if !own.is_empty() {
            used[usize::from(RuleSet::OWN)] = Asks::of(shape::OWN);
        }
        let trees = shapes.map(|keys| self.add_shape(keys));
        self.sets.push(RuleSet { rules: count, used, trees });
    }

    /// Adds the entries of one shape; its lengths are those that any of its keys has.
    fn add_shape(&mut self, keys: BTreeMap<RuleKey, Vec<(Prefix, RuleEntry)>>) -> Tree {
        let mut tree = Tree::EMPTY;
        for family in [Family::V4, Family::V6] {
            let prefixes = keys.values().flatten().map(|(prefix, _)| prefix);
            let mut found: Vec<u8> =
                prefixes.filter(|prefix| prefix.family == family).map(|prefix| prefix.length).collect();
            found.sort_unstable();
            found.dedup();
            lengths::plant(&mut tree, family, &found);
        }
        for (key, prefixes) in keys {
            for (prefix, entry) in resolve(&tree, prefixes) {
                self.entries.push((prefix.in_key(key), entry));
            }
        }
        tree
    }
}

fn blank(set: u32) -> RuleKey {
    RuleKey { set, ..RuleKey::default() }
}

/// What a rule asks for besides the prefix.
fn key(set: u32, rule: &Rule, protocol: Option<u8>) -> RuleKey {
    let shape = match (protocol, rule.port) {
        (None, _) => shape::ANY,
        (Some(_), None) => shape::PROTOCOL,
        (Some(_), Some(_)) => shape::PORT,
    };
    RuleKey {
        group: rule.peer.group.map_or(0, |group| group.get() as u16),
        port: protocol.and(rule.port).unwrap_or(0),
        protocol: protocol.unwrap_or(0),
        shape: if rule.peer.group.is_some() { shape + shape::GROUP } else { shape },
        ..blank(set)
    }
}

/// A prefix; its order is that of a walk which comes to the shorter ones before those that they cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix {
    family: Family,
    /// The address as in keys; zeros behind the prefix.
    bits: u128,
    /// As in keys.
    length: u8,
}

/// The bits before the first of an IPv4 address.
const MAPPED: u8 = 96;

impl Prefix {
    /// Any address of either family.
    const ANY: [Prefix; 2] = [
        Prefix { family: Family::V4, bits: u128::from_be_bytes(Address::v4([0; 4]).0), length: MAPPED },
        Prefix { family: Family::V6, bits: 0, length: 0 },
    ];

    fn of(net: IpNet) -> Prefix {
        match net {
            IpNet::V4(net) => {
                let bits = u128::from_be_bytes(Address::v4(net.network().octets()).0);
                Prefix { family: Family::V4, bits, length: MAPPED + net.prefix_len() }
            }
            IpNet::V6(net) => {
                Prefix { family: Family::V6, bits: net.network().to_bits(), length: net.prefix_len() }
            }
        }
    }

    /// The first `length` bits.
    fn cut(self, length: u8) -> Prefix {
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        Prefix { bits: self.bits & mask, length, ..self }
    }

    fn covers(self, other: Prefix) -> bool {
        self.family == other.family && other.cut(self.length).bits == self.bits
    }

    fn in_key(self, key: RuleKey) -> RuleKey {
        key.at(&Bits::new(self.family, &Address(self.bits.to_be_bytes())), self.length)
    }

    /// Trees of IPv6 have no room for lengths 1 to 3: such a prefix is the two to eight of length 4 that are in it.
    fn split(self) -> impl Iterator<Item = Prefix> {
        let short = (1..4).contains(&self.length);
        let (length, count) = if short { (4, 1 << (4 - self.length)) } else { (self.length, 1) };
        (0..count).map(move |part: u128| Prefix { bits: self.bits | part << 124, length, ..self })
    }
}

/// What stands at each prefix and at the signposts to it: what decides among all that cover it.
fn resolve(tree: &Tree, prefixes: Vec<(Prefix, RuleEntry)>) -> BTreeMap<Prefix, RuleEntry> {
    let mut places: BTreeMap<Prefix, RuleEntry> = BTreeMap::new();
    for (prefix, entry) in prefixes {
        for length in lengths::signposts(tree, prefix.family, prefix.length) {
            places.entry(prefix.cut(length)).or_insert(RuleEntry::NONE);
        }
        let place = places.entry(prefix).or_insert(RuleEntry::NONE);
        *place = urgent(*place, entry);
    }
    let mut above: Vec<(Prefix, RuleEntry)> = vec![];
    for (prefix, entry) in &mut places {
        while above.last().is_some_and(|(over, _)| !over.covers(*prefix)) {
            above.pop();
        }
        if let Some((_, over)) = above.last() {
            *entry = urgent(*entry, *over);
        }
        above.push((*prefix, *entry));
    }
    places
}

fn urgent(one: RuleEntry, other: RuleEntry) -> RuleEntry {
    if other.order < one.order { other } else { one }
}

#[cfg(test)]
mod tests;
