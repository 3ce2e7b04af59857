//! Fields of the kernel's `struct sk_buff`, of which the context of a program (`__sk_buff`) is a view.
//!
//! A sender may leave its checksum to the device (`CHECKSUM_PARTIAL`): the kernel writes two bytes into the frame when it leaves
//! the node, after the programs have evaluated it. For TCP and UDP sockets, the kernel chooses the offset. A packet socket with
//! `PACKET_VNET_HDR`, an `AF_XDP` socket with TX metadata and a tap device choose it themselves, and `tc` actions in the pod move
//! the headers of any frame. So the offset is checked in every frame from a pod: it must be that of the checksum in the transport
//! header that was parsed, or behind that header, where nothing is evaluated.

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::generated::{bpf_probe_read_kernel, bpf_skb_pull_data},
    programs::TcContext,
};
use contiv_abi::{Be16, ICMP, ICMPV6, SCTP, SkbLayout, TCP, UDP};

/// The kernel has no checksum to write into the frame.
pub(crate) const NO_CHECKSUM: u32 = u32::MAX;
/// An offset that is never valid.
const INVALID: u32 = 0;

/// The agent sets it before it loads the programs. The verifier knows the values, and removes branches that they exclude.
#[unsafe(no_mangle)]
static CTV_SKB: SkbLayout = SkbLayout::UNKNOWN;

/// Ensures that the headers of a frame from a pod are in memory of the kernel. Pages of a process (`MSG_ZEROCOPY`) are
/// transmitted in place, and copied only after the programs have run: a pod could change headers in them after their evaluation.
/// Non-zero on failure.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_own_headers(skb: *mut __sk_buff) -> u32 {
    /// Longer than all extension headers and the quote of an ICMP error.
    const LONGEST: u32 = 1 << 14;
    if are_linear(skb) {
        return 0;
    }
    // SAFETY: the context is the one that the kernel gave to the program.
    let (len, is_segmented) = unsafe { ((*skb).len, (*skb).gso_size != 0) };
    // For some protocols, the kernel segments by the layout of the data, so it must not be moved.
    if is_segmented {
        return 1;
    }
    // SAFETY: as above. No pointer into the frame is in use.
    let failed = unsafe { bpf_skb_pull_data(skb, if len < LONGEST { len } else { LONGEST }) };
    u32::from(failed != 0)
}

/// Whether all headers that are evaluated are in the linear part of the frame, which is memory of the kernel.
#[inline(always)]
fn are_linear(skb: *mut __sk_buff) -> bool {
    const ETHERNET: usize = 14;
    const IPV4: u16 = Be16::new(0x0800).wire();
    const IPV6: u16 = Be16::new(0x86dd).wire();
    // SAFETY: the context is the one that the kernel gave to the program.
    let (data, end) = unsafe { ((*skb).data as usize, (*skb).data_end as usize) };
    let has = |len: usize| data + len <= end;
    // SAFETY: called only for bytes before the end.
    let byte = |at: usize| unsafe { ((data + at) as *const u8).read_volatile() };
    if !has(ETHERNET + 20) {
        return false;
    }
    let kind = u16::from_ne_bytes([byte(ETHERNET - 2), byte(ETHERNET - 1)]);
    if kind == IPV4 {
        let Some(transport) = evaluated(byte(ETHERNET + 9)) else { return false };
        let header = usize::from(byte(ETHERNET) & 0xf) * 4;
        return has(ETHERNET + header + transport);
    }
    kind == IPV6 && is_chain_linear(skb, byte(ETHERNET + 6), end - data)
}

/// As [`are_linear`], for the headers behind that of IPv6. Tunnels insert options into segmented packets.
#[inline(always)]
fn is_chain_linear(skb: *mut __sk_buff, first: u8, linear: usize) -> bool {
    const EXTENSIONS: usize = 5;
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const OPTIONS: u8 = 60;
    let (mut next, mut at) = (first, 14 + 40);
    for _ in 0..EXTENSIONS {
        if next != HOP_BY_HOP && next != ROUTING && next != OPTIONS {
            break;
        }
        let Ok([following, units]) = TcContext::new(skb).load::<[u8; 2]>(at) else { return false };
        (next, at) = (following, at + usize::from(units) * 8 + 8);
    }
    evaluated(next).is_some_and(|transport| at + transport <= linear)
}

/// Number of bytes that are evaluated behind the IP headers; `None` if it may be large: for ICMP, and behind IPv6 extension
/// headers.
#[inline(always)]
fn evaluated(protocol: u8) -> Option<usize> {
    const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];
    let [a, b, c, d, e] = EXTENSIONS;
    match protocol {
        TCP => Some(20),
        UDP => Some(8),
        SCTP => Some(12),
        ICMP | ICMPV6 => None,
        _ if protocol == a || protocol == b || protocol == c || protocol == d || protocol == e => None,
        _ => Some(0),
    }
}

/// Offset in the frame of the two bytes that the kernel will write, or [`NO_CHECKSUM`].
#[inline(always)]
pub(crate) fn checksum(skb: *mut __sk_buff) -> u32 {
    if known(&CTV_SKB.summed) == 0 {
        return NO_CHECKSUM;
    }
    place(skb).unwrap_or(INVALID)
}

/// Whether a checksum at this offset leaves the transport header at `header` as it was parsed. The kernel never leaves an ICMP
/// checksum to the device.
#[inline(always)]
pub(crate) fn is_of_transport(place: u32, protocol: u8, header: u32) -> bool {
    // Offset of the checksum in the header, and length of the header.
    let (own, len) = match protocol {
        TCP => (16, 20),
        UDP => (6, 8),
        SCTP => (8, 12),
        ICMP | ICMPV6 => return false,
        // For other protocols, nothing behind the IP headers is evaluated.
        _ => (0, 0),
    };
    let at = place.wrapping_sub(header);
    place >= header && (at == own || at >= len)
}

/// A field of the layout, read only where it is used: a value that has been on the stack is no constant to the verifier.
#[inline(always)]
fn known(field: &'static u32) -> u32 {
    // SAFETY: a valid reference. Volatile, because the agent changes the value that the compiler sees.
    unsafe { core::ptr::from_ref(field).read_volatile() }
}

#[inline(always)]
fn place(skb: *mut __sk_buff) -> Option<u32> {
    const WORD: usize = size_of::<u32>();
    const LAST: usize = SkbLayout::BLOCK - WORD;
    let mut block = [0_u32; SkbLayout::BLOCK / WORD];
    read(skb, known(&CTV_SKB.block), &mut block)?;
    // `CHECKSUM_PARTIAL` has both bits of `ip_summed`.
    let summed = known(&CTV_SKB.summed);
    if block[0] & summed != summed {
        return Some(NO_CHECKSUM);
    }
    let start = known(&CTV_SKB.start) as usize;
    if start > LAST {
        return None;
    }
    // SAFETY: inside the block, by the comparison, and aligned to a word.
    let checksum = unsafe { block.as_ptr().byte_add(start).read_volatile() };
    let mut ends = [0_u64; 2];
    read(skb, known(&CTV_SKB.head), &mut ends)?;
    let [head, data] = ends;
    let (start, offset) = (u64::from(checksum & 0xffff), u64::from(checksum >> 16));
    // The offset is relative to the start of the buffer and not to that of the frame (`skb_checksum_start_offset`).
    let at = (start + offset).wrapping_sub(data.wrapping_sub(head));
    (at <= u16::MAX.into()).then_some(at as u32)
}

/// Reads fields of the kernel's structure.
#[inline(always)]
fn read<T>(skb: *mut __sk_buff, offset: u32, to: &mut T) -> Option<()> {
    let from = skb.cast_const().cast::<u8>().wrapping_add(offset as usize);
    // SAFETY: the buffer has the given length, and the helper checks the address that it reads from.
    let result = unsafe { bpf_probe_read_kernel((&raw mut *to).cast(), size_of::<T>() as u32, from.cast()) };
    (result == 0).then_some(())
}
