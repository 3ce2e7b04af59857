//! Packets that the gateway itself answers: echo requests, and packets with an expired TTL.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, DropReason};

use crate::{
    frame,
    header::{Ipv4, Ipv6},
    maps, open,
    packet::{self, ANSWERED, Fragment, GO_ON, ICMP, ICMPV6, IcmpError, PacketMeta, REFUSE},
    refuse, route,
};

/// TTL of replies.
const TTL: u8 = 64;

/// Overwrites the current packet, which `route` has found to be for the router itself, with the answer. The result is `ANSWERED`,
/// `REFUSE` with a reason, or the number of a drop reason.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_answer(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    let to = maps::subnet(packet.domain, &packet.tuple.destination);
    if !to.is_some_and(|subnet| subnet.is_router(&packet.tuple.destination)) {
        return ctv_expired(skb);
    }
    if !is_echo_request(&TcContext::new(skb), packet) {
        return DropReason::NoRoute as u32;
    }
    match open::ctv_open_gateway(packet) {
        GO_ON => ctv_echo(skb),
        reason => reason,
    }
}

/// Reports to the sender of the current packet that its TTL has expired.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_expired(skb: *mut __sk_buff) -> u32 {
    const EXCEEDED: u32 = DropReason::TtlExceeded as u32;
    let Some(packet) = packet::current() else { return EXCEEDED };
    match maps::subnet(packet.domain, &packet.tuple.source) {
        Some(subnet) if subnet.is_routed() && !subnet.gateway.is_zero() => {
            let gateway: Address = subnet.gateway;
            if refuse::ctv_exceed(skb, &raw const gateway) == GO_ON { REFUSE | EXCEEDED } else { EXCEEDED }
        }
        _ => EXCEEDED,
    }
}

#[inline(always)]
fn is_echo_request(ctx: &TcContext, packet: &PacketMeta) -> bool {
    let (header, protocol, kind) =
        if packet.ip6 != 0 { (size_of::<Ipv6>(), ICMPV6, 128) } else { (size_of::<Ipv4>(), ICMP, 8) };
    packet.protocol == protocol
        && packet.icmp_error == IcmpError::NONE
        && packet.fragment == Fragment::NONE
        && packet.l4 == packet.l3 + header as u32
        && frame::load::<[u8; 2]>(ctx, packet.l4 as usize)
            .is_ok_and(|found| found[0] == kind && found[1] == 0)
}

/// Overwrites an echo request with the reply. The result is `ANSWERED`, or the number of a drop reason.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_echo(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    match echo(&TcContext::new(skb), packet) {
        Ok(()) => ANSWERED,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn echo(ctx: &TcContext, packet: &PacketMeta) -> Result<(), DropReason> {
    /// Offsets of the source address in the headers.
    const SOURCE: usize = 12;
    const SOURCE6: usize = 8;
    let refused = |_| DropReason::RewriteFailed;
    let ip6 = packet.ip6 != 0;
    let (l3, l4) = (packet.l3 as usize, packet.l4 as usize);
    // The swap does not change checksums, which do not depend on the order of words.
    if ip6 {
        ctx.store(l3 + SOURCE6, &[packet.tuple.destination, packet.tuple.source], 0).map_err(refused)?;
    } else {
        let ends = [packet.tuple.destination.low(), packet.tuple.source.low()];
        ctx.store(l3 + SOURCE, &ends, 0).map_err(refused)?;
    }
    let [request, reply]: [[u8; 2]; 2] = if ip6 { [[128, 0], [129, 0]] } else { [[8, 0], [0, 0]] };
    let words = [request, reply].map(u16::from_ne_bytes);
    ctx.l4_csum_replace(l4 + 2, words[0].into(), words[1].into(), 2).map_err(refused)?;
    ctx.store(l4, &reply, 0).map_err(refused)?;
    route::set_ttl(ctx, ip6, TTL)?;
    route::set_macs(ctx, packet.source_mac)
}
