//! Frames from the wire of VLAN networks.

use aya_ebpf::{helpers::generated::bpf_skb_vlan_pop, programs::TcContext};
use contiv_abi::{Be16, DropReason, FdbKey, Relayed, Segment, SegmentEntry};

use crate::{
    flood,
    frame::{self, ETHERNET, Ethernet},
    ip::{self, Sender},
    maps,
    neighbour::{self, Asker},
    packet, pod,
    relay::{self, Macs},
    verdict::Verdict,
};

/// The VLAN identifier in a tag; the rest is priority.
pub(crate) const VID: u16 = 0x0fff;

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
    if neighbour::answer(ctx, &ethernet, segment, entry, Asker::Wire)? {
        pod::push_tag(ctx, segment)?;
        return Ok(Verdict::Out(ifindex));
    }
    if ethernet.is_group() {
        flood::to_ports(ctx, segment, entry, 0);
        return Ok(Verdict::Delivered);
    }
    let key = FdbKey::new(segment, ethernet.destination);
    if let Some(place) = maps::destination(&key).filter(|place| place.ifindex != 0) {
        let passed = ip::pass::<true>(ctx, &ethernet, segment, entry, Sender::OUTSIDE)?;
        return if passed.refused != 0 {
            back(ctx, segment, ifindex, passed.refused)
        } else {
            Ok(Verdict::to_pod(&place))
        };
    }
    // The uplink listens to everything; most of it is for others, and no flow of ours.
    if !relay::is_for_service(ctx, segment) {
        return Err(DropReason::NotLocal);
    }
    let passed = ip::pass::<true>(ctx, &ethernet, segment, entry, Sender::CLIENT)?;
    if passed.refused != 0 {
        return back(ctx, segment, ifindex, passed.refused);
    }
    if passed.relayed {
        let macs = Macs { destination: passed.destination, source: ethernet.destination };
        ctx.store(0, &macs, 0).map_err(|_| DropReason::RewriteFailed)?;
        pod::push_tag(ctx, segment)?;
        relay::count(Relayed::Tc, ctx.len());
        return Ok(Verdict::Out(ifindex));
    }
    match maps::destination(&FdbKey::new(segment, passed.destination)) {
        Some(place) if place.ifindex != 0 => Ok(Verdict::to_pod(&place)),
        _ => Err(DropReason::NotLocal),
    }
}

/// A refusal goes where the packet came from.
#[inline(always)]
fn back(ctx: &TcContext, segment: Segment, ifindex: u32, refused: u32) -> Result<Verdict, DropReason> {
    pod::push_tag(ctx, segment)?;
    Ok(Verdict::Back(ifindex, packet::reason(refused)))
}
