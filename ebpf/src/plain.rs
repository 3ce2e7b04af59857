//! Frames that shortcuts are for: whole packets of TCP and UDP without options, in the middle of a connection.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{Be16, Headers, TCP, UDP};

use crate::{
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    packet::tcp,
};

/// Reads a number from the frame at an address that was compared with its end.
///
/// The kernel lets programs read where it likes on machines that can; an unaligned read of the compiler's would be one of
/// bytes.
///
/// # Safety
///
/// All of the number is in the frame.
#[inline(always)]
pub(crate) unsafe fn read<T: Copy>(at: usize) -> T {
    // SAFETY: the caller's promise; a program's loads and stores need no alignment.
    unsafe { (at as *const T).read_volatile() }
}

/// Writes a number into the frame, likewise.
///
/// # Safety
///
/// As of `read`.
#[inline(always)]
pub(crate) unsafe fn write<T: Copy>(at: usize, value: T) {
    // SAFETY: the caller's promise; a program's loads and stores need no alignment.
    unsafe { (at as *mut T).write_volatile(value) }
}

/// Where the headers of a frame are: both fixed, one after the other.
pub(crate) struct Place<const IP6: bool>;

impl<const IP6: bool> Place<IP6> {
    pub(crate) const NETWORK: usize = if IP6 { size_of::<Ipv6>() } else { size_of::<Ipv4>() };
    /// Of the addresses.
    pub(crate) const ENDS: usize = ETHERNET + if IP6 { 8 } else { 12 };
    /// Of the header of TCP or UDP.
    pub(crate) const TRANSPORT: usize = ETHERNET + Self::NETWORK;
    const PROTOCOL: usize = ETHERNET + if IP6 { 6 } else { 9 };
    /// Of the flags in the header of TCP.
    const TCP_FLAGS: usize = 13;
    const TCP_LEN: usize = 20;
    /// The length, of all or of what follows the header.
    pub(crate) const LEN: usize = ETHERNET + if IP6 { 4 } else { 2 };
    /// The end of the header of UDP.
    pub(crate) const UDP_END: usize = Self::TRANSPORT + 8;
}

/// 1 for UDP, 0 for TCP; by a bit that they have not in common, because the verifier would follow both ways of a branch.
#[inline(always)]
pub(crate) const fn is_udp(protocol: u8) -> u16 {
    const _: () = assert!(UDP >> 4 == 1 && TCP >> 4 == 0);
    (protocol >> 4 & 1) as u16
}

/// The place of the transport's checksum in a frame.
#[inline(always)]
pub(crate) const fn place_of_sum(headers: &Headers, udp: u16) -> u8 {
    const LATER: u16 = (Place::<true>::TRANSPORT - Place::<false>::TRANSPORT) as u16;
    const _: () = assert!(frame::IPV6.get() >> 15 == 1 && frame::IPV4.get() >> 15 == 0);
    let ip6 = headers.kind.get() >> 15;
    (Place::<false>::TRANSPORT as u16 + 16 - 10 * udp + ip6 * LATER) as u8
}

/// Bits of the place of a checksum, for the verifier.
pub(crate) const PLACES: u8 = 127;
/// The places of the checksum, and of the TOS byte, of IPv4.
pub(crate) const HEADER_SUM: usize = ETHERNET + 10;
pub(crate) const TOS: usize = ETHERNET + 1;
pub(crate) const DSCP: u8 = 0xfc;

/// Whether the frame begins with headers that shortcuts are for, and has all of them.
///
/// In numbers rather than by cases: whatever differs between TCP and UDP here, the verifier would follow to the end twice.
#[inline(always)]
pub(crate) fn is_plain<const IP6: bool>(data: usize, end: usize) -> bool {
    const TURNS: u8 = tcp::SYN | tcp::FIN | tcp::RST;
    const KNOWN: u64 = 1 << TCP | 1 << UDP;
    if data + Place::<IP6>::UDP_END > end {
        return false;
    }
    // SAFETY: before the end of the header of UDP.
    let (strange, protocol) =
        unsafe { (strangeness::<IP6>(data), read::<u8>(data + Place::<IP6>::PROTOCOL)) };
    let unknown = KNOWN >> (protocol & 63) & 1 ^ 1 | u64::from(protocol >> 6);
    let tcp = is_udp(protocol) as u8 ^ 1;
    // Of UDP it is something else, and before the end.
    let flags = data + Place::<IP6>::TRANSPORT + usize::from(tcp) * Place::<IP6>::TCP_FLAGS;
    // SAFETY: compared with the end just before.
    u64::from(strange) | unknown == 0
        && flags + (Place::<IP6>::TCP_LEN - Place::<IP6>::TCP_FLAGS) <= end
        && unsafe { read::<u8>(flags) } & (TURNS * tcp) == 0
}

/// Zero for a packet without options that is no piece of one.
///
/// # Safety
///
/// All of the fixed header is in the frame.
#[inline(always)]
unsafe fn strangeness<const IP6: bool>(data: usize) -> u16 {
    const PLAIN: u8 = 0x45;
    // "More fragments" and the offset, as they lie in memory.
    const PIECE: u16 = 0x3fff_u16.to_be();
    // SAFETY: the caller's promise.
    let version: u8 = unsafe { read(data + ETHERNET) };
    if IP6 {
        // What is in extension headers has another protocol.
        return u16::from(version >> 4 ^ 6);
    }
    // SAFETY: as above.
    u16::from(version ^ PLAIN) | unsafe { read::<u16>(data + ETHERNET + 6) } & PIECE
}

/// What the headers are.
///
/// # Safety
///
/// `is_plain` has said that they are there.
#[inline(always)]
unsafe fn headers<const IP6: bool>(data: usize) -> Headers {
    // SAFETY: the caller's promise.
    unsafe {
        Headers {
            addresses: addresses::<IP6>(data),
            ethernet: read(data),
            ethernet_rest: read(data + 8),
            ports: read(data + Place::<IP6>::TRANSPORT),
            kind: Be16::from_wire(read(data + 12)),
            class: class::<IP6>(data),
            protocol: read(data + Place::<IP6>::PROTOCOL),
            zero: 0,
        }
    }
}

/// Source and destination, as in `Headers`.
///
/// # Safety
///
/// As of `headers`.
#[inline(always)]
pub(crate) unsafe fn addresses<const IP6: bool>(data: usize) -> [u64; 4] {
    let at = data + Place::<IP6>::ENDS;
    // SAFETY: the caller's promise.
    unsafe { if IP6 { [read(at), read(at + 8), read(at + 16), read(at + 24)] } else { [read(at), 0, 0, 0] } }
}

/// The class.
///
/// # Safety
///
/// As of `headers`.
#[inline(always)]
unsafe fn class<const IP6: bool>(data: usize) -> u8 {
    // SAFETY: the caller's promise.
    let [first, second] = unsafe { read::<u16>(data + ETHERNET) }.to_ne_bytes();
    (if IP6 { first << 4 | second >> 4 } else { second }) & DSCP
}

/// Whether the frame has these headers.
///
/// # Safety
///
/// As of `headers`.
#[inline(always)]
pub(crate) unsafe fn has<const IP6: bool>(data: usize, headers: &Headers) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let at = data + Place::<IP6>::ENDS;
        read::<u64>(at) == headers.addresses[0]
            && (!IP6
                || read::<u64>(at + 8) == headers.addresses[1]
                    && read::<u64>(at + 16) == headers.addresses[2]
                    && read::<u64>(at + 24) == headers.addresses[3])
            && read::<u32>(data + Place::<IP6>::TRANSPORT) == headers.ports
            && read::<u64>(data) == headers.ethernet
            && read::<u32>(data + 8) == headers.ethernet_rest
            && read::<u16>(data + 12) == headers.kind.wire()
            && read::<u8>(data + Place::<IP6>::PROTOCOL) == headers.protocol
            && class::<IP6>(data) == headers.class
    }
}

/// What the frame carries; zero if it says so beside itself only, by a tag.
#[inline(always)]
pub(crate) fn kind(ctx: &TcContext) -> u16 {
    let (data, end) = (ctx.data(), ctx.data_end());
    // SAFETY: the context is the one that the kernel gave to this program.
    let tagged = unsafe { (*ctx.skb.skb).vlan_present } != 0;
    if tagged || data + ETHERNET > end {
        return 0;
    }
    // SAFETY: inside of the header of Ethernet.
    unsafe { read(data + 12) }
}

/// Puts the headers of a packet where `to` is; zero if shortcuts are not for it.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_headers(skb: *mut __sk_buff, to: *mut Headers) -> u32 {
    let ctx = TcContext::new(skb);
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole value.
    let Some(to) = (unsafe { to.as_mut() }) else { return 0 };
    let kind = kind(&ctx);
    let (data, end) = (ctx.data(), ctx.data_end());
    if kind == frame::IPV4.wire() && is_plain::<false>(data, end) {
        // SAFETY: `is_plain` has said that they are there.
        *to = unsafe { headers::<false>(data) };
        1
    } else if kind == frame::IPV6.wire() && is_plain::<true>(data, end) {
        // SAFETY: as above.
        *to = unsafe { headers::<true>(data) };
        1
    } else {
        0
    }
}
