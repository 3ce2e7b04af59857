//! The slow path: packets without a known flow, and the first packet of a flow after a change of the rules.
//!
//! A separate program, which the others tail-call: work that is done once per connection does not count for the complexity limits
//! of the programs that process every packet.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{DropReason, FlowEvent};

use crate::{
    delivery, flows, gateway, guard, ip, open,
    packet::{
        self, AGAIN, ANSWERED, DSR, GO_ON, Ingress, NEW, PacketMeta, REFUSE, REVALIDATE, ROUTER, Replaces,
    },
    pod, refuse, track, uplink,
    verdict::Verdict,
};

/// Continues with the frame of the packet metadata, which was received on `ifindex`.
#[inline(always)]
pub(crate) fn receive(ctx: &TcContext, ifindex: u32) -> Verdict {
    forward(ctx, ifindex).unwrap_or_else(Verdict::from)
}

#[inline(always)]
fn forward(ctx: &TcContext, ifindex: u32) -> Result<Verdict, DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    let code = resolve(ctx.skb.skb, packet);
    let from_pod = packet.ingress == Ingress::POD;
    if code & REFUSE != 0 {
        // The packet was overwritten with a refusal to its sender.
        if !from_pod {
            pod::push_tag(ctx, packet.segment)?;
        }
        return Ok(Verdict::Back(ifindex, packet::reason(code & !REFUSE)));
    }
    if code == DSR {
        uplink::forward_dsr(ctx)?;
        return Ok(Verdict::Out(ifindex));
    }
    if code == ANSWERED {
        return Ok(Verdict::Out(ifindex));
    }
    packet::passes(code)?;
    if from_pod { pod::send(ctx, packet) } else { delivery::from_outside(packet) }
}

/// Finds the flow of the current packet again, or inserts it. The result is that of `packet::code`, `DSR`, or `REFUSE` with the
/// reason if the packet was overwritten with a refusal.
#[inline(always)]
fn resolve(skb: *mut __sk_buff, packet: &mut PacketMeta) -> u32 {
    let mut code = packet.miss;
    if code == ROUTER {
        return gateway::ctv_answer(skb);
    }
    if code == REVALIDATE {
        track::ctv_revalidate(packet);
        code = track::ctv_track(packet);
    }
    if code == NEW {
        let guarded = guard::ctv_guard_new(packet);
        if guarded != GO_ON {
            return guarded;
        }
        code = open(packet);
    }
    if code == AGAIN {
        // Another CPU has inserted the flow, which may be newer than the time that was read for the packet.
        packet.now = flows::now();
        code = track::ctv_track(packet);
        if code == NEW {
            code = open(packet);
        }
    }
    if code == REVALIDATE {
        // The rules have changed again; the next packet is evaluated by them.
        return DropReason::Policy as u32;
    }
    if code == AGAIN {
        if packet.replaces != Replaces::ARRIVING {
            flows::count(FlowEvent::Failed);
            return DropReason::NotTracked as u32;
        }
        // The other CPU was interrupted between the insertions of the two slots. The rules allow the packet, and its translation
        // is that of the flow.
        code = GO_ON;
    }
    if code & REFUSE != 0 {
        // A packet that cannot be refused is dropped for the same reason.
        return if refuse::ctv_refuse(skb) == GO_ON { code } else { code & !REFUSE };
    }
    if code == GO_ON { ip::ctv_rewrite(packet, skb) } else { code }
}

#[inline(always)]
fn open(packet: &mut PacketMeta) -> u32 {
    if packet.ingress == Ingress::WIRE { open::ctv_open_wire(packet) } else { open::ctv_open(packet) }
}
