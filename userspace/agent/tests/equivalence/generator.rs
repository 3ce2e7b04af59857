//! Random clusters and packets.

use std::collections::BTreeSet;

use contiv_model::{
    policy::{
        Action, Direction, ICMP, ICMPV6, Identity, IdentitySet, IpBlock, Peer, PortRange, Priority, Rule,
        TCP, Tier, UDP,
    },
    service::{Port, Protocol, Readiness},
};
use ipnet::IpNet;
use proptest::{
    collection::{btree_set, vec},
    option,
    prelude::*,
    sample::{Index, select},
};
use testkit::packet::tcp_flags;

use crate::{
    cluster::{
        At, Balanced, Changing, Cluster, Extent, Far, GATEWAY, GROUPS, Member, NETWORKS, PODS, Pod, Presence,
        Profile, REMOTES, Routing, address,
    },
    lifecycle::Lifecycle,
    packet::{Content, GRE, Probe, SCTP, Sender, To, outside},
};

/// Networks of the pods, unless they are mixed.
const HOMES: [usize; PODS] = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7];
/// Ports of connections, rules and services.
const PORTS: [u16; 5] = [53, 80, 443, 5353, 8080];
const SERVICES: usize = 6;
const PROBES: usize = 24;
/// Part of the values that change.
const CHANGING: f64 = 0.4;

pub(crate) fn clusters() -> impl Strategy<Value = Cluster> {
    let profile = || changing(profile());
    // Moving a port to another bridge takes the switch long.
    let homes = prop_oneof![
        8 => Just(HOMES.map(Some).to_vec()),
        1 => HOMES.map(|home| option::weighted(0.8, Just(home))).to_vec(),
        1 => vec(option::weighted(0.9, 0..NETWORKS), PODS),
    ];
    (
        (routing(), any::<bool>(), prop::bool::weighted(0.3), homes, vec(member(), PODS)),
        vec(option::weighted(0.85, far()), NETWORKS * REMOTES.len()),
        vec(prop::bool::weighted(0.5), NETWORKS),
        vec(profile(), GROUPS as usize),
        vec(balanced(), 0..=SERVICES),
        vec(probe(), 1..=PROBES),
    )
        .prop_map(
            |((routing, hosts, regroups, homes, groups), remotes, subnets, profiles, services, probes)| {
                let kept = |group: Member| Changing { after: group.after.filter(|_| regroups), ..group };
                let kept_far = |far: Far| Far {
                    group: kept(far.group),
                    presence: if regroups { far.presence } else { Presence::Always },
                };
                let pods = homes.into_iter().zip(groups);
                Cluster {
                    routing,
                    hosts,
                    pods: pods.map(|(network, group)| Pod { network, group: kept(group) }).collect(),
                    remotes: remotes.into_iter().map(|far| far.map(kept_far)).collect(),
                    subnets,
                    groups: profiles,
                    services,
                    probes,
                }
            },
        )
}

fn routing() -> impl Strategy<Value = Routing> {
    prop_oneof![3 => Just(Routing::Off), 4 => Just(Routing::Vxlans), 3 => Just(Routing::Vlans)]
}

fn changing<T: std::fmt::Debug + Clone>(
    value: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Changing<T>> {
    let after = option::weighted(CHANGING, value.clone());
    (value, after).prop_map(|(before, after)| Changing { before, after })
}

fn member() -> impl Strategy<Value = Member> {
    let group = || option::weighted(0.8, 1..=GROUPS);
    (group(), option::weighted(0.15, group())).prop_map(|(before, after)| Changing { before, after })
}

fn far() -> impl Strategy<Value = Far> {
    let presence = prop_oneof![
        6 => Just(Presence::Always),
        1 => Just(Presence::FromChange),
        1 => Just(Presence::UntilChange),
    ];
    (member(), presence).prop_map(|(group, presence)| Far { group, presence })
}

fn profile() -> impl Strategy<Value = Profile> + Clone {
    let rules = prop_oneof![3 => vec(rule(), 0..3), 3 => vec(rule(), 0..10), 1 => vec(rule(), 10..30)];
    (option::of(1_u8..64), rules).prop_map(|(dscp, mut rules)| {
        for (at, rule) in rules.iter_mut().enumerate() {
            rule.id = format!("r{at:02}").as_str().into();
        }
        for direction in [Direction::In, Direction::Out] {
            if rules.iter().any(|rule| (rule.direction, rule.tier) == (direction, Tier::NetworkPolicy)) {
                rules.push(Rule::isolation(format!("isolation-{direction}").as_str(), direction));
            }
        }
        Profile { dscp, rules: rules.into() }
    })
}

fn rule() -> impl Strategy<Value = Rule> + Clone {
    let protocol = prop_oneof![
        3 => Just(None),
        5 => select(vec![TCP, UDP]).prop_map(Some),
        2 => select(vec![ICMP, ICMPV6, SCTP, GRE]).prop_map(Some),
    ];
    let identities = prop_oneof![
        6 => Just(None),
        3 => (1..=GROUPS).prop_map(|group| Some(BTreeSet::from([group]))),
        1 => btree_set(1..=GROUPS, 0..4).prop_map(Some),
    ];
    let blocks = prop_oneof![
        5 => Just(None),
        4 => block().prop_map(|block| Some(vec![block])),
        1 => vec(block(), 0..3).prop_map(Some),
    ];
    let ports = prop_oneof![
        2 => Just(None),
        5 => select(PORTS.to_vec()).prop_map(|port| Some((port, port))),
        3 => (select(PORTS.to_vec()), 0_u16..400, 0_u16..400)
            .prop_map(|(port, below, above)| Some((port.saturating_sub(below), port + above))),
    ];
    (any::<bool>(), tier(), identities, blocks, option::weighted(0.15, prefix()), protocol, ports).prop_map(
        |(out, (tier, action), identities, blocks, own, protocol, ports)| {
            let direction = if out { Direction::Out } else { Direction::In };
            let ports = ports.filter(|_| matches!(protocol, Some(TCP | UDP)));
            let identities = identities.map(|set: BTreeSet<u32>| {
                set.into_iter().map(|number| Identity::try_from(number).unwrap()).collect::<IdentitySet>()
            });
            let peer = Peer { identities, blocks: blocks.map(Into::into) };
            Rule {
                peer,
                own,
                protocol,
                ports: ports.map(|(first, last)| PortRange::new(first, last).unwrap()),
                ..Rule::new("", direction, action, tier)
            }
        },
    )
}

/// Few priorities, so that rules overlap; and the rules of network policies, which allow, with isolation.
fn tier() -> impl Strategy<Value = (Tier, Action)> + Clone {
    let priority = prop_oneof![4 => 1_u8..4, 1 => 1_u8..=100];
    let contiv = (priority, prop::bool::weighted(0.6)).prop_map(|(priority, deny)| {
        let action = if deny { Action::Deny } else { Action::Allow };
        (Tier::from(Priority::try_from(priority).unwrap()), action)
    });
    prop_oneof![
        9 => contiv,
        1 => Just((Tier::NetworkPolicy, Action::Allow)),
    ]
}

fn block() -> impl Strategy<Value = IpBlock> + Clone {
    let except = prop_oneof![4 => Just(vec![]), 1 => vec(prefix(), 1..3)];
    (prefix(), except).prop_map(|(prefix, except)| IpBlock::new(prefix, except))
}

/// A prefix near an address of the packets.
fn prefix() -> impl Strategy<Value = IpNet> + Clone {
    let addresses = prop_oneof![
        3 => (networks(), select(endpoints()), any::<bool>())
            .prop_map(|(network, last, ip6)| address(network, last, ip6)),
        1 => (0_u8..3, any::<bool>()).prop_map(|(which, ip6)| outside(which, ip6)),
    ];
    let length = prop_oneof![3 => Just(u8::MAX), 3 => 0_u8..=128, 1 => Just(0), 2 => 24_u8..=32];
    (addresses, length).prop_map(|(address, length)| {
        let length = length.min(if address.is_ipv4() { 32 } else { 128 });
        IpNet::new(address, length).unwrap().trunc()
    })
}

/// Networks of each subnet.
fn networks() -> impl Strategy<Value = usize> + Clone {
    prop_oneof![4 => Just(0), 2 => Just(4), 1 => Just(3), 1 => Just(7)]
}

/// Last parts of addresses of endpoints. Not every network has each.
fn endpoints() -> Vec<u8> {
    (1..=3).chain(REMOTES).collect()
}

fn lifecycle() -> impl Strategy<Value = Lifecycle> {
    prop_oneof![
        6 => Just(Lifecycle::Always),
        1 => Just(Lifecycle::FromChange),
        1 => Just(Lifecycle::UntilChange),
        2 => Just(Lifecycle::Recreated),
    ]
}

/// Ports of a service, some of which get another target, and new ones. Ports stay: eBPF and the oracle keep the connections to a port
/// that is deleted, and OVS does not.
fn ports() -> impl Strategy<Value = Changing<Vec<Port>>> {
    let port =
        || {
            (any::<bool>(), select(PORTS.to_vec()), select(PORTS.to_vec())).prop_map(|(tcp, port, target)| {
                Port { protocol: if tcp { Protocol::Tcp } else { Protocol::Udp }, port, target }
            })
        };
    let targets = vec(option::of(select(PORTS.to_vec())), 3);
    let change = option::weighted(CHANGING, (targets, vec(port(), 0..2)));
    (vec(port(), 1..4), change).prop_map(|(before, change)| {
        let after = change.map(|(targets, new)| {
            let target = |(port, target): (&Port, Option<u16>)| target.unwrap_or(port.target);
            let retargeted = before.iter().zip(targets).map(|pair| Port { target: target(pair), ..*pair.0 });
            retargeted.chain(new).collect()
        });
        Changing { before, after }
    })
}

fn balanced() -> impl Strategy<Value = Balanced> {
    let at = || {
        (prop::bool::weighted(0.3), select(endpoints())).prop_map(|(is_other, last)| At { is_other, last })
    };
    let backend = || (at(), select(vec![Readiness::Ready, Readiness::Ready, Readiness::Terminating]));
    let scope = prop_oneof![2 => Just(Extent::Network), 1 => Just(Extent::Vrf), 1 => Just(Extent::Anywhere)];
    (
        (0..NETWORKS, scope, any::<bool>(), prop::bool::weighted(0.3), lifecycle()),
        ports(),
        vec(backend(), 0..5),
        option::weighted(CHANGING, (vec(any::<bool>(), 5), vec(backend(), 0..2))),
    )
        .prop_map(|((network, scope, ip6, affinity, lifecycle), ports, mut before, change)| {
            before.sort_unstable_by_key(|(at, _)| *at);
            before.dedup_by_key(|(at, _)| *at);
            // Backends stay: when one is removed whose pod lives on, eBPF and the oracle keep its connections, and OVS chooses another.
            let after = change.map(|(flips, new)| {
                let flip = |((at, readiness), flip): (&(At, Readiness), bool)| match (readiness, flip) {
                    (Readiness::Ready, true) => (*at, Readiness::Terminating),
                    (Readiness::Terminating, true) => (*at, Readiness::Ready),
                    (other, false) => (*at, *other),
                };
                let mut after: Vec<_> = before.iter().zip(flips).map(flip).collect();
                for (at, readiness) in new {
                    if after.iter().all(|(known, _)| *known != at) {
                        after.push((at, readiness));
                    }
                }
                after
            });
            let backends = Changing { before, after };
            Balanced { network, scope, ip6, ports, backends, affinity, lifecycle }
        })
}

fn probe() -> impl Strategy<Value = Probe> {
    let from = prop_oneof![
        5 => (0..PODS).prop_map(Sender::Pod),
        2 => (0..NETWORKS, select(REMOTES.to_vec()), option::weighted(0.2, 0_u8..3))
            .prop_map(|(network, last, by)| Sender::Far { network, last, by }),
        1 => (0..NETWORKS, select(REMOTES.to_vec()), prop::bool::weighted(0.9))
            .prop_map(|(network, last, is_other)| Sender::Router { network, from: At { is_other, last } }),
    ];
    let to = prop_oneof![
        10 => (select(endpoints()), option::weighted(0.05, select(endpoints())))
            .prop_map(|(last, at)| To::Endpoint { last, at }),
        2 => (0_u8..3, option::weighted(0.7, select(endpoints())))
            .prop_map(|(which, at)| To::Outside { which, at }),
        4 => (prop::bool::weighted(0.8), select(endpoints()))
            .prop_map(|(is_other, last)| To::Routed(At { is_other, last })),
        1 => (any::<bool>(), select(vec![GATEWAY, GATEWAY, 77]))
            .prop_map(|(is_other, last)| To::Routed(At { is_other, last })),
        5 => (0_u8..4).prop_map(To::World),
        8 => (any::<Index>(), option::weighted(0.9, any::<Index>()), any::<bool>())
            .prop_map(|(which, port, routed)| To::Service { which, port, routed }),
        1 => Just(To::Broadcast),
        1 => Just(To::Multicast),
    ];
    let ttl = prop_oneof![6 => Just(64_u8), 1 => 1_u8..=254, 1 => 1_u8..=3];
    (from, to, any::<bool>(), content(), select(PORTS.to_vec()), any::<u8>(), ttl, any::<bool>()).prop_map(
        |(from, to, ip6, content, port, tos, ttl, is_late)| {
            let to = match (from, to) {
                // Only pods are clients of services.
                (
                    Sender::Far { .. } | Sender::Router { .. },
                    To::Service { .. } | To::Routed(_) | To::World(_),
                ) => To::Endpoint { last: 1, at: None },
                (_, to) => to,
            };
            Probe { from, to, ip6, content, port, tos, ttl, is_late }
        },
    )
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        6 => select(vec![tcp_flags::SYN, tcp_flags::SYN, tcp_flags::ACK])
            .prop_map(|flags| Content::Tcp { flags }),
        5 => Just(Content::Udp),
        2 => Just(Content::Echo),
        1 => Just(Content::Sctp),
        1 => Just(Content::Gre),
    ]
}
