//! Frames for many, or for an address that nobody told us of.

use aya_ebpf::{bindings::__sk_buff, cty::c_void, helpers::generated::bpf_loop, programs::TcContext};
use contiv_abi::{
    DropReason, FloodKey, Segment, SegmentEntry,
    maps::{PEERS_CAPACITY, PORTS_CAPACITY},
};

use crate::{maps, packet, policy, tunnel};

/// One copy to every port of the network that the packet metadata admits, except `source` (zero: a frame from another node has no
/// port here).
#[inline(always)]
pub(crate) fn to_ports(ctx: &TcContext, segment: Segment, entry: &SegmentEntry, source: u32) {
    let mut walk = PortWalk { skb: ctx.skb.skb, segment, source };
    each(entry.ports.min(PORTS_CAPACITY as u32), port_copy as *mut c_void, (&raw mut walk).cast());
}

/// One copy to every other node that has the network.
#[inline(always)]
pub(crate) fn to_members(ctx: &TcContext, vni: u32, entry: &SegmentEntry, tos: u8) {
    let mut walk = MemberWalk { skb: ctx.skb.skb, vni, out: entry.out, tos: u32::from(tos) };
    each(entry.members.min(PEERS_CAPACITY as u32), member_copy as *mut c_void, (&raw mut walk).cast());
}

/// `bpf_loop` and not a loop of our own: the verifier walks the body once, however long the list is.
#[inline(always)]
fn each(count: u32, body: *mut c_void, context: *mut c_void) {
    // The result is how many rounds there were, or an error for more rounds than 2^23, which the
    // capacities exclude.
    // SAFETY: `body` is one of the two below, and `context` what it expects.
    let _rounds = unsafe { bpf_loop(count, body, context, 0) };
}

#[repr(C)]
struct PortWalk {
    skb: *mut __sk_buff,
    segment: Segment,
    source: u32,
}

#[repr(C)]
struct MemberWalk {
    skb: *mut __sk_buff,
    vni: u32,
    out: u32,
    tos: u32,
}

/// Goes on with the next slot.
const NEXT: i64 = 0;

extern "C" fn port_copy(slot: u64, walk: *mut PortWalk) -> i64 {
    // SAFETY: `to_ports` passes its own `PortWalk`, which outlives the loop.
    let walk = unsafe { &*walk };
    let Some(ifindex) = maps::flood_slot(&FloodKey { segment: walk.segment, slot: slot as u32 }) else {
        return NEXT;
    };
    if ifindex == walk.source {
        return NEXT;
    }
    // A receiver that rules exclude is no dropped frame; the rule counts it.
    if policy::ctv_admits(ifindex) == packet::GO_ON {
        clone_to(walk.skb, ifindex);
    }
    NEXT
}

extern "C" fn member_copy(slot: u64, walk: *mut MemberWalk) -> i64 {
    // SAFETY: `to_members` passes its own `MemberWalk`, which outlives the loop.
    let walk = unsafe { &*walk };
    let key = FloodKey { segment: Segment::vxlan(walk.vni), slot: slot as u32 };
    let Some(vtep) = maps::member_slot(&key) else { return NEXT };
    let ctx = TcContext::new(walk.skb);
    match tunnel::address(&ctx, walk.vni, vtep, walk.tos as u8) {
        Ok(()) => clone_to(walk.skb, walk.out),
        Err(reason) => maps::count_drop(reason as u32, ctx.len()),
    }
    NEXT
}

#[inline(always)]
fn clone_to(skb: *mut __sk_buff, ifindex: u32) {
    let ctx = TcContext::new(skb);
    if ctx.clone_redirect(ifindex, 0).is_err() {
        maps::count_drop(DropReason::CloneFailed as u32, ctx.len());
    }
}
