//! Whether a pod is who it says it is.

use aya_ebpf::programs::TcContext;
use contiv_abi::{Address, DropReason, Mac, Port};

use crate::{
    frame::{self, ETHERNET, Ethernet},
    packet::ICMPV6,
};

/// Checks the addresses that a pod sends from against its own.
///
/// Without an address yet, a pod may ask for one: IPv4 from 0.0.0.0 and IPv6 from `::` pass to groups, and an
/// ARP probe names nobody as its sender. Link-local addresses of IPv6 (which the pod's kernel makes) pass for
/// ICMPv6 and to groups.
#[inline(always)]
pub(crate) fn check(ctx: &TcContext, port: &Port, ethernet: &Ethernet) -> Result<(), DropReason> {
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
    // As numbers: a comparison of arrays would be a call.
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
    const TYPE: usize = ETHERNET + 40;
    const TARGET: usize = ETHERNET + 40 + 8;
    const ADVERTISEMENT: u8 = 136;
    let source = frame::load::<Address>(ctx, SOURCE)?;
    let [high, low] = source.words();
    // An advertisement claims its target, whoever it is from.
    if frame::load::<u8>(ctx, NEXT)? == ICMPV6
        && let Ok(ADVERTISEMENT) = frame::load::<u8>(ctx, TYPE)
    {
        let target = frame::load::<Address>(ctx, TARGET)?;
        if !target.same(&port.ip6) && !is_link_local(&target) {
            return Err(DropReason::SpoofedIp);
        }
    }
    if source.same(&port.ip6) && high | low != 0 {
        return Ok(());
    }
    let link_local = is_link_local(&source);
    let unspecified = high | low == 0;
    if (link_local || unspecified) && ethernet.is_group() {
        return Ok(());
    }
    if link_local && frame::load::<u8>(ctx, NEXT)? == ICMPV6 {
        return Ok(());
    }
    Err(DropReason::SpoofedIp)
}

#[inline(always)]
fn is_link_local(address: &Address) -> bool {
    address.0[0] == 0xfe && address.0[1] & 0xc0 == 0x80
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
