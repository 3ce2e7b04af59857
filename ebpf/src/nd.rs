//! Checks of neighbour discovery (RFC 4861), to which policies do not apply.
//!
//! A valid message has an IPv6 header without extension headers, a bounded length, and known options. An invalid message is
//! dropped if the kernel of a pod would accept it, and evaluated as ICMPv6 if not.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Address, Be16, DropReason, Mac};

use crate::{
    claim::{self, is_reserved, may_name},
    frame::{self, ETHERNET},
    maps,
    packet::{self, GO_ON, ICMPV6, Ingress, PacketMeta},
    source,
};

/// Hop limit of neighbour discovery: no router has forwarded the packet.
pub(crate) const HOP_LIMIT: u8 = 255;

const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;

/// Options, each 8 bytes long: source and target link-layer address, and the nonce of duplicate address detection
/// (RFC 7527).
mod option {
    pub(super) const SOURCE: u8 = 1;
    pub(super) const TARGET: u8 = 2;
    pub(super) const NONCE: u8 = 14;
    pub(super) const LEN: u32 = 8;
    /// Maximum number of options in a message.
    pub(super) const MAX: u32 = 2;
}

const L4: usize = ETHERNET + 40;
const TARGET: usize = L4 + 8;

/// Checks an IPv6 frame for neighbour discovery; sets `PacketMeta::nd` if it is valid.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_guard_nd(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet::code(check(&TcContext::new(skb), packet))
}

#[inline(always)]
fn check(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    const NEXT_HEADER: usize = ETHERNET + 6;
    let [next, hop_limit] = frame::load::<[u8; 2]>(ctx, NEXT_HEADER)?;
    if next != ICMPV6 || hop_limit != HOP_LIMIT {
        return Ok(());
    }
    let [kind, code] = frame::load::<[u8; 2]>(ctx, L4)?;
    let fixed = match kind {
        ROUTER_SOLICITATION => 8,
        SOLICITATION | ADVERTISEMENT => 24,
        ROUTER_ADVERTISEMENT | REDIRECT => return Err(DropReason::RouterDiscovery),
        _ => return Ok(()),
    };
    let options = options(ctx, fixed)?;
    if code != 0 {
        return Err(DropReason::InvalidNeighbour);
    }
    // Set before the checks of addresses: neighbour discovery may claim the address of a service.
    packet.nd = 1;
    for index in 0..option::MAX {
        if index * option::LEN < options {
            let at = L4 as u32 + fixed + index * option::LEN;
            match ctv_guard_option(ctx.skb.skb, kind.into(), at) {
                GO_ON => {}
                reason => return Err(packet::reason(reason)),
            }
        }
    }
    check_addresses(ctx, packet, kind, options)
}

/// Length of the options after the `fixed` part of the message, which must end at the end of the frame.
#[inline(always)]
fn options(ctx: &TcContext, fixed: u32) -> Result<u32, DropReason> {
    const PAYLOAD: usize = ETHERNET + 4;
    let payload = u32::from(frame::load::<Be16>(ctx, PAYLOAD)?.get());
    let options = payload.wrapping_sub(fixed);
    let valid = options <= option::MAX * option::LEN && options % option::LEN == 0;
    match ctx.len().wrapping_sub(L4 as u32 + payload) as i32 {
        ..0 => Err(DropReason::Malformed),
        0 if valid => Ok(options),
        _ => Err(DropReason::InvalidNeighbour),
    }
}

/// Checks the option at an offset of the frame. The result is that of `packet::code`.
///
/// A global function: inlined, the verifier would check each kind of option at each place.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_guard_option(skb: *mut __sk_buff, kind: u32, at: u32) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    packet::code(check_option(&TcContext::new(skb), packet, kind as u8, at as usize))
}

#[inline(always)]
fn check_option(ctx: &TcContext, packet: &PacketMeta, kind: u8, at: usize) -> Result<(), DropReason> {
    let [number, length] = frame::load::<[u8; 2]>(ctx, at)?;
    let known = match (kind, number) {
        (SOLICITATION | ROUTER_SOLICITATION, option::SOURCE) | (ADVERTISEMENT, option::TARGET) => true,
        (SOLICITATION, option::NONCE) if length == 1 => return Ok(()),
        _ => false,
    };
    if !known || length != 1 {
        return Err(DropReason::InvalidNeighbour);
    }
    let mac = frame::load::<Mac>(ctx, at + 2)?;
    may_name(packet, &mac)
}

#[inline(always)]
fn check_addresses(
    ctx: &TcContext,
    packet: &mut PacketMeta,
    kind: u8,
    options: u32,
) -> Result<(), DropReason> {
    const SOURCE: usize = ETHERNET + 8;
    const DESTINATION: usize = ETHERNET + 24;
    let from = frame::load::<Address>(ctx, SOURCE)?;
    let to = frame::load::<Address>(ctx, DESTINATION)?;
    let [high, low] = from.words();
    let unspecified = high | low == 0;
    if kind == ROUTER_SOLICITATION {
        return match to.same(&ALL_ROUTERS) {
            true if unspecified => Ok(()),
            true => claim(packet, &from),
            false => Err(DropReason::InvalidNeighbour),
        };
    }
    let target = frame::load::<Address>(ctx, TARGET)?;
    let solicitation = kind == SOLICITATION;
    let unicast = to.0[0] != 0xff && target.0[0] != 0xff;
    let valid = if solicitation {
        is_solicited_node(&to, &target) || unicast && to.same(&target) && !unspecified
    } else {
        // The reply to a probe from the unspecified address is sent to all nodes (RFC 4861 7.2.4).
        (unicast || to.same(&ALL_NODES)) && !unspecified
    };
    if !valid || is_reserved(&from) || is_reserved(&target) {
        return Err(DropReason::InvalidNeighbour);
    }
    if !solicitation {
        claim(packet, &target)?;
    } else if unspecified {
        // Duplicate address detection has no link-layer address, and the nonce is its only option. A probe for the address of
        // another endpoint may be answered, but if it were forwarded, it would end the detection of that endpoint.
        packet.probe = u8::from(packet.ingress == Ingress::POD && !is_own(packet, &target));
        return if options > option::LEN { Err(DropReason::InvalidNeighbour) } else { Ok(()) };
    }
    claim(packet, &from)
}

/// Checks that the sender may use the address.
#[inline(always)]
fn claim(packet: &PacketMeta, ip: &Address) -> Result<(), DropReason> {
    if packet.ingress != Ingress::POD {
        return claim::claim(packet, *ip, packet.source_mac).map(drop);
    }
    if is_own(packet, ip) { Ok(()) } else { Err(DropReason::SpoofedIp) }
}

#[inline(always)]
fn is_own(packet: &PacketMeta, ip: &Address) -> bool {
    maps::port(&packet.source_port).is_some_and(|port| source::is_own_v6(&port, ip))
}

const ALL_NODES: Address = Address([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const ALL_ROUTERS: Address = Address([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// Whether `to` is the solicited-node address of `target`: `ff02::1:ff00:0/104` with its last 24 bits (RFC 4291 2.7.1).
#[inline(always)]
fn is_solicited_node(to: &Address, target: &Address) -> bool {
    const HIGH: u64 = u64::from_ne_bytes([0xff, 2, 0, 0, 0, 0, 0, 0]);
    let ([high, low], [_, wanted]) = (to.words(), target.words());
    let (low, wanted) = (u64::from_be(low), u64::from_be(wanted));
    high == HIGH && low >> 24 == 0x01ff && low & 0xff_ffff == wanted & 0xff_ffff
}
