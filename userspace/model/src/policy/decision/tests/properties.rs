//! Properties of random rules and connections.

use proptest::prelude::*;

use super::*;
use crate::policy::{IdentitySet, IpBlock, Layer};

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (0..2u8, 0..4u8).prop_map(|(net, host)| IpAddr::from([10, 0, net, host])),
        (0..2u16, 0..4u16).prop_map(|(net, host)| IpAddr::from([0x2001, 0xdb8, net, 0, 0, 0, 0, host])),
    ]
}

fn subnet() -> impl Strategy<Value = Option<IpNet>> {
    let lengths = prop_oneof![Just((0, 0)), Just((16, 32)), Just((24, 48)), Just((31, 127)), Just((32, 128))];
    let net = (address(), lengths).prop_map(|(address, (v4, v6))| {
        IpNet::new(address, if address.is_ipv4() { v4 } else { v6 }).unwrap().trunc()
    });
    prop::option::of(net)
}

fn any_identity() -> impl Strategy<Value = Option<Identity>> {
    (0..4u32).prop_map(|n| n.try_into().ok())
}

fn party() -> impl Strategy<Value = Party> {
    prop_oneof![
        3 => any_identity().prop_map(Party::Endpoint),
        1 => Just(Party::Outside),
        1 => Just(Party::UnknownInside),
    ]
}

fn peer() -> impl Strategy<Value = Peer> {
    let identities = prop::collection::vec((1..4u32).prop_map(identity), 0..3)
        .prop_map(|identities| identities.into_iter().collect::<IdentitySet>());
    let block = (subnet(), prop::collection::vec(subnet(), 0..2))
        .prop_map(|(prefix, except)| prefix.map(|prefix| IpBlock::new(prefix, except.into_iter().flatten())));
    let blocks = prop::collection::vec(block, 0..3);
    (prop::option::of(identities), prop::option::of(blocks)).prop_map(|(identities, blocks)| Peer {
        identities,
        blocks: blocks.map(|blocks| blocks.into_iter().flatten().collect()),
    })
}

fn ports() -> impl Strategy<Value = PortRange> {
    (80..83u16, 0..2u16).prop_map(|(first, more)| PortRange::new(first, first + more).unwrap())
}

/// A tier and an action that it can have.
fn tier() -> impl Strategy<Value = (Tier, Action)> {
    let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
    let priority = prop_oneof![1..3u8, 50..53u8];
    prop_oneof![
        3 => (priority, action).prop_map(|(priority, action)| (contiv(priority), action)),
        1 => Just((Tier::NetworkPolicy, Action::Allow)),
    ]
}

fn packet() -> impl Strategy<Value = Packet> {
    prop_oneof![
        (prop_oneof![Just(TCP), Just(UDP)], 80..83u16)
            .prop_map(|(protocol, port)| Packet { protocol, port: Some(port) }),
        prop_oneof![Just(ICMP), Just(ICMPV6), Just(SCTP)]
            .prop_map(|protocol| Packet { protocol, port: None }),
    ]
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let what = prop_oneof![
        2 => Just((None, None)),
        3 => (prop_oneof![Just(TCP), Just(UDP)], prop::option::of(ports())).prop_map(|(p, ports)| (Some(p), ports)),
        1 => prop_oneof![Just(ICMP), Just(ICMPV6), Just(SCTP)].prop_map(|p| (Some(p), None)),
    ];
    let direction = prop_oneof![Just(Direction::In), Just(Direction::Out)];
    let host = prop::option::weighted(0.3, address().prop_map(IpNet::from));
    let any = (0..1000u16, direction, peer(), host, what, tier()).prop_map(
        |(id, direction, peer, own, (protocol, ports), (tier, action))| Rule {
            peer,
            own,
            protocol,
            ports,
            ..Rule::new(format!("r{id}"), direction, action, tier)
        },
    );
    let isolation = (0..1000u16, prop_oneof![Just(Direction::In), Just(Direction::Out)])
        .prop_map(|(id, direction)| Rule::isolation(format!("r{id}"), direction));
    prop_oneof![9 => any, 1 => isolation]
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(any_rule(), 0..12)
}

/// Whether `a` precedes `b` if both match, by an independent implementation.
fn precedes(a: &Rule, b: &Rule) -> bool {
    // Every combination of tier and action, from the last to the first.
    let rank =
        |rule: &Rule| match (rule.tier.priority().map(|priority| u32::from(priority.get())), rule.action) {
            (Some(priority @ 51..), Action::Allow) => 1000 + 2 * priority,
            (Some(priority @ 51..), Action::Deny) => 1001 + 2 * priority,
            (None, Action::Allow) => 501,
            (None, Action::Deny) => 500,
            (Some(priority), Action::Allow) => 2 * priority,
            (Some(priority), Action::Deny) => 1 + 2 * priority,
        };
    (rank(a), &b.id) > (rank(b), &a.id)
}

/// Of both sides: the addresses, parties and what is sent.
type Ends = ((IpAddr, Party), (IpAddr, Party), Packet);

fn ends() -> impl Strategy<Value = Ends> {
    ((address(), party()), (address(), party()), packet())
}

fn connection<'a>((from, to, packet): Ends, out: &'a [Rule], into: &'a [Rule]) -> Connection<'a> {
    let side = |(address, party), rules| Side { address, party, rules, dscp: None };
    Connection { source: side(from, out), destination: side(to, into), packet }
}

/// A decision by value.
fn by_value(decision: &Decision<'_>) -> (Action, Option<Rule>, Option<Rule>) {
    (decision.action, decision.out_rule().cloned(), decision.in_rule().cloned())
}

/// With an endpoint instead of an unknown source, so that rules decide.
fn known(((address, party), destination, packet): Ends) -> Ends {
    let party = if party == Party::UnknownInside { Party::Endpoint(None) } else { party };
    ((address, party), destination, packet)
}

proptest! {
    #[test]
    fn the_order_of_rules_is_irrelevant(ends in ends(), rules in rules(), seed in any::<prop::sample::Index>()) {
        let mut turned = rules.clone();
        if !turned.is_empty() {
            turned.rotate_left(seed.index(rules.len()));
            turned.reverse();
        }
        let (a, b) = (connection(ends, &rules, &rules), connection(ends, &turned, &turned));
        let ids = |decision: Decision<'_>| {
            let id = |rule: Option<&Rule>| rule.map(|rule| rule.id.clone());
            (decision.action, id(decision.out_rule()), id(decision.in_rule()))
        };
        prop_assert_eq!(ids(decide(&a)), ids(decide(&b)));
    }

    #[test]
    fn no_matching_rule_precedes_the_deciding_one(ends in ends(), rules in rules()) {
        let (own, (peer, party), packet) = ends;
        let there = Side { party, ..Side::outside(peer) };
        for direction in [Direction::In, Direction::Out] {
            let decided = deciding_rule(&rules, direction, own.0, &there, packet);
            for rule in &rules {
                let alone = deciding_rule(std::slice::from_ref(rule), direction, own.0, &there, packet).is_some();
                prop_assert!(!alone || decided.is_some_and(|decided| !precedes(rule, decided)));
            }
            if let Some(rule) = decided {
                prop_assert!(deciding_rule(std::slice::from_ref(rule), direction, own.0, &there, packet).is_some());
            }
        }
    }

    #[test]
    fn rules_that_do_not_decide_can_be_removed(ends in ends(), rules in rules()) {
        let ends = known(ends);
        let before = connection(ends, &rules, &rules);
        let decision = decide(&before);
        let left: Vec<Rule> =
            [decision.out_rule(), decision.in_rule()].into_iter().flatten().cloned().collect();
        let after = connection(ends, &left, &left);
        prop_assert_eq!(by_value(&decision), by_value(&decide(&after)));
    }

    #[test]
    fn duplicate_rules_change_nothing(ends in ends(), rules in rules()) {
        let twice = [rules.clone(), rules.clone()].concat();
        let (once, twice) = (connection(ends, &rules, &rules), connection(ends, &twice, &twice));
        prop_assert_eq!(by_value(&decide(&once)), by_value(&decide(&twice)));
    }

    #[test]
    fn the_highest_rule_decides_on_its_side(ends in ends(), rules in rules()) {
        for direction in [Direction::In, Direction::Out] {
            for action in [Action::Allow, Action::Deny] {
                let top = Rule { tier: contiv(100), ..rule("top", direction, action) };
                let rules = [rules.clone(), vec![top.clone()]].concat();
                let connection = connection(known(ends), &rules, &rules);
                let decision = decide(&connection);
                let decided = if direction == Direction::In { decision.in_rule() } else { decision.out_rule() };
                prop_assert_eq!(decided, Some(&top));
                prop_assert!(action == Action::Allow || decision.action == Action::Deny);
            }
        }
    }

    /// Without rules that deny, and without rules, everything passes.
    #[test]
    fn only_deny_rules_deny(ends in ends(), rules in rules()) {
        let allowing: Vec<Rule> = rules.into_iter().filter(|rule| rule.action == Action::Allow).collect();
        prop_assert_eq!(decide(&connection(known(ends), &allowing, &allowing)).action, Action::Allow);
        prop_assert_eq!(decide(&connection(ends, &[], &[])).out, Outcome::Default);
        prop_assert_eq!(decide(&connection(ends, &[], &[])).into, Outcome::Default);
    }

    /// Each side is decided by its own rules.
    #[test]
    fn sides_are_independent(ends in ends(), a in rules(), b in rules(), c in rules()) {
        let (one, other) = (connection(ends, &a, &b), connection(ends, &a, &c));
        prop_assert_eq!(decide(&one).out, decide(&other).out);
        let other = connection(ends, &c, &b);
        prop_assert_eq!(decide(&one).into, decide(&other).into);
    }

    /// An unknown source is denied where an identity counts. Elsewhere it is like a source without
    /// an identity. It is allowed only if it would be allowed with any identity.
    #[test]
    fn unknown_sources_fail_closed(ends in ends(), rules in rules()) {
        let ((source, _), destination, packet) = ends;
        let as_party = |party| ((source, party), destination, packet);
        let decision = |party| by_value(&decide(&connection(as_party(party), &[], &rules)));
        let unknown = connection(as_party(Party::UnknownInside), &[], &rules);
        let unknown = decide(&unknown);
        let counts = rules.iter().any(|rule| rule.direction == Direction::In && rule.peer.names_identity());
        prop_assert_eq!(unknown.into == Outcome::UnknownSource, counts);
        if !counts {
            prop_assert_eq!(by_value(&unknown), decision(Party::Endpoint(None)));
        }
        for number in 0..4u32 {
            let (action, ..) = decision(Party::Endpoint(number.try_into().ok()));
            prop_assert!(unknown.action == Action::Deny || action == Action::Allow);
        }
        // Only sources fail closed.
        let to = connection(((source, Party::Endpoint(None)), (destination.0, Party::UnknownInside), packet), &rules, &[]);
        prop_assert!(decide(&to).out != Outcome::UnknownSource);
    }

    /// What the layers mean, step by step.
    #[test]
    fn layers_decide_in_order(ends in ends(), rules in rules()) {
        let (own, (peer, party), packet) = ends;
        let there = Side { party, ..Side::outside(peer) };
        for direction in [Direction::In, Direction::Out] {
            let of_layer = |layer| rules.iter().filter(|rule| rule.tier.layer() == layer).cloned().collect::<Vec<_>>();
            let deciding = |layer| {
                let rules = of_layer(layer);
                deciding_rule(&rules, direction, own.0, &there, packet).cloned()
            };
            let steps = [Layer::BeforeNetworkPolicy, Layer::NetworkPolicy, Layer::AfterNetworkPolicy];
            let expected = steps.into_iter().find_map(deciding);
            prop_assert_eq!(deciding_rule(&rules, direction, own.0, &there, packet).cloned(), expected);
        }
    }
}
