//! Frames from pods.

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_vlan_push, programs::TcContext};
use contiv_abi::{DropReason, LogResult, LogStage, Segment, SegmentEntry, maps::Stage};

use crate::{
    delivery::{self, OUT, REPLICATE},
    dscp,
    frame::{self, Ethernet},
    guard, host, ip, log, maps,
    neighbour::{self, Requester},
    packet::{self, Admission, PacketMeta, Route, passes},
    policy, rate, receiver, route, source, tunnel,
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    check(ctx).unwrap_or_else(Verdict::from)
}

/// Continues with a frame from the pod at the port `ifindex` that has left the queue.
#[inline(always)]
pub(crate) fn resume(ctx: &TcContext, ifindex: u32) -> Verdict {
    match source::ctv_port(ctx.skb.skb, ifindex) {
        packet::GO_ON => forward(ctx).unwrap_or_else(Verdict::from),
        reason => Verdict::Drop(packet::reason(reason)),
    }
}

#[inline(always)]
fn check(ctx: &TcContext) -> Result<Verdict, DropReason> {
    match source::ctv_sender(ctx.skb.skb) {
        packet::GO_ON => {}
        reason => return Err(packet::reason(reason)),
    }
    log::stage(LogStage::Source, LogResult::Passed);
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    if packet.queue != 0 {
        return Ok(Verdict::Wait {
            queue: packet.queue,
            priority: packet.priority,
            port: packet.source_port,
        });
    }
    rate::sends(packet.source_group, packet.source_port, ctx.len())?;
    forward(ctx)
}

#[inline(always)]
fn forward(ctx: &TcContext) -> Result<Verdict, DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let (segment, ifindex) = (packet.segment, packet.source_port);
    let (destination, source) = (packet.destination_mac, packet.source_mac);
    let ethernet = Ethernet { destination, source, kind: packet.kind };
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    packet::set_network(packet, &entry);
    passes(guard::ctv_guard(ctx.skb.skb))?;
    if neighbour::answer(ctx, &ethernet, segment, &entry, Requester::Port(ifindex))? {
        return Ok(Verdict::Out(ifindex));
    }
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    if packet.probe != 0 {
        return Err(DropReason::SpoofedIp);
    }
    if ip::pass(ctx, packet)? { send(ctx, packet) } else { Ok(Verdict::Continue(Stage::SlowPath)) }
}

/// Forwards a frame from a pod after the stages.
#[inline(always)]
pub(crate) fn send(ctx: &TcContext, packet: &mut PacketMeta) -> Result<Verdict, DropReason> {
    // Only IP packets have a DSCP, and neighbour discovery is not marked.
    if packet.admission == Admission::RULES {
        dscp::mark(ctx, packet.source_group)?;
    }
    policy::admits_sender(packet)?;
    let code = ctv_onward(packet, ctx.skb.skb);
    delivery::verdict(packet, code)
}

/// Determines the next hop of the current packet, and prepares the frame for it. The result is one of the codes in `delivery`, or
/// the number of a drop reason.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_onward(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    onward(&TcContext::new(skb), packet).unwrap_or_else(|reason| reason as u32)
}

#[inline(always)]
fn onward(ctx: &TcContext, packet: &mut PacketMeta) -> Result<u32, DropReason> {
    let segment = packet.segment;
    if packet.is_for_group() {
        return Ok(REPLICATE);
    }
    let is_routed = packet.route == Route::HOP;
    if packet.route == Route::ROUTER {
        return Err(DropReason::NoRoute);
    }
    if packet.route == Route::KERNEL {
        return by_kernel(ctx, packet);
    }
    if is_routed {
        let code = route::ctv_hop(packet, ctx.skb.skb);
        if code == DropReason::TtlExceeded as u32 && packet.segment_flags & SegmentEntry::ON_NODE != 0 {
            route::to_kernel(packet);
            if packet.route == Route::KERNEL {
                return by_kernel(ctx, packet);
            }
        }
        passes(code)?;
    }
    route::locate(packet);
    let (known, place) = (packet.placed != 0, packet.place);
    if place.ifindex == packet.source_port && packet.translated == 0 {
        return Err(DropReason::Hairpin);
    }
    if place.ifindex != 0 {
        return delivery::to_port(packet, place);
    }
    if known {
        receiver::reaches(packet, place.group)?;
    } else {
        receiver::leaves(packet)?;
    }
    if packet.segment_flags & SegmentEntry::ON_NODE != 0 {
        return if is_routed { Err(DropReason::NoRoute) } else { Ok(REPLICATE) };
    }
    let vni = segment.vni();
    let is_nowhere = place.vtep.is_zero();
    // A VXLAN network floods a unicast frame to an unknown address, as the OVS bridge does: it may be an address that a pod has
    // assigned itself. In a VLAN, the switches forward it, to other nodes and to gateways.
    if vni.is_some() && is_nowhere {
        return if is_routed { Err(DropReason::NoRoute) } else { Ok(REPLICATE) };
    }
    if packet.out == 0 {
        return Err(DropReason::NoUplink);
    }
    let Some(vni) = vni else {
        push_tag(ctx, segment)?;
        return Ok(OUT);
    };
    let tos = frame::ctv_class_of(ctx.skb.skb, packet.kind.wire().into()) as u8;
    tunnel::address(ctx, vni, &place.vtep, tos)?;
    Ok(OUT)
}

/// Sends the packet to the node's kernel, unless the receiver is another endpoint than that for which the flow was evaluated.
#[inline(always)]
fn by_kernel(ctx: &TcContext, packet: &mut PacketMeta) -> Result<u32, DropReason> {
    if packet.out == 0 {
        return Err(DropReason::NoUplink);
    }
    route::locate(packet);
    if packet.placed != 0 {
        receiver::reaches(packet, packet.place.group)?;
    } else {
        receiver::leaves(packet)?;
    }
    passes(host::ctv_leave(packet, ctx.skb.skb))?;
    Ok(OUT)
}

/// Pushes the VLAN tag of the network.
#[inline(always)]
pub(crate) fn push_tag(ctx: &TcContext, segment: Segment) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    if unsafe { bpf_skb_vlan_push(ctx.skb.skb, frame::VLAN.wire(), segment.tag()) } == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}
