//! Flows of a group's rules.
//!
//! A rule is a product of conditions: identities of the peer, blocks of addresses, an own prefix, protocol and ports. If only
//! one condition has several alternatives, each is a flow. Otherwise the conditions are clauses of a conjunction, so the
//! number of flows is the sum of the alternatives.
//!
//! All flows match the identity of the group. So the numbers of conjunctions need to be unique only among the rules of
//! one group and direction. The numbers are hashes, so that adding or removing a rule does not change the flows of other
//! rules.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use contiv_model::{
    name::RuleId,
    policy::{Action as Verdict, Direction, ICMP, ICMPV6, IpBlock, Layer, PortRange, Rule},
};
use ipnet::IpNet;
use openflow_rs::{Action, Field, Flow, Match, ct_state};

use super::{
    CLASS, DESTINATION_FLAGS, FAR, HERE, PROTOCOL_AND_PORT, PROTOCOL_SHIFT, SOURCE_FLAGS, Side, UNKNOWN,
    UNREADABLE,
};
use crate::datapath::{
    Group,
    ovs::{
        hash::hash,
        pipeline::table::{self, priority::policy as rank},
    },
};

/// Tables with the flows of rules.
pub(crate) const RULE_TABLES: [u8; 2] = [table::POLICY, table::POLICY_IN];

/// Returns the flows of a group's rules.
pub(crate) fn rules(group: &Group) -> Vec<Flow> {
    counted_rules(group).into_iter().map(|(flow, _)| flow).collect()
}

/// Returns the flows of a group's rules with the rule that each flow counts for. A rule counts the packets that it
/// denies, and the packets that open a connection that it allows.
pub(crate) fn counted_rules(group: &Group) -> Vec<(Flow, Option<RuleId>)> {
    if group.rules.is_empty() {
        return vec![];
    }
    let of = |direction| group.rules.iter().filter(move |rule: &&Rule| rule.direction == direction);
    let own = |side| member(group, side);
    let drop = |table, m| (Flow::new(table, rank::FIRST, m), None);
    let unreadable = |m: Match| m.masked(CLASS, UNREADABLE, UNREADABLE);
    let mut flows = vec![
        drop(table::POLICY, unreadable(own(Side::Source))),
        drop(table::POLICY_IN, unreadable(own(Side::Destination))),
    ];
    if of(Direction::In).any(|rule| rule.peer.names_identity()) {
        flows.push(drop(table::POLICY_IN, own(Side::Destination).field(SOURCE_FLAGS, UNKNOWN)));
    }
    // The receivers on other nodes are unknown.
    if of(Direction::Out).any(|rule| rule.peer.names_any()) {
        flows.push(drop(table::POLICY, own(Side::Source).field(DESTINATION_FLAGS, FAR)));
    }
    for direction in [Direction::Out, Direction::In] {
        flows.extend(directed(group, direction, of(direction)));
    }
    flows
}

/// Matches packets for which the group's endpoint is this side of the connection.
fn member(group: &Group, side: Side) -> Match {
    Match::new().field(side.flags(), HERE).field(side.identity(), group.identity.get())
}

/// The flow of a match. There is one per match: a plain flow has the decision that a clause with the same rank and match
/// would make.
enum Entry<'a> {
    Plain(&'a Rule),
    Clauses(Vec<Action>),
}

fn directed<'a>(
    group: &Group,
    direction: Direction,
    rules: impl Iterator<Item = &'a Rule>,
) -> Vec<(Flow, Option<RuleId>)> {
    let (own, peer, table, next) = match direction {
        Direction::Out => (Side::Source, Side::Destination, table::POLICY, table::POLICY_IN),
        Direction::In => (Side::Destination, Side::Source, table::POLICY_IN, table::ACCEPT),
    };
    let mut rules: Vec<&Rule> = rules.collect();
    rules.sort();
    let mut entries: BTreeMap<(Reverse<u16>, Match), Entry<'_>> = BTreeMap::new();
    let mut conjunctions = Conjunctions::default();
    for rule in rules {
        let rank = Reverse(rank_of(rule));
        let Some(conditions) = conditions(rule, own, peer) else { continue };
        let base = Condition { matching: member(group, own), family: None };
        let (single, several): (Vec<_>, Vec<_>) = conditions.into_iter().partition(|c| c.len() == 1);
        let Some(base) = single.iter().flatten().try_fold(base, Condition::and) else { continue };
        let with_base = |alternatives: &[Condition]| -> Vec<Match> {
            alternatives.iter().filter_map(|c| Some(base.clone().and(c)?.matching)).collect()
        };
        match &several[..] {
            [] => decide(&mut entries, (rank, base.matching), rule),
            [one] => {
                for m in with_base(one) {
                    decide(&mut entries, (rank, m), rule);
                }
            }
            many => {
                let (id, clauses) = (conjunctions.number(&rule.id), many.len() as u8);
                for (clause, alternatives) in many.iter().enumerate() {
                    let action = Action::Conjunction { id, clause: clause as u8, clauses };
                    for m in with_base(alternatives) {
                        let entry = entries.entry((rank, m)).or_insert(Entry::Clauses(vec![]));
                        if let Entry::Clauses(actions) = entry {
                            actions.push(action.clone());
                        }
                    }
                }
                let all = base.matching.clone().field(Field::ConjId, id);
                decide(&mut entries, (rank, all), rule);
            }
        }
    }
    let flows = |((Reverse(rank), m), entry): ((_, Match), _)| {
        let flow = |m| Flow::new(table, rank, m);
        match entry {
            Entry::Plain(rule) if rule.action == Verdict::Allow => {
                let new = |state| flow(m.clone().ct_state(state, ct_state::NEW)).goto(next);
                vec![(new(ct_state::NEW), Some(rule.id.clone())), (new(0), None)]
            }
            Entry::Plain(rule) => vec![(flow(m), Some(rule.id.clone()))],
            Entry::Clauses(actions) => vec![(flow(m).apply(actions), None)],
        }
    };
    entries.into_iter().flat_map(flows).collect()
}

/// Numbers of the conjunctions of one group and direction. They depend only on the rules, so that they are the same after
/// a restart.
#[derive(Default)]
struct Conjunctions<'a> {
    /// Rules that differ only in their subnets share an id.
    rules: BTreeMap<&'a RuleId, u32>,
    used: BTreeSet<u32>,
}

impl<'a> Conjunctions<'a> {
    fn number(&mut self, rule: &'a RuleId) -> u32 {
        let nth = self.rules.entry(rule).or_default();
        let mut number = hash(&format!("{rule}/{nth}")) as u32;
        *nth += 1;
        while number == 0 || !self.used.insert(number) {
            number = number.wrapping_add(1);
        }
        number
    }
}

/// Adds a rule's decision for a match. Among rules of one rank the first one decides: they are sorted by id and have the
/// same action.
fn decide<'a>(
    entries: &mut BTreeMap<(Reverse<u16>, Match), Entry<'a>>,
    key: (Reverse<u16>, Match),
    rule: &'a Rule,
) {
    let entry = entries.entry(key).or_insert(Entry::Plain(rule));
    if let Entry::Clauses(_) = entry {
        *entry = Entry::Plain(rule);
    }
}

/// Priority of the flows of a rule. Rules of one priority have the same action.
fn rank_of(rule: &Rule) -> u16 {
    let layer = match rule.tier.layer() {
        Layer::BeforeNetworkPolicy => 2,
        Layer::NetworkPolicy => 1,
        Layer::AfterNetworkPolicy => 0,
    };
    let priority = rule.tier.priority().map_or(0, |priority| priority.get().into());
    let is_preferred = rule.action == rule.tier.preferred_action();
    rank::RULES + 1000 * layer + 2 * priority + u16::from(is_preferred)
}

/// A condition, and the version of IP that it needs.
#[derive(Clone)]
struct Condition {
    matching: Match,
    family: Option<bool>,
}

impl Condition {
    fn new(matching: Match) -> Condition {
        Condition { matching, family: None }
    }

    fn within(side: Side, prefix: IpNet) -> Condition {
        let family = Some(matches!(prefix, IpNet::V6(_)));
        Condition { matching: side.within(Match::new(), prefix), family }
    }

    /// Combines both conditions; `None` if they need different versions of IP.
    fn and(self, other: &Condition) -> Option<Condition> {
        let is_possible = self.family.is_none() || other.family.is_none() || self.family == other.family;
        let merge = |m: Match, (field, masked): (Field, openflow_rs::Masked)| {
            // Protocol and ports are the only conditions on parts of one field.
            let present = m.get(field).map_or((0, 0), |present| (present.value, present.mask));
            m.masked(field, masked.value | present.0, masked.mask | present.1)
        };
        is_possible.then(|| Condition {
            matching: other.matching.iter().fold(self.matching, merge),
            family: self.family.or(other.family),
        })
    }
}

/// Returns the alternatives of each condition; `None` if no packet can match.
fn conditions(rule: &Rule, own: Side, peer: Side) -> Option<Vec<Vec<Condition>>> {
    let mut all = vec![];
    if let Some(set) = &rule.peer.identities {
        let one = |identity: contiv_model::policy::Identity| {
            Condition::new(Match::new().field(peer.identity(), identity.get()))
        };
        all.push(set.iter().map(one).collect());
    }
    if let Some(blocks) = &rule.peer.blocks {
        let prefixes = blocks.iter().flat_map(IpBlock::prefixes);
        all.push(prefixes.map(|prefix| Condition::within(peer, prefix)).collect());
    }
    all.extend(rule.own.map(|prefix| vec![Condition::within(own, prefix)]));
    match (rule.protocol, rule.ports) {
        (None, _) => {}
        (Some(ICMP), _) => all.push([ICMP, ICMPV6].map(|number| protocol(number, 0, 0)).into()),
        (Some(number), None) => all.push(vec![protocol(number, 0, 0)]),
        (Some(number), Some(ports)) => {
            let masks = masks(ports).into_iter();
            all.push(masks.map(|(value, mask)| protocol(number, value, mask)).collect());
        }
    }
    all.iter().all(|alternatives: &Vec<Condition>| !alternatives.is_empty()).then_some(all)
}

fn protocol(number: u8, port: u16, mask: u16) -> Condition {
    let value = u32::from(number) << PROTOCOL_SHIFT | u32::from(port);
    let mask = 0xff << PROTOCOL_SHIFT | u32::from(mask);
    Condition::new(Match::new().masked(PROTOCOL_AND_PORT, value, mask))
}

/// Splits a range into the fewest aligned blocks, each a value and a mask.
fn masks(ports: PortRange) -> Vec<(u16, u16)> {
    let (mut first, last) = (u32::from(ports.first()), u32::from(ports.last()));
    let mut blocks = vec![];
    while first <= last {
        let mut size = 1u32;
        while first.is_multiple_of(2 * size) && first + 2 * size - 1 <= last {
            size *= 2;
        }
        blocks.push((first as u16, !((size - 1) as u16)));
        first += size;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_have_the_ports_of_the_range_once() {
        for (first, last, count) in [(0, 65_535, 1), (80, 80, 1), (1, 65_534, 30), (1000, 1999, 8), (0, 0, 1)]
        {
            let blocks = masks(PortRange::new(first, last).unwrap());
            for port in 0..=65_535 {
                let found = blocks.iter().filter(|(value, mask)| port & mask == *value).count();
                assert_eq!(found, usize::from((first..=last).contains(&port)), "{port} of {first}-{last}");
            }
            assert!(blocks.len() <= count, "{blocks:?}");
        }
    }
}
