//! Routing between the networks of a domain: packets that pods send to the router are forwarded by IP address.
//!
//! The router exists on every node with the same Ethernet address. A packet is routed once, on the node of its sender, and
//! reaches another node on the network of its destination.

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

/// Determines whether the current packet, which has been parsed, is for the router or for an endpoint behind it, and its next
/// hop, as far as it is known before services are resolved. The result is `GO_ON`, `ROUTER` if the router itself has to answer
/// the packet, or the number of a drop reason.
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
            // The kernel sends "time exceeded" to the sender. For a receiver on this node, the rules are evaluated first.
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

/// Non-zero if the current packet is of a network that stays on the node, and in a frame to the endpoint on another node that has
/// its destination. That endpoint was on this node before, and its neighbours do not resolve its address again at once.
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

/// Result of [`ctv_is_for_router`]: the packet is for a gateway itself.
const GATEWAY: u32 = 2;

/// Non-zero if the source or destination of the current packet is in a routed subnet; [`GATEWAY`] if it is for a gateway.
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

/// Sets the network and the Ethernet address of the packet's receiver in the packet metadata, if the router reaches it. For
/// packets to the router, and for packets that were translated to a destination on another network.
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
        // The destination was translated.
        packet.route = Route::ROUTER;
    }
    let Some(subnet) = maps::subnet(packet.domain, &packet.wanted.destination) else { return NO_SUBNET };
    let bridged = packet.route == Route::BRIDGED && subnet.routed == packet.segment;
    if bridged && !subnet.is_on_node() || !subnet.is_routed() {
        return 0;
    }
    // There is no routing between VLAN and VXLAN networks, also not through services.
    if subnet.is_on_node() != (packet.segment_flags & SegmentEntry::ON_NODE != 0) {
        packet.route = Route::ROUTER;
        return 0;
    }
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    let by_kernel = subnet.is_on_node() && owner.is_none_or(|owner| place(&owner) == ELSEWHERE);
    // Link-local addresses are not routed, also not through services.
    if packet.tuple.source.is_link_local() && (by_kernel || !bridged) {
        packet.route = Route::ROUTER;
        return 0;
    }
    if by_kernel {
        if let Some(owner) = owner {
            // For rules that depend on the group of the endpoint.
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

/// Sets the route of the packet to the node's kernel, if its domain has a route to the destination, which is in no subnet.
///
/// Not inlined, to save stack. The result is always zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by_kernel(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    // The address of a service may be outside of all subnets, too.
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

/// Sets the route of the packet, which is of a network that stays on the node, to the node's kernel.
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

/// As [`to_kernel`], for a packet to a destination in no subnet of the domain, if no other domain has a subnet for it either.
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

/// The port in a slot, if it is on the network in the packet metadata and the sender has not sent the packet to the router. The
/// packet is then bridged to the port without a lookup of the subnet.
#[inline(always)]
pub(crate) fn port_on_network(packet: &PacketMeta, slot: u32) -> Option<&'static PortSlot> {
    if packet.ingress != Ingress::POD || packet.route != Route::BRIDGED {
        return None;
    }
    maps::port_slot(slot).filter(|port| port.ifindex != 0 && port.segment == packet.segment)
}

/// Location of an address: no endpoint is known.
pub(crate) const UNKNOWN: u32 = 0;
/// Location of an address: an endpoint on this node.
const HERE: u32 = 1;
/// Location of an address: an endpoint on another node.
const ELSEWHERE: u32 = 2;

/// Location of the owner of an address: one of the values above.
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

/// Sets the location of the destination Ethernet address in the packet metadata, unless it is set.
#[inline(always)]
pub(crate) fn locate(packet: &mut PacketMeta) {
    if packet.placed != 0 {
        return;
    }
    // Does not return an `Option`: tested twice, it would be a partly unknown register to the verifier.
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

/// The Ethernet addresses at the start of a frame.
#[repr(C)]
struct Macs {
    destination: Mac,
    source: Mac,
}

/// Rewrites the current packet as the router forwards it to its next hop. The result is that of `packet::code`.
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

/// Writes the Ethernet addresses of a frame from the router.
#[inline(always)]
pub(crate) fn set_macs(ctx: &TcContext, destination: Mac) -> Result<(), DropReason> {
    let macs = Macs { destination, source: ROUTER_MAC };
    ctx.store(0, &macs, 0).map_err(|_| DropReason::RewriteFailed)
}

/// Sets the TTL or hop limit.
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

/// Whether the router answers the current ARP request or neighbour solicitation for an address; non-zero if so. Every pod
/// resolves the gateway of its network. A pod may resolve an endpoint of another network as if it were a neighbour. An endpoint
/// on another node is behind the router if the network stays on the node. `place` is the location of the endpoint with the
/// address.
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

/// Flag in the result of [`ctv_routed_source`]: the lower bits are the group of the source.
pub(crate) const ACCEPTED: u32 = 0x1_0000;

/// Whether the current packet, which is from a tunnel and has the router's Ethernet address, may have this source address. A
/// source in a routed subnet must be behind the VTEP that has sent the packet. The result is `GO_ON` for a source outside of
/// these subnets, [`ACCEPTED`] with the group of the source, or the number of a drop reason.
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
    // There is no routing between VLAN and VXLAN networks.
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
