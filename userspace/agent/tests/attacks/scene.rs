//! The scene of one try: who attacks whom, and the frames that the parts of a script are made of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netplugin::datapath::fake::Origin;
use testkit::packet::{Mac, Packet, tcp_flags};

use crate::{
    attack::{Expect, Family, Place, Step, Try},
    node::topology::{self, Net},
    rules::{PORT, Station},
};

/// Text of hostile payloads.
pub(crate) const PAYLOAD: &[u8] = b"not for the victim";

pub(crate) struct Scene<'a> {
    pub(crate) net: &'a Net,
    pub(crate) place: Place,
    pub(crate) attacker: Station,
    pub(crate) victim: Station,
    pub(crate) family: Family,
    /// Number of the try, for ports and identifications that no other try uses.
    number: u16,
}

impl Scene<'_> {
    pub(crate) fn new<'a>(net: &'a Net, of: &Try, number: u16) -> Scene<'a> {
        let attacker = of.attacker.at(of.place);
        let victim = of.rules.victim();
        Scene { net, place: of.place, attacker, victim, family: of.family, number }
    }

    /// A port that no other try uses.
    pub(crate) fn sport(&self) -> u16 {
        10_000 + self.number
    }

    /// An identification that no other try uses.
    pub(crate) fn id(&self) -> u16 {
        self.number
    }

    pub(crate) fn origin(&self) -> Origin {
        match (self.place, self.attacker.origin(self.net)) {
            (Place::Stranger, Origin::Tunnel { vni, .. }) => {
                Origin::Tunnel { vtep: topology::STRANGER.into(), vni }
            }
            (_, origin) => origin,
        }
    }

    /// The attacker's address.
    pub(crate) fn from(&self) -> IpAddr {
        self.attacker.address(self.family)
    }

    /// The victim's address.
    pub(crate) fn to(&self) -> IpAddr {
        self.victim.address(self.family)
    }

    /// Two addresses outside of the network, which have no record.
    pub(crate) fn strangers(&self) -> [IpAddr; 2] {
        [1_u8, 2].map(|last| match self.family {
            Family::V4 => Ipv4Addr::new(192, 0, 2, last).into(),
            Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, last.into()).into(),
        })
    }

    /// Sends a frame from the attacker, which must not arrive at the victim.
    pub(crate) fn send(&self, frame: &Packet) -> Step {
        self.send_bytes(frame.build())
    }

    pub(crate) fn send_bytes(&self, frame: Vec<u8>) -> Step {
        let origin = self.origin();
        let frame = if origin == Origin::Uplink { self.net.on_wire(&frame) } else { frame };
        Step::Send { from: origin, frame, expect: Expect::NotAtVictim }
    }

    /// Sends a frame as it is, with the tags that it has.
    pub(crate) fn send_raw(&self, frame: Vec<u8>) -> Step {
        Step::Send { from: self.origin(), frame, expect: Expect::NotAtVictim }
    }

    /// Sends a frame from the victim, or from somebody else.
    pub(crate) fn send_by(&self, station: Station, frame: &Packet) -> Step {
        let from = station.origin(self.net);
        let frame = frame.build();
        let frame = if from == Origin::Uplink { self.net.on_wire(&frame) } else { frame };
        Step::Send { from, frame, expect: Expect::Anything }
    }

    /// The victim answers if the frame before has arrived.
    pub(crate) fn answer(&self, frame: &Packet) -> Step {
        Step::Answer(frame.build())
    }

    /// Ethernet header of the attacker for the victim.
    pub(crate) fn eth(&self) -> Packet {
        Packet::eth(self.victim.mac(), self.attacker.mac())
    }

    /// Headers from the attacker to the victim.
    pub(crate) fn ip(&self) -> Packet {
        self.ip_in(self.victim.mac())
    }

    /// IP header from the attacker to the victim in a frame to another address.
    pub(crate) fn ip_in(&self, destination: Mac) -> Packet {
        ip(Packet::eth(destination, self.attacker.mac()), self.from(), self.to())
    }

    /// Headers to the victim from a false source address.
    pub(crate) fn ip_from(&self, source: IpAddr) -> Packet {
        ip(self.eth(), source, self.to())
    }

    /// Headers to any destination.
    pub(crate) fn ip_to(&self, mac: Mac, destination: IpAddr) -> Packet {
        ip(Packet::eth(mac, self.attacker.mac()), self.from(), destination)
    }

    /// Headers from the victim to another station.
    pub(crate) fn ip_of_victim(&self, to: Station) -> Packet {
        ip(Packet::eth(to.mac(), self.victim.mac()), self.to(), to.address(self.family))
    }

    /// A datagram from the attacker to the victim's denied port.
    pub(crate) fn datagram(&self) -> Packet {
        self.udp(self.ip())
    }

    /// Continues headers with a datagram to the denied port.
    pub(crate) fn udp(&self, headers: Packet) -> Packet {
        headers.udp(self.sport(), PORT).payload(PAYLOAD)
    }

    /// Continues headers with the first segment of a connection to the denied port.
    pub(crate) fn syn(&self, headers: Packet) -> Packet {
        headers.tcp(self.sport(), PORT, tcp_flags::SYN)
    }

    /// Continues headers with an echo request.
    pub(crate) fn echo(&self, headers: Packet) -> Packet {
        match self.family {
            Family::V4 => headers.icmp_echo_request(self.id(), 1).payload(PAYLOAD),
            Family::V6 => headers.icmpv6_echo_request(self.id(), 1).payload(PAYLOAD),
        }
    }
}

/// What an IP header carries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Transport {
    Udp,
    Tcp,
    Echo,
}

impl Transport {
    pub(crate) const ALL: [Transport; 3] = [Transport::Udp, Transport::Tcp, Transport::Echo];
    pub(crate) const WITH_PORTS: [Transport; 2] = [Transport::Udp, Transport::Tcp];

    pub(crate) fn after(self, scene: &Scene, headers: Packet) -> Packet {
        match self {
            Transport::Udp => scene.udp(headers),
            Transport::Tcp => scene.syn(headers),
            Transport::Echo => scene.echo(headers),
        }
    }
}

/// Adds an IP header; without one if the families differ.
pub(crate) fn ip(ethernet: Packet, source: IpAddr, destination: IpAddr) -> Packet {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => ethernet.ipv4(source, destination),
        (IpAddr::V6(source), IpAddr::V6(destination)) => ethernet.ipv6(source, destination),
        _ => ethernet,
    }
}

/// A frame with any EtherType.
pub(crate) fn frame(destination: Mac, source: Mac, kind: u16, body: &[u8]) -> Vec<u8> {
    [&destination[..], &source, &kind.to_be_bytes(), body].concat()
}
