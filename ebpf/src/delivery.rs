//! Delivery of frames: to a port, to the network's interface to other nodes, or to several receivers.

use aya_ebpf::programs::TcContext;
use contiv_abi::{DropReason, FdbEntry, FdbKey, maps::Stage};

use crate::{
    ip, maps,
    packet::{self, Ingress, PacketMeta},
    policy, receiver,
    verdict::Verdict,
};

/// Deliver to the port in `PacketMeta::place`.
pub(crate) const TO_POD: u32 = 0x100;
/// Send by the interface of the network to other nodes.
pub(crate) const OUT: u32 = 0x101;
/// Replicate to several receivers.
pub(crate) const REPLICATE: u32 = 0x102;

/// Converts one of these codes, or the number of a drop reason, to a verdict.
#[inline(always)]
pub(crate) fn verdict(packet: &PacketMeta, code: u32) -> Result<Verdict, DropReason> {
    match code {
        TO_POD => Ok(Verdict::to_pod(&packet.place)),
        OUT => Ok(Verdict::Out(packet.out)),
        REPLICATE => Ok(Verdict::Continue(Stage::Replicate)),
        reason => Err(packet::reason(reason)),
    }
}

/// Sets the port that the current packet goes to. A packet of a flow is delivered only to the endpoint for which the flow was
/// evaluated.
#[inline(always)]
pub(crate) fn to_port(packet: &mut PacketMeta, place: FdbEntry) -> Result<u32, DropReason> {
    packet.set_place(&place);
    policy::admits_receiver(packet, place.group)?;
    receiver::receives(packet, place.group, place.ifindex)?;
    Ok(TO_POD)
}

/// Forwards the frame of the packet metadata, which is from outside and has passed the guard, through the stages and to its
/// receiver on this node.
#[inline(always)]
pub(crate) fn arrive(ctx: &TcContext) -> Result<Verdict, DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    if ip::pass(ctx, packet)? { from_outside(packet) } else { Ok(Verdict::Continue(Stage::SlowPath)) }
}

/// Delivers the frame of the packet metadata, which is from outside, on this node.
#[inline(always)]
pub(crate) fn from_outside(packet: &mut PacketMeta) -> Result<Verdict, DropReason> {
    let code = ctv_deliver(packet);
    verdict(packet, code)
}

/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_deliver(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.is_for_group() {
        return REPLICATE;
    }
    match maps::destination(&FdbKey::new(packet.segment, packet.destination_mac)) {
        // The Ethernet address of a tunnelled frame may be one that a pod has assigned itself, which has no record.
        None if packet.ingress == Ingress::TUNNEL => REPLICATE,
        // Never from one tunnel into another: the sending node replicates to all nodes itself.
        None | Some(FdbEntry { ifindex: 0, .. }) => DropReason::NotLocal as u32,
        Some(place) => to_port(packet, place).unwrap_or_else(|reason| reason as u32),
    }
}
