//! Packets to and from the node's kernel, which decrements their TTL.
//!
//! ```text
//! pod -> route: no endpoint here -> track -> policy -> ctv_leave -> kernel
//! kernel -> ctv_enter -> guard -> track -> policy -> pod
//! ```
//!
//! The kernel has routes to VLAN networks that the node routes, so their packets keep their addresses. It has none to VXLAN
//! networks: for host access, the source of a pod's packet is translated to an address of the private subnet. This translation is
//! stateless. Rules and flows use the pod's own address.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, Be16, Domain, DropReason, KERNEL_MAC, LogResult, LogStage, NeighKey, ROUTER_MAC};

use crate::{
    delivery,
    frame::{self, ETHERNET, Ethernet},
    guard,
    header::Ipv4,
    log, maps, nat,
    packet::{self, IcmpError, Ingress, PacketMeta, passes},
    parse, route, source,
    verdict::Verdict,
};

/// Addresses the current packet to the kernel. If the sender has a private address, it becomes the source. The result is that of
/// `packet::code`.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_leave(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let ctx = TcContext::new(skb);
    packet.destination_mac = KERNEL_MAC;
    if u32::from_ne_bytes(packet.private) == 0 {
        return packet::code(ctx.store(0, &KERNEL_MAC, 0).map_err(|_| DropReason::RewriteFailed));
    }
    if packet.translated != 0 {
        // The first translation is complete.
        packet.tuple = packet.wanted;
        packet.inner = packet.inner_wanted;
    }
    let private = Address::v4(packet.private);
    packet.wanted.source.set_words(private.words());
    if packet.icmp_error != IcmpError::NONE {
        packet.inner_wanted = packet.inner;
        packet.inner_wanted.destination.set_words(private.words());
    }
    packet::code(nat::rewrite(&ctx, packet))
}

/// Forwards a packet that the kernel has sent by the interface `ifindex`.
#[inline(always)]
pub(crate) fn receive(ctx: &TcContext, ifindex: u32) -> Verdict {
    forward(ctx, ifindex).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn forward(ctx: &TcContext, ifindex: u32) -> Result<Verdict, DropReason> {
    passes(ctv_enter(ctx.skb.skb, ifindex))?;
    passes(guard::ctv_guard(ctx.skb.skb))?;
    passes(guard::ctv_guard_source(ctx.skb.skb))?;
    log::stage(LogStage::Source, LogResult::Passed);
    delivery::arrive(ctx)
}

/// Addresses a packet from the kernel to its pod, and initializes the packet metadata. The result is that of `packet::code`.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_enter(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    packet::code(enter(&TcContext::new(skb), ifindex))
}

#[inline(always)]
fn enter(ctx: &TcContext, ifindex: u32) -> Result<(), DropReason> {
    let ethernet = Ethernet::from_outside(ctx)?;
    if !source::same(&ethernet.source, &KERNEL_MAC) || !source::same(&ethernet.destination, &KERNEL_MAC) {
        return Err(DropReason::NotLocal);
    }
    if ifindex == maps::kernel_port() {
        return passes(ctv_routed_to(ctx.skb.skb, ethernet.kind.wire().into()));
    }
    if ethernet.kind != frame::IPV4 {
        return Err(DropReason::NotLocal);
    }
    passes(ctv_pod_of(ctx.skb.skb, ifindex))?;
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    passes(parse::ctv_parse(packet, ctx.skb.skb))?;
    passes(ctv_readdress(packet, ctx.skb.skb))
}

/// Addresses a packet to the pod of this node with the destination address, in a VLAN network that the node routes. The result is
/// that of `packet::code`.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_routed_to(skb: *mut __sk_buff, kind: u32) -> u32 {
    packet::code(routed_to(&TcContext::new(skb), Be16::from_wire(kind as u16)))
}

#[inline(always)]
fn routed_to(ctx: &TcContext, kind: Be16) -> Result<(), DropReason> {
    const SOURCE6: usize = ETHERNET + 8;
    const DESTINATION6: usize = ETHERNET + 24;
    let (from, to) = match kind {
        frame::IPV4 => {
            let Ipv4 { source, destination, .. } = frame::load::<Ipv4>(ctx, ETHERNET)?;
            (Address::v4(source), Address::v4(destination))
        }
        frame::IPV6 => (frame::load(ctx, SOURCE6)?, frame::load(ctx, DESTINATION6)?),
        _ => return Err(DropReason::NotLocal),
    };
    let segment = maps::subnet(Domain::NONE, &to).ok_or(DropReason::NotLocal)?.routed;
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    if let Some(other) = maps::subnet(Domain::NONE, &from) {
        let other = maps::segment(&other.routed).ok_or(DropReason::ForeignSource)?;
        if other.domain.number() != entry.domain.number() {
            return Err(DropReason::ForeignSource);
        }
    }
    let owner = maps::neighbour(&NeighKey::new(entry.domain, to)).ok_or(DropReason::NotLocal)?;
    if owner.ifindex == 0 {
        return Err(DropReason::NotLocal);
    }
    let ethernet = Ethernet { destination: owner.mac, source: ROUTER_MAC, kind };
    packet::from_outside(&ethernet, segment, Ingress::KERNEL)?;
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    packet::set_network(packet, &entry);
    // The packet is not from a tunnel.
    packet.vtep.set_words([0; 2]);
    route::set_macs(ctx, owner.mac)
}

/// Initializes the packet metadata for the pod with the private address that is the destination. The domain of the pod must have
/// a route to the source by the same interface. The result is that of `packet::code`.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_pod_of(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    packet::code(receiver(&TcContext::new(skb), ifindex))
}

#[inline(always)]
fn receiver(ctx: &TcContext, ifindex: u32) -> Result<(), DropReason> {
    let Ipv4 { source, destination, .. } = frame::load::<Ipv4>(ctx, ETHERNET)?;
    let [_, _, c, d] = destination;
    let number = u32::from_be_bytes([0, 0, c, d]);
    let index = maps::numbered_port(&number).ok_or(DropReason::NotLocal)?;
    let port = maps::port_in_place(index).ok_or(DropReason::NotLocal)?;
    let (domain, segment) = (port.domain, port.segment);
    let from = Address::v4(source);
    let way = maps::route(domain, &from).ok_or(DropReason::NotLocal)?;
    if way.out != ifindex || u32::from_ne_bytes(way.address(number)) != u32::from_ne_bytes(destination) {
        return Err(DropReason::NotLocal);
    }
    // Addresses of the domain are not outside of the cluster.
    if maps::subnet(domain, &from).is_some() {
        return Err(DropReason::ForeignSource);
    }
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    let ethernet = Ethernet { destination: port.mac, source: ROUTER_MAC, kind: frame::IPV4 };
    packet::from_outside(&ethernet, segment, Ingress::KERNEL)?;
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    packet::set_network(packet, &entry);
    packet.vtep.set_words([0; 2]);
    packet.ip6 = 0;
    packet.nd = 0;
    packet.private = port.ip;
    Ok(())
}

/// Translates the destination of the current packet, which has been parsed, to the receiver's own address. The result is that of
/// `packet::code`.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_readdress(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet::code(readdress(&TcContext::new(skb), packet))
}

#[inline(always)]
fn readdress(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    let own = Address::v4(packet.private);
    if packet.icmp_error != IcmpError::NONE {
        // The quoted packet must be one that the receiver has sent.
        if packet.icmp_error != IcmpError::FLOW || !packet.inner.source.same(&packet.tuple.destination) {
            return Err(DropReason::UnrelatedIcmpError);
        }
        packet.inner_wanted = packet.inner;
        packet.inner_wanted.source.set_words(own.words());
    }
    packet.wanted.destination.set_words(own.words());
    nat::rewrite(ctx, packet)?;
    route::set_macs(ctx, packet.destination_mac)
}
