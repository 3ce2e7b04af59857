//! Rewriting the packets of a shortcut, checksums included.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR},
    helpers::generated::bpf_l4_csum_replace,
    programs::TcContext,
};
use contiv_abi::{Changes, FlowCacheEntry, UDP};

use crate::{
    dscp,
    frame::{self, ETHERNET},
    nat,
    plain::{DSCP, HEADER_SUM, PLACES, Place, TOS, read, write},
};

/// What is written is noted whole, so that little depends on what has changed.
#[inline(always)]
pub(crate) fn rewrite<const IP6: bool>(ctx: &TcContext, shortcut: &FlowCacheEntry) -> bool {
    let becomes = &shortcut.becomes;
    if IP6
        && shortcut.changes.what & Changes::CLASS != 0
        && dscp::ctv_class(ctx.skb.skb, becomes.class.into()) != 0
    {
        return false;
    }
    let (data, end) = (ctx.data(), ctx.data_end());
    if data + Place::<IP6>::UDP_END > end {
        return false;
    }
    // SAFETY: before the end of the header of UDP.
    unsafe {
        write(data, becomes.ethernet);
        write(data + 8, becomes.ethernet_rest);
        let at = data + Place::<IP6>::ENDS;
        write(at, becomes.addresses[0]);
        if IP6 {
            write(at + 8, becomes.addresses[1]);
            write(at + 16, becomes.addresses[2]);
            write(at + 24, becomes.addresses[3]);
        } else {
            let sum = read::<u16>(data + HEADER_SUM);
            let sum = fold(u32::from(!sum) + u32::from(shortcut.changes.header_sum));
            write(data + HEADER_SUM, !sum);
            write(data + TOS, read::<u8>(data + TOS) & !DSCP | becomes.class);
        }
        write(data + Place::<IP6>::TRANSPORT, becomes.ports);
    }
    shortcut.changes.what & (Changes::ADDRESSES | Changes::PORTS) == 0 || sum::<IP6>(ctx, shortcut)
}

/// Makes the checksum of the transport: at once if it is plain to see that it is whole, else by [`ctv_sum`], which costs 40 ns.
///
/// Programs do not see which kind of checksum the kernel takes it for. One that a device is to finish (`CHECKSUM_PARTIAL`) is
/// the sum over the pseudo header so far; what is anything else, and is there, is whole. Of the kinds of whole ones only that
/// with a sum over the packet beside it (`CHECKSUM_COMPLETE`) wants more: the header of IPv4 makes up for its addresses, the
/// transport's checksum for addresses and ports, which leaves the addresses to take off. Of IPv6 nothing is left.
#[inline(always)]
fn sum<const IP6: bool>(ctx: &TcContext, shortcut: &FlowCacheEntry) -> bool {
    let (data, end) = (ctx.data(), ctx.data_end());
    let place = data + (shortcut.changes.place & PLACES) as usize;
    if data + Place::<IP6>::TRANSPORT > end || place + 2 > end {
        return false;
    }
    // SAFETY: in the frame, both.
    let (before, told) = unsafe { (read::<u16>(place), read::<u16>(data + Place::<IP6>::LEN)) };
    let len = ctx.len().wrapping_sub(ETHERNET as u32);
    let told = u32::from(u16::from_be(told)) + if IP6 { Place::<IP6>::NETWORK as u32 } else { 0 };
    let len_sum = u32::from((len as u16).wrapping_sub(Place::<IP6>::NETWORK as u16).to_be());
    let pseudo = fold(u32::from(shortcut.changes.pseudo_sum) + len_sum);
    // The difference of the two, which is 0 or 0xffff of equal ones; one more is 1 or 0.
    let apart = fold(u32::from(before) + u32::from(!pseudo)).wrapping_add(1);
    if (len ^ told) | u32::from(zero(apart & !1) | zero(before)) != 0 {
        return ctv_sum(ctx.skb.skb, shortcut) != 0;
    }
    let difference = u32::from(shortcut.changes.address_sum) + u32::from(shortcut.changes.port_sum);
    let sum = !fold(u32::from(!before) + difference);
    // Of UDP, zero means that there is none.
    let sum = sum | (zero(sum) & shortcut.changes.zero);
    // SAFETY: in the frame.
    unsafe { write(place, sum) };
    if !IP6 {
        nat::add_to_whole(ctx, u32::from(!shortcut.changes.address_sum));
    }
    true
}

/// All ones for zero; without a branch, which the verifier would follow both ways.
#[inline(always)]
const fn zero(sum: u16) -> u16 {
    ((sum as u32).wrapping_sub(1) >> 16) as u16
}

/// Makes a checksum of the transport that may be any, as `nat` makes it in two steps. Not zero if it went well.
///
/// Of one that a device will finish, which is not inverted, only the addresses count. Which kind it is the kernel sees; what
/// it has made of the field tells.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_sum(skb: *mut __sk_buff, shortcut: *const FlowCacheEntry) -> u32 {
    let ctx = TcContext::new(skb);
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole value.
    let Some(shortcut) = (unsafe { shortcut.as_ref() }) else { return 0 };
    let udp = shortcut.headers.protocol == UDP;
    let at = u32::from(shortcut.changes.place);
    let Some(place) = sum_at(&ctx, at) else { return 0 };
    // SAFETY: in the frame, as `sum_at` says.
    let before: u16 = unsafe { read(place) };
    if udp && before == 0 {
        // It does without, and makes up for nothing.
        let addresses = if shortcut.headers.kind == frame::IPV6 { shortcut.changes.address_sum } else { 0 };
        nat::add_to_whole(&ctx, u32::from(shortcut.changes.port_sum) + u32::from(addresses));
        return 1;
    }
    let moved = shortcut.changes.what & Changes::ADDRESSES != 0;
    let (difference, pseudo) =
        if moved { (shortcut.changes.address_sum, BPF_F_PSEUDO_HDR) } else { (shortcut.changes.port_sum, 0) };
    let difference = u32::from(difference);
    let flags = u64::from(if udp { pseudo | BPF_F_MARK_MANGLED_0 } else { pseudo });
    // SAFETY: the context is the one that the kernel gave to this program.
    if unsafe { bpf_l4_csum_replace(skb, at, 0, difference.into(), flags) } != 0 {
        return 0;
    }
    if !moved {
        return 1;
    }
    if shortcut.headers.kind == frame::IPV6 {
        nat::mend_sum(&ctx, difference);
    }
    let Some(place) = sum_at(&ctx, at) else { return 0 };
    // SAFETY: in the frame, as `sum_at` says.
    let after: u16 = unsafe { read(place) };
    if shortcut.changes.what & Changes::PORTS == 0 || after == fold(u32::from(before) + difference) {
        return 1;
    }
    let sum = !fold(u32::from(!after) + u32::from(shortcut.changes.port_sum));
    // Zero means that there is none.
    let sum = if udp && sum == 0 { 0xffff } else { sum };
    // SAFETY: in the frame, as `sum_at` says.
    unsafe { write(place, sum) };
    1
}

/// Where two bytes of the frame lie, if it has them.
#[inline(always)]
fn sum_at(ctx: &TcContext, at: u32) -> Option<usize> {
    let place = ctx.data() + (at as usize & PLACES as usize);
    (place + 2 <= ctx.data_end()).then_some(place)
}

/// A sum of 16-bit words in 16 bits (RFC 1071); not zero unless all of them were.
#[inline(always)]
pub(crate) const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
