//! Frames that pods send.

use aya_ebpf::{bindings::__sk_buff, helpers::generated::bpf_skb_vlan_push, programs::TcContext};
use contiv_abi::{DropReason, FdbEntry, FdbKey, Segment, SegmentEntry};

use crate::{
    delivery::{self, TO_POD},
    dscp, flood,
    frame::{self, Ethernet},
    guard,
    ip::{self, Sender},
    maps,
    neighbour::{self, Asker},
    packet::{self, Packet, passes},
    policy, rate, source, track, tunnel,
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    check(ctx).unwrap_or_else(Verdict::from)
}

/// What a pod had sent by the port `ifindex`, and waited.
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
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
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
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    let (segment, group, ifindex) = (packet.segment, packet.source_group, packet.source_port);
    let (destination, source) = (packet.destination_mac, packet.source_mac);
    let ethernet = Ethernet { destination, source, kind: packet.kind };
    let entry = maps::segment(&segment).ok_or(DropReason::UnknownSegment)?;
    passes(guard::ctv_guard(ctx.skb.skb))?;
    if neighbour::answer(ctx, &ethernet, segment, &entry, Asker::Port(ifindex))? {
        return Ok(Verdict::Out(ifindex));
    }
    if packet::in_hand().ok_or(DropReason::Malformed)?.probe != 0 {
        return Err(DropReason::SpoofedIp);
    }
    let sender = Sender { port: ifindex, group, to_service: false };
    let passed = ip::pass::<false>(ctx, &ethernet, segment, &entry, sender)?;
    if passed.refused != 0 {
        return Ok(Verdict::Back(ifindex, packet::reason(passed.refused)));
    }
    dscp::mark(ctx, group)?;
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    policy::admits_sender(packet)?;
    packet.out = entry.out;
    packet.ports = entry.ports;
    match ctv_onward(ctx.skb.skb) {
        DELIVERED => Ok(Verdict::Delivered),
        TO_POD => {
            let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
            Ok(Verdict::to_pod(&packet.place))
        }
        OUT => Ok(Verdict::Out(entry.out)),
        reason => Err(packet::reason(reason)),
    }
}

/// To the network's way out.
const OUT: u32 = 0x101;
/// All copies have been sent.
const DELIVERED: u32 = 0x102;

/// Where the packet in hand goes from here, with what it needs on the way. The result is one of these, or the number of the
/// reason to drop it.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_onward(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    onward(&TcContext::new(skb), packet).unwrap_or_else(|reason| reason as u32)
}

#[inline(always)]
fn onward(ctx: &TcContext, packet: &mut Packet) -> Result<u32, DropReason> {
    let (segment, out, from) = (packet.segment, packet.out, packet.source_port);
    let ethernet =
        Ethernet { destination: packet.destination_mac, source: packet.source_mac, kind: packet.kind };
    let for_many = ethernet.is_group();
    let known = if for_many { None } else { maps::destination(&FdbKey::new(segment, ethernet.destination)) };
    // Nowhere: an `Option` that is looked at twice would be half an unknown register to the verifier.
    let place = known.unwrap_or(FdbEntry { ifindex: 0, vtep: [0; 4], group: 0 });
    if place.ifindex == from && packet.translated == 0 {
        return Err(DropReason::Hairpin);
    }
    if place.ifindex != 0 {
        return delivery::to_port(packet, place);
    }
    if known.is_some() {
        track::reaches(packet, place.group)?;
    }
    let vni = segment.vni();
    let is_nowhere = place.vtep == [0; 4];
    // A unicast frame for an address that nobody told us of goes everywhere on VXLAN, as the OVS bridge does it: it may be
    // an address that a pod gave itself. On VLAN the switches outside find the way, to other nodes and to gateways alike.
    if for_many || vni.is_some() && is_nowhere && known.is_none() {
        rate::storm(from)?;
        let entry = SegmentEntry { out, ports: packet.ports, flags: 0 };
        flood::to_ports(ctx, segment, &entry, from);
        if out == 0 || policy::ctv_leaves() == 0 {
            return Ok(DELIVERED);
        }
    } else if out == 0 {
        return Err(DropReason::NoUplink);
    }
    let Some(vni) = vni else {
        push_tag(ctx, segment)?;
        return Ok(OUT);
    };
    let tos = frame::ctv_class_of(ctx.skb.skb, packet.kind.wire().into()) as u8;
    if is_nowhere {
        flood::to_peers(ctx, vni, out, tos);
        return Ok(DELIVERED);
    }
    tunnel::address(ctx, vni, place.vtep, tos)?;
    Ok(OUT)
}

/// Gives the frame its network's tag.
#[inline(always)]
pub(crate) fn push_tag(ctx: &TcContext, segment: Segment) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    if unsafe { bpf_skb_vlan_push(ctx.skb.skb, frame::VLAN.wire(), segment.tag()) } == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}
