use ipnet::IpNet;
use proptest::prelude::*;

use super::*;
use crate::policy::{ICMP, ICMPV6, Peer, TCP, UDP};

const SCTP: u8 = 132;

fn number(n: u32) -> GroupNumber {
    n.try_into().unwrap()
}

fn rule(id: &str, direction: Direction, action: Action) -> Rule {
    Rule {
        id: id.into(),
        direction,
        peer: Peer::default(),
        own: None,
        protocol: None,
        port: None,
        action,
        priority: 50.try_into().unwrap(),
    }
}

fn side<'a>(address: IpAddr, group: u32, rules: &'a [Rule]) -> Side<'a> {
    Side { address, group: group.try_into().ok(), rules, dscp: None }
}

/// `here` and `there` in one family: the rules' own side, and the peer.
fn pairs() -> [(IpAddr, IpAddr, [IpNet; 4]); 2] {
    let nets = |texts: [&str; 4]| texts.map(|text| text.parse().unwrap());
    [
        (
            [10, 1, 1, 1].into(),
            [10, 2, 2, 2].into(),
            nets(["10.1.1.1/32", "10.1.1.2/32", "10.2.2.0/24", "10.2.3.0/24"]),
        ),
        (
            "2001:db8:1::1".parse().unwrap(),
            "2001:db8:2::2".parse().unwrap(),
            nets(["2001:db8:1::1/128", "2001:db8:1::2/128", "2001:db8:2::/64", "2001:db8:3::/64"]),
        ),
    ]
}

/// A rule with every field set matches, and does not when any one of them is otherwise.
#[test]
fn every_field_counts() {
    for direction in [Direction::In, Direction::Out] {
        for (own, peer, [at_own, other_own, at_peer, other_peer]) in pairs() {
            let full = Rule {
                peer: Peer { group: Some(number(7)), subnet: Some(at_peer) },
                own: Some(at_own),
                protocol: Some(TCP),
                port: Some(80),
                ..rule("r", direction, Action::Deny)
            };
            let http = Packet { protocol: TCP, port: Some(80) };
            let matches = |rule: &Rule, peer: &Side<'_>, packet| {
                deciding_rule(std::slice::from_ref(rule), direction, own, peer, packet).is_some()
            };
            let there = side(peer, 7, &[]);
            assert!(matches(&full, &there, http));
            for changed in [
                Rule { direction: opposite(direction), ..full.clone() },
                Rule { peer: Peer { group: Some(number(8)), ..full.peer }, ..full.clone() },
                Rule { peer: Peer { subnet: Some(other_peer), ..full.peer }, ..full.clone() },
                Rule { own: Some(other_own), ..full.clone() },
                Rule { protocol: Some(UDP), ..full.clone() },
                Rule { port: Some(81), ..full.clone() },
            ] {
                assert!(!matches(&changed, &there, http), "{changed:?}");
            }
            for open in [
                Rule { peer: Peer { group: None, ..full.peer }, ..full.clone() },
                Rule { peer: Peer { subnet: None, ..full.peer }, ..full.clone() },
                Rule { own: None, ..full.clone() },
                Rule { protocol: None, port: None, ..full.clone() },
                Rule { port: None, ..full.clone() },
            ] {
                assert!(matches(&open, &there, http), "{open:?}");
            }
            // The other end in another group, in none, and elsewhere.
            assert!(!matches(&full, &side(peer, 8, &[]), http));
            assert!(!matches(&full, &Side::outside(peer), http));
            assert!(!matches(&full, &side(own, 7, &[]), http));
            for packet in [
                Packet { protocol: UDP, port: Some(80) },
                Packet { protocol: TCP, port: Some(8080) },
                Packet { protocol: SCTP, port: None },
                Packet { protocol: ICMP, port: None },
            ] {
                assert!(!matches(&full, &there, packet), "{packet:?}");
            }
        }
    }
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::In => Direction::Out,
        Direction::Out => Direction::In,
    }
}

/// A prefix of one family contains no address of the other.
#[test]
fn address_families_are_separate() {
    let [(v4, v4_peer, [.., v4_net, _]), (v6, v6_peer, [.., v6_net, _])] = pairs();
    let about = |subnet| Rule {
        peer: Peer { group: None, subnet: Some(subnet) },
        ..rule("r", Direction::Out, Action::Deny)
    };
    let any = Packet { protocol: UDP, port: Some(1) };
    let denies = |rule: Rule, own, peer| {
        deciding_rule(&[rule], Direction::Out, own, &Side::outside(peer), any).is_some()
    };
    assert!(denies(about(v4_net), v4, v4_peer) && denies(about(v6_net), v6, v6_peer));
    assert!(!denies(about(v4_net), v6, v6_peer) && !denies(about(v6_net), v4, v4_peer));
    assert!(!denies(about("0.0.0.0/0".parse().unwrap()), v6, v6_peer));
    assert!(!denies(about("::/0".parse().unwrap()), v4, v4_peer));
    // A rule without a prefix applies to both.
    assert!(denies(rule("r", Direction::Out, Action::Deny), v6, v6_peer));
}

/// `icmp` means ICMP of both families; the number of ICMPv6 means ICMPv6 only.
#[test]
fn icmp_covers_both_families() {
    let about = |protocol| Rule { protocol: Some(protocol), ..rule("r", Direction::In, Action::Deny) };
    for (wanted, found, expected) in [
        (ICMP, ICMP, true),
        (ICMP, ICMPV6, true),
        (ICMPV6, ICMPV6, true),
        (ICMPV6, ICMP, false),
        (ICMP, UDP, false),
        (SCTP, SCTP, true),
    ] {
        assert_eq!(about(wanted).matches_protocol(found, None), expected, "{wanted} {found}");
    }
}

/// Every tie of two rules that both match, in both orders of the list.
#[test]
fn the_higher_priority_decides_then_deny_then_the_first_id() {
    use Action::{Allow, Deny};
    let peer = Side::outside([10, 0, 0, 1].into());
    let own = [10, 0, 0, 2].into();
    let any = Packet { protocol: UDP, port: Some(1) };
    for (a, b, winner) in [
        ((2, Allow), (1, Deny), "a"),
        ((2, Allow), (1, Allow), "a"),
        ((2, Deny), (1, Allow), "a"),
        ((2, Deny), (1, Deny), "a"),
        ((1, Allow), (2, Allow), "b"),
        ((1, Deny), (2, Allow), "b"),
        ((1, Allow), (2, Deny), "b"),
        ((1, Deny), (2, Deny), "b"),
        ((1, Allow), (1, Deny), "b"),
        ((1, Deny), (1, Allow), "a"),
        ((1, Deny), (1, Deny), "a"),
        ((1, Allow), (1, Allow), "a"),
        ((100, Allow), (99, Deny), "a"),
    ] {
        let make = |id, (priority, action): (u8, Action)| Rule {
            priority: priority.try_into().unwrap(),
            ..rule(id, Direction::In, action)
        };
        let (a, b) = (make("a", a), make("b", b));
        for rules in [[a.clone(), b.clone()], [b.clone(), a.clone()]] {
            let decided = deciding_rule(&rules, Direction::In, own, &peer, any).unwrap();
            assert_eq!(decided.id.as_str(), winner, "{a:?} {b:?}");
        }
    }
}

/// Nothing, allow and deny on either side, all nine: both sides must allow.
#[test]
fn both_sides_must_allow() {
    let outcomes = [None, Some(Action::Allow), Some(Action::Deny)];
    for out in outcomes {
        for into in outcomes {
            let rules = |id, direction, action: Option<Action>| -> Vec<Rule> {
                let wrong_way = rule("wrong way", opposite(direction), Action::Deny);
                action.map(|action| rule(id, direction, action)).into_iter().chain([wrong_way]).collect()
            };
            let source_rules = rules("out", Direction::Out, out);
            let destination_rules = rules("in", Direction::In, into);
            for (source, destination, _) in pairs() {
                let connection = Connection {
                    source: side(source, 1, &source_rules),
                    destination: side(destination, 2, &destination_rules),
                    packet: Packet { protocol: TCP, port: Some(80) },
                };
                let decision = decide(&connection);
                let denied = out == Some(Action::Deny) || into == Some(Action::Deny);
                assert_eq!(decision.action == Action::Deny, denied);
                assert_eq!(decision.out_rule.map(|rule| rule.action), out);
                assert_eq!(decision.in_rule.map(|rule| rule.action), into);
            }
        }
    }
}

/// Rules apply to the endpoints of their group, regardless of the peer.
#[test]
fn the_outside_is_filtered_and_not_trusted() {
    let (inside, outside): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [192, 0, 2, 1].into());
    let rules = [
        rule("deny all", Direction::In, Action::Deny),
        Rule {
            peer: Peer { group: Some(number(1)), subnet: None },
            priority: 60.try_into().unwrap(),
            ..rule("allow group 1", Direction::In, Action::Allow)
        },
    ];
    let to = side(inside, 2, &rules);
    let packet = Packet { protocol: TCP, port: Some(80) };
    let from = |source| decide(&Connection { source, destination: to, packet }).in_rule.unwrap().id.as_str();
    assert_eq!(from(Side::outside(outside)), "deny all");
    assert_eq!(from(side([10, 0, 0, 9].into(), 1, &[])), "allow group 1");
    assert_eq!(from(side([10, 0, 0, 9].into(), 3, &[])), "deny all");
}

#[test]
fn packets_get_the_dscp_of_the_source() {
    let dscp = |n: u8| n.try_into().ok();
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let packet = Packet { protocol: TCP, port: Some(80) };
    let source = Side { dscp: dscp(46), ..side(a, 1, &[]) };
    let destination = Side { dscp: dscp(8), ..side(b, 2, &[]) };
    assert_eq!(decide(&Connection { source, destination, packet }).dscp, dscp(46));
    assert_eq!(decide(&Connection { source: Side::outside(a), destination, packet }).dscp, None);
}

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

fn group() -> impl Strategy<Value = Option<GroupNumber>> {
    (0..4u32).prop_map(|n| n.try_into().ok())
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
        3 => (prop_oneof![Just(TCP), Just(UDP)], prop::option::of(80..83u16)).prop_map(|(p, port)| (Some(p), port)),
        1 => prop_oneof![Just(ICMP), Just(ICMPV6), Just(SCTP)].prop_map(|p| (Some(p), None)),
    ];
    let direction = prop_oneof![Just(Direction::In), Just(Direction::Out)];
    let action = prop_oneof![Just(Action::Allow), Just(Action::Deny)];
    let host = prop::option::weighted(0.3, address().prop_map(IpNet::from));
    (0..1000u16, direction, group(), subnet(), host, what, action, 1..4u8).prop_map(
        |(id, direction, group, subnet, own, (protocol, port), action, priority)| Rule {
            id: format!("r{id}").into(),
            direction,
            peer: Peer { group, subnet },
            own,
            protocol,
            port,
            action,
            priority: priority.try_into().unwrap(),
        },
    )
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(any_rule(), 0..12)
}

/// Whether `a` precedes `b` if both match, by an independent implementation.
fn precedes(a: &Rule, b: &Rule) -> bool {
    match a.priority.cmp(&b.priority) {
        std::cmp::Ordering::Equal => match (a.action, b.action) {
            (Action::Deny, Action::Allow) => true,
            (Action::Allow, Action::Deny) => false,
            _ => a.id < b.id,
        },
        order => order.is_gt(),
    }
}

/// Of both sides: the addresses, groups and what is sent.
type Ends = ((IpAddr, Option<GroupNumber>), (IpAddr, Option<GroupNumber>), Packet);

fn ends() -> impl Strategy<Value = Ends> {
    ((address(), group()), (address(), group()), packet())
}

fn connection<'a>((from, to, packet): Ends, out: &'a [Rule], into: &'a [Rule]) -> Connection<'a> {
    let side = |(address, group), rules| Side { address, group, rules, dscp: None };
    Connection { source: side(from, out), destination: side(to, into), packet }
}

/// A decision by value.
fn by_value(decision: &Decision<'_>) -> (Action, Option<Rule>, Option<Rule>) {
    (decision.action, decision.out_rule.cloned(), decision.in_rule.cloned())
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
            (decision.action, id(decision.out_rule), id(decision.in_rule))
        };
        prop_assert_eq!(ids(decide(&a)), ids(decide(&b)));
    }

    #[test]
    fn no_matching_rule_precedes_the_deciding_one(ends in ends(), rules in rules()) {
        let (own, (peer, group), packet) = ends;
        let there = Side { address: peer, group, rules: &[], dscp: None };
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
        let before = connection(ends, &rules, &rules);
        let decision = decide(&before);
        let left: Vec<Rule> =
            [decision.out_rule, decision.in_rule].into_iter().flatten().cloned().collect();
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
                let top = Rule { priority: 100.try_into().unwrap(), ..rule("top", direction, action) };
                let rules = [rules.clone(), vec![top.clone()]].concat();
                let connection = connection(ends, &rules, &rules);
                let decision = decide(&connection);
                let decided = if direction == Direction::In { decision.in_rule } else { decision.out_rule };
                prop_assert_eq!(decided, Some(&top));
                prop_assert!(action == Action::Allow || decision.action == Action::Deny);
            }
        }
    }

    /// Without rules that deny, and without rules, everything passes.
    #[test]
    fn only_deny_rules_deny(ends in ends(), rules in rules()) {
        let allowing: Vec<Rule> = rules.into_iter().filter(|rule| rule.action == Action::Allow).collect();
        prop_assert_eq!(decide(&connection(ends, &allowing, &allowing)).action, Action::Allow);
        prop_assert_eq!(decide(&connection(ends, &[], &[])).out_rule, None);
    }

    /// Each side is decided by its own rules.
    #[test]
    fn sides_are_independent(ends in ends(), a in rules(), b in rules(), c in rules()) {
        let (one, other) = (connection(ends, &a, &b), connection(ends, &a, &c));
        prop_assert_eq!(decide(&one).out_rule, decide(&other).out_rule);
        let other = connection(ends, &c, &b);
        prop_assert_eq!(decide(&one).in_rule, decide(&other).in_rule);
    }
}
