mod layers;
mod properties;

use ipnet::IpNet;

use super::*;
use crate::policy::{ICMP, ICMPV6, Peer, PortRange, TCP, Tier, UDP};

const SCTP: u8 = 132;

fn identity(n: u32) -> Identity {
    n.try_into().unwrap()
}

fn contiv(priority: u8) -> Tier {
    priority.try_into().unwrap()
}

fn rule(id: &str, direction: Direction, action: Action) -> Rule {
    Rule::new(id, direction, action, contiv(50))
}

fn side<'a>(address: IpAddr, number: u32, rules: &'a [Rule]) -> Side<'a> {
    Side::endpoint(address, number.try_into().ok(), rules)
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
                peer: Peer::new(Some(identity(7)), Some(at_peer)),
                own: Some(at_own),
                protocol: Some(TCP),
                ports: PortRange::new(79, 80),
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
                Rule { peer: Peer::new(Some(identity(8)), Some(at_peer)), ..full.clone() },
                Rule { peer: Peer::new(Some(identity(7)), Some(other_peer)), ..full.clone() },
                Rule { own: Some(other_own), ..full.clone() },
                Rule { protocol: Some(UDP), ..full.clone() },
                Rule { ports: PortRange::new(81, 90), ..full.clone() },
            ] {
                assert!(!matches(&changed, &there, http), "{changed:?}");
            }
            for open in [
                Rule { peer: Peer::prefix(at_peer), ..full.clone() },
                Rule { peer: Peer::identity(identity(7)), ..full.clone() },
                Rule { own: None, ..full.clone() },
                Rule { protocol: None, ports: None, ..full.clone() },
                Rule { ports: None, ..full.clone() },
            ] {
                assert!(matches(&open, &there, http), "{open:?}");
            }
            // The other end with another identity, without, and elsewhere.
            assert!(!matches(&full, &side(peer, 8, &[]), http));
            assert!(!matches(&full, &side(peer, 0, &[]), http));
            assert!(!matches(&full, &Side::outside(peer), http));
            assert!(!matches(&full, &Side::unknown_inside(peer), http));
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
    let about = |prefix| Rule { peer: Peer::prefix(prefix), ..rule("r", Direction::Out, Action::Deny) };
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
            tier: contiv(priority),
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
                assert_eq!(decision.out_rule().map(|rule| rule.action), out);
                assert_eq!(decision.in_rule().map(|rule| rule.action), into);
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
            peer: Peer::identity(identity(1)),
            tier: contiv(60),
            ..rule("allow group 1", Direction::In, Action::Allow)
        },
    ];
    let to = side(inside, 2, &rules);
    let packet = Packet { protocol: TCP, port: Some(80) };
    let from =
        |source| decide(&Connection { source, destination: to, packet }).in_rule().unwrap().id.as_str();
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
