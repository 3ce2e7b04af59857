//! Checks of frames from pods against the addresses of their port (anti-spoofing).

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, DropReason, Mac, Port};

use crate::{
    checksum,
    frame::{self, ETHERNET, Ethernet},
    maps,
    packet::{self, ICMPV6, Ingress},
    skb,
};

/// Checks a frame from a pod, and initializes the packet metadata for it.
///
/// A global function: the verifier checks it once, and it saves stack. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_sender(skb: *mut __sk_buff) -> u32 {
    packet::code(sender(&TcContext::new(skb)))
}

#[inline(always)]
fn sender(ctx: &TcContext) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    let (ifindex, tagged) = unsafe { ((*ctx.skb.skb).ifindex, (*ctx.skb.skb).vlan_present != 0) };
    let port = maps::port(&ifindex).ok_or(DropReason::UnknownPort)?;
    if skb::ctv_own_headers(ctx.skb.skb) != 0 {
        return Err(DropReason::RewriteFailed);
    }
    let ethernet = Ethernet::read(ctx)?;
    if tagged || ethernet.is_tagged() {
        return Err(DropReason::TaggedByPod);
    }
    if ethernet.is_link_local() {
        return Err(DropReason::LinkLocalGroup);
    }
    check(ctx, &port, &ethernet)?;
    set_sender(ctx.skb.skb, ifindex, &port, &ethernet)
}

/// Initializes the packet metadata for a frame from the port `ifindex` that was checked before, and is now received on another
/// interface.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_port(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    let sender = || {
        let port = maps::port(&ifindex).ok_or(DropReason::UnknownPort)?;
        set_sender(skb, ifindex, &port, &Ethernet::read(&TcContext::new(skb))?)
    };
    packet::code(sender())
}

#[inline(always)]
fn set_sender(skb: *mut __sk_buff, ifindex: u32, port: &Port, ethernet: &Ethernet) -> Result<(), DropReason> {
    let place = checksum::ctv_checksum(skb);
    if !checksum::is_behind_addresses(place, ethernet.kind) {
        return Err(DropReason::Malformed);
    }
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    packet.checksum = place;
    packet.queue = port.queue;
    packet.priority = port.priority();
    packet.segment = port.segment;
    packet.domain = port.domain;
    packet.source_port = ifindex;
    packet.source_group = port.group;
    packet.destination_mac = ethernet.destination;
    packet.source_mac = ethernet.source;
    packet.kind = ethernet.kind;
    packet.ingress = Ingress::POD;
    packet.translated = 0;
    packet.placed = 0;
    Ok(())
}

/// Checks the source addresses of a frame against those of the pod.
///
/// A pod without an address may request one: IPv4 from 0.0.0.0 and ICMPv6 from `::` pass in multicast frames, and an ARP probe
/// has no sender address. The addresses that neighbour discovery claims are checked in `nd`, and further properties of such
/// packets in `guard::ctv_guard_ports`.
#[inline(always)]
fn check(ctx: &TcContext, port: &Port, ethernet: &Ethernet) -> Result<(), DropReason> {
    if !same(&ethernet.source, &port.mac) {
        return Err(DropReason::SpoofedMac);
    }
    match ethernet.kind {
        frame::IPV4 => ipv4(ctx, port, ethernet),
        frame::IPV6 => ipv6(ctx, port, ethernet),
        frame::ARP => arp(ctx, port),
        _ => Ok(()),
    }
}

/// Whether two addresses are the same.
#[inline(always)]
pub(crate) fn same(a: &Mac, b: &Mac) -> bool {
    let ([a0, a1, a2, a3, a4, a5], [b0, b1, b2, b3, b4, b5]) = (*a, *b);
    // Compares numbers: the compiler would emit a call for a comparison of arrays.
    u32::from_ne_bytes([a0, a1, a2, a3]) == u32::from_ne_bytes([b0, b1, b2, b3])
        && u16::from_ne_bytes([a4, a5]) == u16::from_ne_bytes([b4, b5])
}

#[inline(always)]
fn ipv4(ctx: &TcContext, port: &Port, ethernet: &Ethernet) -> Result<(), DropReason> {
    const SOURCE: usize = ETHERNET + 12;
    let source = frame::load::<u32>(ctx, SOURCE)?;
    if source == u32::from_ne_bytes(port.ip) || source == 0 && ethernet.is_group() {
        Ok(())
    } else {
        Err(DropReason::SpoofedIp)
    }
}

#[inline(always)]
fn ipv6(ctx: &TcContext, port: &Port, ethernet: &Ethernet) -> Result<(), DropReason> {
    const NEXT: usize = ETHERNET + 6;
    const SOURCE: usize = ETHERNET + 8;
    const HOP_BY_HOP: u8 = 0;
    let source = frame::load::<Address>(ctx, SOURCE)?;
    if is_own_v6(port, &source) {
        return Ok(());
    }
    let [high, low] = source.words();
    if high | low == 0 && ethernet.is_group() {
        // Duplicate address detection, and MLD reports behind a router alert option.
        let next = frame::load::<u8>(ctx, NEXT)?;
        if next == ICMPV6 || next == HOP_BY_HOP {
            return Ok(());
        }
    }
    Err(DropReason::SpoofedIp)
}

/// Whether this is an IPv6 address of the port: the assigned one, or the link-local address that the pod's kernel forms.
#[inline(always)]
pub(crate) fn is_own_v6(port: &Port, ip: &Address) -> bool {
    let [high, low] = ip.words();
    ip.same(&port.ip6) && high | low != 0 || ip.same(&Address::link_local(&port.mac))
}

#[inline(always)]
fn arp(ctx: &TcContext, port: &Port) -> Result<(), DropReason> {
    const SENDER_MAC: usize = ETHERNET + 8;
    const SENDER_IP: usize = ETHERNET + 14;
    let mac = frame::load::<Mac>(ctx, SENDER_MAC)?;
    let ip = frame::load::<u32>(ctx, SENDER_IP)?;
    if !same(&mac, &port.mac) || (ip != 0 && ip != u32::from_ne_bytes(port.ip)) {
        return Err(DropReason::SpoofedIp);
    }
    Ok(())
}
