//! Plain packets: TCP and UDP without IP options, with all headers in the linear part of the frame. They are read and rewritten
//! in place; helper calls for each field would take three times as long.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    helpers::generated::{bpf_csum_update, bpf_l4_csum_replace},
    programs::TcContext,
};
use contiv_abi::{Mac, TCP, Tuple, UDP};

use crate::{
    frame::{ETHERNET, MAC, mapped, read, write},
    header::{Ipv4, Ipv6},
    packet::tcp,
};

/// Offsets in a plain packet.
pub(crate) struct At<const IP6: bool>;

impl<const IP6: bool> At<IP6> {
    pub(crate) const NETWORK: usize = if IP6 { size_of::<Ipv6>() } else { size_of::<Ipv4>() };
    /// Offset of the TCP or UDP header.
    pub(crate) const TRANSPORT: usize = ETHERNET + Self::NETWORK;
    const PROTOCOL: usize = ETHERNET + if IP6 { 6 } else { 9 };
    const ADDRESSES: usize = ETHERNET + if IP6 { 8 } else { 12 };
    /// Offset of the length in the IP header: that of the packet (IPv4) or of the payload (IPv6).
    const LENGTH: usize = ETHERNET + if IP6 { 4 } else { 2 };
    const UDP_END: usize = Self::TRANSPORT + 8;
    const TCP_END: usize = Self::TRANSPORT + 20;
}

/// Offset of the checksum in the IPv4 header.
const HEADER_SUM: usize = ETHERNET + 10;

/// A plain packet of an established flow.
pub(crate) struct Plain {
    /// Words of the addresses, see `Address::words`.
    pub(crate) source: [u64; 2],
    pub(crate) destination: [u64; 2],
    /// As `Tuple::ports`.
    pub(crate) ports: u32,
    pub(crate) protocol: u8,
    /// Ethernet address, in the lower six bytes.
    pub(crate) destination_mac: u64,
    pub(crate) source_mac: u64,
    /// TCP: sequence number after the segment.
    pub(crate) end: u32,
    /// TCP: acknowledgement number.
    pub(crate) acknowledged: u32,
}

/// Changes of a packet by its translation: the destination address of the original direction, or the source address of a reply;
/// the ports; and the destination Ethernet address.
pub(crate) struct Change {
    pub(crate) before: [u64; 2],
    pub(crate) after: [u64; 2],
    pub(crate) ports: u32,
    pub(crate) mac: u64,
}

/// An Ethernet address as a number with the first byte lowest.
#[inline(always)]
pub(crate) const fn mac(bytes: &[u8; 8]) -> u64 {
    u64::from_le(u64::from_ne_bytes(*bytes))
}

/// EtherType in wire order; zero for a frame without a complete Ethernet header.
#[inline(always)]
pub(crate) fn kind(ctx: &TcContext) -> u16 {
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + ETHERNET > end {
        return 0;
    }
    // SAFETY: inside the Ethernet header.
    unsafe { read(data + 12) }
}

/// Parses a plain packet that fills its frame and neither opens nor closes a connection.
#[inline(always)]
pub(crate) fn parse<const IP6: bool>(ctx: &TcContext) -> Option<Plain> {
    const TURNS: u8 = tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK;
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + At::<IP6>::UDP_END > end {
        return None;
    }
    let at = data + At::<IP6>::TRANSPORT;
    // SAFETY: before the end of the UDP header, which was compared with the end of the frame.
    unsafe {
        let length = u32::from(u16::from_be(read(data + At::<IP6>::LENGTH)));
        if !is_plain::<IP6>(data) || length != in_header::<IP6>(ctx.len()) {
            return None;
        }
        let [source, destination] = addresses::<IP6>(data);
        let mut plain = Plain {
            source,
            destination,
            ports: read(at),
            protocol: read(data + At::<IP6>::PROTOCOL),
            destination_mac: u64::from_le(read(data)) & MAC,
            source_mac: u64::from_le(read(data + 6)) & MAC,
            end: 0,
            acknowledged: 0,
        };
        if plain.protocol == UDP {
            return Some(plain);
        }
        if plain.protocol != TCP || data + At::<IP6>::TCP_END > end {
            return None;
        }
        if read::<u8>(at + 13) & TURNS != tcp::ACK {
            return None;
        }
        let sequence = u32::from_be(read(at + 4));
        let header = u32::from(read::<u8>(at + 12) >> 4) * 4;
        let data = ctx.len().wrapping_sub(At::<IP6>::TRANSPORT as u32).wrapping_sub(header);
        plain.end = sequence.wrapping_add(data);
        plain.acknowledged = u32::from_be(read(at + 8));
        Some(plain)
    }
}

/// The length in the IP header of a packet that fills a frame of `len` bytes. A packet of more than 64 KiB (BIG TCP) has a length
/// of zero, so it takes the stages.
#[inline(always)]
const fn in_header<const IP6: bool>(len: u32) -> u32 {
    len.wrapping_sub((if IP6 { At::<IP6>::TRANSPORT } else { ETHERNET }) as u32)
}

/// Whether the packet has no IP options and is no fragment.
///
/// # Safety
///
/// The fixed IP header must be in the frame.
#[inline(always)]
unsafe fn is_plain<const IP6: bool>(data: usize) -> bool {
    const FOUR_AND_FIVE_WORDS: u8 = 0x45;
    // "More fragments" and the fragment offset, in memory order.
    const FRAGMENT: u16 = 0x3fff_u16.to_be();
    // SAFETY: guaranteed by the caller.
    let version: u8 = unsafe { read(data + ETHERNET) };
    if IP6 {
        // A packet with extension headers has another protocol number.
        return version >> 4 == 6;
    }
    // SAFETY: as above.
    version == FOUR_AND_FIVE_WORDS && unsafe { read::<u16>(data + ETHERNET + 6) } & FRAGMENT == 0
}

/// Words of the source and destination addresses.
///
/// # Safety
///
/// As for [`is_plain`].
#[inline(always)]
unsafe fn addresses<const IP6: bool>(data: usize) -> [[u64; 2]; 2] {
    let at = data + At::<IP6>::ADDRESSES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        if IP6 {
            [[read(at), read(at + 8)], [read(at + 16), read(at + 24)]]
        } else {
            [mapped(read(at)), mapped(read(at + 4))]
        }
    }
}

/// Rewrites a packet. False if that fails; then the packet is unchanged.
#[inline(always)]
pub(crate) fn rewrite<const IP6: bool>(
    ctx: &TcContext,
    packet: &Plain,
    reply: bool,
    change: &Change,
) -> bool {
    let moved = moved::<IP6>(change.before, change.after);
    let ports = replaced(packet.ports, change.ports);
    let udp = u32::from(packet.protocol == UDP);
    let at = At::<IP6>::TRANSPORT as u32 + 16 - 10 * udp;
    let is_whole = is_whole::<IP6>(ctx, packet, at);
    if !is_whole && sum::<IP6>(ctx, udp, fold(moved), fold(ports)) == 0 {
        return false;
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    let sum = data + (at & OFFSETS) as usize;
    if data + At::<IP6>::UDP_END > end || sum + 2 > end {
        return false;
    }
    // SAFETY: before the end of the shortest transport header, and of the frame.
    unsafe {
        if is_whole {
            let after = !(fold(u64::from(!read::<u16>(sum)) + moved + ports) as u16);
            // In UDP, zero means that there is no checksum.
            write(sum, if udp != 0 && after == 0 { 0xffff } else { after });
        }
        write(data, change.mac.to_le() as u32);
        write(data + 4, (change.mac.to_le() >> 32) as u16);
        write(data + At::<IP6>::TRANSPORT, change.ports);
        let at = data + At::<IP6>::ADDRESSES;
        if IP6 {
            let at = if reply { at } else { at + 16 };
            write(at, change.after[0]);
            write(at + 8, change.after[1]);
        } else {
            let sum = data + HEADER_SUM;
            write(sum, !(fold(u64::from(!read::<u16>(sum)) + moved) as u16));
            write(if reply { at } else { at + 4 }, (change.after[1] >> 32) as u32);
        }
    }
    if is_whole && !IP6 {
        add_to_whole(ctx, !fold(moved));
    }
    true
}

/// Whether the transport checksum at an offset is certainly a complete one.
///
/// Programs cannot read `ip_summed`. A checksum that a device will complete (`CHECKSUM_PARTIAL`) is the sum over the pseudo
/// header; any other value except zero is complete. Only `CHECKSUM_COMPLETE`, with the sum over the whole packet, needs a further
/// update. In IPv4, the header checksum compensates for its addresses, and the transport checksum for addresses and ports; so the
/// addresses remain to be subtracted from that sum. In IPv6, nothing remains.
#[inline(always)]
fn is_whole<const IP6: bool>(ctx: &TcContext, packet: &Plain, at: u32) -> bool {
    let place = ctx.data() + (at & OFFSETS) as usize;
    if place + 2 > ctx.data_end() {
        return false;
    }
    // SAFETY: before the end of the frame.
    let current = unsafe { read::<u16>(place) };
    let len = (ctx.len().wrapping_sub(At::<IP6>::TRANSPORT as u32) as u16).to_be();
    let pseudo = sum_of::<IP6>(packet.source)
        + sum_of::<IP6>(packet.destination)
        + u64::from(len)
        + u64::from(u16::from(packet.protocol).to_be());
    // A number and the complement of an equal number add up to all ones.
    let apart = fold(u64::from(!current) + pseudo);
    current != 0 && apart != 0xffff
}

/// Rewrites destination Ethernet address, IP addresses and ports of an IPv4 packet that is plain. False if that fails; then the
/// packet is unchanged.
#[inline(always)]
pub(crate) fn rewrite_ends(ctx: &TcContext, before: &Tuple, after: &Tuple, mac: &Mac) -> bool {
    let moved = moved::<false>(before.source.words(), after.source.words())
        + moved::<false>(before.destination.words(), after.destination.words());
    let udp = u32::from(before.protocol == UDP);
    if sum::<false>(ctx, udp, fold(moved), fold(replaced(before.ports(), after.ports()))) == 0 {
        return false;
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + At::<false>::UDP_END > end {
        return false;
    }
    let [a, b, c, d, e, f] = *mac;
    // SAFETY: before the end of the shortest transport header.
    unsafe {
        write(data, u32::from_ne_bytes([a, b, c, d]));
        write(data + 4, u16::from_ne_bytes([e, f]));
        let sum = data + HEADER_SUM;
        write(sum, !(fold(u64::from(!read::<u16>(sum)) + moved) as u16));
        let at = data + At::<false>::ADDRESSES;
        write(at, (after.source.words()[1] >> 32) as u32);
        write(at + 4, (after.destination.words()[1] >> 32) as u32);
        write(data + At::<false>::TRANSPORT, after.ports());
    }
    true
}

/// Mask for an offset in the headers, which bounds it for the verifier.
const OFFSETS: u32 = 127;
/// Checksum difference of a word that is replaced with itself.
const UNCHANGED: u32 = 0xffff;

/// Updates the transport checksum, of any kind, for changed addresses (`moved`) and ports. Non-zero on success; else the packet
/// is unchanged.
#[inline(always)]
fn sum<const IP6: bool>(ctx: &TcContext, udp: u32, moved: u32, ports: u32) -> u32 {
    if !IP6 && udp == 0 && ports != UNCHANGED {
        return ctv_sum_tcp(ctx.skb.skb, moved, ports);
    }
    ctv_sum(ctx.skb.skb, At::<IP6>::TRANSPORT as u32 + 16 - 10 * udp, moved, ports)
}

/// As [`ctv_sum`], for TCP over IPv4: in most cases with one helper call instead of two.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_sum_tcp(skb: *mut __sk_buff, moved: u32, ports: u32) -> u32 {
    const AT: u32 = At::<false>::TRANSPORT as u32 + 16;
    let ctx = TcContext::new(skb);
    let before = sum_at(&ctx, AT as usize);
    let whole = !fold(u64::from(!before as u16) + u64::from(moved)) as u16;
    if replace(&ctx, AT, moved, BPF_F_PSEUDO_HDR.into()) != 0 {
        return 0;
    }
    // A checksum that the device will complete covers only the pseudo header, so it was not updated like a complete one. The
    // ports do not change it.
    let after = sum_at(&ctx, AT as usize);
    let is_partial = before | after <= u32::from(u16::MAX) && !is_same_sum(whole, after as u16);
    u32::from(is_partial || replace(&ctx, AT, ports, 0) == 0)
}

/// The checksum at an offset in the linear part of the frame; else a number with more bits. An `Option` would be a partly unknown
/// register to the verifier.
#[inline(always)]
fn sum_at(ctx: &TcContext, at: usize) -> u32 {
    const NONE: u32 = 1 << 16;
    let place = ctx.data() + at;
    if place + 2 > ctx.data_end() {
        return NONE;
    }
    // SAFETY: before the end of the frame.
    unsafe { read::<u16>(place) }.into()
}

/// Whether two checksums are equal, considering that zero has two forms (RFC 1071).
#[inline(always)]
const fn is_same_sum(a: u16, b: u16) -> bool {
    a == b || a == !b && (a == 0 || b == 0)
}

/// Updates the transport checksum at the offset `at`, of any kind, for changed addresses (`moved`) and ports. Non-zero on
/// success; else the packet is unchanged.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_sum(skb: *mut __sk_buff, at: u32, moved: u32, ports: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let at = at & OFFSETS;
    let udp = at == At::<false>::TRANSPORT as u32 + 6 || at == At::<true>::TRANSPORT as u32 + 6;
    let ip6 = at > At::<false>::TRANSPORT as u32 + 16;
    // UDP may be sent without a checksum, which is zero then (RFC 768; RFC 6935).
    let none = if udp { u64::from(BPF_F_MARK_MANGLED_0) } else { 0 };
    // A checksum that the device will complete covers only the pseudo header. Either both calls fail or neither.
    if replace(&ctx, at, moved, none | u64::from(BPF_F_PSEUDO_HDR)) != 0 {
        return 0;
    }
    if ports != UNCHANGED && replace(&ctx, at, ports, none) != 0 {
        return 0;
    }
    if ip6 {
        add_to_whole(&ctx, moved);
    }
    if !udp {
        return 1;
    }
    let Ok(sum) = ctx.load::<u16>(at as usize) else { return 0 };
    if sum == 0 {
        // No transport checksum compensates for the change of the ports.
        add_to_whole(&ctx, ports);
    }
    1
}

#[inline(always)]
fn replace(ctx: &TcContext, at: u32, difference: u32, flags: u64) -> i64 {
    // SAFETY: the context is the one that the kernel gave to this program.
    unsafe { bpf_l4_csum_replace(ctx.skb.skb, at, 0, difference.into(), flags) }
}

/// Adds to the sum over the whole packet, if a device has computed one (`CHECKSUM_COMPLETE`).
#[inline(always)]
pub(crate) fn add_to_whole(ctx: &TcContext, difference: u32) {
    // SAFETY: the context is the one that the kernel gave to this program. The helper fails if there is no such sum.
    let _no_sum = unsafe { bpf_csum_update(ctx.skb.skb, difference) };
}

/// Sum of the words of an address.
#[inline(always)]
const fn sum_of<const IP6: bool>([high, low]: [u64; 2]) -> u64 {
    if IP6 { (high & HALF) + (high >> 32) + (low & HALF) + (low >> 32) } else { low >> 32 }
}

/// Checksum difference of replacing an address with another.
#[inline(always)]
const fn moved<const IP6: bool>(before: [u64; 2], after: [u64; 2]) -> u64 {
    // The complement of each 32-bit half.
    sum_of::<IP6>([!before[0], !before[1]]) + sum_of::<IP6>(after)
}

const HALF: u64 = 0xffff_ffff;

/// Checksum difference of replacing a 32-bit word with another.
#[inline(always)]
const fn replaced(before: u32, after: u32) -> u64 {
    !before as u64 + after as u64
}

/// Folds a sum of words to 16 bits (RFC 1071).
#[inline(always)]
const fn fold(sum: u64) -> u32 {
    let sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    let sum = (sum as u32 & 0xffff) + (sum as u32 >> 16);
    (sum & 0xffff) + (sum >> 16)
}
