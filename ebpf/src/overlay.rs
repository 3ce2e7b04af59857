//! Frames from the tunnels of other nodes.

use aya_ebpf::programs::TcContext;
use contiv_abi::{DropReason, FdbKey, Segment};

use crate::{
    flood,
    frame::{self, Ethernet},
    ip::{self, Sender},
    learn::{self, Way},
    maps,
    neighbour::{self, Asker},
    tunnel::{self, Origin},
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext, origin: Origin) -> Verdict {
    forward(ctx, origin).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn forward(ctx: &TcContext, origin: Origin) -> Result<Verdict, DropReason> {
    if !maps::is_peer(&origin.vtep) {
        return Err(DropReason::UnknownPeer);
    }
    let segment = Segment::vxlan(origin.vni);
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    let ethernet = Ethernet::from_outside(ctx)?;
    if neighbour::answer(ctx, &ethernet, segment, &entry, Asker::Outside)? {
        tunnel::address(
            ctx,
            origin.vni,
            origin.vtep,
            frame::ctv_class_of(ctx.skb.skb, ethernet.kind.wire().into()) as u8,
        )?;
        return Ok(Verdict::Out(entry.out));
    }
    let passed = ip::pass::<false>(ctx, &ethernet, segment, &entry, Sender::outside(false))?;
    let known =
        if ethernet.is_group() { None } else { maps::destination(&FdbKey::new(segment, passed.destination)) };
    match known {
        Some(place) if place.ifindex != 0 => {
            learn::note(ctx, Way::Pod { ifindex: place.ifindex, group: place.group });
            Ok(Verdict::to_pod(&place))
        }
        // Never from one tunnel into another: every node floods to all of them itself.
        Some(_) => Err(DropReason::NotLocal),
        None => {
            flood::to_ports(ctx, segment, &entry, 0);
            Ok(Verdict::Delivered)
        }
    }
}
