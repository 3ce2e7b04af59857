use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use contiv_abi::{
    Be16,
    policy::{Part, Question, Search, Tables, deciding},
};
use contiv_model::{
    group::GroupNumber,
    policy::{self, Packet, Peer, Priority, Side, TCP, UDP},
};
use proptest::prelude::*;

use super::*;

/// The entries by key, as the kernel has them.
struct Loaded<'a> {
    compiled: &'a Compiled,
    entries: HashMap<RuleKey, RuleEntry>,
}

impl Loaded<'_> {
    fn new(compiled: &Compiled) -> Loaded<'_> {
        let entries: HashMap<_, _> = compiled.entries.iter().copied().collect();
        assert_eq!(entries.len(), compiled.entries.len(), "a key twice");
        Loaded { compiled, entries }
    }

    /// The name of the deciding rule.
    fn deciding(&self, own: IpAddr, peer: &Side<'_>, packet: Packet) -> Option<(RuleId, Action)> {
        if self.compiled.sets.is_empty() {
            return None;
        }
        let question = Question {
            peer: bits(peer.address),
            own: bits(own),
            set: 0,
            group: peer.group.map_or(0, |group| group.get() as u16),
            port: Be16::new(packet.port.unwrap_or(0)),
            protocol: packet.protocol,
        };
        let entry = deciding(self, &question).expect("a set is missing");
        entry.is_some().then(|| {
            let action = if entry.denies() { Action::Deny } else { Action::Allow };
            (self.compiled.rules[entry.rule as usize].clone(), action)
        })
    }
}

impl Tables for Loaded<'_> {
    fn rule(&self, key: &RuleKey) -> Option<RuleEntry> {
        self.entries.get(key).copied()
    }

    fn within(&self, set: u32, part: Part, question: &Question) -> Option<RuleEntry> {
        let header = self.compiled.sets.get(set as usize)?;
        let mut search = Search::new(set, part, question);
        let mut steps = 0;
        while search.step(self, header, question) {
            steps += 1;
            assert!(steps <= Search::STEPS);
        }
        Some(search.best)
    }
}

fn bits(address: IpAddr) -> Bits {
    let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
    Bits::new(family, &Address::from(address))
}

/// Addresses that have much in common, so that prefixes of one cover another.
fn address() -> impl Strategy<Value = IpAddr> {
    let flips = || prop::collection::vec(0..128_u32, 0..3);
    prop_oneof![
        flips().prop_map(|flips| {
            let base = Ipv4Addr::new(10, 1, 2, 3).to_bits();
            Ipv4Addr::from_bits(flips.iter().fold(base, |bits, flip| bits ^ 1 << (flip % 32))).into()
        }),
        flips().prop_map(|flips| {
            let base = Ipv6Addr::new(0xfd00, 0, 0, 7, 0, 0, 0, 3).to_bits();
            Ipv6Addr::from_bits(flips.iter().fold(base, |bits, flip| bits ^ 1 << flip)).into()
        }),
    ]
}

fn subnet() -> impl Strategy<Value = IpNet> {
    (address(), 0..=128_u8).prop_map(|(address, length)| {
        let length = if address.is_ipv4() { length % 33 } else { length };
        IpNet::new(address, length).unwrap().trunc()
    })
}

fn group() -> impl Strategy<Value = GroupNumber> {
    (1..4_u32).prop_map(|number| GroupNumber::try_from(number).unwrap())
}

prop_compose! {
    fn rule()(
        id in 0..20_u32,
        direction in prop::sample::select(vec![Direction::In, Direction::Out]),
        group in prop::option::of(group()),
        subnet in prop::option::weighted(0.7, subnet()),
        own in prop::option::weighted(0.2, subnet()),
        protocol in prop::option::of(prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6, 132])),
        port in prop::option::of(prop::sample::select(vec![53_u16, 80])),
        deny in any::<bool>(),
        priority in 1..4_u8,
    ) -> Rule {
        Rule {
            // Rules of one name differ in nothing but the subnets.
            id: format!("{direction}{id}{deny}{priority}").as_str().into(),
            direction,
            peer: Peer { group, subnet },
            own,
            protocol,
            port: port.filter(|_| [Some(TCP), Some(UDP)].contains(&protocol)),
            action: if deny { Action::Deny } else { Action::Allow },
            priority: Priority::try_from(priority).unwrap(),
        }
    }
}

prop_compose! {
    fn question()(
        own in address(),
        peer in address(),
        group in prop::option::of(group()),
        protocol in prop::sample::select(vec![ICMP, TCP, UDP, ICMPV6, 132, 47, 0]),
        port in prop::sample::select(vec![53_u16, 80, 0, 443]),
    ) -> (IpAddr, IpAddr, Option<GroupNumber>, Packet) {
        let port = [TCP, UDP].contains(&protocol).then_some(port);
        (own, peer, group, Packet { protocol, port })
    }
}

proptest! {
    #[test]
    fn the_rule_is_the_oracles(
        rules in prop::collection::vec(rule(), 0..40),
        questions in prop::collection::vec(question(), 100),
    ) {
        for direction in [Direction::In, Direction::Out] {
            let compiled = compile(&rules, direction);
            let loaded = Loaded::new(&compiled);
            for (own, peer, group, packet) in &questions {
                let peer = Side { group: *group, ..Side::outside(*peer) };
                let told = policy::deciding(&rules, direction, *own, &peer, *packet);
                let told = told.map(|rule| (rule.id.clone(), rule.action));
                prop_assert_eq!(loaded.deciding(*own, &peer, *packet), told, "{:?}", (own, peer, packet));
            }
        }
    }
}

#[test]
fn no_rules_come_to_nothing() {
    assert_eq!(compile(&[], Direction::In), Compiled::default());
}

/// What `count` rules of one shape come to.
fn of_subnets(count: u32, length: impl Fn(u32) -> u8) -> Compiled {
    let rules: Vec<Rule> = (0..count)
        .map(|n| Rule {
            id: format!("r{n:06}").as_str().into(),
            direction: Direction::In,
            peer: Peer {
                group: None,
                // Spread over the whole space, no two alike in their first 16 bits' neighbourhood.
                subnet: Some(
                    IpNet::new(Ipv4Addr::from_bits(n.wrapping_mul(0x9e37_79b1)).into(), length(n))
                        .unwrap()
                        .trunc(),
                ),
            },
            own: None,
            protocol: Some(TCP),
            port: Some(80),
            action: Action::Deny,
            priority: Priority::try_from(1).unwrap(),
        })
        .collect();
    compile(&rules, Direction::In)
}

#[test]
fn rules_of_one_length_have_an_entry_each() {
    let compiled = of_subnets(15_000, |_| 32);
    assert_eq!((compiled.sets.len(), compiled.entries.len()), (1, 15_000));
}

#[test]
fn rules_of_all_lengths_have_a_handful_of_entries_each() {
    let compiled = of_subnets(15_000, |n| 16 + (n % 17) as u8);
    assert_eq!(compiled.sets.len(), 1);
    assert!(compiled.entries.len() < 3 * 15_000, "{}", compiled.entries.len());
}
