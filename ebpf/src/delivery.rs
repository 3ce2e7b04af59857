//! Frames for ports of this node.

use contiv_abi::{DropReason, FdbEntry, FdbKey};

use crate::{
    maps,
    packet::{self, Packet},
    policy, track,
};

/// To the port in `Packet::place`.
pub(crate) const TO_POD: u32 = 0x100;
/// Nobody is known by the Ethernet address.
const NOBODY: u32 = 0x103;

/// The port that the packet in hand goes to is known; what passes by a flow goes only to whom that was judged for.
#[inline(always)]
pub(crate) fn to_port(packet: &mut Packet, place: FdbEntry) -> Result<u32, DropReason> {
    packet.place = place;
    policy::admits_receiver(packet, place.group)?;
    track::receives(place.group)?;
    Ok(TO_POD)
}

/// The port here that the frame of the packet metadata, which is from outside, goes to; `None` if nobody knows whose the address is.
#[inline(always)]
pub(crate) fn from_outside() -> Result<Option<FdbEntry>, DropReason> {
    match ctv_deliver() {
        TO_POD => Ok(Some(packet::in_hand().ok_or(DropReason::Malformed)?.place)),
        NOBODY => Ok(None),
        reason => Err(packet::reason(reason)),
    }
}

/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_deliver() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    match maps::destination(&FdbKey::new(packet.segment, packet.destination_mac)) {
        None => NOBODY,
        // Never from one tunnel into another: every node floods to all of them itself.
        Some(place) if place.ifindex == 0 => DropReason::NotLocal as u32,
        Some(place) => to_port(packet, place).unwrap_or_else(|reason| reason as u32),
    }
}
