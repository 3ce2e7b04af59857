//! Checks that the endpoint that a packet goes to is the one for which its flow was evaluated.

use contiv_abi::{DropReason, FdbEntry, FlowHalf, NeighKey, PortSlot};

use crate::{
    flow_records::ctv_remove,
    flows::{self, half},
    maps,
    packet::{self, GO_ON, IcmpError, PacketMeta},
};

/// Checks whether the current packet may be delivered to a pod of this group at this port: the rules of its flow were evaluated
/// for the owner of the address at that time.
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
    // An endpoint without a group may have taken over the address of an endpoint with a group on another node.
    let identity = packet.receiver_identity;
    let is_pod = group & FdbEntry::NODE == 0;
    if packet.receiver != receiver || identity != receiver && identity != u32::from(FlowHalf::UNKNOWN) {
        let is_regrouped = is_pod && ctv_regrouped(packet, packet.entry & 1, ifindex, receiver) != 0;
        // The next packet is evaluated with the rules of the new group.
        return if is_regrouped { DropReason::StaleFlow as u32 } else { ctv_stale(packet) };
    }
    if is_pod && is_of_predecessor(packet, ifindex) != 0 {
        return ctv_stale(packet);
    }
    // The node's own port is not the host end of a pod's veth pair.
    if is_pod {
        set_receiver(packet, ifindex);
    }
    GO_ON
}

/// 1 if the current packet is one that the owner of its flow receives, and the port is another one: the address has been taken
/// over by a pod that has not opened the flow, and its rules have not been evaluated for such packets.
#[inline(always)]
fn is_of_predecessor(packet: &PacketMeta, ifindex: u32) -> u32 {
    // The owner receives the replies of flows that it has opened, and the original packets of received flows.
    let owner = packet.owner ^ (packet.entry & 1 ^ 1) << 31;
    differ(packet.owner, 0) & differ(owner, ifindex) & differ(owner & FlowHalf::RECEIVED, FlowHalf::RECEIVED)
}

/// Stores the new group of the endpoint at the port if it is the endpoint that receives the packets of a direction; 1 if so. The
/// group of the endpoint has changed since the flow was evaluated. The flow keeps its direction, and the rules of both endpoints
/// for that direction. An endpoint that has taken over the address of another one has another port.
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
    // SAFETY: a record of the map. If it has been reused for another flow, nothing is stored.
    let FlowHalf { owner, receiver, .. } = *unsafe { half(place, 0) };
    let is_same = if direction != 0 { owner == ifindex } else { receiver == receiver_at(ifindex) };
    if packet.icmp_error != IcmpError::NONE || ifindex == 0 || !is_same {
        return 0;
    }
    flows::ctv_regroup(number, packet.generation, direction ^ 1, group);
    1
}

/// The port that has received the packets of the current packet's direction, in the upper half, and its current group: zero if
/// the group is that for which the flow was evaluated, or the port is unknown. If the port now belongs to another endpoint, the
/// flow ends when it is compared with the receiver.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_other_group(packet: *mut PacketMeta) -> u64 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(place) = flows::record(packet.entry >> 1) else { return 0 };
    // SAFETY: a record of the map. If it has been reused for another flow, nothing is stored.
    let half = unsafe { half(place, packet.entry as usize) };
    let Some(port) = maps::port_slot(u32::from(half.receiver).wrapping_sub(1)) else { return 0 };
    let group = half.group(packet.entry & 1 != 0);
    if port.ifindex == 0 || port.group == group {
        return 0;
    }
    u64::from(port.ifindex) << 32 | u64::from(port.group)
}

/// Stores the changed group of the current packet's receiver in the flow: the rules of its former group no longer apply.
#[inline(always)]
pub(crate) fn update_group(packet: &mut PacketMeta) {
    let current = ctv_other_group(packet);
    if current != 0 {
        ctv_regrouped(packet, packet.entry & 1, (current >> 32) as u32, current as u32);
    }
}

/// Value of [`FlowHalf::receiver`] for a port.
#[inline(always)]
pub(crate) const fn receiver_at(ifindex: u32) -> u16 {
    PortSlot::number(ifindex) as u16 + 1
}

/// Stores the port that receives the packets of this direction, for the fast path.
#[inline(always)]
fn set_receiver(packet: &PacketMeta, ifindex: u32) {
    let Some(place) = flows::record(packet.entry >> 1) else { return };
    // SAFETY: a record of the map. If it has been reused for another flow, that flow gets a wrong hint.
    let half = unsafe { half(place, packet.entry as usize) };
    let receiver = receiver_at(ifindex);
    if half.receiver != receiver {
        half.receiver = receiver;
    }
}

/// As [`receives`], for an endpoint on another node. If the record of the destination was missing when the flow was evaluated,
/// the flow does not go to an endpoint with a group, even if the sender now uses its Ethernet address. A reply does not either,
/// because no endpoint opens a flow from an address without a record. Such a flow continues between its own endpoints.
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

/// As [`receives`], for a packet to an Ethernet address without a record. A flow that was evaluated for an endpoint does not go
/// to another station, even if the sender now uses its Ethernet address.
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

/// Non-zero if the destination address of the current packet now has a record with a group. The record was missing when the flow
/// was evaluated.
///
/// Not inlined, to save stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_has_group(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    u32::from(owner.is_some_and(|owner| owner.group & u32::from(u16::MAX) != 0))
}

/// Removes the flow of a client's packet if the record of its backend was removed: the next packet gets another backend.
#[inline(always)]
pub(crate) fn remove_stale_flow(packet: &PacketMeta) {
    if packet.entry & 1 == 0 {
        ctv_remove(packet.entry >> 1, packet.generation);
    }
}

/// Removes the flow of the current packet, because the address of its receiver now belongs to another endpoint. For an ICMP
/// error, the flow is kept: any router may send one to an address without a record, in a frame to any station.
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
