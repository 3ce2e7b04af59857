//! Translation of addresses and ports, with all checksums that cover them.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    helpers::generated::{bpf_csum_diff, bpf_l3_csum_replace, bpf_l4_csum_replace, bpf_skb_store_bytes},
    programs::TcContext,
};
use contiv_abi::{Address, Be16, DropReason, Mac, NeighKey, TCP, UDP, service_mac};

use crate::{
    flows, frame, maps,
    packet::{self, Fragment, ICMPV6, IcmpError, PacketMeta, Route},
    plain::{self, At, add_to_whole},
    route, source,
};

/// Rewrites the current packet from `tuple` to `wanted`, and the Ethernet addresses that change with it.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_translate(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet::code(translate(&ctx, packet))
}

#[inline(always)]
fn translate(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    if packet.located == 0 {
        packet.placed = 0;
        // A translation of the source alone does not change the next hop.
        if !packet.wanted.destination.same(&packet.tuple.destination) && ctv_receiver_here(packet) == 0 {
            if ctv_receiver(packet) == 0 {
                return Err(DropReason::StrangeBackend);
            }
            route::ctv_next_hop(packet);
        }
    }
    rewrite(ctx, packet)?;
    if source::same(&packet.destination_mac, &packet.source_mac) {
        // A pod that reaches itself receives the packet from the Ethernet address of the service, not from its own.
        store(ctx, 6, &service_mac(&packet.wanted.source))?;
    }
    Ok(())
}

/// Rewrites addresses and ports of the current packet, and its destination Ethernet address.
#[inline(always)]
pub(crate) fn rewrite(ctx: &TcContext, packet: &mut PacketMeta) -> Result<(), DropReason> {
    if ctv_plain(packet, ctx.skb.skb) == 0 {
        ends(ctx, packet)?;
        store(ctx, 0, &packet.destination_mac)?;
    }
    Ok(())
}

/// Sets the destination Ethernet address in the packet metadata to that of the endpoint with the new destination. Zero if there
/// is no such endpoint.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_receiver(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    let Some(owner) = owner else { return 0 };
    packet.destination_mac = owner.mac;
    if packet.wanted.destination.same(&packet.tuple.source) {
        packet.route = Route::BRIDGED;
    }
    1
}

/// As [`ctv_receiver`] without a map lookup by address: succeeds if the port that has received the previous packet of the flow
/// still has the new destination, on the network of the sender. Zero if not.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_receiver_here(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(mac) = receiver_here(packet) else { return 0 };
    packet.destination_mac = mac;
    1
}

#[inline(always)]
fn receiver_here(packet: &PacketMeta) -> Option<Mac> {
    let to = &packet.wanted.destination;
    if to.same(&packet.tuple.source) {
        return None;
    }
    let flow = flows::record(packet.entry >> 1)?;
    // SAFETY: a record of the map. The hint in it is compared with the port.
    let receiver =
        unsafe { (&raw const (*flow).halves[(packet.entry & 1) as usize].receiver).read_volatile() };
    let port = route::port_on_network(packet, u32::from(receiver).wrapping_sub(1))?;
    let own = if packet.ip6 != 0 { &port.ip6 } else { &port.ip };
    let [a, b, c, d, e, f, ..] = port.mac;
    own.same(to).then_some([a, b, c, d, e, f])
}

/// Whether the packet is TCP or UDP over IPv4 without options, as most are, so that its headers are in the linear part of the
/// frame.
#[inline(always)]
fn is_plain(packet: &PacketMeta) -> bool {
    packet.ip6 == 0
        && packet.icmp_error == IcmpError::NONE
        && packet.fragment != Fragment::LATER
        && packet.l4 == At::<false>::TRANSPORT as u32
        && (packet.protocol == TCP || packet.protocol == UDP)
}

/// Rewrites a plain packet in place. Non-zero on success; else the packet is unchanged.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_plain(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    if !is_plain(packet) {
        return 0;
    }
    plain::rewrite_ends(&TcContext::new(skb), &packet.tuple, &packet.wanted, &packet.destination_mac).into()
}

/// Rewrites ports and addresses of any packet.
#[inline(always)]
fn ends(ctx: &TcContext, packet: &PacketMeta) -> Result<(), DropReason> {
    if packet.icmp_error != IcmpError::NONE {
        let inside = inner(ctx, packet)?;
        // The checksum of ICMPv6 covers the outer addresses, too; `addresses` updates it for them.
        sum_l4(ctx, packet.l4 + 2, inside, 0)?;
    } else if packet.fragment != Fragment::LATER {
        ports(ctx, packet)?;
    }
    addresses(ctx, packet)
}

/// Offset of the checksum in the transport header.
#[inline(always)]
const fn checksum_at(protocol: u8) -> Option<u32> {
    match protocol {
        TCP => Some(16),
        UDP => Some(6),
        _ => None,
    }
}

/// Rewrites ports, and updates the checksum.
#[inline(always)]
fn ports(ctx: &TcContext, packet: &PacketMeta) -> Result<(), DropReason> {
    let Some(at) = checksum_at(packet.protocol) else { return Ok(()) };
    let before = [packet.tuple.source_port, packet.tuple.destination_port];
    let after = [packet.wanted.source_port, packet.wanted.destination_port];
    let changed = difference(&before, &after, 0);
    sum_l4(ctx, packet.l4 + at, changed, zero_means_none(packet.protocol))?;
    if packet.protocol == UDP && frame::load::<u16>(ctx, (packet.l4 + at) as usize)? == 0 {
        // No transport checksum compensates for the change of the ports.
        add_to_whole(ctx, changed);
    }
    store(ctx, packet.l4, &after)
}

/// Flags for a checksum that zero disables: UDP may be sent without a checksum, which is zero then (RFC 768; over IPv6 if both
/// ends agree, RFC 6935). A computed checksum of zero is sent as 0xffff.
#[inline(always)]
const fn zero_means_none(protocol: u8) -> u64 {
    if protocol == UDP { BPF_F_MARK_MANGLED_0 as u64 } else { 0 }
}

/// Rewrites addresses, and updates the checksums of the header and of the transport. Returns after the header for a later
/// fragment.
#[inline(always)]
fn addresses(ctx: &TcContext, packet: &PacketMeta) -> Result<(), DropReason> {
    let sum = if packet.ip6 != 0 {
        const AT: u32 = 8;
        let before = [packet.tuple.source, packet.tuple.destination];
        let after = [packet.wanted.source, packet.wanted.destination];
        store(ctx, packet.l3 + AT, &after)?;
        difference(&before, &after, 0)
    } else {
        const AT: u32 = 12;
        let before = low([&packet.tuple.source, &packet.tuple.destination]);
        let after = low([&packet.wanted.source, &packet.wanted.destination]);
        let sum = difference(&before, &after, 0);
        sum_l3(ctx, packet.l3 + CHECKSUM, sum)?;
        store(ctx, packet.l3 + AT, &after)?;
        sum
    };
    if packet.fragment == Fragment::LATER {
        // The checksum of the IPv4 header compensates for its addresses. Those of IPv6 are compensated for by the transport
        // checksum, which is in another fragment.
        if packet.ip6 != 0 {
            add_to_whole(ctx, sum);
        }
        return Ok(());
    }
    let at = match packet.protocol {
        ICMPV6 => Some(2),
        protocol => checksum_at(protocol),
    };
    let Some(at) = at else { return Ok(()) };
    let pseudo = u64::from(BPF_F_PSEUDO_HDR);
    sum_l4(ctx, packet.l4 + at, sum, pseudo | zero_means_none(packet.protocol))?;
    if packet.ip6 != 0 {
        restore_sum(ctx, sum);
    }
    Ok(())
}

/// Restores the sum over the whole packet (`CHECKSUM_COMPLETE`) after the transport checksum over IPv6 has been updated for other
/// addresses. The helper assumes IPv4, in which the header checksum compensates for the addresses, and changes that sum. In IPv6,
/// addresses and transport checksum compensate for each other. (The flag `BPF_F_IPV6` for this exists since Linux 6.16.)
#[inline(always)]
fn restore_sum(ctx: &TcContext, difference: u32) {
    add_to_whole(ctx, difference);
}

/// Offset of the checksum in the IPv4 header.
const CHECKSUM: u32 = 10;

/// Rewrites the packet that an ICMP error quotes to the tuple that the receiver of the error has sent. Returns the difference for
/// the checksum of the error.
#[inline(always)]
fn inner(ctx: &TcContext, packet: &PacketMeta) -> Result<u32, DropReason> {
    let (at, protocol) = (packet.inner_l3, packet.inner.protocol);
    let (before, after) = (&packet.inner, &packet.inner_wanted);
    let mut total;
    let moved;
    if packet.ip6 != 0 {
        const AT: u32 = 8;
        let (before, after) = ([before.source, before.destination], [after.source, after.destination]);
        moved = difference(&before, &after, 0);
        total = moved;
        store(ctx, at + AT, &after)?;
    } else {
        const AT: u32 = 12;
        let before = low([&before.source, &before.destination]);
        let after = low([&after.source, &after.destination]);
        moved = difference(&before, &after, 0);
        // The header checksum compensates for the addresses.
        total = 0;
        sum_l3(ctx, at + CHECKSUM, moved)?;
        store(ctx, at + AT, &after)?;
    }
    let Some(sum_at) = checksum_at(protocol) else { return Ok(total) };
    let (before, after) =
        ([before.source_port, before.destination_port], [after.source_port, after.destination_port]);
    total = difference(&before, &after, total);
    store(ctx, packet.inner_l4, &after)?;
    // An ICMP error has to quote only the ports of TCP (RFC 792); bytes behind the end of the packet are no checksum.
    let sum_at = packet.inner_l4 + sum_at;
    if sum_at + size_of::<Be16>() as u32 > packet.limit {
        return Ok(total);
    }
    let old = frame::load::<[Be16; 2]>(ctx, sum_at as usize - 2)?;
    sum_l4(ctx, sum_at, difference(&before, &after, moved), zero_means_none(protocol))?;
    let new = frame::load::<[Be16; 2]>(ctx, sum_at as usize - 2)?;
    total = difference(&old, &new, total);
    Ok(total)
}

/// The IPv4 addresses of two mapped addresses.
#[inline(always)]
fn low(addresses: [&Address; 2]) -> [[u8; 4]; 2] {
    [addresses[0].low(), addresses[1].low()]
}

/// The checksum difference of replacing `before` with `after`, added to `seed`.
#[inline(always)]
fn difference<T>(before: &T, after: &T, seed: u32) -> u32 {
    let size = size_of::<T>() as u32;
    // SAFETY: both have the given length, and the helper only reads them.
    (unsafe {
        bpf_csum_diff(
            core::ptr::from_ref(before).cast_mut().cast(),
            size,
            core::ptr::from_ref(after).cast_mut().cast(),
            size,
            seed,
        )
    }) as u32
}

#[inline(always)]
fn sum_l3(ctx: &TcContext, at: u32, difference: u32) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    done(unsafe { bpf_l3_csum_replace(ctx.skb.skb, at, 0, difference.into(), 0) })
}

#[inline(always)]
fn sum_l4(ctx: &TcContext, at: u32, difference: u32, flags: u64) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    done(unsafe { bpf_l4_csum_replace(ctx.skb.skb, at, 0, difference.into(), flags) })
}

#[inline(always)]
fn store<T>(ctx: &TcContext, at: u32, bytes: &T) -> Result<(), DropReason> {
    let size = size_of::<T>() as u32;
    // SAFETY: the context is the one that the kernel gave to this program, and the source has the given length.
    done(unsafe { bpf_skb_store_bytes(ctx.skb.skb, at, core::ptr::from_ref(bytes).cast(), size, 0) })
}

#[inline(always)]
fn done(result: i64) -> Result<(), DropReason> {
    if result == 0 { Ok(()) } else { Err(DropReason::RewriteFailed) }
}
