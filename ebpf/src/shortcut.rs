//! Packets of busy flows go past the stages: this CPU knows what became of the last one with the same headers.
//!
//! Whole packets of TCP and UDP without options, in flows that were answered. What the stages made of one is noted
//! (`learn`), the next ones are compared, rewritten and sent on from here. Once in a second, and whenever anything has
//! changed that it relies on, a packet goes through the stages again. So do those that begin or end a connection.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_MARK_MANGLED_0, BPF_F_PSEUDO_HDR, TC_ACT_SHOT},
    btf_maps::{Array, PerCpuArray},
    helpers::generated::{bpf_jiffies64, bpf_ktime_get_coarse_ns, bpf_l4_csum_replace, bpf_redirect},
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{Be16, Changes, DropReason, Epochs, Headers, Shortcut, TCP, UDP, maps::SHORTCUTS_CAPACITY};

use crate::{
    dscp,
    frame::{self, ETHERNET},
    header::{Ipv4, Ipv6},
    learn, nat,
    packet::tcp,
    pod, policy, tell,
    tunnel::{self, Origin},
};

#[btf_map(name = "ctv_fast")]
static SHORTCUTS: PerCpuArray<Shortcut, SHORTCUTS_CAPACITY> = PerCpuArray::new();

/// The agent adds to it in its own memory.
#[btf_map(name = "ctv_epochs")]
static EPOCHS: Array<Epochs, 1, { aya_ebpf::bindings::BPF_F_MMAPABLE as usize }> = Array::new();

/// What [`find`] returns when the packet has to go through the stages.
const STAGES: i32 = -100;
/// And when it could not be rewritten.
const FAILED: i32 = -101;

/// Sends a pod's packet on if there is a shortcut for it, and says what the kernel is to be told. Else it is noted as it is,
/// for `learn`.
#[inline(always)]
pub(crate) fn take(ctx: &TcContext) -> Option<i32> {
    // Here without a call, which costs 10 ns where the processor's returns are held against speculation.
    verdict(ctx, find(ctx, 0, 0))
}

/// The same of a packet from a tunnel.
#[inline(always)]
pub(crate) fn take_tunnelled(ctx: &TcContext, from: Origin) -> Option<i32> {
    verdict(ctx, ctv_take(ctx.skb.skb, from.vni, u32::from_ne_bytes(from.vtep)))
}

#[inline(always)]
fn verdict(ctx: &TcContext, code: i32) -> Option<i32> {
    match code {
        STAGES => None,
        FAILED => {
            tell::dropped(ctx, crate::arrival(ctx), DropReason::RewriteFailed);
            Some(TC_ACT_SHOT)
        }
        code => Some(code),
    }
}

/// A function of its own for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_take(skb: *mut __sk_buff, vni: u32, vtep: u32) -> i32 {
    find(&TcContext::new(skb), vni, vtep)
}

#[inline(always)]
fn find(ctx: &TcContext, vni: u32, vtep: u32) -> i32 {
    let kind = kind(ctx);
    let code = if kind == frame::IPV4.wire() {
        pass::<false>(ctx, vni, vtep)
    } else if kind == frame::IPV6.wire() {
        pass::<true>(ctx, vni, vtep)
    } else {
        STAGES
    };
    if code == STAGES {
        learn::ctv_came(ctx.skb.skb, vni, vtep);
    }
    code
}

/// The shortcut in a place.
#[inline(always)]
pub(crate) fn at<'a>(place: u32) -> Option<&'a mut Shortcut> {
    let shortcut = SHORTCUTS.get_ptr_mut(place & (SHORTCUTS_CAPACITY as u32 - 1))?;
    // SAFETY: this CPU's own, as `packet::in_hand`.
    Some(unsafe { &mut *shortcut })
}

/// The numbers that shortcuts rely on.
#[inline(always)]
pub(crate) fn epochs() -> Option<*mut Epochs> {
    EPOCHS.get_ptr_mut(0)
}

/// Nanoseconds since boot, as they were at the last tick.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// How often the kernel's clock has ticked. Compiled into the program, where whoever asks for the time calls a function.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_jiffies64() }
}

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
struct Place<const IP6: bool>;

impl<const IP6: bool> Place<IP6> {
    const NETWORK: usize = if IP6 { size_of::<Ipv6>() } else { size_of::<Ipv4>() };
    /// Of the addresses.
    const ENDS: usize = ETHERNET + if IP6 { 8 } else { 12 };
    /// Of the header of TCP or UDP.
    const TRANSPORT: usize = ETHERNET + Self::NETWORK;
    const PROTOCOL: usize = ETHERNET + if IP6 { 6 } else { 9 };
    /// Of the flags in the header of TCP.
    const TCP_FLAGS: usize = 13;
    const TCP_LEN: usize = 20;
    /// The length, of all or of what follows the header.
    const LEN: usize = ETHERNET + if IP6 { 4 } else { 2 };
    /// The end of the header of UDP.
    const UDP_END: usize = Self::TRANSPORT + 8;
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
const PLACES: u8 = 127;
/// The places of the checksum, and of the TOS byte, of IPv4.
const HEADER_SUM: usize = ETHERNET + 10;
const TOS: usize = ETHERNET + 1;
const DSCP: u8 = 0xfc;

/// Whether the frame begins with headers that shortcuts are for, and has all of them.
///
/// In numbers rather than by cases: whatever differs between TCP and UDP here, the verifier would follow to the end twice.
#[inline(always)]
fn is_plain<const IP6: bool>(data: usize, end: usize) -> bool {
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
unsafe fn addresses<const IP6: bool>(data: usize) -> [u64; 4] {
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
unsafe fn has<const IP6: bool>(data: usize, headers: &Headers) -> bool {
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
fn kind(ctx: &TcContext) -> u16 {
    let (data, end) = (ctx.data(), ctx.data_end());
    // SAFETY: the context is the one that the kernel gave to this program.
    let tagged = unsafe { (*ctx.skb.skb).vlan_present } != 0;
    if tagged || data + ETHERNET > end {
        return 0;
    }
    // SAFETY: inside of the header of Ethernet.
    unsafe { read(data + 12) }
}

/// Takes the shortcut of a packet, if it has one: it is rewritten and redirected, and the result is the kernel's code. Else
/// the result is [`STAGES`].
#[inline(always)]
fn pass<const IP6: bool>(ctx: &TcContext, vni: u32, vtep: u32) -> i32 {
    let (data, end) = (ctx.data(), ctx.data_end());
    if !is_plain::<IP6>(data, end) {
        return STAGES;
    }
    // SAFETY: the context is the one that the kernel gave to this program.
    let ifindex = unsafe { (*ctx.skb.skb).ifindex };
    // SAFETY: `is_plain` has said that they are there.
    let place =
        unsafe { Headers::place(addresses::<IP6>(data), read(data + Place::<IP6>::TRANSPORT), ifindex) };
    let (Some(shortcut), Some(epochs)) = (at(place), epochs()) else { return STAGES };
    // SAFETY: as above.
    let same = unsafe { has::<IP6>(data, &shortcut.headers) };
    // SAFETY: the one value of the array. Others add to it meanwhile, one number at a time.
    let epochs = unsafe { &*epochs };
    if !(same
        && shortcut.ifindex == ifindex
        && shortcut.vni == vni
        && u32::from_ne_bytes(shortcut.vtep) == vtep
        && is_right(shortcut, epochs))
    {
        return STAGES;
    }
    shortcut.packets += 1;
    shortcut.bytes += u64::from(ctx.len());
    follow::<IP6>(ctx, shortcut, epochs.takes != 0)
}

/// Whether everything is as it was when the shortcut was made.
#[inline(always)]
fn is_right(shortcut: &Shortcut, epochs: &Epochs) -> bool {
    shortcut.all == epochs.all
        && shortcut.epoch == epochs.of(shortcut.shard)
        && ticks() < shortcut.until_tick
        && (shortcut.groups == [0; 2] || policy::are_sets_of(shortcut.groups, shortcut.generations))
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

/// Rewrites the packet and sends it where the flow's packets go.
#[inline(always)]
fn follow<const IP6: bool>(ctx: &TcContext, shortcut: &Shortcut, takes: bool) -> i32 {
    if shortcut.changes.what != 0 && !rewrite::<IP6>(ctx, shortcut) {
        return FAILED;
    }
    if shortcut.way == Shortcut::POD {
        return crate::deliver(ctx, shortcut.out, takes).unwrap_or(FAILED);
    }
    let addressed = if shortcut.way == Shortcut::TUNNEL {
        let vni = shortcut.segment.vni().unwrap_or(0);
        tunnel::address(ctx, vni, shortcut.to, shortcut.becomes.class)
    } else {
        pod::push_tag(ctx, shortcut.segment)
    };
    if addressed.is_err() {
        return FAILED;
    }
    // SAFETY: a helper without memory arguments.
    (unsafe { bpf_redirect(shortcut.out, 0) }) as i32
}

/// What is written is noted whole, so that little depends on what has changed.
#[inline(always)]
fn rewrite<const IP6: bool>(ctx: &TcContext, shortcut: &Shortcut) -> bool {
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
fn sum<const IP6: bool>(ctx: &TcContext, shortcut: &Shortcut) -> bool {
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
extern "C" fn ctv_sum(skb: *mut __sk_buff, shortcut: *const Shortcut) -> u32 {
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
