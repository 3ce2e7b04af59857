//! What is told to whoever watches: drops, and flows that begin.
//!
//! While nobody does, a drop and a new flow cost the look at one word of an array, and packets of known flows nothing.
//! While somebody does, each CPU tells no more than so much in a second, and counts the rest: a flood of drops costs a
//! flood of counts.

use aya_ebpf::{
    bindings::__sk_buff,
    btf_maps::{Array, PerCpuArray, RingBuf},
    helpers::generated::bpf_ktime_get_ns,
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{Address, Be16, Domain, DropReason, Event, EventState, Segment, Watch, maps::EVENTS_BYTES};

use crate::{
    flows,
    frame::{self, Ethernet},
    maps,
    packet::{self, Packet},
    parse,
};

#[btf_map(name = "ctv_events")]
static EVENTS: RingBuf<Event, EVENTS_BYTES> = RingBuf::new();

#[btf_map(name = "ctv_watch")]
static WATCH: Array<Watch, 1> = Array::new();

#[btf_map(name = "ctv_told")]
static EVENT_STATE: PerCpuArray<EventState, 1> = PerCpuArray::new();

#[inline(always)]
fn is_watched() -> bool {
    WATCH.get(0).is_some_and(|watch| watch.until != 0)
}

/// Counts a frame that goes no further, and tells of it. It has come in by `ifindex`.
#[inline(always)]
pub(crate) fn dropped(ctx: &TcContext, ifindex: u32, reason: DropReason) {
    ctv_dropped(ctx.skb.skb, reason as u32, ifindex);
}

/// A function of its own for the verifier, as the others here; there is nothing to say about the outcome.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_dropped(skb: *mut __sk_buff, reason: u32, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    maps::count_drop(reason, ctx.len());
    if is_watched() { tell_drop(skb, reason, ifindex) } else { 0 }
}

/// Tells of the flow that the packet in hand begins.
#[inline(always)]
pub(crate) fn began() {
    if is_watched()
        && let Some(packet) = packet::in_hand()
    {
        let kind = if packet.ip6 != 0 { frame::IPV6 } else { frame::IPV4 };
        ctv_tell(0, packet.source_port, kind.wire().into());
    }
}

/// Whether a packet that is dropped for this reason had come as far as to be in hand as it was sent. A refused packet
/// has become its own refusal by then, so the bytes would not tell.
#[inline(always)]
fn is_in_hand(reason: u32) -> bool {
    const REASONS: [DropReason; 6] = [
        DropReason::Policy,
        DropReason::NoBackend,
        DropReason::NoService,
        DropReason::StrangeBackend,
        DropReason::NotTracked,
        DropReason::NoPort,
    ];
    REASONS.iter().fold(0u64, |set, reason| set | 1 << *reason as u64) >> (reason & 63) & 1 != 0
}

/// Not a function of its own: the stack of Linux 6.1 has no room for one more call between here and the parser.
#[inline(always)]
fn tell_drop(skb: *mut __sk_buff, reason: u32, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    if is_in_hand(reason) {
        let Some(packet) = packet::in_hand() else { return 0 };
        let kind = if packet.ip6 != 0 { frame::IPV6 } else { frame::IPV4 };
        return ctv_tell(reason, ifindex, kind.wire().into());
    }
    ctv_look(skb, ifindex);
    let Some(packet) = packet::in_hand() else { return 0 };
    let Ok(ethernet) = frame::load::<Ethernet>(&ctx, 0) else {
        return ctv_tell(reason, ifindex, 0);
    };
    packet.source_mac = ethernet.source;
    packet.destination_mac = ethernet.destination;
    if ethernet.kind == frame::IPV4 || ethernet.kind == frame::IPV6 {
        packet.ip6 = u8::from(ethernet.kind == frame::IPV6);
        // What can be read of it is in the packet then.
        let _why = parse::ctv_parse(packet, skb);
    }
    ctv_tell(reason, ifindex, ethernet.kind.wire().into())
}

const POLICY: u32 = DropReason::Policy as u32;

/// Forgets what was in hand, for a frame that may not have been. A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_look(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::in_hand() else { return 0 };
    packet.segment = maps::port(&ifindex).map_or(Segment::vxlan(0), |port| port.segment);
    // The parser remembers the ports of fragments by their domain: not those of a frame that was dropped, whose source may be another's.
    packet.domain = Domain::NONE;
    packet.len = ctx.len();
    // SAFETY: numbers.
    unsafe {
        contiv_abi::clear(&raw mut packet.tuple);
        contiv_abi::clear(&raw mut packet.wanted);
        contiv_abi::clear(&raw mut packet.source_mac);
        contiv_abi::clear(&raw mut packet.destination_mac);
    }
    packet.service = 0;
    0
}

/// Tells of the packet in hand, if this CPU may.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_tell(reason: u32, ifindex: u32, kind: u32) -> u32 {
    let (Some(packet), Some(watch)) = (packet::in_hand(), WATCH.get(0)) else { return 0 };
    let Some(told) = EVENT_STATE.get_ptr_mut(0) else { return 0 };
    // SAFETY: this CPU's own, as `packet::in_hand`.
    let told = unsafe { &mut *told };
    let now = flows::now();
    if now > watch.until {
        return 0;
    }
    if told.second != now {
        told.second = now;
        told.taken = 0;
    }
    if told.taken >= watch.limit {
        told.lost += 1;
        return 0;
    }
    told.taken += 1;
    fill(&mut told.event, packet, reason, ifindex, kind);
    if EVENTS.output(&told.event, 0).is_err() {
        told.lost += 1;
    }
    0
}

/// An assignment would be a loop over bytes, where the compiler cannot tell that the places do not overlap.
#[inline(always)]
fn copy(from: &Address, to: &mut Address) {
    // SAFETY: two words each, aligned, and one is borrowed as nobody else's.
    unsafe { core::ptr::copy_nonoverlapping((&raw const *from).cast::<u64>(), (&raw mut *to).cast(), 2) };
}

#[inline(always)]
fn fill(event: &mut Event, packet: &Packet, reason: u32, ifindex: u32, kind: u32) {
    // SAFETY: a helper without arguments.
    event.at = unsafe { bpf_ktime_get_ns() };
    copy(&packet.tuple.source, &mut event.source);
    copy(&packet.tuple.destination, &mut event.destination);
    copy(&packet.wanted.destination, &mut event.backend);
    event.segment = packet.segment;
    event.rules = match reason {
        0 => packet.rules,
        POLICY => [packet.ruled, 0],
        _ => [0; 2],
    };
    event.service = packet.service;
    event.reason = reason;
    event.ifindex = ifindex;
    event.len = packet.len;
    event.source_port = packet.tuple.source_port;
    event.destination_port = packet.tuple.destination_port;
    event.backend_port = packet.wanted.destination_port;
    event.kind = Be16::from_wire(kind as u16);
    event.source_mac = packet.source_mac;
    event.destination_mac = packet.destination_mac;
    event.protocol = packet.tuple.protocol;
    // SAFETY: bytes.
    unsafe { contiv_abi::clear(&raw mut event.zero) };
}
