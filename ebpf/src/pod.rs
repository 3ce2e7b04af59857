//! Frames that pods send.

use aya_ebpf::{helpers::generated::bpf_skb_vlan_push, programs::TcContext};
use contiv_abi::{DropReason, FdbKey, Port, Segment, SegmentEntry};

use crate::{
    dscp, flood,
    frame::{self, Ethernet},
    ip::{self, Sender},
    maps,
    neighbour::{self, Asker},
    packet, rate, source, tunnel,
    verdict::Verdict,
};

#[inline(always)]
pub(crate) fn receive(ctx: &TcContext) -> Verdict {
    check(ctx).unwrap_or_else(Verdict::from)
}

/// What a pod had sent by the port `ifindex`, and waited.
#[inline(always)]
pub(crate) fn resume(ctx: &TcContext, ifindex: u32) -> Verdict {
    let go_on = || {
        let port = maps::port(&ifindex).ok_or(DropReason::UnknownPort)?;
        forward(ctx, ifindex, &port, &Ethernet::read(ctx)?)
    };
    go_on().unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn check(ctx: &TcContext) -> Result<Verdict, DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    let (ifindex, tagged) = unsafe { ((*ctx.skb.skb).ifindex, (*ctx.skb.skb).vlan_present != 0) };
    let port = maps::port(&ifindex).ok_or(DropReason::UnknownPort)?;
    let ethernet = Ethernet::read(ctx)?;
    if tagged || ethernet.is_tagged() {
        return Err(DropReason::TaggedByPod);
    }
    if ethernet.is_link_local() {
        return Err(DropReason::LinkLocalGroup);
    }
    source::check(ctx, &port, &ethernet)?;
    if port.queue != 0 {
        return Ok(Verdict::Wait { queue: port.queue, priority: port.priority(), port: ifindex });
    }
    rate::sends(port.group, ifindex, ctx.len())?;
    forward(ctx, ifindex, &port, &ethernet)
}

#[inline(always)]
fn forward(ctx: &TcContext, ifindex: u32, port: &Port, ethernet: &Ethernet) -> Result<Verdict, DropReason> {
    let entry = maps::segment(&port.segment).ok_or(DropReason::UnknownSegment)?;
    if neighbour::answer(ctx, ethernet, port.segment, &entry, Asker::Port(ifindex))? {
        return Ok(Verdict::Out(ifindex));
    }
    let sender = Sender { port: ifindex, group: port.group, to_service: false };
    let passed = ip::pass(ctx, ethernet, port.segment, &entry, sender)?;
    if passed.refused != 0 {
        return Ok(Verdict::Back(ifindex, packet::reason(passed.refused)));
    }
    dscp::mark(ctx, port.group)?;
    let known = if ethernet.is_group() {
        None
    } else {
        maps::destination(&FdbKey::new(port.segment, passed.destination))
    };
    match known {
        Some(place) if place.ifindex == ifindex && !passed.translated => Err(DropReason::Hairpin),
        Some(place) if place.ifindex != 0 => Ok(Verdict::to_pod(&place)),
        place => match port.segment.vni() {
            Some(vni) => {
                let tos = frame::class_of_service(ctx, ethernet);
                match place {
                    Some(place) => {
                        if entry.out == 0 {
                            return Err(DropReason::NoUplink);
                        }
                        tunnel::address(ctx, vni, place.vtep, tos)?;
                        Ok(Verdict::Out(entry.out))
                    }
                    // A unicast frame for an address that nobody told us of goes everywhere, as the
                    // OVS bridge does it: it may be an address that a pod gave itself.
                    None => {
                        flood::to_ports(ctx, port.segment, &entry, ifindex);
                        if entry.out != 0 {
                            flood::to_peers(ctx, vni, entry.out, tos);
                        }
                        Ok(Verdict::Delivered)
                    }
                }
            }
            None => {
                if ethernet.is_group() {
                    flood::to_ports(ctx, port.segment, &entry, ifindex);
                } else if entry.out == 0 {
                    return Err(DropReason::NoUplink);
                }
                // The switches outside find the way, to other nodes and to gateways alike.
                to_uplink(ctx, port.segment, &entry)
            }
        },
    }
}

#[inline(always)]
fn to_uplink(ctx: &TcContext, segment: Segment, entry: &SegmentEntry) -> Result<Verdict, DropReason> {
    if entry.out == 0 {
        return Ok(Verdict::Delivered);
    }
    push_tag(ctx, segment)?;
    Ok(Verdict::Out(entry.out))
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
