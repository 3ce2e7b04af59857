//! Results that the oracle allows for a packet.

use std::net::IpAddr;

use contiv_abi::DropReason;
use contiv_model::policy::Direction;
use contiv_model::{
    policy::{Action, Connection, Packet as Asked, Side, TCP, UDP, decide, deciding_rule},
    service::{Port, Resolution, resolve},
};
use netplugin::datapath::Service;
use testkit::packet::Packet;

use super::scene::{Content, LOCALS, Piece, Probe, Scene, Stage, Target, address, outside};
use crate::{
    node::Endpoint,
    run::{Code, Outcome},
};

/// First source port or identifier of a probe; each probe has its own.
const FIRST: u16 = 20_000;
/// An unassigned MAC address.
const UNASSIGNED: [u8; 6] = [2, 2, 9, 9, 9, 9];
/// The remote endpoint that is the gateway.
const ROUTER: u8 = 11;

/// Result of a packet.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Fate {
    /// Forwarded by its destination MAC address, with these bytes.
    Arrives {
        /// The destination address.
        place: IpAddr,
        bytes: Vec<u8>,
        /// Whether the destination is a service.
        translated: bool,
    },
    /// Flooded, as for an unknown destination MAC address.
    Flooded { bytes: Vec<u8> },
    /// Dropped by policy. `backend` is the destination it would have had.
    Denied { backend: Option<IpAddr> },
    /// The service has no backend.
    Refused(DropReason),
    /// The destination is the ingress port.
    Back,
}

impl Fate {
    pub(super) fn is(&self, outcome: &Outcome) -> bool {
        let Outcome { code, bytes: found, dropped } = outcome;
        match self {
            Fate::Arrives { bytes, translated, .. } => {
                // The model does not define whether the MAC address is the service's or the backend's.
                let same = if *translated {
                    found.len() == bytes.len() && found[..6] == bytes[..6] && found[12..] == bytes[12..]
                } else {
                    found == bytes
                };
                (*code, dropped.is_empty(), same) == (Code::Redirect, true, true)
            }
            Fate::Flooded { bytes } => {
                (*code, dropped.is_empty(), found == bytes) == (Code::Shot, true, true)
            }
            Fate::Denied { .. } => (*code, &dropped[..]) == (Code::Shot, &[DropReason::Policy][..]),
            Fate::Refused(reason) => dropped[..] == [*reason],
            Fate::Back => dropped[..] == [DropReason::Hairpin],
        }
    }

    /// Endpoint that received the packet.
    pub(super) fn place(&self) -> Option<IpAddr> {
        match self {
            Fate::Arrives { place, .. } => Some(*place),
            _ => None,
        }
    }

    /// Endpoint that received the packet, or would have.
    pub(super) fn backend(&self) -> Option<IpAddr> {
        match self {
            Fate::Denied { backend } => *backend,
            other => other.place(),
        }
    }

    pub(super) fn is_translated(&self) -> bool {
        matches!(self, Fate::Arrives { translated: true, .. })
    }

    pub(super) fn is_denied(&self) -> bool {
        matches!(self, Fate::Denied { .. })
    }

    pub(super) fn is_refused(&self) -> bool {
        matches!(self, Fate::Refused(_))
    }

    pub(super) fn made_a_connection(&self) -> bool {
        self.place().is_some()
    }
}

/// A packet that an endpoint here sends in reply.
pub(super) struct Message {
    pub(super) from: u8,
    pub(super) frame: Vec<u8>,
    pub(super) fate: Fate,
}

/// The model applied to a scene.
#[derive(Clone, Copy)]
pub(super) struct Oracle<'a> {
    pub(super) scene: &'a Scene,
    pub(super) stage: Stage,
}

/// Source and destination of a packet.
pub(super) struct Ends {
    pub(super) macs: ([u8; 6], [u8; 6]),
    pub(super) from: (IpAddr, u16),
    pub(super) to: (IpAddr, u16),
}

impl Oracle<'_> {
    pub(super) fn source(&self, probe: &Probe) -> IpAddr {
        address(probe.from, probe.ip6)
    }

    /// The packet as sent.
    pub(super) fn frame(&self, number: usize, probe: &Probe, piece: Piece) -> Vec<u8> {
        self.packet(number, probe, &self.sent_to(number, probe), probe.tos, Way::There(piece))
    }

    /// Whether the sender's packets are queued.
    pub(super) fn waits(&self, endpoint: u8) -> bool {
        let group = self.scene.group_of(endpoint);
        group.is_some_and(|group| self.scene.profile(self.stage, group).rate.is_some())
    }

    pub(super) fn sent_to(&self, number: usize, probe: &Probe) -> Ends {
        let (mac, to) = match probe.to {
            Target::Endpoint(endpoint) => (Endpoint(endpoint).mac(), address(endpoint, probe.ip6)),
            Target::Outside { which, by_router } => {
                (if by_router { Endpoint(ROUTER).mac() } else { UNASSIGNED }, outside(which, probe.ip6))
            }
            Target::Service(at) => match self.service(probe, at) {
                Some(service) => (mac_of(service.vip), service.vip),
                None => (UNASSIGNED, outside(0, probe.ip6)),
            },
        };
        let port = FIRST + number as u16;
        Ends {
            macs: (mac, Endpoint(probe.from).mac()),
            from: (self.source(probe), port),
            to: (to, probe.port),
        }
    }

    /// The service, if its address has the packet's family.
    fn service(&self, probe: &Probe, at: usize) -> Option<Service> {
        self.scene.service(at).filter(|service| service.vip.is_ipv6() == probe.ip6)
    }

    /// Index of the service with affinity, if the packet is for one.
    pub(super) fn sticky_service(&self, probe: &Probe) -> Option<usize> {
        let Target::Service(at) = probe.to else { return None };
        self.service(probe, at)?.affinity?;
        Some(at)
    }

    /// All allowed results of the packet, or of a fragment of it.
    pub(super) fn fates(&self, number: usize, probe: &Probe, piece: Piece) -> Vec<Fate> {
        let ends = self.sent_to(number, probe);
        let tos = self.marked(probe.from, probe.tos);
        let direct = |ends: &Ends| {
            if !self.may(probe, ends.to) {
                return Fate::Denied { backend: Some(ends.to.0) };
            }
            let bytes = self.packet(number, probe, ends, tos, Way::There(piece));
            self.sent_on(ends.macs.0, ends.to.0, bytes)
        };
        let service = match probe.to {
            Target::Service(at) => self.service(probe, at),
            Target::Endpoint(endpoint) if endpoint == probe.from => {
                let denied = !self.may(probe, ends.to);
                return vec![if denied { Fate::Denied { backend: None } } else { Fate::Back }];
            }
            _ => None,
        };
        let Some(service) = service else { return vec![direct(&ends)] };
        let backends = service.backends.iter().map(|backend| (backend.ip, backend.readiness));
        let protocol = probe.content.protocol(probe.ip6);
        match resolve(&service.ports, backends, protocol, probe.port) {
            Resolution::Direct => vec![Fate::Refused(DropReason::NoService)],
            Resolution::Refused => vec![Fate::Refused(DropReason::NoBackend)],
            Resolution::To { backends, port } => backends
                .iter()
                .map(|backend| self.by_backend(number, probe, piece, (*backend, port)))
                .collect(),
        }
    }

    /// Destination of the packet.
    pub(super) fn sent_on(&self, mac: [u8; 6], place: IpAddr, bytes: Vec<u8>) -> Fate {
        if mac == UNASSIGNED {
            Fate::Flooded { bytes }
        } else {
            Fate::Arrives { place, bytes, translated: false }
        }
    }

    fn by_backend(&self, number: usize, probe: &Probe, piece: Piece, to: (IpAddr, u16)) -> Fate {
        if !self.may(probe, to) {
            return Fate::Denied { backend: Some(to.0) };
        }
        let ends = self.beyond(number, probe, to);
        let tos = self.marked(probe.from, probe.tos);
        let bytes = self.packet(number, probe, &ends, tos, Way::There(piece));
        Fate::Arrives { place: to.0, bytes, translated: true }
    }

    /// Source and destination as the backend sees them. A backend that is the client sees the service address.
    fn beyond(&self, number: usize, probe: &Probe, to: (IpAddr, u16)) -> Ends {
        let sent = self.sent_to(number, probe);
        let source = if to.0 == sent.from.0 { sent.to.0 } else { sent.from.0 };
        Ends { macs: (mac_of_owner(to.0), sent.macs.1), from: (source, sent.from.1), to }
    }

    /// Whether the rules enforced on this node allow the connection.
    pub(super) fn may(&self, probe: &Probe, to: (IpAddr, u16)) -> bool {
        let protocol = probe.content.protocol(probe.ip6);
        let packet = Asked { protocol, port: matches!(protocol, TCP | UDP).then_some(to.1) };
        // An endpoint that forwards to the outside receives the packet.
        let receiver = match probe.to {
            Target::Outside { by_router: true, .. } => Some(ROUTER),
            _ => None,
        };
        self.evaluate(self.source(probe), (to.0, receiver), packet)
    }

    /// `receiver` has the destination's Ethernet address.
    fn evaluate(&self, from: IpAddr, (to, receiver): (IpAddr, Option<u8>), packet: Asked) -> bool {
        let (source, mut destination) = (self.side(from), self.side(to));
        if let Some(group) = receiver.and_then(|endpoint| self.scene.group_of(endpoint)) {
            destination.party = contiv_model::policy::Party::Endpoint(Some(group));
        }
        if LOCALS.into_iter().any(|endpoint| address(endpoint, to.is_ipv6()) == to) {
            return decide(&Connection { source, destination, packet }).action == Action::Allow;
        }
        // The other node enforces the rules of the other side.
        let rule = deciding_rule(source.rules, Direction::Out, source.address, &destination, packet);
        rule.is_none_or(|rule| rule.action == Action::Allow)
    }

    fn side(&self, ip: IpAddr) -> Side<'_> {
        let Some(group) = owner(ip).and_then(|endpoint| self.scene.group_of(endpoint)) else {
            return Side::outside(ip);
        };
        let profile = self.scene.profile(self.stage, group);
        Side::endpoint(ip, Some(group), &profile.rules)
    }

    /// TOS byte of forwarded packets of an endpoint here.
    pub(super) fn marked(&self, endpoint: u8, tos: u8) -> u8 {
        let group = self.scene.group_of(endpoint);
        match group.and_then(|group| self.scene.profile(self.stage, group).dscp) {
            Some(dscp) => dscp << 2 | tos & 3,
            None => tos,
        }
    }

    /// The reply of the receiver, and its result: it arrives with the address to which the packet was sent, unless
    /// the current rules deny the connection.
    pub(super) fn answer(&self, number: usize, probe: &Probe, fate: &Fate) -> Option<Message> {
        let Fate::Arrives { place, translated, .. } = fate else { return None };
        let from = LOCALS.into_iter().find(|endpoint| address(*endpoint, probe.ip6) == *place)?;
        let sent = self.sent_to(number, probe);
        let seen = self.seen(number, probe, fate)?;
        let back = |ends: &Ends, macs| Ends { macs, from: ends.to, to: ends.from };
        // A pod in a hairpin connection replies to the service.
        let next = if *translated && seen.from.0 == sent.to.0 { sent.macs.0 } else { sent.macs.1 };
        let answer = Probe { content: probe.content.answer(), ..probe.clone() };
        let frame =
            self.packet(number, &answer, &back(&seen, (next, Endpoint(from).mac())), answer.tos, Way::Back);
        let denied = !self.may(probe, seen.to);
        let fate = if denied {
            Fate::Denied { backend: None }
        } else {
            let received = back(&sent, (sent.macs.1, sent.macs.0));
            let bytes = self.packet(number, &answer, &received, self.marked(from, answer.tos), Way::Back);
            Fate::Arrives { place: sent.from.0, bytes, translated: *translated }
        };
        Some(Message { from, frame, fate })
    }

    /// Source and destination as the receiver sees them.
    pub(super) fn seen(&self, number: usize, probe: &Probe, fate: &Fate) -> Option<Ends> {
        let Fate::Arrives { place, translated, .. } = fate else { return None };
        if !translated {
            return Some(self.sent_to(number, probe));
        }
        let Target::Service(at) = probe.to else { return None };
        let service = self.service(probe, at)?;
        let protocol = probe.content.protocol(probe.ip6);
        let is = |port: &&Port| (port.protocol.number(), port.port) == (protocol, probe.port);
        let port = service.ports.iter().find(is)?;
        Some(self.beyond(number, probe, (*place, port.target)))
    }

    fn packet(&self, number: usize, probe: &Probe, ends: &Ends, tos: u8, way: Way) -> Vec<u8> {
        let packet = Packet::eth(ends.macs.0, ends.macs.1);
        self.described(number, probe, probe.content, tos, way).build(packet, ends.from, ends.to)
    }

    pub(super) fn described(
        &self,
        number: usize,
        probe: &Probe,
        content: Content,
        tos: u8,
        way: Way,
    ) -> Described {
        Described { content, ip6: probe.ip6, id: FIRST + number as u16, tos, way }
    }
}

/// Destination of a packet, and its form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    There(Piece),
    Back,
}

impl Way {
    /// Without the L4 header.
    pub(super) fn is_later(self) -> bool {
        self == Way::There(Piece::Later)
    }
}

/// Fields that all forms of a packet share.
pub(super) struct Described {
    pub(super) content: Content,
    pub(super) ip6: bool,
    pub(super) id: u16,
    pub(super) tos: u8,
    pub(super) way: Way,
}

impl Described {
    /// Part of a packet.
    pub(super) fn build(&self, packet: Packet, from: (IpAddr, u16), to: (IpAddr, u16)) -> Vec<u8> {
        /// Bytes of the first fragment, including the UDP header: a multiple of 8.
        const FIRST_PIECE: &[u8] = b"sixteen bytes 16";
        let packet = match (from.0, to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => packet.ipv4(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => packet.ipv6(from, to),
            _ => unreachable!("two families in one packet"),
        };
        let id = self.id;
        let packet = packet.tos(self.tos);
        let packet = match self.way {
            Way::There(Piece::First) => packet.fragment(id, 0, true),
            Way::There(Piece::Later) => {
                let offset = (8 + FIRST_PIECE.len() as u16) / 8;
                return packet.fragment(id, offset, false).protocol(UDP).payload(b"equal").build();
            }
            _ => packet,
        };
        let packet = match (self.content, self.ip6, self.way == Way::Back) {
            (Content::Tcp { flags }, ..) => packet.tcp(from.1, to.1, flags),
            (Content::Udp, ..) => packet.udp(from.1, to.1),
            (Content::Echo, false, false) => packet.icmp_echo_request(id, 1),
            (Content::Echo, false, true) => packet.icmp_echo_reply(id, 1),
            (Content::Echo, true, false) => packet.icmpv6_echo_request(id, 1),
            (Content::Echo, true, true) => packet.icmpv6_echo_reply(id, 1),
            // Common header of SCTP: ports, verification tag, checksum.
            (Content::Sctp, ..) => {
                let [a, b] = from.1.to_be_bytes();
                let [c, d] = to.1.to_be_bytes();
                packet.protocol(132).payload(&[a, b, c, d, 0, 0, 0, 1, 0, 0, 0, 0])
            }
            (Content::Gre, ..) => packet.protocol(47).payload(&[0, 0, 8, 0]),
        };
        let first = self.way == Way::There(Piece::First);
        packet.payload(if first { FIRST_PIECE } else { b"equal" }).build()
    }
}

/// Endpoint that has the address.
fn owner(ip: IpAddr) -> Option<u8> {
    LOCALS.chain(super::scene::REMOTES).find(|endpoint| address(*endpoint, ip.is_ipv6()) == ip)
}

fn mac_of_owner(ip: IpAddr) -> [u8; 6] {
    owner(ip).map_or(UNASSIGNED, |endpoint| Endpoint(endpoint).mac())
}

/// Service that has the address.
fn mac_of(vip: IpAddr) -> [u8; 6] {
    let [a, b, c, d] = match vip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(ip) => {
            let [.., a, b, c, d] = ip.octets();
            [a, b, c, d]
        }
    };
    [2, 2, a, b, c, d]
}
