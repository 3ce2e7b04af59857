//! Routing between the networks of a domain: what pods send to the router is forwarded by its IP address.
//!
//! The router is on every node and has one Ethernet address everywhere, so that a packet is routed once, on the node of its
//! sender: it reaches another node on the network of its destination.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    programs::TcContext,
};
use contiv_abi::{
    Address, Domain, DropReason, FdbKey, FlowHalf, Mac, NeighEntry, NeighKey, PortSlot, ROUTER_MAC,
    SegmentEntry,
};

use crate::{
    frame::{self, ETHERNET},
    maps,
    packet::{self, GO_ON, Ingress, PacketMeta, ROUTER, Route},
    source,
};

/// Whether the packet of the packet metadata, which has been parsed, is for the router, or for an endpoint behind it, and where it
/// goes from there, as far as that is known before services are resolved. The result is `GO_ON`, `ROUTER` if the router itself has
/// to answer it, or the number of the reason to drop it.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_route(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.ingress != Ingress::POD {
        return GO_ON;
    }
    let is_on_node = packet.segment_flags & SegmentEntry::ON_NODE != 0;
    let is_received =
        source::same(&packet.destination_mac, &ROUTER_MAC) || is_on_node && ctv_is_behind_router(packet) != 0;
    if !is_received {
        return GO_ON;
    }
    match ctv_is_for_router(packet) {
        GO_ON => return GO_ON,
        GATEWAY => return ROUTER,
        _ => {}
    }
    packet.route = Route::ROUTER;
    match ttl(&TcContext::new(skb), packet.ip6 != 0) {
        Ok(0 | 1) if !is_on_node => ROUTER,
        Ok(0 | 1) => {
            // The kernel reports it to the sender, if the rules of a receiver on this node allow the packet.
            ctv_next_hop(packet);
            if packet.route != Route::HOP {
                to_kernel(packet);
            }
            GO_ON
        }
        Ok(_) => {
            if ctv_next_hop(packet) == NO_SUBNET {
                if is_on_node {
                    ctv_no_subnet(packet)
                } else {
                    ctv_by_kernel(packet)
                };
            }
            GO_ON
        }
        Err(reason) => reason as u32,
    }
}

/// Not zero if the current packet, of a network that stays on the node, is in a frame to the endpoint of the network on another node
/// that has its destination. The endpoint has been on this node, and its neighbours do not ask for it again at once.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_is_behind_router(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.tuple.destination));
    let Some(owner) = owner else { return 0 };
    if place(&owner) != ELSEWHERE || !source::same(&owner.mac, &packet.destination_mac) {
        return 0;
    }
    let subnet = maps::subnet(packet.domain, &packet.tuple.destination);
    u32::from(subnet.is_some_and(|subnet| subnet.is_routed() && subnet.routed == packet.segment))
}

/// The packet is for the gateway itself.
const GATEWAY: u32 = 2;

/// Not zero if one of the ends of the current packet is in a routed subnet; [`GATEWAY`] if it is for a gateway.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_is_for_router(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    if let Some(subnet) = maps::subnet(packet.domain, &packet.tuple.destination)
        && subnet.is_routed()
    {
        return if subnet.gateway.same(&packet.tuple.destination) { GATEWAY } else { 1 };
    }
    let from = maps::subnet(packet.domain, &packet.tuple.source);
    u32::from(from.is_some_and(|subnet| subnet.is_routed()))
}

/// Result of [`ctv_next_hop`]: the destination is in no subnet of the domain.
const NO_SUBNET: u32 = 1;

/// Sets in the packet metadata the network and the Ethernet address of the endpoint that the packet goes to, if the router
/// reaches it: what was sent to the router, and what was translated to a destination on another network.
///
/// A global function: the verifier checks it once. The result is zero or [`NO_SUBNET`].
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_next_hop(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    if packet.ingress != Ingress::POD {
        return 0;
    }
    if packet.route == Route::KERNEL {
        // The destination is another one now.
        packet.route = Route::ROUTER;
    }
    let Some(subnet) = maps::subnet(packet.domain, &packet.wanted.destination) else { return NO_SUBNET };
    let bridged = packet.route == Route::BRIDGED && subnet.routed == packet.segment;
    if bridged && !subnet.is_on_node() || !subnet.is_routed() {
        return 0;
    }
    // Networks of both kinds are not routed to each other, also by services.
    if subnet.is_on_node() != (packet.segment_flags & SegmentEntry::ON_NODE != 0) {
        packet.route = Route::ROUTER;
        return 0;
    }
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    let by_kernel = subnet.is_on_node() && owner.is_none_or(|owner| place(&owner) == ELSEWHERE);
    // Link-local addresses are not routed, also by services.
    if packet.tuple.source.is_link_local() && (by_kernel || !bridged) {
        packet.route = Route::ROUTER;
        return 0;
    }
    if by_kernel {
        if let Some(owner) = owner {
            // For the rules that name its group.
            packet.segment = subnet.routed;
            packet.destination_mac = owner.mac;
        }
        to_kernel(packet);
        return 0;
    }
    let Some(owner) = owner else { return 0 };
    if bridged {
        return 0;
    }
    let Some(SegmentEntry { out, ports, members, flags, .. }) = maps::segment(&subnet.routed) else {
        return 0;
    };
    if owner.flags & NeighEntry::SERVICE != 0 {
        return 0;
    }
    packet.route = Route::HOP;
    packet.segment = subnet.routed;
    packet.out = out;
    packet.ports = ports;
    packet.members = members;
    packet.segment_flags = flags;
    packet.destination_mac = owner.mac;
    0
}

/// Sets in the packet metadata that the packet leaves by the node's kernel, if the router reaches its destination, which is in no
/// subnet, so.
///
/// Not inlined, to save stack. The result is always zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by_kernel(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    // The address of a service may be in no subnet, too.
    let key = NeighKey::new(packet.domain, packet.wanted.destination);
    if maps::neighbour(&key).is_some() {
        return 0;
    }
    let Some(way) = maps::route(packet.domain, &packet.wanted.destination) else { return 0 };
    let Some(port) = maps::port_in_place(packet.source_port) else { return 0 };
    if way.out != 0 && port.number != 0 {
        packet.route = Route::KERNEL;
        packet.out = way.out;
        packet.private = way.address(port.number);
    }
    0
}

/// Sets in the packet metadata that the packet, which is of a network that stays on the node, leaves by the node's kernel.
#[inline(always)]
pub(crate) fn to_kernel(packet: &mut PacketMeta) {
    let to = &packet.wanted.destination;
    if packet.tuple.source.is_link_local() || to.same(&packet.tuple.source) || to.is_no_host() {
        return;
    }
    packet.route = Route::KERNEL;
    packet.private = [0; 4];
    packet.out = maps::kernel_port();
}

/// The same of a packet whose destination is in no subnet of the domain: it is in no subnet of another one.
///
/// Not inlined, to save stack. The result is always zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_no_subnet(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let to = Address::from_words(packet.wanted.destination.words());
    if maps::subnet(Domain::NONE, &to).is_none()
        && maps::neighbour(&NeighKey::new(packet.domain, to)).is_none()
    {
        to_kernel(packet);
    }
    0
}

/// The port in a slot, if it is on the network of the packet metadata and the sender has not sent the packet to the router: the packet
/// is bridged to it, so that no subnet has to be searched.
#[inline(always)]
pub(crate) fn port_on_network(packet: &PacketMeta, slot: u32) -> Option<&'static PortSlot> {
    if packet.ingress != Ingress::POD || packet.route != Route::BRIDGED {
        return None;
    }
    maps::port_slot(slot).filter(|port| port.ifindex != 0 && port.segment == packet.segment)
}

/// No endpoint is known.
pub(crate) const UNKNOWN: u32 = 0;
/// The endpoint is on this node.
const HERE: u32 = 1;
/// The endpoint is on another node.
const ELSEWHERE: u32 = 2;

/// One of these for the owner of an address.
#[inline(always)]
pub(crate) const fn place(owner: &NeighEntry) -> u32 {
    if owner.flags & NeighEntry::SERVICE != 0 {
        UNKNOWN
    } else if owner.ifindex != 0 {
        HERE
    } else {
        ELSEWHERE
    }
}

/// Sets where the destination Ethernet address of the packet metadata is, unless it is known.
#[inline(always)]
pub(crate) fn locate(packet: &mut PacketMeta) {
    if packet.placed != 0 {
        return;
    }
    // Not an `Option` for the callers: one that is looked at twice would be half an unknown register to the verifier.
    if let Some(place) = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac)) {
        packet.set_place(&place);
        packet.placed = 1;
    } else {
        // SAFETY: an address and numbers.
        unsafe { contiv_abi::clear(&raw mut packet.place) };
    }
}

/// Offsets of the TTL and the hop limit.
const TTL: usize = ETHERNET + 8;
const HOP_LIMIT: usize = ETHERNET + 7;

#[inline(always)]
fn ttl(ctx: &TcContext, ip6: bool) -> Result<u8, DropReason> {
    frame::load(ctx, if ip6 { HOP_LIMIT } else { TTL })
}

/// Ethernet addresses, as they begin a frame.
#[repr(C)]
struct Macs {
    destination: Mac,
    source: Mac,
}

/// Makes the packet of the packet metadata one that the router sends to its next hop. The result is that of `packet::code`.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_hop(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let ctx = TcContext::new(skb);
    let before = match ttl(&ctx, packet.ip6 != 0) {
        Ok(0 | 1) => return DropReason::TtlExceeded as u32,
        Ok(before) => before,
        Err(reason) => return reason as u32,
    };
    packet::code(
        set_ttl(&ctx, packet.ip6 != 0, before - 1).and_then(|()| set_macs(&ctx, packet.destination_mac)),
    )
}

/// Gives a frame of the router its Ethernet addresses.
#[inline(always)]
pub(crate) fn set_macs(ctx: &TcContext, destination: Mac) -> Result<(), DropReason> {
    let macs = Macs { destination, source: ROUTER_MAC };
    ctx.store(0, &macs, 0).map_err(|_| DropReason::RewriteFailed)
}

/// Assigns the TTL or hop limit.
#[inline(always)]
pub(crate) fn set_ttl(ctx: &TcContext, ip6: bool, ttl: u8) -> Result<(), DropReason> {
    const CHECKSUM: usize = ETHERNET + 10;
    let refused = |_| DropReason::RewriteFailed;
    if ip6 {
        return ctx.store(HOP_LIMIT, &ttl, u64::from(BPF_F_RECOMPUTE_CSUM)).map_err(refused);
    }
    let [before, protocol] = frame::load::<[u8; 2]>(ctx, TTL)?;
    let words = [[before, protocol], [ttl, protocol]].map(u16::from_ne_bytes);
    ctx.l3_csum_replace(CHECKSUM, words[0].into(), words[1].into(), 2).map_err(refused)?;
    ctx.store(TTL, &ttl, 0).map_err(refused)
}

/// Whether the router answers the sender of ARP or neighbour discovery in hand for an address: not zero if so. The gateway of
/// its network is asked for by every pod. An endpoint of another network is by one that takes it for a neighbour, and one on
/// another node is behind the router if the network stays on the node. `place` says where the endpoint with the address is.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_router_has(ip: *const Address, place: u32) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole address.
    let Some(ip) = (unsafe { ip.as_ref() }) else { return 0 };
    let Some(subnet) = maps::subnet(packet.domain, ip) else { return 0 };
    if packet.source_port == 0 || !subnet.is_routed() {
        return 0;
    }
    let own = subnet.routed == packet.segment;
    let proxy = packet.segment_flags & SegmentEntry::PROXY != 0;
    let is_behind = if own { subnet.is_on_node() && place == ELSEWHERE } else { place != UNKNOWN };
    u32::from(own && subnet.gateway.same(ip) || proxy && is_behind)
}

/// The identity is behind this, in the result of [`ctv_routed_source`].
pub(crate) const ACCEPTED: u32 = 0x1_0000;

/// Whether the current packet, which comes from a tunnel and has the router's Ethernet address, may have this source: if it is
/// in a routed subnet, the endpoint must be behind the VTEP that has sent the packet. The result is `GO_ON` for a source
/// in no such subnet, [`ACCEPTED`] and the identity, or the number of the reason to drop the packet.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_routed_source(ip: *const Address) -> u32 {
    const FOREIGN: u32 = DropReason::ForeignSource as u32;
    let Some(packet) = packet::current() else { return FOREIGN };
    // SAFETY: as above.
    let Some(ip) = (unsafe { ip.as_ref() }) else { return FOREIGN };
    let Some(subnet) = maps::subnet(packet.domain, ip) else { return GO_ON };
    if !subnet.is_routed() {
        return GO_ON;
    }
    // Networks of both kinds are not routed to each other.
    let is_on_node = packet.segment_flags & SegmentEntry::ON_NODE != 0;
    if packet.is_for_group() || packet.nd != 0 || subnet.is_on_node() != is_on_node {
        return FOREIGN;
    }
    let Some(owner) = maps::neighbour(&NeighKey::new(packet.domain, *ip)) else {
        let reserved = subnet.gateway.same(ip) || ip.is_v4() && subnet.is_last(ip);
        return if reserved { FOREIGN } else { ACCEPTED | u32::from(FlowHalf::UNKNOWN) };
    };
    let place = maps::destination(&FdbKey::new(subnet.routed, owner.mac));
    match place {
        Some(place) if owner.ifindex == 0 && place.vtep.same(&packet.vtep) => {
            ACCEPTED | owner.group & u32::from(u16::MAX)
        }
        _ => FOREIGN,
    }
}
