//! Connection tracking: which flow a packet belongs to, and what follows from that.
//!
//! A flow has two tuples: that of the packets of its original direction as received, and that of its replies as received.
//! Both lead to its record by one search, translated or not. So a service and its backend can both be talked to from the same
//! port: the flows have different original tuples, and the later one gets another port so that their replies differ, too
//! (`open`).

use contiv_abi::{DropReason, Flow, FlowEvent, FlowHalf, FlowHash, TCP, tcp::sent};

use crate::{
    flow_index::find,
    flow_records::{ctv_read_ahead, ctv_remove},
    flows::{self, half},
    guard,
    icmp_error::{ctv_inside, ctv_outside},
    maps,
    packet::{self, GO_ON, IcmpError, NEW, PacketMeta, Replaces, tcp},
    policy,
    receiver::{ctv_other_group, ctv_regrouped, differ, update_group},
    segment::{ctv_quoted, pass},
    service_entry,
};

/// Finds the flow of the current packet, if there is one, and sets in `wanted` where the packet goes.
///
/// It and what it calls are functions of their own for the verifier: it walks each once, and what one leaves in the packet is
/// unknown to the next, so that paths do not multiply. The results are those of `packet::code`, `NEW`, and `REVALIDATE`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_track(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet.replaces = Replaces::NOTHING;
    packet.wanted = packet.tuple;
    packet.translated = 0;
    packet.located = 0;
    packet.placed = 0;
    packet.searched = 0;
    if packet.icmp_error != IcmpError::NONE && ctv_inside(packet) == NEW {
        return NEW;
    }
    let Some(node) = maps::node() else { return DropReason::Malformed as u32 };
    let domain = packet.domain.number();
    let hash = FlowHash::of(node.seed, domain, &packet.wanted).0;
    packet.hash = hash;
    let opens = opens(packet);
    if opens {
        service_entry::read_ahead(packet);
        packet.insertions = ctv_read_ahead(hash);
    }
    let found = find(&raw const packet.wanted, hash, domain);
    if found == 0 {
        packet.searched = opens.into();
        return NEW;
    }
    packet.entry = found as u32;
    packet.generation = (found >> 32) as u32;
    let code = guard::ctv_guard_destination(packet);
    if code != GO_ON {
        return code;
    }
    let code = ctv_by(packet);
    if code == GO_ON && packet.icmp_error != IcmpError::NONE { ctv_outside(packet) } else { code }
}

/// Whether the packet is the first of a TCP connection: what a client sends before it gets a reply. In the direction of replies, it is
/// the first one of a connection of the other end.
#[inline(always)]
pub(crate) fn opens(packet: &PacketMeta) -> bool {
    packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN && packet.tuple.protocol == TCP
}

/// The current packet belongs to the flow that was found, unless that has ended.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let (number, reply) = (packet.entry >> 1, packet.entry & 1 != 0);
    let Some(place) = flows::record(number) else { return NEW };
    // SAFETY: a record of the map. Whether it is another flow's meanwhile is checked below.
    let (flow, half) = unsafe { (&*place, half(place, reply.into())) };
    if half.seen != packet.now && flows::ctv_is_over(number, packet.now) != 0 {
        if ctv_remove(number, packet.generation) != 0 {
            flows::count(FlowEvent::Expired);
        }
        return NEW;
    }
    let flags = flow.head.flags;
    // By numbers, as `sender_of`: whether the packet is sent to the client of an untranslated flow, and not to its destination.
    let to_client = packet.entry & 1 & (u32::from(flags & Flow::NAT) ^ 1);
    // Once in a second: that is soon enough after the change.
    if half.seen != packet.now && to_client == 0 && flows::ctv_is_reused(number) != 0 {
        ctv_remove(number, packet.generation);
        return NEW;
    }
    let sender = sender_of(packet, half, !reply);
    // What the other end opens is another connection, even if this one has not ended: its rules have not been asked.
    let is_another = opens(packet) && half.is_closing() | reply;
    if sender == ANOTHER && !is_another {
        let direction = packet.entry & 1 ^ 1;
        if ctv_regrouped(packet, direction, packet.source_port, packet.source_group) != 0 {
            return packet::REVALIDATE;
        }
    }
    if is_another || sender == ANOTHER {
        flows::count(FlowEvent::Reused);
        packet.replaces = Replaces::ENDED;
        return NEW;
    }
    if sender == APPEARED {
        return packet::REVALIDATE;
    }
    if !reply && half.other & sent::ANY == 0 && flags & Flow::NAT != 0 && is_unresolved(packet, half) {
        return NEW;
    }
    if packet.icmp_error != IcmpError::NONE {
        let code = ctv_quoted(packet, number, packet.entry & 1);
        if code != GO_ON {
            return code;
        }
    }
    let code = policy::is_current(flow, half);
    if code != GO_ON {
        if code == DropReason::Policy as u32 && ctv_other_group(packet) != 0 {
            return packet::REVALIDATE;
        }
        // A denied flow goes on as long as its packets come. An error says nothing about that.
        let is_current = u32::from(flows::head(place).generation) == packet.generation;
        if code == DropReason::Policy as u32 && packet.icmp_error == IcmpError::NONE && is_current {
            half.seen = packet.now;
        }
        return code;
    }
    if flags & Flow::NAT != 0 {
        flow.translate(reply, &mut packet.wanted);
        packet.translated = 1;
    }
    if u32::from(flows::head(place).generation) != packet.generation {
        return NEW;
    }
    // An error about the flow, too, goes only to the receiver that the flow was evaluated for.
    packet.owner = half.owner;
    packet.receiver = half.group(reply);
    packet.receiver_identity = half.identity(reply);
    if packet.icmp_error != IcmpError::NONE {
        return GO_ON;
    }
    pass(packet, half, reply)
}

/// The address belongs to an endpoint of another group now.
const ANOTHER: u32 = 1;
/// The record of the endpoint has arrived since the evaluation.
const APPEARED: u32 = 2;

/// Whether the sender of the current packet is another endpoint than that for which the flow was evaluated, as far as its group
/// tells: zero if not, or one of the above. Errors come from any endpoint on the path. Without a record, nothing is known of
/// an endpoint elsewhere.
///
/// By numbers and not by cases, which the verifier would all follow.
#[inline(always)]
fn sender_of(packet: &PacketMeta, half: &FlowHalf, original: bool) -> u32 {
    const UNKNOWN: u32 = FlowHalf::UNKNOWN as u32;
    let (group, identity) = (half.group(original), half.identity(original));
    let has_identity = differ(identity, UNKNOWN);
    // Rules were evaluated here only for an endpoint that was here. One here without a group may have got the address of one
    // elsewhere that had a group: then its identity tells.
    let (here, current) = (differ(packet.source_port, 0), packet.source_group);
    let another = differ(current, group) | differ(current, identity) & has_identity;
    let current = packet.source_identity;
    // An error says nothing about who the sender of the flow's packets is, but another endpoint has none to tell.
    let is_packet = differ(packet.icmp_error.into(), IcmpError::NONE.into()) ^ 1;
    let differs = differ(current, identity) & differ(current, UNKNOWN) & (is_packet | has_identity);
    let here = 0_u32.wrapping_sub(here);
    another & here | (differs + (differs & (has_identity ^ 1))) & !here
}

/// Whether the packet resolves the service of an unreplied flow again: a retransmitted SYN goes to a current backend. And an
/// error about a reply to a SYN that there was not is about no flow.
#[inline(always)]
fn is_unresolved(packet: &mut PacketMeta, half: &FlowHalf) -> bool {
    if packet.icmp_error != IcmpError::NONE {
        return half.sent & sent::SYN != 0;
    }
    let again = opens(packet) && half.service != 0;
    if again {
        packet.replaces = Replaces::UNREPLIED;
    }
    again
}

/// Evaluates the flow that was found by the current rules.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_revalidate(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    ctv_appeared(packet, packet.entry >> 1, packet.entry & 1);
    update_group(packet);
    // SAFETY: a record of the map; if it is another flow's meanwhile, the verdict is not stored.
    let flow = unsafe { &*flow };
    flow.received(false, &mut packet.spare);
    if flow.head.flags & Flow::NAT != 0 {
        flow.translate(false, &mut packet.spare);
    }
    let hairpin = flow.head.flags & Flow::HAIRPIN;
    // Read once: the verdict is for these.
    let ends = FlowHalf::ends(flow.halves[0].groups, flow.halves[0].identities);
    policy::ctv_reevaluate(packet, &raw const packet.spare, ends as u32, hairpin.into(), (ends >> 32) as u32);
    let [out, into] = packet.rules;
    let rules = u64::from(out) | u64::from(into) << 32;
    flows::ctv_set_verdict(packet.entry >> 1, packet.generation, packet.verdict, rules, ends)
}

/// Notes the group of an endpoint elsewhere whose record has arrived since the flow began: the sender of the current packet.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_appeared(packet: *mut PacketMeta, number: u32, reply: u32) -> u32 {
    let (Some(packet), Some(flow)) = (packet::of(packet), flows::record(number)) else { return 0 };
    // SAFETY: a record of the map.
    if sender_of(packet, unsafe { half(flow, 0) }, reply == 0) == APPEARED {
        for side in 0..2 {
            // SAFETY: as above.
            unsafe { half(flow, side) }.identities[(reply & 1) as usize] = packet.source_identity as u16;
        }
    }
    0
}
