//! Connection tracking: the lookup of a packet's flow, and the checks that the flow still applies to the packet.
//!
//! A flow has two tuples: that of packets of its original direction as received, and that of its replies as received. One lookup
//! of either finds its record, translated or not. So a client can reach a service and its backend from the same port: the two
//! flows have different original tuples, and the later one gets another source port so that their replies differ, too (`open`).

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

/// Looks up the flow of the current packet, and sets the tuple `wanted` that the packet is forwarded with.
///
/// A global function, as those that it calls: the verifier checks each once and assumes any value in the packet metadata between
/// them, so that the number of paths does not multiply. The result is that of `packet::code`, `NEW`, or `REVALIDATE`.
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

/// Whether the packet opens a TCP connection: a client sends it before it gets a reply. In the reply direction, it opens a
/// connection of the other endpoint.
#[inline(always)]
pub(crate) fn opens(packet: &PacketMeta) -> bool {
    packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN && packet.tuple.protocol == TCP
}

/// Applies the flow that was found to the current packet, unless the flow has ended.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let (number, reply) = (packet.entry >> 1, packet.entry & 1 != 0);
    let Some(place) = flows::record(number) else { return NEW };
    // SAFETY: a record of the map. Whether it has been reused for another flow is checked below.
    let (flow, half) = unsafe { (&*place, half(place, reply.into())) };
    if half.seen != packet.now && flows::ctv_is_over(number, packet.now) != 0 {
        if ctv_remove(number, packet.generation) != 0 {
            flows::count(FlowEvent::Expired);
        }
        return NEW;
    }
    let flags = flow.head.flags;
    // Branch-free, as `sender_of`: 1 if the packet goes to the client of an untranslated flow, and not to its destination.
    let to_client = packet.entry & 1 & (u32::from(flags & Flow::NAT) ^ 1);
    // Checked once per second, which is soon enough after a change.
    if half.seen != packet.now && to_client == 0 && flows::ctv_is_reused(number) != 0 {
        ctv_remove(number, packet.generation);
        return NEW;
    }
    let sender = sender_of(packet, half, !reply);
    // A SYN of the other endpoint opens another connection, even if this one has not ended: its rules have not been evaluated.
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
        // A denied flow exists as long as its packets arrive. An ICMP error is not one of them.
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
    // An ICMP error about the flow, too, is delivered only to the receiver for which the flow was evaluated.
    packet.owner = half.owner;
    packet.receiver = half.group(reply);
    packet.receiver_identity = half.identity(reply);
    if packet.icmp_error != IcmpError::NONE {
        return GO_ON;
    }
    pass(packet, half, reply)
}

/// Result of [`sender_of`]: the address now belongs to an endpoint of another group.
const ANOTHER: u32 = 1;
/// Result of [`sender_of`]: the record of the endpoint has arrived since the evaluation.
const APPEARED: u32 = 2;

/// Whether the sender of the current packet is another endpoint than that for which the flow was evaluated, by its group: zero if
/// not, else one of the values above. ICMP errors come from any endpoint on the path. Without a record, nothing is known about an
/// endpoint on another node.
///
/// Branch-free, because the verifier would follow all branches.
#[inline(always)]
fn sender_of(packet: &PacketMeta, half: &FlowHalf, original: bool) -> u32 {
    const UNKNOWN: u32 = FlowHalf::UNKNOWN as u32;
    let (group, identity) = (half.group(original), half.identity(original));
    let has_identity = differ(identity, UNKNOWN);
    // Only the rules of endpoints on this node have been evaluated. An endpoint on this node without a group may have taken over
    // the address of an endpoint with a group on another node; the identity shows this.
    let (here, current) = (differ(packet.source_port, 0), packet.source_group);
    let another = differ(current, group) | differ(current, identity) & has_identity;
    let current = packet.source_identity;
    // The source of an ICMP error need not be the sender of the flow's packets. Only if the flow has an identity does another one
    // show another endpoint.
    let is_packet = differ(packet.icmp_error.into(), IcmpError::NONE.into()) ^ 1;
    let differs = differ(current, identity) & differ(current, UNKNOWN) & (is_packet | has_identity);
    let here = 0_u32.wrapping_sub(here);
    another & here | (differs + (differs & (has_identity ^ 1))) & !here
}

/// Whether the packet resolves the service of an unreplied flow again, so that a retransmitted SYN goes to a current backend. An
/// ICMP error that quotes the reply to a SYN belongs to no flow if the flow has no reply.
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

/// Evaluates the flow that was found with the current rules.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_revalidate(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    ctv_appeared(packet, packet.entry >> 1, packet.entry & 1);
    update_group(packet);
    // SAFETY: a record of the map. If it has been reused for another flow, the verdict is not stored.
    let flow = unsafe { &*flow };
    flow.received(false, &mut packet.spare);
    if flow.head.flags & Flow::NAT != 0 {
        flow.translate(false, &mut packet.spare);
    }
    let hairpin = flow.head.flags & Flow::HAIRPIN;
    // Read once: the verdict is evaluated for these groups.
    let ends = FlowHalf::ends(flow.halves[0].groups, flow.halves[0].identities);
    policy::ctv_reevaluate(packet, &raw const packet.spare, ends as u32, hairpin.into(), (ends >> 32) as u32);
    let [out, into] = packet.rules;
    let rules = u64::from(out) | u64::from(into) << 32;
    flows::ctv_set_verdict(packet.entry >> 1, packet.generation, packet.verdict, rules, ends)
}

/// Stores the group of the current packet's sender if that is an endpoint on another node, and its record has arrived since the
/// flow was opened.
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
