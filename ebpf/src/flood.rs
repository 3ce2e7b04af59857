//! Broadcast, unknown unicast and multicast (BUM) frames: a copy for each receiver.
//!
//! A separate program, which the others tail-call.

use aya_ebpf::{bindings::__sk_buff, cty::c_void, helpers::generated::bpf_loop, programs::TcContext};
use contiv_abi::{
    DropReason, FloodKey, Segment, Vtep,
    maps::{PEERS_CAPACITY, PORTS_CAPACITY},
};

use crate::{frame, log, maps, packet, pod, policy, rate, tunnel, verdict::Verdict};

/// Replicates the frame in the packet metadata.
#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    replicate(ctx).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn replicate(ctx: &TcContext) -> Result<Verdict, DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let (segment, ports, out, source) = (packet.segment, packet.ports, packet.out, packet.source_port);
    if source != 0 {
        rate::storm(ctx, source)?;
    }
    to_ports(ctx, segment, ports, source);
    // A frame from another node is not sent to further nodes: the sending node replicates to all of them.
    if source == 0 || out == 0 || policy::ctv_leaves() == 0 {
        return Ok(Verdict::Delivered);
    }
    let Some(vni) = segment.vni() else {
        pod::push_tag(ctx, segment)?;
        return Ok(Verdict::Out(out));
    };
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let (members, kind) = (packet.members, packet.kind);
    let tos = frame::ctv_class_of(ctx.skb.skb, kind.wire().into()) as u8;
    to_members(ctx, vni, out, members, tos);
    Ok(Verdict::Delivered)
}

/// Sends one copy to each port of the network that the packet metadata admits, except `source`, which is zero for a frame from
/// another node.
#[inline(always)]
fn to_ports(ctx: &TcContext, segment: Segment, ports: u32, source: u32) {
    let mut walk = PortWalk { skb: ctx.skb.skb, segment, source };
    each(ports.min(PORTS_CAPACITY as u32), port_copy as *mut c_void, (&raw mut walk).cast());
}

/// Sends one copy to each other node that has the network.
#[inline(always)]
fn to_members(ctx: &TcContext, vni: u32, out: u32, members: u32, tos: u8) {
    let mut walk = MemberWalk { skb: ctx.skb.skb, vni, out, tos: u32::from(tos) };
    each(members.min(PEERS_CAPACITY as u32), member_copy as *mut c_void, (&raw mut walk).cast());
}

/// Calls `body` with `bpf_loop` and not in a loop: the verifier checks the body once, whatever the length of the list.
#[inline(always)]
fn each(count: u32, body: *mut c_void, context: *mut c_void) {
    // The result is the number of iterations, or an error for more than 2^23 of them, which the capacities exclude.
    // SAFETY: `body` is one of the two functions below, and `context` is its argument.
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

/// Continue with the next slot.
const NEXT: i64 = 0;

extern "C" fn port_copy(slot: u64, walk: *mut PortWalk) -> i64 {
    // SAFETY: `to_ports` passes a `PortWalk` that outlives the loop.
    let walk = unsafe { &*walk };
    let Some(ifindex) = maps::flood_slot(&FloodKey { segment: walk.segment, slot: slot as u32 }) else {
        return NEXT;
    };
    if ifindex == walk.source {
        return NEXT;
    }
    // A frame that the rules deny to a receiver is not counted as dropped; the rule counts it.
    if policy::ctv_admits(ifindex) == packet::GO_ON {
        match receives(walk.skb, ifindex) {
            Ok(()) => clone_to(walk.skb, ifindex, None),
            Err(reason) => maps::count_drop(reason as u32, TcContext::new(walk.skb).len()),
        }
    }
    NEXT
}

/// Charges a copy to the rate limit of its receiver. If the copy has to wait, it does so in the queue of the host end.
#[inline(always)]
fn receives(skb: *mut __sk_buff, ifindex: u32) -> Result<(), DropReason> {
    let Some(port) = maps::port(&ifindex) else { return Ok(()) };
    rate::receives(port.group, ifindex, TcContext::new(skb).len()).map(drop)
}

extern "C" fn member_copy(slot: u64, walk: *mut MemberWalk) -> i64 {
    // SAFETY: `to_members` passes a `MemberWalk` that outlives the loop.
    let walk = unsafe { &*walk };
    let key = FloodKey { segment: Segment::vxlan(walk.vni), slot: slot as u32 };
    let Some(vtep) = maps::member_slot(&key) else { return NEXT };
    let ctx = TcContext::new(walk.skb);
    match tunnel::address(&ctx, walk.vni, &vtep, walk.tos as u8) {
        Ok(()) => clone_to(walk.skb, walk.out, Some(&vtep)),
        Err(reason) => maps::count_drop(reason as u32, ctx.len()),
    }
    NEXT
}

#[inline(always)]
fn clone_to(skb: *mut __sk_buff, ifindex: u32, vtep: Option<&Vtep>) {
    if log::copied(ifindex, vtep) {
        return;
    }
    let ctx = TcContext::new(skb);
    if ctx.clone_redirect(ifindex, 0).is_err() {
        maps::count_drop(DropReason::CloneFailed as u32, ctx.len());
    }
}
