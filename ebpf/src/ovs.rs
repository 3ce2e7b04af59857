//! TC filters on the interfaces of pods on OVS nodes.
//!
//! ```text
//! pod veth, ingress -> ovs_from_pod -> the switch of the kernel
//! pod veth, packet socket of the switch in userspace, ingress -> ovs_taken
//! ```
//!
//! `ovs_from_pod` checks where the kernel will write a checksum that the sender has left to it ([`skb`]); OpenFlow cannot match
//! this. It also drops LLC frames, which the kernel's datapath may classify as IP; the flows drop such frames only where they
//! match them. `ovs_taken` drops the copy of a frame that the userspace datapath has read, so that it does not enter the network
//! stack of the node.

#![no_std]
#![no_main]

mod skb;

use aya_ebpf::{
    bindings::{TC_ACT_SHOT, TC_ACT_UNSPEC},
    btf_maps::PerCpuArray,
    macros::{btf_map, classifier},
    programs::TcContext,
};
use contiv_abi::Be16;

const IPV4: Be16 = Be16::new(0x0800);
const IPV6: Be16 = Be16::new(0x86dd);
/// Length of the Ethernet header.
const ETHERNET: u32 = 14;
/// Length of the fixed header of IPv4 (RFC 791 3.1).
const IPV4_HEADER: u32 = 20;
/// Length of the fixed header of IPv6 (RFC 8200 3).
const IPV6_HEADER: u32 = 40;

#[btf_map(name = "ovs_drops")]
static DROPS: PerCpuArray<u64, 1> = PerCpuArray::new();

/// A frame that a pod sent: ingress of the host end of its veth pair.
#[classifier]
fn ovs_from_pod(ctx: TcContext) -> i32 {
    let place = skb::checksum(ctx.skb.skb);
    let is_complete = place == skb::NO_CHECKSUM;
    if has_ethertype(&ctx) && (is_complete || skb::ctv_own_headers(ctx.skb.skb) == 0 && is_valid(&ctx, place))
    {
        // The following filters and the switch process the frame.
        return TC_ACT_UNSPEC;
    }
    if let Some(drops) = DROPS.get_ptr_mut(0) {
        // SAFETY: the value of this CPU.
        unsafe { *drops += 1 };
    }
    TC_ACT_SHOT
}

/// A frame that a pod sent and that the switch has received from its packet socket.
#[classifier]
fn ovs_taken(_ctx: TcContext) -> i32 {
    TC_ACT_SHOT
}

/// Whether the frame has an EtherType and not a length (IEEE 802.3 3.2.6).
#[inline(always)]
fn has_ethertype(ctx: &TcContext) -> bool {
    const LEAST: u16 = 0x0600;
    load::<Be16>(ctx, ETHERNET - 2).is_some_and(|kind| kind.get() >= LEAST)
}

/// Whether the headers that the switch parses leave the node unchanged.
#[inline(always)]
fn is_valid(ctx: &TcContext, place: u32) -> bool {
    transport(ctx).is_some_and(|(protocol, header)| skb::is_of_transport(place, protocol, header))
}

/// Protocol and offset of the transport header. `None` if the packet is not IP, or is a fragment: the kernel completes the
/// checksum before it fragments a packet.
#[inline(always)]
fn transport(ctx: &TcContext) -> Option<(u8, u32)> {
    match load::<Be16>(ctx, ETHERNET - 2)? {
        IPV4 => behind_ipv4(ctx),
        IPV6 => behind_ipv6(ctx),
        _ => None,
    }
}

#[inline(always)]
fn behind_ipv4(ctx: &TcContext) -> Option<(u8, u32)> {
    const FRAGMENT: u32 = 6;
    const PROTOCOL: u32 = 9;
    /// The flag for more fragments, and the offset.
    const IS_FRAGMENT: u16 = 0x3fff;
    let len = u32::from(load::<u8>(ctx, ETHERNET)? & 0xf) * 4;
    let fragment = load::<Be16>(ctx, ETHERNET + FRAGMENT)?.get();
    if len < IPV4_HEADER || fragment & IS_FRAGMENT != 0 {
        return None;
    }
    Some((load::<u8>(ctx, ETHERNET + PROTOCOL)?, ETHERNET + len))
}

/// Skips extension headers as the switch does (`ipv6_find_hdr` in net/ipv6/exthdrs_core.c).
#[inline(always)]
fn behind_ipv6(ctx: &TcContext) -> Option<(u8, u32)> {
    const NEXT: u32 = 6;
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const AUTHENTICATION: u8 = 51;
    const DESTINATION: u8 = 60;
    /// More than any kernel sends.
    const EXTENSIONS: usize = 8;
    let mut next = load::<u8>(ctx, ETHERNET + NEXT)?;
    let mut at = ETHERNET + IPV6_HEADER;
    for _ in 0..EXTENSIONS {
        let unit = match next {
            HOP_BY_HOP | ROUTING | DESTINATION => 8,
            // Its length is in units of 4 bytes, minus 2.
            AUTHENTICATION => 4,
            FRAGMENT => return None,
            _ => return Some((next, at)),
        };
        let [following, len] = load::<[u8; 2]>(ctx, at)?;
        next = following;
        at += u32::from(len) * unit + 8;
    }
    None
}

#[inline(always)]
fn load<T>(ctx: &TcContext, offset: u32) -> Option<T> {
    ctx.load(offset as usize).ok()
}

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

// The kernel provides the helper that reads its memory only to programs with a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
