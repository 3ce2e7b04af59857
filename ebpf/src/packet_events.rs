//! Packet events for monitoring clients: dropped packets, and the first packets of flows.
//!
//! While no client monitors, a drop and a new flow cost one read of an array element, and packets of known flows cost nothing.
//! While a client monitors, each CPU reports at most `Watch::limit` events per second and counts the others as lost, so a flood
//! of drops costs a flood of counter updates.

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
    packet::{self, PacketMeta},
    parse,
};

#[btf_map(name = "ctv_events")]
static EVENTS: RingBuf<Event, EVENTS_BYTES> = RingBuf::new();

#[btf_map(name = "ctv_watch")]
static WATCH: Array<Watch, 1> = Array::new();

#[btf_map(name = "ctv_event_state")]
static EVENT_STATE: PerCpuArray<EventState, 1> = PerCpuArray::new();

#[inline(always)]
fn is_watched() -> bool {
    WATCH.get(0).is_some_and(|watch| watch.until != 0)
}

/// Counts a dropped frame that was received on `ifindex`, and reports it.
#[inline(always)]
pub(crate) fn dropped(ctx: &TcContext, ifindex: u32, reason: DropReason) {
    ctv_dropped(ctx.skb.skb, reason as u32, ifindex);
}

/// A global function: the verifier checks it once. The result is always zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_dropped(skb: *mut __sk_buff, reason: u32, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    maps::count_drop(reason, ctx.len());
    if is_watched() { report_drop(skb, reason, ifindex) } else { 0 }
}

/// Reports the flow that the current packet opens.
#[inline(always)]
pub(crate) fn flow_opened() {
    if is_watched()
        && let Some(packet) = packet::current()
    {
        let kind = if packet.ip6 != 0 { frame::IPV6 } else { frame::IPV4 };
        ctv_emit_event(0, packet.source_port, kind.wire().into());
    }
}

/// Whether the packet metadata describe a packet that is dropped for this reason as it was sent. A refused packet has been
/// overwritten with the refusal, so it cannot be parsed again.
#[inline(always)]
fn has_metadata(reason: u32) -> bool {
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

/// Inlined: on Linux 6.1, the stack has no room for one more call between this function and the parser.
#[inline(always)]
fn report_drop(skb: *mut __sk_buff, reason: u32, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    if has_metadata(reason) {
        let Some(packet) = packet::current() else { return 0 };
        let kind = if packet.ip6 != 0 { frame::IPV6 } else { frame::IPV4 };
        return ctv_emit_event(reason, ifindex, kind.wire().into());
    }
    ctv_reset_meta(skb, ifindex);
    let Some(packet) = packet::current() else { return 0 };
    let Ok(ethernet) = frame::load::<Ethernet>(&ctx, 0) else {
        return ctv_emit_event(reason, ifindex, 0);
    };
    packet.source_mac = ethernet.source;
    packet.destination_mac = ethernet.destination;
    if ethernet.kind == frame::IPV4 || ethernet.kind == frame::IPV6 {
        packet.ip6 = u8::from(ethernet.kind == frame::IPV6);
        // The parser has then stored the headers that it could read.
        let _why = parse::ctv_parse(packet, skb);
    }
    ctv_emit_event(reason, ifindex, ethernet.kind.wire().into())
}

const POLICY: u32 = DropReason::Policy as u32;

/// Resets the packet metadata for a frame that may not have been parsed.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_reset_meta(skb: *mut __sk_buff, ifindex: u32) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::current() else { return 0 };
    packet.segment = maps::port(&ifindex).map_or(Segment::vxlan(0), |port| port.segment);
    // The parser stores the ports of fragments by domain. It must not store those of a dropped frame, because its source address
    // may be spoofed.
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

/// Writes an event for the current packet to the ring buffer, unless this CPU has reached its limit.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_emit_event(reason: u32, ifindex: u32, kind: u32) -> u32 {
    let (Some(packet), Some(watch)) = (packet::current(), WATCH.get(0)) else { return 0 };
    let Some(state) = EVENT_STATE.get_ptr_mut(0) else { return 0 };
    // SAFETY: the value of this CPU, see `packet::current`.
    let state = unsafe { &mut *state };
    let now = flows::now();
    if now > watch.until {
        return 0;
    }
    if state.second != now {
        state.second = now;
        state.reported = 0;
    }
    if state.reported >= watch.limit {
        state.lost += 1;
        return 0;
    }
    state.reported += 1;
    fill(&mut state.event, packet, reason, ifindex, kind);
    if EVENTS.output(&state.event, 0).is_err() {
        state.lost += 1;
    }
    0
}

/// By words: an assignment would be a loop over bytes, because the compiler does not know that the two do not overlap.
#[inline(always)]
fn copy(from: &Address, to: &mut Address) {
    // SAFETY: both are two aligned words, and `to` is an exclusive reference.
    unsafe { core::ptr::copy_nonoverlapping((&raw const *from).cast::<u64>(), (&raw mut *to).cast(), 2) };
}

#[inline(always)]
fn fill(event: &mut Event, packet: &PacketMeta, reason: u32, ifindex: u32, kind: u32) {
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
