//! Generated scenes.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
    sync::Arc,
    time::Duration,
};

use contiv_model::{
    group::{Dscp, Rate},
    policy::{Action, Direction, ICMP, ICMPV6, Identity, Peer, Rule, TCP, UDP},
    service::{Port, Protocol, Readiness},
};
use ipnet::IpNet;
use netplugin::datapath::{Backend, Group, Object, Scope, Service};
use proptest::{
    collection::vec,
    option,
    prelude::*,
    sample::{Index, select},
};
use testkit::packet::tcp_flags;

use crate::node::{Endpoint, network, vxlan};

/// Endpoints on the node.
pub(super) const LOCALS: Range<u8> = 1..5;
/// Endpoints on the node in the second network, with addresses that also exist in the first.
pub(super) const WIRED: Range<u8> = 1..3;
/// Endpoints on another node, in both networks.
pub(super) const REMOTES: Range<u8> = 11..14;
pub(super) const VNI: u32 = 10_001;
pub(super) const NETWORK: &str = "n1.t";
pub(super) const VLAN: u16 = 100;
pub(super) const WIRED_NETWORK: &str = "n2.t";
/// Number of the first service address.
const VIPS: u8 = 200;
const SERVICES: usize = 3;
const GROUPS: u32 = 5;
pub(super) const SCTP: u8 = 132;
/// A protocol without ports.
const GRE: u8 = 47;
/// Ports of connections, rules and services.
const PORTS: [u16; 5] = [53, 80, 443, 5353, 8080];
const PROBES: usize = 80;
const ARRIVALS: usize = 20;
const COMPLAINTS: usize = 40;

/// State of a node before and after a change of the rules, and packets.
#[derive(Clone, Debug)]
pub(super) struct Scene {
    /// Group of each endpoint: first local, then remote endpoints.
    pub(super) members: Vec<Option<u32>>,
    /// Groups of the local endpoints of the second network.
    pub(super) wired: Vec<Option<u32>>,
    pub(super) before: Vec<Profile>,
    pub(super) after: Vec<Profile>,
    pub(super) services: Vec<Balanced>,
    pub(super) probes: Vec<Probe>,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) complaints: Vec<Complaint>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Before,
    After,
}

/// Configuration of a group. The group's number is its index plus 1.
#[derive(Clone, Debug)]
pub(super) struct Profile {
    pub(super) dscp: Option<u8>,
    /// Bits per second.
    pub(super) rate: Option<u64>,
    pub(super) rules: Arc<[Rule]>,
}

#[derive(Clone, Debug)]
pub(super) struct Balanced {
    ip6: bool,
    ports: Vec<Port>,
    backends: Vec<(u8, Readiness)>,
    affinity: bool,
}

/// A packet from an endpoint here: the first of a connection.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) from: u8,
    pub(super) to: Target,
    pub(super) ip6: bool,
    pub(super) content: Content,
    /// Destination port.
    pub(super) port: u16,
    pub(super) tos: u8,
    /// Sent in two fragments.
    pub(super) cut: bool,
}

/// A packet from the uplink of the second network: the first of a connection.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) from: Stranger,
    pub(super) to: u8,
    pub(super) ip6: bool,
    pub(super) content: Content,
    /// Destination port.
    pub(super) port: u16,
    pub(super) tos: u8,
}

/// An ICMP error from an endpoint here.
#[derive(Clone, Debug)]
pub(super) struct Complaint {
    /// Index of the packet that it is about.
    pub(super) about: Index,
    /// About the reply to the packet instead, which the packet's sender received.
    pub(super) of_answer: bool,
    /// Sender, if the error is about the packet; `None` for the receiver of the packet.
    pub(super) by: Option<u8>,
    pub(super) trouble: Trouble,
    /// Bytes of the quoted packet.
    pub(super) quoted: usize,
    /// The quoted packet was never sent.
    pub(super) invented: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    /// ICMP type with code.
    Unreachable(u8),
    TooBig,
    TimeExceeded,
    BadHeader,
}

impl Trouble {
    const MTU: [u8; 2] = 1400_u16.to_be_bytes();

    /// Type, code, and second word of ICMP (RFC 792).
    pub(super) fn v4(self) -> (u8, u8, [u8; 4]) {
        let [a, b] = Trouble::MTU;
        match self {
            Trouble::Unreachable(code) => (3, code, [0; 4]),
            Trouble::TooBig => (3, 4, [0, 0, a, b]),
            Trouble::TimeExceeded => (11, 0, [0; 4]),
            Trouble::BadHeader => (12, 0, [8, 0, 0, 0]),
        }
    }

    /// Type, code, and second word of ICMPv6 (RFC 4443).
    pub(super) fn v6(self) -> (u8, u8, [u8; 4]) {
        let [a, b] = Trouble::MTU;
        match self {
            Trouble::Unreachable(code) => (1, code, [0; 4]),
            Trouble::TooBig => (2, 0, [0, 0, a, b]),
            Trouble::TimeExceeded => (3, 0, [0; 4]),
            Trouble::BadHeader => (4, 0, [0, 0, 0, 6]),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stranger {
    /// An endpoint on another node.
    Endpoint(u8),
    /// An unassigned address.
    Outside(u8),
}

/// Part of a packet that is sent in two fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Whole,
    First,
    Later,
}

impl Piece {
    pub(super) fn is_part(self) -> bool {
        self != Piece::Whole
    }
}

impl Probe {
    pub(super) fn pieces(&self) -> &'static [Piece] {
        if self.cut { &[Piece::First, Piece::Later] } else { &[Piece::Whole] }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Endpoint(u8),
    /// An unassigned address, at the MAC address of a remote endpoint or at an unassigned one.
    Outside {
        which: u8,
        by_router: bool,
    },
    /// A service by its index, which may not exist.
    Service(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    Tcp { flags: u8 },
    Udp,
    Echo,
    Sctp,
    Gre,
}

impl Content {
    /// Replies.
    pub(super) fn answer(self) -> Content {
        match self {
            Content::Tcp { .. } => Content::Tcp { flags: tcp_flags::SYN | tcp_flags::ACK },
            other => other,
        }
    }

    /// Protocol number.
    pub(super) fn protocol(self, ip6: bool) -> u8 {
        match self {
            Content::Tcp { .. } => TCP,
            Content::Udp => UDP,
            Content::Echo if ip6 => ICMPV6,
            Content::Echo => ICMP,
            Content::Sctp => SCTP,
            Content::Gre => GRE,
        }
    }
}

/// Index of an endpoint in [`Scene::members`].
fn place(endpoint: u8) -> Option<usize> {
    LOCALS.chain(REMOTES).position(|known| known == endpoint)
}

impl Scene {
    pub(super) fn group_of(&self, endpoint: u8) -> Option<Identity> {
        self.members[place(endpoint)?].map(|number| number.try_into().unwrap())
    }

    pub(super) fn wired_group(&self, endpoint: u8) -> Option<Identity> {
        let place = WIRED.into_iter().position(|known| known == endpoint)?;
        self.wired[place].map(|number| number.try_into().unwrap())
    }

    pub(super) fn profile(&self, stage: Stage, group: Identity) -> &Profile {
        let profiles = match stage {
            Stage::Before => &self.before,
            Stage::After => &self.after,
        };
        &profiles[group.get() as usize - 1]
    }

    /// Groups with endpoints here. Groups without configuration are omitted, as the agent does.
    pub(super) fn groups(&self, stage: Stage) -> Vec<Object> {
        let wired = WIRED.filter_map(|endpoint| self.wired_group(endpoint));
        let mut numbers: Vec<_> =
            LOCALS.filter_map(|endpoint| self.group_of(endpoint)).chain(wired).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let group = |number: Identity| {
            let Profile { dscp, rate, rules } = self.profile(stage, number);
            let rate = rate.map(|bits_per_second| Rate { bits_per_second, burst_bytes: 125_000 });
            let dscp = dscp.map(|class| Dscp::try_from(class).unwrap());
            Group { dscp, rate, ..Group::new(number, rules.clone()) }
        };
        let reported =
            |group: &Group| group.dscp.is_some() || group.rate.is_some() || !group.rules.is_empty();
        numbers.into_iter().map(group).filter(reported).map(Object::Group).collect()
    }

    pub(super) fn service(&self, at: usize) -> Option<Service> {
        let balanced = self.services.get(at)?;
        let encap = vxlan(VNI);
        let backend = |(endpoint, readiness): &(u8, Readiness)| Backend {
            readiness: *readiness,
            ..Backend::on(encap, address(*endpoint, balanced.ip6))
        };
        let mut backends: Vec<Backend> = balanced.backends.iter().map(backend).collect();
        backends.sort_unstable();
        backends.dedup_by_key(|backend| backend.ip);
        let mut ports = balanced.ports.clone();
        ports.sort_unstable();
        ports.dedup_by_key(|port| (port.protocol, port.port));
        let scope = Scope::network(&network(NETWORK, encap));
        let vip = address(VIPS + at as u8, balanced.ip6);
        let affinity = balanced.affinity.then_some(Duration::from_secs(3600));
        Some(Service { ports, backends, affinity, ..Service::new(format!("s{at}:t"), scope, vip) })
    }

    pub(super) fn services(&self) -> impl Iterator<Item = Object> {
        (0..self.services.len()).filter_map(|at| self.service(at)).map(Object::Service)
    }
}

/// Address of an endpoint or a service.
pub(super) fn address(endpoint: u8, ip6: bool) -> IpAddr {
    if ip6 { Endpoint(endpoint).ip6().into() } else { Endpoint(endpoint).ip().into() }
}

/// Unassigned addresses inside and outside of the network.
pub(super) fn outside(which: u8, ip6: bool) -> IpAddr {
    const V4: [Ipv4Addr; 3] =
        [Ipv4Addr::new(10, 1, 1, 77), Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(198, 51, 100, 7)];
    const V6: [Ipv6Addr; 3] = [
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 77),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9),
        Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 7),
    ];
    let at = usize::from(which) % V4.len();
    if ip6 { V6[at].into() } else { V4[at].into() }
}

pub(super) fn scenes() -> impl Strategy<Value = Scene> {
    let endpoints = LOCALS.len() + REMOTES.len();
    let profiles = || vec(profile(), GROUPS as usize);
    (
        vec(option::weighted(0.8, 1..=GROUPS), endpoints),
        vec(option::weighted(0.8, 1..=GROUPS), WIRED.len()),
        profiles(),
        profiles(),
        vec(balanced(), 0..=SERVICES),
        vec((probe(), option::weighted(0.8, any::<Index>())), 1..=PROBES),
        vec(arrival(), 0..=ARRIVALS),
        vec(complaint(), 0..=COMPLAINTS),
    )
        .prop_map(|(members, wired, before, after, services, probes, arrivals, complaints)| {
            let aim = |(probe, port): (Probe, Option<Index>)| match port {
                Some(port) => probe.aimed(&services, port),
                None => probe,
            };
            let probes = probes.into_iter().map(aim).collect();
            Scene { members, wired, before, after, services, probes, arrivals, complaints }
        })
}

impl Probe {
    /// A packet for an existing service and one of its ports.
    fn aimed(self, services: &[Balanced], port: Index) -> Probe {
        let Target::Service(at) = self.to else { return self };
        let Some(service) = services.get(at) else { return self };
        let Port { protocol, port, .. } = *port.get(&service.ports);
        let content = match (protocol, self.content) {
            (Protocol::Tcp, Content::Tcp { .. }) => self.content,
            (Protocol::Tcp, _) => Content::Tcp { flags: tcp_flags::SYN },
            (Protocol::Udp, _) => Content::Udp,
        };
        let cut = self.cut && matches!(content, Content::Udp);
        Probe { ip6: service.ip6, content, port, cut, ..self }
    }
}

fn profile() -> impl Strategy<Value = Profile> {
    let rules = prop_oneof![3 => vec(rule(), 0..4), 3 => vec(rule(), 0..16), 1 => vec(rule(), 20..80)];
    let rate = option::weighted(0.2, select(vec![1_048_000_u64, 1_073_741_000]));
    (option::of(1_u8..64), rate, rules).prop_map(|(dscp, rate, mut rules)| {
        for (at, rule) in rules.iter_mut().enumerate() {
            rule.id = format!("r{at:02}").as_str().into();
        }
        Profile { dscp, rate, rules: rules.into() }
    })
}

fn rule() -> impl Strategy<Value = Rule> {
    let protocol = prop_oneof![
        3 => Just(None),
        5 => select(vec![TCP, UDP]).prop_map(Some),
        2 => select(vec![ICMP, ICMPV6, SCTP, GRE]).prop_map(Some),
    ];
    // Few values, so that rules overlap.
    let priority = prop_oneof![4 => 1_u8..4, 1 => 1_u8..=100];
    (
        (any::<bool>(), prop::bool::weighted(0.6), priority),
        option::weighted(0.4, 1..=GROUPS),
        option::weighted(0.5, subnet()),
        option::weighted(0.15, subnet()),
        protocol,
        option::weighted(0.7, select(PORTS.to_vec())),
    )
        .prop_map(|((out, deny, priority), group, subnet, own, protocol, port)| {
            let direction = if out { Direction::Out } else { Direction::In };
            let action = if deny { Action::Deny } else { Action::Allow };
            Rule {
                peer: Peer::new(group.map(|number| number.try_into().unwrap()), subnet),
                own,
                protocol,
                ports: port.filter(|_| matches!(protocol, Some(TCP | UDP))).map(Into::into),
                ..Rule::new("", direction, action, priority.try_into().unwrap())
            }
        })
}

/// A subnet near an address of the packets.
fn subnet() -> impl Strategy<Value = IpNet> {
    let endpoint: Vec<u8> = LOCALS.chain(REMOTES).collect();
    let addresses = prop_oneof![
        3 => (select(endpoint), any::<bool>()).prop_map(|(endpoint, ip6)| address(endpoint, ip6)),
        1 => (0_u8..3, any::<bool>()).prop_map(|(which, ip6)| outside(which, ip6)),
    ];
    let length = prop_oneof![3 => Just(u8::MAX), 3 => 0_u8..=128, 1 => Just(0), 2 => 24_u8..=32];
    (addresses, length).prop_map(|(address, length)| {
        let length = length.min(if address.is_ipv4() { 32 } else { 128 });
        IpNet::new(address, length).unwrap().trunc()
    })
}

fn balanced() -> impl Strategy<Value = Balanced> {
    let port =
        (any::<bool>(), select(PORTS.to_vec()), select(PORTS.to_vec())).prop_map(|(tcp, port, target)| {
            Port { protocol: if tcp { Protocol::Tcp } else { Protocol::Udp }, port, target }
        });
    let endpoint: Vec<u8> = LOCALS.chain(REMOTES).collect();
    let readiness = prop_oneof![4 => Just(Readiness::Ready), 1 => Just(Readiness::Terminating)];
    (any::<bool>(), vec(port, 1..5), vec((select(endpoint), readiness), 0..5), prop::bool::weighted(0.3))
        .prop_map(|(ip6, ports, backends, affinity)| Balanced { ip6, ports, backends, affinity })
}

fn probe() -> impl Strategy<Value = Probe> {
    let endpoint: Vec<u8> = LOCALS.chain(REMOTES).collect();
    let target = prop_oneof![
        5 => select(endpoint).prop_map(Target::Endpoint),
        1 => (0_u8..3, any::<bool>()).prop_map(|(which, by_router)| Target::Outside { which, by_router }),
        4 => (0..SERVICES).prop_map(Target::Service),
    ];
    let cut = prop::bool::weighted(0.3);
    (LOCALS, target, any::<bool>(), content(), select(PORTS.to_vec()), any::<u8>(), cut).prop_map(
        |(from, to, ip6, content, port, tos, cut)| {
            let content = match (content, to) {
                // Without ports, a packet in the other direction would be a reply.
                (Content::Gre, Target::Endpoint(endpoint)) if endpoint < from => Content::Udp,
                // And two to one address outside would be of one connection, with two Ethernet addresses.
                (
                    Content::Gre,
                    Target::Outside { which: 0, .. } | Target::Outside { by_router: false, .. },
                ) => Content::Udp,
                _ => content,
            };
            let cut = cut && matches!(content, Content::Udp);
            Probe { from, to, ip6, content, port, tos, cut }
        },
    )
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        5 => select(vec![tcp_flags::SYN, tcp_flags::SYN, tcp_flags::ACK]).prop_map(|flags| Content::Tcp { flags }),
        5 => Just(Content::Udp),
        2 => Just(Content::Echo),
        1 => Just(Content::Sctp),
        1 => Just(Content::Gre),
    ]
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let endpoint: Vec<u8> = REMOTES.collect();
    let from = prop_oneof![
        3 => select(endpoint).prop_map(Stranger::Endpoint),
        1 => (0_u8..3).prop_map(Stranger::Outside),
    ];
    (from, WIRED, any::<bool>(), content(), select(PORTS.to_vec()), any::<u8>())
        .prop_map(|(from, to, ip6, content, port, tos)| Arrival { from, to, ip6, content, port, tos })
}

fn complaint() -> impl Strategy<Value = Complaint> {
    let trouble = prop_oneof![
        3 => (0_u8..6).prop_map(Trouble::Unreachable),
        2 => Just(Trouble::TooBig),
        1 => Just(Trouble::TimeExceeded),
        1 => Just(Trouble::BadHeader),
    ];
    let by = option::weighted(0.3, select(LOCALS.collect::<Vec<_>>()));
    // The minimum of RFC 792, or any length.
    let quoted = prop_oneof![1 => Just(28_usize), 1 => Just(48_usize), 4 => 0..100_usize];
    let invented = prop::bool::weighted(0.2);
    (any::<Index>(), any::<bool>(), by, trouble, quoted, invented).prop_map(
        |(about, of_answer, by, trouble, quoted, invented)| Complaint {
            about,
            of_answer,
            by,
            trouble,
            quoted,
            invented,
        },
    )
}
