//! Whether the endpoint that a packet goes to is the one for which its flow was evaluated.

use contiv_abi::{DropReason, FdbEntry, FlowHalf, NeighKey, PortSlot};

use crate::{
    flow_records::ctv_remove,
    flows::{self, half},
    maps,
    packet::{self, GO_ON, IcmpError, PacketMeta},
};

/// Whether the current packet may go to a pod of this group, as far as its flow is concerned: the rules were evaluated for
/// the owner of the address at that time.
#[inline(always)]
pub(crate) fn receives(packet: &mut PacketMeta, group: u32, ifindex: u32) -> Result<(), DropReason> {
    match ctv_receives(packet, group, ifindex) {
        GO_ON => Ok(()),
        reason => Err(packet::reason(reason)),
    }
}

/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_receives(packet: *mut PacketMeta, group: u32, ifindex: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.receiver == packet::NO_FLOW {
        return GO_ON;
    }
    let receiver = group & u32::from(u16::MAX);
    // An endpoint without a group may have got the address of one elsewhere that had a group.
    let identity = packet.receiver_identity;
    let is_pod = group & FdbEntry::NODE == 0;
    if packet.receiver != receiver || identity != receiver && identity != u32::from(FlowHalf::UNKNOWN) {
        let is_regrouped = is_pod && ctv_regrouped(packet, packet.entry & 1, ifindex, receiver) != 0;
        // The next packet is evaluated by the rules of the new group.
        return if is_regrouped { DropReason::StaleFlow as u32 } else { ctv_stale(packet) };
    }
    if is_pod && is_of_predecessor(packet, ifindex) != 0 {
        return ctv_stale(packet);
    }
    // The node has no pod's end of a pair.
    if is_pod {
        set_receiver(packet, ifindex);
    }
    GO_ON
}

/// 1 if the current packet is one of those that the owner of its flow receives, and this port is another one: the address has
/// passed to a pod that has not begun the flow, and whose rules have not been asked about such packets.
#[inline(always)]
fn is_of_predecessor(packet: &PacketMeta, ifindex: u32) -> u32 {
    // The owner receives the replies to what it has begun, and the packets of the other flows.
    let owner = packet.owner ^ (packet.entry & 1 ^ 1) << 31;
    differ(packet.owner, 0) & differ(owner, ifindex) & differ(owner & FlowHalf::RECEIVED, FlowHalf::RECEIVED)
}

/// 1 if the endpoint at the port, whose group is another one than that for which the flow was evaluated, is the one that receives the
/// packets of a direction: it has got another group, which is noted. So the flow keeps its direction, and both ends the rules for it.
/// An endpoint that has only the address of the former one has another port.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_regrouped(
    packet: *mut PacketMeta,
    direction: u32,
    ifindex: u32,
    group: u32,
) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let (number, direction) = (packet.entry >> 1, direction & 1);
    let Some(place) = flows::record(number) else { return 0 };
    // SAFETY: a record of the map. If it is another flow's meanwhile, nothing is noted.
    let FlowHalf { owner, receiver, .. } = *unsafe { half(place, 0) };
    let is_same = if direction != 0 { owner == ifindex } else { receiver == receiver_at(ifindex) };
    if packet.icmp_error != IcmpError::NONE || ifindex == 0 || !is_same {
        return 0;
    }
    flows::ctv_regroup(number, packet.generation, direction ^ 1, group);
    1
}

/// The port that has received the packets of the direction of the current packet, in the upper half, and the group that it has now: zero
/// if it has none but that for which the flow was evaluated, or is not known. If the port is another endpoint's by now, the flow ends
/// where it is compared with the receiver.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_other_group(packet: *mut PacketMeta) -> u64 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(place) = flows::record(packet.entry >> 1) else { return 0 };
    // SAFETY: a record of the map; if it is another flow's meanwhile, nothing is noted.
    let half = unsafe { half(place, packet.entry as usize) };
    let Some(port) = maps::port_slot(u32::from(half.receiver).wrapping_sub(1)) else { return 0 };
    let group = half.group(packet.entry & 1 != 0);
    if port.ifindex == 0 || port.group == group {
        return 0;
    }
    u64::from(port.ifindex) << 32 | u64::from(port.group)
}

/// Notes the group that the endpoint that the current packet goes to has got: the rules of the former one do not decide about it any more.
#[inline(always)]
pub(crate) fn update_group(packet: &mut PacketMeta) {
    let current = ctv_other_group(packet);
    if current != 0 {
        ctv_regrouped(packet, packet.entry & 1, (current >> 32) as u32, current as u32);
    }
}

/// What [`FlowHalf::receiver`] is for a port.
#[inline(always)]
pub(crate) const fn receiver_at(ifindex: u32) -> u16 {
    PortSlot::number(ifindex) as u16 + 1
}

/// Notes for the fast path which port receives the packets of this direction of the flow.
#[inline(always)]
fn set_receiver(packet: &PacketMeta, ifindex: u32) {
    let Some(place) = flows::record(packet.entry >> 1) else { return };
    // SAFETY: a record of the map. That of another flow meanwhile gets a hint that is not right.
    let half = unsafe { half(place, packet.entry as usize) };
    let receiver = receiver_at(ifindex);
    if half.receiver != receiver {
        half.receiver = receiver;
    }
}

/// The same of an endpoint on another node. A flow to the unknown owner of an address is none to an endpoint with a group, whose
/// Ethernet address the sender has put in since. Nor is a reply: no endpoint begins a flow from an address without a record. Such a
/// flow continues with its own ends.
#[inline(always)]
pub(crate) fn reaches(packet: &mut PacketMeta, group: u32) -> Result<(), DropReason> {
    let (evaluated, group) = (packet.receiver_identity, group & u32::from(u16::MAX));
    if packet.receiver == packet::NO_FLOW || evaluated == group {
        return Ok(());
    }
    let is_reply = packet.entry & 1 != 0;
    if evaluated == u32::from(FlowHalf::UNKNOWN) && is_reply && ctv_has_group(packet) == 0 {
        return if group == 0 { Ok(()) } else { Err(DropReason::AddressMismatch) };
    }
    if evaluated == u32::from(FlowHalf::UNKNOWN) && !is_reply && group == 0 {
        return Ok(());
    }
    Err(packet::reason(ctv_stale(packet)))
}

/// The same of a packet to an Ethernet address that no endpoint has. A flow that was evaluated for an endpoint is none to another
/// station, whose address the sender has put in since.
#[inline(always)]
pub(crate) fn leaves(packet: &mut PacketMeta) -> Result<(), DropReason> {
    let is_reply = packet.entry & 1 != 0;
    if packet.receiver == packet::NO_FLOW
        || is_reply
        || packet.receiver_identity == u32::from(FlowHalf::UNKNOWN)
    {
        return Ok(());
    }
    Err(packet::reason(ctv_stale(packet)))
}

/// Not zero if the destination address of the current packet, for which no record was known when its flow was evaluated, has one now,
/// and a group.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_has_group(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    u32::from(owner.is_some_and(|owner| owner.group & u32::from(u16::MAX) != 0))
}

/// Removes the flow of a client's packet whose backend has no record any more: the next packet gets another one.
#[inline(always)]
pub(crate) fn remove_stale_flow(packet: &PacketMeta) {
    if packet.entry & 1 == 0 {
        ctv_remove(packet.entry >> 1, packet.generation);
    }
}

/// Removes the flow of the current packet: its receiver's address belongs to another endpoint now. Not so for an ICMP error, which any
/// router may send to an address without a record, in a frame for any station.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_stale(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.icmp_error != IcmpError::NONE {
        return DropReason::UnrelatedIcmpError as u32;
    }
    ctv_remove(packet.entry >> 1, packet.generation);
    DropReason::StaleFlow as u32
}

/// 1 if the numbers differ, else 0.
#[inline(always)]
pub(crate) const fn differ(a: u32, b: u32) -> u32 {
    let bits = a ^ b;
    (bits | bits.wrapping_neg()) >> 31
}
