//! Frames from the wire of VLAN networks.

use aya_ebpf::{helpers::generated::bpf_skb_vlan_pop, programs::TcContext};
use contiv_abi::{
    Be16, DropReason, DsrHook, FdbKey, LogResult, LogStage, Segment, SegmentEntry, service_mac,
};

use crate::{
    delivery,
    dsr::{self, Macs},
    frame::{self, ETHERNET, Ethernet},
    guard, log, maps,
    neighbour::{self, Requester},
    packet::{self, Ingress, passes},
    pod,
    verdict::Verdict,
};

/// Mask of the VLAN identifier in a tag; the other bits are priority and DEI.
pub(crate) const VID: u16 = 0x0fff;

/// The network of a frame, by its tag, if this node has the network on the wire.
#[inline(always)]
pub(crate) fn network(ctx: &TcContext) -> Option<(Segment, SegmentEntry)> {
    let segment = Segment::vlan(tag_of(ctx)?);
    let entry = maps::segment(&segment)?;
    if entry.flags & SegmentEntry::ON_NODE == 0 { Some((segment, entry)) } else { None }
}

/// Removes the tag.
#[inline(always)]
pub(crate) fn enter(ctx: &TcContext) -> bool {
    // SAFETY: the context is the one that the kernel gave to this program.
    unsafe { bpf_skb_vlan_pop(ctx.skb.skb) == 0 }
}

/// Processes a frame of this network, without its tag, that was received on `ifindex`.
#[inline(always)]
pub(crate) fn receive(ctx: &TcContext, ifindex: u32, segment: Segment, entry: &SegmentEntry) -> Verdict {
    forward(ctx, ifindex, segment, entry).unwrap_or_else(Verdict::from)
}

/// VLAN identifier of the outermost 802.1Q tag, which the kernel has usually moved from the data to the `skb`.
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
    // Zero is a priority tag, which names no network.
    (tag != 0).then_some(tag)
}

#[inline(always)]
fn forward(
    ctx: &TcContext,
    ifindex: u32,
    segment: Segment,
    entry: &SegmentEntry,
) -> Result<Verdict, DropReason> {
    let ethernet = Ethernet::from_outside(ctx)?;
    packet::from_outside(&ethernet, segment, Ingress::WIRE)?;
    packet::set_network(packet::current().ok_or(DropReason::Malformed)?, entry);
    passes(guard::ctv_guard(ctx.skb.skb))?;
    if neighbour::answer(ctx, &ethernet, segment, entry, Requester::Wire)? {
        pod::push_tag(ctx, segment)?;
        return Ok(Verdict::Out(ifindex));
    }
    let is_group = ethernet.is_group();
    let place = maps::destination(&FdbKey::new(segment, ethernet.destination));
    let is_here = place.is_some_and(|place| place.ifindex != 0);
    // The uplink is in promiscuous mode; most frames are for other stations and belong to no flow of this node.
    if !is_here && !is_group {
        if !dsr::is_for_service(ctx) {
            return Err(DropReason::NotLocal);
        }
        packet::current().ok_or(DropReason::Malformed)?.to_service = 1;
    }
    passes(guard::ctv_guard_source(ctx.skb.skb))?;
    log::stage(LogStage::Source, LogResult::Passed);
    delivery::arrive(ctx)
}

/// Forwards the frame of the packet metadata to the node of a service's backend, on the wire.
#[inline(always)]
pub(crate) fn forward_dsr(ctx: &TcContext) -> Result<(), DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let macs = Macs { destination: packet.destination_mac, source: service_mac(&packet.tuple.destination) };
    ctx.store(0, &macs, 0).map_err(|_| DropReason::RewriteFailed)?;
    pod::push_tag(ctx, packet.segment)?;
    dsr::count(DsrHook::Tc, ctx.len());
    Ok(())
}
