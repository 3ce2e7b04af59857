//! Where a frame goes from here.

use aya_ebpf::programs::TcContext;
use contiv_abi::{DropReason, FdbEntry, FdbKey, maps::Stage};

use crate::{
    ip, maps,
    packet::{self, Ingress, PacketMeta},
    policy, receiver,
    verdict::Verdict,
};

/// To the port in `PacketMeta::place`.
pub(crate) const TO_POD: u32 = 0x100;
/// To the network's way out.
pub(crate) const OUT: u32 = 0x101;
/// To several receivers.
pub(crate) const REPLICATE: u32 = 0x102;

/// What follows from one of these, or from the number of a reason to drop the frame.
#[inline(always)]
pub(crate) fn verdict(packet: &PacketMeta, code: u32) -> Result<Verdict, DropReason> {
    match code {
        TO_POD => Ok(Verdict::to_pod(&packet.place)),
        OUT => Ok(Verdict::Out(packet.out)),
        REPLICATE => Ok(Verdict::Continue(Stage::Replicate)),
        reason => Err(packet::reason(reason)),
    }
}

/// The port that the current packet goes to is known; what passes by a flow goes only to whom that was evaluated for.
#[inline(always)]
pub(crate) fn to_port(packet: &mut PacketMeta, place: FdbEntry) -> Result<u32, DropReason> {
    packet.set_place(&place);
    policy::admits_receiver(packet, place.group)?;
    receiver::receives(packet, place.group, place.ifindex)?;
    Ok(TO_POD)
}

/// The way of the frame of the packet metadata, which is from outside and has passed the guard: through the stages, and on this node.
#[inline(always)]
pub(crate) fn arrive(ctx: &TcContext) -> Result<Verdict, DropReason> {
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    if ip::pass(ctx, packet)? { from_outside(packet) } else { Ok(Verdict::Continue(Stage::SlowPath)) }
}

/// Where the frame of the packet metadata, which is from outside, goes on this node.
#[inline(always)]
pub(crate) fn from_outside(packet: &mut PacketMeta) -> Result<Verdict, DropReason> {
    let code = ctv_deliver(packet);
    verdict(packet, code)
}

/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_deliver(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.is_for_group() {
        return REPLICATE;
    }
    match maps::destination(&FdbKey::new(packet.segment, packet.destination_mac)) {
        // A tunnelled frame for an address that nobody told us of may be for an address that a pod gave itself.
        None if packet.ingress == Ingress::TUNNEL => REPLICATE,
        // Never from one tunnel into another: every node floods to all of them itself.
        None | Some(FdbEntry { ifindex: 0, .. }) => DropReason::NotLocal as u32,
        Some(place) => to_port(packet, place).unwrap_or_else(|reason| reason as u32),
    }
}
