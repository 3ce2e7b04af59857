//! Frames from the wire of VLAN networks.

use aya_ebpf::{helpers::generated::bpf_skb_vlan_pop, programs::TcContext};
use contiv_abi::{Be16, DropReason, FdbKey, Segment, SegmentEntry};

use crate::{
    flood,
    frame::{self, ETHERNET, Ethernet},
    ip::{self, Sender},
    maps,
    neighbour::{self, Asker},
    pod,
    verdict::Verdict,
};

/// The VLAN identifier in a tag; the rest is priority.
const VID: u16 = 0x0fff;

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    // Untagged frames and other people's tags belong to the host.
    let Some(tag) = tag_of(ctx) else { return Verdict::Pass };
    let segment = Segment::vlan(tag);
    match maps::segment(&segment) {
        Some(entry) => forward(ctx, segment, &entry).unwrap_or_else(Verdict::from),
        None => Verdict::Pass,
    }
}

/// The identifier of the outermost 802.1Q tag, which the kernel has mostly taken out of the bytes.
#[inline(always)]
fn tag_of(ctx: &TcContext) -> Option<u16> {
    // SAFETY: the context is the one that the kernel gave to this program.
    let (present, proto, tci) = unsafe {
        let skb = ctx.skb.skb;
        ((*skb).vlan_present != 0, (*skb).vlan_proto, (*skb).vlan_tci)
    };
    let tag = if present {
        if proto != u32::from(frame::VLAN.wire()) {
            return None;
        }
        tci as u16 & VID
    } else {
        let [kind, tci] = ctx.load::<[Be16; 2]>(ETHERNET - 2).ok()?;
        if kind != frame::VLAN {
            return None;
        }
        tci.get() & VID
    };
    // Zero is "priority only", no network.
    (tag != 0).then_some(tag)
}

#[inline(always)]
fn forward(ctx: &TcContext, segment: Segment, entry: &SegmentEntry) -> Result<Verdict, DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    let (ifindex, popped) = unsafe { ((*ctx.skb.skb).ifindex, bpf_skb_vlan_pop(ctx.skb.skb)) };
    if popped != 0 {
        return Err(DropReason::RewriteFailed);
    }
    let ethernet = Ethernet::read(ctx)?;
    if neighbour::answer(ctx, &ethernet, segment, entry, Asker::Outside)? {
        pod::push_tag(ctx, segment)?;
        return Ok(Verdict::Out(ifindex));
    }
    if ethernet.is_group() {
        flood::to_ports(ctx, segment, entry, 0);
        return Ok(Verdict::Delivered);
    }
    // The uplink listens to everything; most of it is for others, and no flow of ours.
    match maps::destination(&FdbKey::new(segment, ethernet.destination)) {
        Some(place) if place.ifindex != 0 => {
            ip::pass(ctx, &ethernet, segment, entry, Sender::OUTSIDE)?;
            Ok(Verdict::to_pod(&place))
        }
        _ => Err(DropReason::NotLocal),
    }
}
