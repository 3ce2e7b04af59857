//! The filters of pods' interfaces on OVS nodes.
//!
//! ```text
//! pod veth, ingress -> ovs_from_pod -> the switch of the kernel
//! pod veth, packet socket of the switch in userspace, ingress -> ovs_taken
//! ```
//!
//! OpenFlow does not see where the kernel will write a checksum that the sender has left to it ([`skb`]), so the first one looks there.
//! It also drops frames of LLC, which the switch's kernel may take for IP: the flows drop them only where they read them.
//! The second one keeps frames that the switch has read from the network stack of the node.

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
        // Filters that follow, and the switch, decide.
        return TC_ACT_UNSPEC;
    }
    if let Some(drops) = DROPS.get_ptr_mut(0) {
        // SAFETY: a value of this CPU.
        unsafe { *drops += 1 };
    }
    TC_ACT_SHOT
}

/// A frame that a pod sent, of which the switch has its copy.
#[classifier]
fn ovs_taken(_ctx: TcContext) -> i32 {
    TC_ACT_SHOT
}

/// Whether the frame has an EtherType, not a length (IEEE 802.3 3.2.6).
#[inline(always)]
fn has_ethertype(ctx: &TcContext) -> bool {
    const LEAST: u16 = 0x0600;
    load::<Be16>(ctx, ETHERNET - 2).is_some_and(|kind| kind.get() >= LEAST)
}

/// Whether the headers that the switch reads are the ones that will leave the node.
#[inline(always)]
fn is_valid(ctx: &TcContext, place: u32) -> bool {
    transport(ctx).is_some_and(|(protocol, header)| skb::is_of_transport(place, protocol, header))
}

/// Protocol and offset of the transport header. `None` of what is not IP, and of fragments: the kernel fragments no packet before its
/// checksum is complete.
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

/// As the switch walks through extension headers (`ipv6_find_hdr` in net/ipv6/exthdrs_core.c).
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
            // It counts in fours, beyond the first two.
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

// The helper that reads the kernel's memory is open to programs under a compatible licence only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
