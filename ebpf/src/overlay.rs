//! Frames from the tunnels of other nodes.

use aya_ebpf::programs::TcContext;
use contiv_abi::{DropReason, FdbKey, Segment};

use crate::{
    flood,
    frame::{self, Ethernet},
    ip::{self, Sender},
    maps,
    neighbour::{self, Asker},
    tunnel,
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    forward(ctx).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn forward(ctx: &TcContext) -> Result<Verdict, DropReason> {
    let origin = tunnel::origin(ctx)?;
    if !maps::is_peer(&origin.vtep) {
        return Err(DropReason::UnknownPeer);
    }
    let segment = Segment::vxlan(origin.vni);
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    let ethernet = Ethernet::read(ctx)?;
    if neighbour::answer(ctx, &ethernet, segment, &entry, Asker::Outside)? {
        tunnel::address(ctx, origin.vni, origin.vtep, frame::class_of_service(ctx, &ethernet))?;
        return Ok(Verdict::Out(entry.out));
    }
    let passed = ip::pass(ctx, &ethernet, segment, &entry, Sender::OUTSIDE)?;
    let known =
        if ethernet.is_group() { None } else { maps::destination(&FdbKey::new(segment, passed.destination)) };
    match known {
        Some(place) if place.ifindex != 0 => Ok(Verdict::to_pod(&place)),
        // Never from one tunnel into another: every node floods to all of them itself.
        Some(_) => Err(DropReason::NotLocal),
        None => {
            flood::to_ports(ctx, segment, &entry, 0);
            Ok(Verdict::Delivered)
        }
    }
}
