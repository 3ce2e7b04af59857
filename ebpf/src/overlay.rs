//! Frames from the tunnels of other nodes.

use aya_ebpf::programs::TcContext;
use contiv_abi::{DropReason, LogResult, LogStage, Segment};

use crate::{
    delivery,
    frame::{self, Ethernet},
    guard, log, maps,
    neighbour::{self, Requester},
    packet::{self, Ingress, passes},
    tunnel,
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext, vni: u32) -> Verdict {
    forward(ctx, vni).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn forward(ctx: &TcContext, vni: u32) -> Result<Verdict, DropReason> {
    if !maps::is_peer(&packet::current().ok_or(DropReason::Malformed)?.vtep) {
        return Err(DropReason::UnknownPeer);
    }
    let segment = Segment::vxlan(vni);
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    let ethernet = Ethernet::from_outside(ctx)?;
    packet::from_outside(&ethernet, segment, Ingress::TUNNEL)?;
    packet::set_network(packet::current().ok_or(DropReason::Malformed)?, &entry);
    passes(guard::ctv_guard(ctx.skb.skb))?;
    passes(guard::ctv_guard_source(ctx.skb.skb))?;
    log::stage(LogStage::Source, LogResult::Passed);
    if neighbour::answer(ctx, &ethernet, segment, &entry, Requester::Outside)? {
        tunnel::address(
            ctx,
            vni,
            &packet::current().ok_or(DropReason::Malformed)?.vtep,
            frame::ctv_class_of(ctx.skb.skb, ethernet.kind.wire().into()) as u8,
        )?;
        return Ok(Verdict::Out(entry.out));
    }
    delivery::arrive(ctx)
}
