//! Checks of source addresses in frames from outside, and of packets that policies never evaluate.
//!
//! Frames from pods are checked in `source`, against the port of the pod. A frame from a tunnel or from the wire is checked
//! against the records of all endpoints: the address of an endpoint is accepted only from the location in its record. An address
//! without a record is accepted from any location.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{
    Address, Be16, DropReason, FdbKey, FlowHalf, NeighEntry, NeighKey, ROUTER_MAC, dhcp_client,
};

use crate::{
    checksum,
    claim::{claim, is_reserved, may_name},
    frame::{self, ETHERNET},
    header::Arp,
    maps, nd,
    packet::{self, Fragment, ICMPV6, IcmpError, Ingress, PacketMeta, Route},
    route, source,
};

/// Checks ARP and neighbour discovery in the frame of the packet metadata, from pods and from outside. Other frames pass.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet.nd = 0;
    packet.probe = 0;
    match packet.kind {
        frame::ARP => ctv_guard_arp(skb),
        frame::IPV6 => nd::ctv_guard_nd(skb),
        _ => packet::GO_ON,
    }
}

/// Checks the source addresses of a frame from outside, and stores the group of its sender. The addresses that ARP and neighbour
/// discovery claim have been checked by [`ctv_guard`].
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard_source(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    let identity = match check_source(&TcContext::new(skb), packet) {
        Ok(identity) => identity,
        Err(reason) => return reason as u32,
    };
    packet.source_identity = identity;
    packet::GO_ON
}

#[inline(always)]
fn check_source(ctx: &TcContext, packet: &PacketMeta) -> Result<u32, DropReason> {
    const SOURCE: usize = ETHERNET + 12;
    const SOURCE6: usize = ETHERNET + 8;
    const DESTINATION6: usize = ETHERNET + 24;
    if ctv_is_elsewhere() != 0 {
        return Err(DropReason::ForeignSource);
    }
    let ip = match packet.kind {
        frame::IPV4 => {
            let ip = frame::load::<[u8; 4]>(ctx, SOURCE)?;
            // Addresses of "this network", loopback, multicast and reserved addresses belong to no endpoint (RFC 6890). A host
            // without an address requests one in a broadcast.
            let asks = u32::from_ne_bytes(ip) == 0 && frame::is_group(&packet.destination_mac);
            if ip[0] == 127 || ip[0] >= 224 || ip[0] == 0 && !asks {
                return Err(DropReason::ForeignSource);
            }
            Address::v4(ip)
        }
        frame::IPV6 => {
            let ip = frame::load::<Address>(ctx, SOURCE6)?;
            let to = frame::load::<Address>(ctx, DESTINATION6)?;
            // A mapped address would match the record of an IPv4 endpoint.
            let [high, low] = ip.words();
            let unspecified = high | low == 0 && !frame::is_group(&packet.destination_mac);
            if ip.0[0] == 0xff || unspecified || is_reserved(&ip) || is_reserved(&to) {
                return Err(DropReason::ForeignSource);
            }
            ip
        }
        _ => return Ok(FlowHalf::UNKNOWN.into()),
    };
    let is_of_router = packet.ingress == Ingress::TUNNEL || packet.ingress == Ingress::KERNEL;
    if is_of_router && source::same(&packet.source_mac, &ROUTER_MAC) {
        match route::ctv_routed_source(&raw const ip) {
            packet::GO_ON => {}
            accepted if accepted & route::ACCEPTED != 0 => return Ok(accepted & !route::ACCEPTED),
            reason => return Err(packet::reason(reason)),
        }
    }
    claim(packet, ip, packet.source_mac)
}

/// Non-zero if the source Ethernet address in the packet metadata belongs to an endpoint on this node, or behind another VTEP
/// than that of the frame.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_is_elsewhere() -> u32 {
    let Some(packet) = packet::current() else { return 1 };
    let Some(place) = maps::destination(&FdbKey::new(packet.segment, packet.source_mac)) else { return 0 };
    let tunnelled = packet.ingress == Ingress::TUNNEL;
    let same = place.vtep.same(&packet.vtep);
    u32::from(place.ifindex != 0 || tunnelled && !same)
}

/// Maximum length of an ARP frame, with the padding of Ethernet and one tag; a longer one carries data.
const LONGEST_ARP: u32 = 64;

/// Checks the format of ARP and, in a frame from outside, the addresses that it claims.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_guard_arp(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet::code(check_arp(&TcContext::new(skb), packet))
}

#[inline(always)]
fn check_arp(ctx: &TcContext, packet: &PacketMeta) -> Result<(), DropReason> {
    let arp = frame::load::<Arp>(ctx, ETHERNET)?;
    let known = arp.operation == Arp::REQUEST || arp.operation == Arp::REPLY;
    if arp.form != Arp::ETHERNET_IPV4 || !known || ctx.len() > LONGEST_ARP {
        return Err(DropReason::InvalidNeighbour);
    }
    if packet.ingress == Ingress::POD {
        return Ok(());
    }
    may_name(packet, &arp.sender_mac)?;
    claim(packet, Address::v4(arp.sender_ip), arp.sender_mac).map(drop)
}

/// Checks whether the current packet, which has been parsed, may be forwarded at all. A pod must not send a checksum offset
/// inside the parsed headers, a packet to the tunnel port of a node or to DHCP clients, a packet without a source address, or a
/// packet to a multicast group in a unicast frame.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard_ports(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    /// Ports of a DHCP request, which a host without an address sends (RFC 2131).
    const REQUEST: (Be16, Be16) = (Be16::new(68), Be16::new(67));
    /// IGMP reports, which it sends, too.
    const IGMP: u8 = 2;
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if !checksum::fits(packet) {
        return DropReason::Malformed as u32;
    }
    // Rules do not apply to a sender without an address, or to a multicast address in a unicast frame, which its receiver
    // accepts.
    let (source, destination) = (&packet.tuple.source, &packet.tuple.destination);
    if source.is_zero() {
        let reports = reports(&TcContext::new(skb), packet);
        return if reports { packet::GO_ON } else { DropReason::SpoofedIp as u32 };
    }
    let asks = source.same(&Address::v4([0; 4]));
    if asks && packet.protocol == IGMP {
        return packet::GO_ON;
    }
    let ports = (packet.tuple.source_port, packet.tuple.destination_port);
    let requests =
        packet.protocol == contiv_abi::UDP && ports == REQUEST && packet.fragment == Fragment::NONE;
    if asks && !requests {
        return DropReason::SpoofedIp as u32;
    }
    // A mapped address would match the record of an IPv4 endpoint or service.
    let reserved = packet.ip6 != 0 && is_reserved(destination);
    if reserved || destination.is_group() && !packet.is_for_group() {
        return DropReason::AddressMismatch as u32;
    }
    if packet.protocol != contiv_abi::UDP {
        return packet::GO_ON;
    }
    if ports.1 == Be16::new(dhcp_client(packet.ip6 != 0)) {
        return DropReason::DhcpServer as u32;
    }
    let to_node = packet.ingress == Ingress::POD
        && maps::node().is_some_and(|node| {
            // Copied to the stack, because memory of a function argument cannot be a map key.
            let to = Address::from_words(packet.tuple.destination.words());
            node.tunnel_port == ports.1 && (node.vtep.same(&to) || maps::is_peer(&to))
        });
    if to_node { DropReason::TunnelFromPod as u32 } else { packet::GO_ON }
}

/// Whether the current packet, which is from `::`, is a report of multicast listeners or the end of one (RFC 2710, RFC 3810),
/// which a host without an address may send. Neighbour discovery from `::` has been checked before.
#[inline(always)]
fn reports(ctx: &TcContext, packet: &PacketMeta) -> bool {
    const REPORT: u8 = 131;
    const DONE: u8 = 132;
    const REPORT_V2: u8 = 143;
    packet.protocol == ICMPV6
        && packet.fragment == Fragment::NONE
        && frame::load::<u8>(ctx, packet.l4 as usize)
            .is_ok_and(|kind| kind == REPORT || kind == DONE || kind == REPORT_V2)
}

/// Applies [`ctv_guard_destination`] and [`is_for_all`] to a packet without a flow, unless `service::ctv_choose` makes the same
/// checks.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard_new(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.ingress == Ingress::POD && packet.icmp_error == IcmpError::NONE {
        return packet::GO_ON;
    }
    let code = ctv_guard_destination(packet);
    let owner = || maps::neighbour(&NeighKey::new(packet.domain, packet.tuple.destination));
    if code == packet::GO_ON && is_for_all(packet) && owner().is_none() {
        return DropReason::AddressMismatch as u32;
    }
    code
}

/// Whether the packet, which is in a unicast frame, has a broadcast address of a subnet, unless an endpoint has that address: the
/// receiver accepts the packet, and no rules for its address apply. Checked only for packets without a flow, because such a
/// packet never opens one.
#[inline(always)]
pub(crate) fn is_for_all(packet: &PacketMeta) -> bool {
    let to = &packet.tuple.destination;
    packet.ip6 == 0
        && packet.route == Route::BRIDGED
        && maps::subnet(packet.domain, to).is_some_and(|subnet| subnet.is_of_all(to))
}

/// Checks that the endpoint with the destination IP address in the packet metadata has the destination Ethernet address of the
/// frame: the IP address selects the rules, and the Ethernet address the receiver. Frames from the wire to a service have the
/// address of its backend. A packet that has passed is not checked again, because the choice of a backend changes the Ethernet
/// address.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard_destination(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.guarded == 0 && packet.route == Route::BRIDGED {
        let key = NeighKey::new(packet.domain, packet.tuple.destination);
        if let Some(owner) = maps::neighbour(&key)
            && !is_addressed(packet, &owner)
        {
            return DropReason::AddressMismatch as u32;
        }
    }
    packet.guarded = 1;
    packet::GO_ON
}

/// Whether the packet has the Ethernet address of the owner of its destination IP address.
#[inline(always)]
pub(crate) fn is_addressed(packet: &PacketMeta, owner: &NeighEntry) -> bool {
    packet.ingress == Ingress::WIRE && owner.flags & NeighEntry::SERVICE != 0
        || source::same(&owner.mac, &packet.destination_mac)
}
