//! Packets: their descriptions, their frames, and replies to them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{
    mac::Mac,
    policy::{TCP, UDP},
    service::Protocol,
    tag::Encap,
};
use netplugin::datapath::{
    KERNEL_MAC,
    fake::{Delivery, Origin, Target},
};
use proptest::sample::Index;
use testkit::packet::{BROADCAST, Packet, tcp_flags};

use crate::{
    cluster::{At, Cluster, Stage, address, encap, is_vlan, located, mac, port, vtep, with_vni},
    node::topology,
};

pub(crate) const SCTP: u8 = 132;
/// A protocol without ports.
pub(crate) const GRE: u8 = 47;
/// An unassigned Ethernet address.
const UNASSIGNED: [u8; 6] = [2, 2, 9, 9, 9, 9];
/// Ethernet address of the router.
pub(crate) const ROUTER: [u8; 6] = Mac::ROUTER.0;
const ETHERNET: usize = 14;
/// First source port, or identifier of echo requests.
const FIRST: u16 = 20_000;
/// Beginning of the text that identifies a frame.
const TEXT: [u8; 2] = *b"eq";
const TEXT_LEN: u32 = 6;
/// Initial sequence numbers of the client and the server of a TCP connection.
const SEQUENCES: [u32; 2] = [1_000, 50_000];

/// The first packet of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) from: Sender,
    pub(crate) to: To,
    pub(crate) ip6: bool,
    pub(crate) content: Content,
    /// Destination port.
    pub(crate) port: u16,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// Whether the first packet waits until its service is deleted.
    pub(crate) is_late: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// A pod of the node.
    Pod(usize),
    /// An endpoint of another node, or an unassigned address at its Ethernet address.
    Far { network: usize, last: u8, by: Option<u8> },
    /// The router of another node, for an endpoint there: of the tenant's other network if that is routed. If VLANs are routed, the
    /// node's kernel.
    Router { network: usize, from: At },
}

#[derive(Clone, Debug)]
pub(crate) enum To {
    /// An endpoint of the network by the last part of its address, at its Ethernet address or at that of another one.
    Endpoint { last: u8, at: Option<u8> },
    /// An unassigned address, at the Ethernet address of an endpoint or at an unassigned one.
    Outside { which: u8, at: Option<u8> },
    /// An address of the tenant, at the Ethernet address of the router.
    Routed(At),
    /// An unassigned address, at the Ethernet address of the router.
    World(u8),
    /// A service of the network, if there is one, and one of its ports, or `port`; at the Ethernet address of the router or at that
    /// of the service.
    Service { which: Index, port: Option<Index>, routed: bool },
    /// All stations.
    Broadcast,
    /// A group of stations.
    Multicast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Tcp { flags: u8 },
    Udp,
    Echo,
    Sctp,
    Gre,
}

/// What has become of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No reply has arrived.
    Opening,
    /// A reply has arrived.
    Established,
}

/// Direction of a packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    There,
    Back,
}

/// A frame to send.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) from: Origin,
    /// Number of the network.
    pub(crate) network: usize,
    pub(crate) bytes: Vec<u8>,
    /// Index of the service that it is for, if that is installed.
    pub(crate) service: Option<usize>,
}

/// Addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// Destination and source.
    pub(crate) macs: ([u8; 6], [u8; 6]),
    pub(crate) from: (IpAddr, u16),
    pub(crate) to: (IpAddr, u16),
}

impl Ends {
    fn reversed(self) -> Ends {
        Ends { macs: (self.macs.1, self.macs.0), from: self.to, to: self.from }
    }

    /// Reads a frame without a tag. Ports of ICMP, SCTP and GRE are not read.
    fn read(frame: &[u8]) -> Option<Ends> {
        let bytes = |at: usize| frame.get(at..at + 6)?.try_into().ok();
        let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
        let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
        let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?));
        let (from, to, protocol, body) = match word(12)? {
            0x0800 => (v4(26)?, v4(30)?, *frame.get(23)?, 34),
            _ => (v6(22)?, v6(38)?, *frame.get(20)?, 54),
        };
        let ports = matches!(protocol, TCP | UDP);
        let port = |at: usize| if ports { word(at) } else { Some(0) };
        Some(Ends { macs: (bytes(0)?, bytes(6)?), from: (from, port(body)?), to: (to, port(body + 2)?) })
    }
}

impl Probe {
    /// Number of the sender's network; `None` if there is no such sender.
    pub(crate) fn network(&self, cluster: &Cluster) -> Option<usize> {
        match self.from {
            Sender::Pod(pod) => cluster.pods.get(pod)?.network,
            Sender::Far { network, .. } | Sender::Router { network, .. } => Some(network),
        }
    }

    /// Whether an address of the packet is not that of its Ethernet address.
    pub(crate) fn is_by_mac(&self) -> bool {
        matches!(self.from, Sender::Far { by: Some(_), .. })
            || matches!(self.to, To::Endpoint { at: Some(_), .. } | To::Outside { at: Some(_), .. })
    }

    /// The service that the packet is for.
    pub(crate) fn service(&self, cluster: &Cluster) -> Option<usize> {
        let network = self.network(cluster)?;
        let To::Service { which, .. } = &self.to else { return None };
        let services: Vec<usize> = cluster.services_of(network).collect();
        (!services.is_empty()).then(|| *which.get(&services))
    }

    /// Protocol, family and destination port, which those of the service replace.
    pub(crate) fn resolved(&self, cluster: &Cluster) -> Probe {
        let Some(at) = self.service(cluster) else { return self.clone() };
        let balanced = &cluster.services[at];
        let mut probe = Probe { ip6: balanced.ip6, ..self.clone() };
        if let To::Service { port: Some(index), .. } = &self.to {
            let port = index.get(balanced.ports.latest());
            probe.port = port.port;
            probe.content = match (port.protocol, self.content) {
                (Protocol::Tcp, Content::Tcp { .. }) => self.content,
                (Protocol::Tcp, _) => Content::Tcp { flags: tcp_flags::SYN },
                (Protocol::Udp, _) => Content::Udp,
            };
        }
        probe
    }

    /// Addresses of the packet; `None` if there is no such sender.
    pub(crate) fn ends(&self, cluster: &Cluster, number: usize) -> Option<Ends> {
        let (ip6, near) = (self.ip6, self.network(cluster)?);
        let of = |last: u8| (mac(near, last), address(near, last, ip6));
        let (from_mac, from) = match self.from {
            Sender::Pod(pod) => of(cluster.last(pod)?),
            Sender::Far { last, by: None, .. } => of(last),
            Sender::Far { last, by: Some(which), .. } => (mac(near, last), outside(which, ip6)),
            Sender::Router { from, .. } => (ROUTER, address(from.network(near), from.last, ip6)),
        };
        let at = |at: &Option<u8>| at.map_or(UNASSIGNED, |last| mac(near, last));
        let (to_mac, to) = match &self.to {
            To::Endpoint { last, at } => (mac(near, at.unwrap_or(*last)), address(near, *last, ip6)),
            To::Routed(to) => (ROUTER, address(to.network(near), to.last, ip6)),
            To::World(which) => (ROUTER, outside(*which, ip6)),
            To::Outside { which, at: by } => (at(by), outside(*which, ip6)),
            To::Service { routed, .. } => match self.service(cluster) {
                Some(service) => {
                    let vip = cluster.service(Stage::Before, service).vip;
                    // Of a network that is not routed, nothing is sent to the router. The Ethernet source of what a pod sends to itself
                    // by the router is not defined.
                    let is_own = [Stage::Before, Stage::After].into_iter().any(|stage| {
                        cluster.service(stage, service).backends.iter().any(|backend| backend.ip == from)
                    });
                    let is_routed = *routed && cluster.is_routed(near) && !is_own;
                    (if is_routed { ROUTER } else { mac_of(vip) }, vip)
                }
                None => (UNASSIGNED, outside(0, ip6)),
            },
            To::Broadcast if ip6 => (BROADCAST, Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1).into()),
            To::Broadcast => (BROADCAST, Ipv4Addr::BROADCAST.into()),
            To::Multicast if ip6 => {
                ([0x33, 0x33, 0, 0, 0, 0xfb], Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb).into())
            }
            To::Multicast => ([1, 0, 0x5e, 0, 0, 0xfb], Ipv4Addr::new(224, 0, 0, 251).into()),
        };
        // The kernel reaches groups, too.
        let by_kernel = self.origin(cluster)? == Origin::Kernel;
        let macs = match (to_mac, from_mac) {
            (to_mac, _) if by_kernel && to_mac[0] & 1 == 0 => (KERNEL_MAC.0, KERNEL_MAC.0),
            (to_mac, _) if by_kernel => (to_mac, KERNEL_MAC.0),
            macs => macs,
        };
        let source = FIRST + number as u16;
        Some(Ends { macs, from: (from, source), to: (to, self.port) })
    }

    fn origin(&self, cluster: &Cluster) -> Option<Origin> {
        match self.from {
            Sender::Pod(pod) => cluster.last(pod).map(|_| Origin::Pod(port(pod))),
            Sender::Router { network, .. } if cluster.is_on_node(network) => Some(Origin::Kernel),
            Sender::Far { network, last, .. } | Sender::Router { network, from: At { last, .. } } => {
                Some(far(network, last))
            }
        }
    }

    /// The frame of a packet from the sender, number `number` of the probes, with the text `id`.
    pub(crate) fn there(&self, cluster: &Cluster, number: usize, phase: Phase, id: u32) -> Option<Sent> {
        let probe = self.resolved(cluster);
        let ends = probe.ends(cluster, number)?;
        let network = probe.network(cluster)?;
        let bytes = probe.build(ends, (Way::There, phase), number, id);
        let from = probe.origin(cluster)?;
        let bytes = on_wire(&from, network, bytes);
        Some(Sent { from, network, bytes, service: probe.service(cluster) })
    }

    /// The reply of the receiver of a delivered packet.
    pub(crate) fn back(
        &self,
        cluster: &Cluster,
        number: usize,
        delivered: &Delivery,
        phase: Phase,
        id: u32,
    ) -> Option<Sent> {
        let probe = self.resolved(cluster);
        let Receiver { from, network, ends, .. } = receiver(cluster, probe.network(cluster)?, delivered)?;
        let bytes = probe.build(ends, (Way::Back, phase), number, id);
        let bytes = on_wire(&from, network, bytes);
        Some(Sent { from, network, bytes, service: None })
    }

    /// An ICMP error of the receiver of a delivered packet about it. It quotes all of the packet, also its text.
    pub(crate) fn error(&self, cluster: &Cluster, number: usize, delivered: &Delivery) -> Option<Sent> {
        let probe = self.resolved(cluster);
        let Receiver { from, network, ends, frame } = receiver(cluster, probe.network(cluster)?, delivered)?;
        let Ends { macs, from: (address, _), to: (sender, _) } = ends;
        let packet = Packet::eth(macs.0, macs.1);
        let packet = match (address, sender) {
            (IpAddr::V4(address), IpAddr::V4(sender)) => {
                let [kind, code] = [[3, 1], [3, 3], [11, 0]][number % 3];
                packet.ipv4(address, sender).tos(probe.tos).icmp(kind, code, [0; 4])
            }
            (IpAddr::V6(address), IpAddr::V6(sender)) => {
                let [kind, code] = [[1, 3], [1, 4], [3, 0]][number % 3];
                packet.ipv6(address, sender).tos(probe.tos).icmpv6(kind, code, [0; 4])
            }
            _ => return None,
        };
        let bytes = packet.payload(frame.get(ETHERNET..)?).build();
        let bytes = on_wire(&from, network, bytes);
        Some(Sent { from, network, bytes, service: None })
    }

    fn build(&self, ends: Ends, (way, phase): (Way, Phase), number: usize, id: u32) -> Vec<u8> {
        let packet = Packet::eth(ends.macs.0, ends.macs.1);
        let packet = match (ends.from.0, ends.to.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => packet.ipv4(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => packet.ipv6(from, to),
            _ => unreachable!("two families in one packet"),
        };
        let packet = packet.tos(self.tos).ttl(self.ttl);
        let echo = FIRST + number as u16;
        let (source, destination) = (ends.from.1, ends.to.1);
        let packet = match (self.content, way) {
            (Content::Tcp { flags }, _) => {
                let begins = flags & tcp_flags::SYN != 0;
                let next = |side: usize| SEQUENCES[side] + TEXT_LEN + u32::from(begins);
                let (flags, sequence, acknowledged) = match (way, phase, begins) {
                    (Way::There, Phase::Opening, true) => (flags, SEQUENCES[0], 0),
                    (Way::There, Phase::Opening, false) => (flags, SEQUENCES[0], SEQUENCES[1]),
                    (Way::There, Phase::Established, _) => (tcp_flags::ACK, next(0), next(1)),
                    (Way::Back, Phase::Opening, true) => {
                        (tcp_flags::SYN | tcp_flags::ACK, SEQUENCES[1], next(0))
                    }
                    (Way::Back, Phase::Opening, false) => (tcp_flags::ACK, SEQUENCES[1], next(0)),
                    (Way::Back, Phase::Established, _) => (tcp_flags::ACK, next(1), next(0)),
                };
                packet.tcp(source, destination, flags).sequence(sequence, acknowledged)
            }
            (Content::Udp, _) => packet.udp(source, destination),
            (Content::Echo, Way::There) if self.ip6 => packet.icmpv6_echo_request(echo, 1),
            (Content::Echo, Way::Back) if self.ip6 => packet.icmpv6_echo_reply(echo, 1),
            (Content::Echo, Way::There) => packet.icmp_echo_request(echo, 1),
            (Content::Echo, Way::Back) => packet.icmp_echo_reply(echo, 1),
            // Common header of SCTP: ports, verification tag, checksum.
            (Content::Sctp, _) => packet.protocol(SCTP).payload(&[0, 9, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0]),
            (Content::Gre, _) => packet.protocol(GRE).payload(&[0, 0, 8, 0]),
        };
        packet.payload(&text(id)).build()
    }
}

/// The text that identifies a frame.
fn text(id: u32) -> [u8; TEXT_LEN as usize] {
    let [a, b, c, d] = id.to_be_bytes();
    [TEXT[0], TEXT[1], a, b, c, d]
}

/// The number in the text of a frame.
pub(crate) fn id_of(frame: &[u8]) -> Option<u32> {
    let [first, second, id @ ..] = *frame.last_chunk::<{ TEXT_LEN as usize }>()?;
    ([first, second] == TEXT).then_some(u32::from_be_bytes(id))
}

/// Origin of the frames of an endpoint of another node.
pub(crate) fn far(number: usize, last: u8) -> Origin {
    match encap(number) {
        Encap::Vxlan { vni, .. } => Origin::Tunnel { vtep: vtep(last), vni },
        Encap::Vlan(_) => Origin::Uplink,
    }
}

/// The frame as the origin sends it.
pub(crate) fn on_wire(from: &Origin, number: usize, frame: Vec<u8>) -> Vec<u8> {
    match (from, encap(number)) {
        (Origin::Uplink, Encap::Vlan(vlan)) => topology::tagged(&frame, vlan.get()),
        _ => frame,
    }
}

/// The receiver of a frame.
struct Receiver {
    /// Where it sends from.
    from: Origin,
    /// Network on which its frames arrive at the node.
    network: usize,
    /// Addresses of its replies.
    ends: Ends,
    /// The received frame without its tag.
    frame: Vec<u8>,
}

/// The receiver of a frame that was sent on the network `number`; `None` if it does not reply, as a group.
fn receiver(cluster: &Cluster, number: usize, delivered: &Delivery) -> Option<Receiver> {
    let frame = delivered.frame.clone();
    let receiver = match &delivered.to {
        Target::Pod(name) => {
            let pod = (0..cluster.pods.len()).find(|pod| port(*pod) == *name)?;
            let (from, network) = (Origin::Pod(name.clone()), cluster.pods[pod].network?);
            Receiver { from, network, ends: Ends::read(&frame)?.reversed(), frame }
        }
        Target::Tunnel { vtep, vni, .. } => {
            let (network, ends) = (with_vni(*vni)?, Ends::read(&frame)?.reversed());
            // The other node routes a reply to the network of the sender.
            let (network, ends) = if ends.macs.0 == ROUTER {
                let (network, last) = located(network, ends.to.0)?;
                (network, Ends { macs: (mac(network, last), ROUTER), ..ends })
            } else {
                (network, ends)
            };
            let Encap::Vxlan { vni, .. } = encap(network) else { return None };
            Receiver { from: Origin::Tunnel { vtep: *vtep, vni }, network, ends, frame }
        }
        Target::Uplink if is_vlan(number) => {
            let frame = [frame.get(..12)?, frame.get(16..)?].concat();
            Receiver { from: Origin::Uplink, network: number, ends: Ends::read(&frame)?.reversed(), frame }
        }
        // A host outside, by the kernel.
        Target::Kernel => {
            let ends = Ends { macs: (KERNEL_MAC.0, KERNEL_MAC.0), ..Ends::read(&frame)?.reversed() };
            Receiver { from: Origin::Kernel, network: number, ends, frame }
        }
        Target::Uplink => return None,
    };
    (receiver.ends.macs.1[0] & 1 == 0).then_some(receiver)
}

/// Whether the packet of a pod leaves by the kernel, or the kernel has sent it.
pub(crate) fn is_by_kernel(cluster: &Cluster, sent: &Sent) -> bool {
    let to_router = || Ends::read(&sent.bytes).filter(|ends| ends.macs.0 == ROUTER);
    let is_elsewhere = |to: IpAddr| match located(sent.network, to) {
        Some((network, last)) => cluster.is_on_node(network) && cluster.pod_at(network, last).is_none(),
        None => true,
    };
    sent.from == Origin::Kernel
        || matches!(sent.from, Origin::Pod(_)) && to_router().is_some_and(|ends| is_elsewhere(ends.to.0))
}

/// The frame without its tag.
fn untagged(sent: &Sent) -> Option<Vec<u8>> {
    Some(match sent.from {
        Origin::Uplink => [sent.bytes.get(..12)?, sent.bytes.get(16..)?].concat(),
        Origin::Pod(_) | Origin::Tunnel { .. } | Origin::Kernel => sent.bytes.clone(),
    })
}

/// IP source of a packet.
pub(crate) fn sender(sent: &Sent) -> Option<IpAddr> {
    Some(Ends::read(&untagged(sent)?)?.from.0)
}

/// Endpoints that a packet names by its IP or Ethernet addresses: networks, and last parts of their addresses.
pub(crate) fn named(sent: &Sent) -> Vec<(usize, u8)> {
    let Some(Ends { macs, from, to }) = untagged(sent).and_then(|frame| Ends::read(&frame)) else {
        return vec![];
    };
    let by_ip = [from.0, to.0].into_iter().filter_map(|ip| located(sent.network, ip));
    let by_mac = [macs.0, macs.1].into_iter().map(|[.., last]| (sent.network, last));
    by_ip.chain(by_mac).collect()
}

/// The endpoints of [`named`] that the packet is for.
pub(crate) fn receivers(sent: &Sent) -> Vec<(usize, u8)> {
    let Some(Ends { macs, to, .. }) = untagged(sent).and_then(|frame| Ends::read(&frame)) else {
        return vec![];
    };
    let [.., last] = macs.0;
    located(sent.network, to.0).into_iter().chain([(sent.network, last)]).collect()
}

/// IP destination of a delivered packet.
pub(crate) fn destination(delivery: &Delivery, is_vlan: bool) -> Option<IpAddr> {
    let is_tagged = is_vlan && delivery.to == Target::Uplink;
    let frame = &delivery.frame;
    let untagged = if is_tagged { [frame.get(..12)?, frame.get(16..)?].concat() } else { frame.clone() };
    Ends::read(&untagged).map(|ends| ends.to.0)
}

/// Unassigned addresses inside and outside of the network, and one of a tenant's VLAN.
pub(crate) fn outside(which: u8, ip6: bool) -> IpAddr {
    const V4: [Ipv4Addr; 4] = [
        Ipv4Addr::new(10, 7, 0, 77),
        Ipv4Addr::new(192, 0, 2, 9),
        Ipv4Addr::new(198, 51, 100, 7),
        Ipv4Addr::new(10, 5, 0, 11),
    ];
    const V6: [Ipv6Addr; 4] = [
        Ipv6Addr::new(0x2001, 0xdb8, 7, 0, 0, 0, 0, 77),
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 9),
        Ipv6Addr::new(0x2001, 0xdb8, 0xff, 0, 0, 0, 0, 7),
        Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 11),
    ];
    let at = usize::from(which) % V4.len();
    if ip6 { V6[at].into() } else { V4[at].into() }
}

/// Ethernet address of a service.
fn mac_of(vip: IpAddr) -> [u8; 6] {
    match vip {
        IpAddr::V4(vip) => Mac::of_endpoint(vip).0,
        IpAddr::V6(vip) => {
            let [.., a, b, c, d] = vip.octets();
            [2, 2, a, b, c, d]
        }
    }
}
