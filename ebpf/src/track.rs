//! Connection tracking: which flow a packet belongs to, and what follows from that.
//!
//! A flow has two tuples: that of the packets of its original direction as received, and that of its replies as received.
//! Both lead to its record by one search, translated or not. So a service and its backend can both be talked to from the same
//! port: the flows have different original tuples, and the later one gets another port so that their replies differ, too
//! (`open`).

use contiv_abi::{
    Address, DropReason, FdbEntry, Flow, FlowEvent, FlowHalf, FlowHash, NeighKey, PortSlot, TCP,
    tcp::{self as state, sent},
};

use crate::{
    claim,
    flow_index::find,
    flow_records::{ctv_read_ahead, ctv_remove},
    flows, guard, maps,
    packet::{self, GO_ON, Ingress, NEW, Packet, Piece, Replaces, Told, tcp},
    policy, served, service_entry,
};

/// Finds the flow of the packet in hand, if there is one, and sets in `wanted` where the packet goes.
///
/// It and what it calls are functions of their own for the verifier: it walks each once, and what one leaves in the packet is
/// unknown to the next, so that paths do not multiply. The results are those of `packet::code`, `NEW`, and `REVALIDATE`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_track(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    packet.replaces = Replaces::NOTHING;
    packet.wanted = packet.tuple;
    packet.translated = 0;
    packet.located = 0;
    packet.placed = 0;
    packet.searched = 0;
    if packet.icmp_error != Told::NOTHING && ctv_inside(packet) == NEW {
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
    if code == GO_ON && packet.icmp_error != Told::NOTHING { ctv_outside(packet) } else { code }
}

/// Whether the packet is the first of a TCP connection: what a client sends before it gets a reply. In the direction of replies, it is
/// the first one of a connection of the other end.
#[inline(always)]
pub(crate) fn opens(packet: &Packet) -> bool {
    packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN && packet.tuple.protocol == TCP
}

/// Whether the packet in hand may go to a pod of this group, as far as its flow is concerned: the rules were evaluated for
/// the owner of the address at that time.
#[inline(always)]
pub(crate) fn receives(packet: &mut Packet, group: u32, ifindex: u32) -> Result<(), DropReason> {
    match ctv_receives(packet, group, ifindex) {
        GO_ON => Ok(()),
        reason => Err(packet::reason(reason)),
    }
}

/// A function of its own for the verifier; the result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_receives(packet: *mut Packet, group: u32, ifindex: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.receiver == packet::ANYBODY {
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
        note_receiver(packet, ifindex);
    }
    GO_ON
}

/// 1 if the packet in hand is one of those that the owner of its flow receives, and this port is another one: the address has
/// passed to a pod that has not begun the flow, and whose rules have not been asked about such packets.
#[inline(always)]
fn is_of_predecessor(packet: &Packet, ifindex: u32) -> u32 {
    // The owner receives the replies to what it has begun, and the packets of the other flows.
    let owner = packet.owner ^ (packet.entry & 1 ^ 1) << 31;
    differ(packet.owner, 0) & differ(owner, ifindex) & differ(owner & FlowHalf::RECEIVED, FlowHalf::RECEIVED)
}

/// 1 if the endpoint at the port, whose group is another one than that for which the flow was evaluated, is the one that receives the
/// packets of a direction: it has got another group, which is noted. So the flow keeps its direction, and both ends the rules for it.
/// An endpoint that has only the address of the former one has another port.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_regrouped(packet: *mut Packet, direction: u32, ifindex: u32, group: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let (number, direction) = (packet.entry >> 1, direction & 1);
    let Some(place) = flows::record(number) else { return 0 };
    // SAFETY: a record of the map. If it is another flow's meanwhile, nothing is noted.
    let FlowHalf { owner, receiver, .. } = *unsafe { half(place, 0) };
    let is_same = if direction != 0 { owner == ifindex } else { receiver == receiver_at(ifindex) };
    if packet.icmp_error != Told::NOTHING || ifindex == 0 || !is_same {
        return 0;
    }
    flows::ctv_regroup(number, packet.generation, direction ^ 1, group);
    1
}

/// What [`FlowHalf::receiver`] is for a port.
#[inline(always)]
pub(crate) const fn receiver_at(ifindex: u32) -> u16 {
    PortSlot::number(ifindex) as u16 + 1
}

/// Notes for the fast path which port receives the packets of this direction of the flow.
#[inline(always)]
fn note_receiver(packet: &Packet, ifindex: u32) {
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
pub(crate) fn reaches(packet: &mut Packet, group: u32) -> Result<(), DropReason> {
    let (evaluated, group) = (packet.receiver_identity, group & u32::from(u16::MAX));
    if packet.receiver == packet::ANYBODY || evaluated == group {
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
pub(crate) fn leaves(packet: &mut Packet) -> Result<(), DropReason> {
    let is_reply = packet.entry & 1 != 0;
    if packet.receiver == packet::ANYBODY
        || is_reply
        || packet.receiver_identity == u32::from(FlowHalf::UNKNOWN)
    {
        return Ok(());
    }
    Err(packet::reason(ctv_stale(packet)))
}

/// Not zero if the destination address of the packet in hand, for which no record was known when its flow was evaluated, has one now,
/// and a group.
///
/// A function of its own for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_has_group(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let owner = maps::neighbour(&NeighKey::new(packet.domain, packet.wanted.destination));
    u32::from(owner.is_some_and(|owner| owner.group & u32::from(u16::MAX) != 0))
}

/// Removes the flow of a client's packet whose backend has no record any more: the next packet gets another one.
#[inline(always)]
pub(crate) fn forget_backend(packet: &Packet) {
    if packet.entry & 1 == 0 {
        ctv_remove(packet.entry >> 1, packet.generation);
    }
}

/// Removes the flow of the packet in hand: its receiver's address belongs to another endpoint now. Not so for an ICMP error, which any
/// router may send to an address without a record, in a frame for any station.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_stale(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if packet.icmp_error != Told::NOTHING {
        return DropReason::UnrelatedIcmpError as u32;
    }
    ctv_remove(packet.entry >> 1, packet.generation);
    DropReason::StaleFlow as u32
}

/// One direction of a flow.
///
/// # Safety
///
/// `flow` is a record of the map.
#[inline(always)]
unsafe fn half<'a>(flow: *mut Flow, side: usize) -> &'a mut FlowHalf {
    // SAFETY: guaranteed by the caller; there are two sides. Other CPUs write the counters of the same half, and at worst
    // a count is lost.
    unsafe { &mut *(&raw mut (*flow).halves).cast::<FlowHalf>().add(side & 1) }
}

/// The packet in hand belongs to the flow that was found, unless that has ended.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by(packet: *mut Packet) -> u32 {
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
    if packet.icmp_error != Told::NOTHING {
        let code = ctv_quoted(packet, number, packet.entry & 1);
        if code != GO_ON {
            return code;
        }
    }
    let code = policy::is_current(flow, half);
    if code != GO_ON {
        // A denied flow goes on as long as its packets come. An error says nothing about that.
        let is_current = u32::from(flows::head(place).generation) == packet.generation;
        if code == DropReason::Policy as u32 && packet.icmp_error == Told::NOTHING && is_current {
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
    if packet.icmp_error != Told::NOTHING {
        return GO_ON;
    }
    pass(packet, half, reply)
}

/// The address belongs to an endpoint of another group now.
const ANOTHER: u32 = 1;
/// The record of the endpoint has arrived since the evaluation.
const APPEARED: u32 = 2;

/// Whether the sender of the packet in hand is another endpoint than that for which the flow was evaluated, as far as its group
/// tells: zero if not, or one of the above. Errors come from any endpoint on the path. Without a record, nothing is known of
/// an endpoint elsewhere.
///
/// By numbers and not by cases, which the verifier would all follow.
#[inline(always)]
fn sender_of(packet: &Packet, half: &FlowHalf, original: bool) -> u32 {
    const UNKNOWN: u32 = FlowHalf::UNKNOWN as u32;
    let (group, identity) = (half.group(original), half.identity(original));
    let has_identity = differ(identity, UNKNOWN);
    // Rules were evaluated here only for an endpoint that was here. One here without a group may have got the address of one
    // elsewhere that had a group: then its identity tells.
    let (here, current) = (differ(packet.source_port, 0), packet.source_group);
    let another = differ(current, group) | differ(current, identity) & has_identity;
    let current = packet.source_identity;
    // An error says nothing about who the sender of the flow's packets is, but another endpoint has none to tell.
    let is_packet = differ(packet.icmp_error.into(), Told::NOTHING.into()) ^ 1;
    let differs = differ(current, identity) & differ(current, UNKNOWN) & (is_packet | has_identity);
    let here = 0_u32.wrapping_sub(here);
    another & here | (differs + (differs & (has_identity ^ 1))) & !here
}

/// 1 if the numbers differ, else 0.
#[inline(always)]
const fn differ(a: u32, b: u32) -> u32 {
    let bits = a ^ b;
    (bits | bits.wrapping_neg()) >> 31
}

/// Whether the segment that an ICMP error quotes may be on the way (RFC 5927, section 4.1): its sequence number lies between what
/// its receiver has acknowledged and what its sender has sent. Other protocols have no numbers. `reply` is the direction of
/// the error. The result is that of `packet::code`.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_quoted(packet: *mut Packet, number: u32, reply: u32) -> u32 {
    let (Some(packet), Some(flow)) = (packet::of(packet), flows::record(number)) else {
        return DropReason::Malformed as u32;
    };
    if packet.inner.protocol != TCP {
        return GO_ON;
    }
    let side = (reply & 1) as usize;
    // SAFETY: a record of the map.
    let (receiver, sender) = unsafe { (half(flow, side), half(flow, side ^ 1)) };
    if sender.sent & sent::ANY != 0
        && state::is_plausible(packet.sequence, acknowledged(receiver, sender), sender.end)
    {
        GO_ON
    } else {
        DropReason::UnrelatedIcmpError as u32
    }
}

/// What the other direction has acknowledged of this one. Its record has what it has sent, whether or not that can be: it is not
/// compared with the other half, which is in another cache line, for each packet.
#[inline(always)]
fn acknowledged(other: &FlowHalf, own: &FlowHalf) -> u32 {
    state::unacknowledged(other.acknowledged, other.sent & sent::ACK != 0, own.end)
}

/// Whether the packet resolves the service of an unreplied flow again: a retransmitted SYN goes to a current backend. And an
/// error about a reply to a SYN that there was not is about no flow.
#[inline(always)]
fn is_unresolved(packet: &mut Packet, half: &FlowHalf) -> bool {
    if packet.icmp_error != Told::NOTHING {
        return half.sent & sent::SYN != 0;
    }
    let again = opens(packet) && half.service != 0;
    if again {
        packet.replaces = Replaces::UNREPLIED;
    }
    again
}

/// One more packet of a flow.
#[inline(always)]
fn pass(packet: &mut Packet, half: &mut FlowHalf, reply: bool) -> u32 {
    // Written only when it changes.
    if half.seen != packet.now {
        half.seen = packet.now;
    }
    half.packets += 1;
    half.bytes += u64::from(packet.len);
    let (len, service) = (packet.len, half.service);
    if packet.tuple.protocol == TCP && packet.piece != Piece::LATER {
        if !is_plain(packet, half) {
            ctv_segment(packet);
        } else {
            half.end = state::later(packet.end, half.end);
            half.acknowledged = state::later(packet.acknowledged, half.acknowledged);
        }
    } else if half.sent & sent::ANY == 0 {
        ctv_replied(packet);
    }
    served::passed(service, reply, len);
    GO_ON
}

/// Whether a segment cannot change the state of the connection.
#[inline(always)]
fn is_plain(packet: &Packet, half: &FlowHalf) -> bool {
    const SEEN: u8 = sent::ANY | sent::ACK;
    packet.tcp & (tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK) == tcp::ACK
        && half.sent & SEEN == SEEN
        && (half.other & sent::FIN == 0 || half.sent & sent::ACKED_FIN != 0)
}

/// The packet in hand is the first reply of a flow without states.
///
/// This and the next are functions of their own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_replied(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    // SAFETY: a record of the map.
    unsafe {
        half(flow, 1).sent |= sent::ANY;
        half(flow, 0).other |= sent::ANY;
    }
    flows::count(FlowEvent::Answered);
    0
}

/// The segment in hand may change the state of its connection.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_segment(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    let side = (packet.entry & 1) as usize;
    // SAFETY: a record of the map.
    let (own, other) = unsafe { (half(flow, side), half(flow, side ^ 1)) };
    let seen = own.sent & sent::ANY != 0;
    // A flow that comes from another datapath has no sequence numbers before its first segment here.
    let known = seen && own.sent & (sent::SYN | sent::ACK) != 0;
    let plausible = !known || state::is_plausible(packet.sequence, acknowledged(other, own), own.end);
    let first = own.sent & sent::ACK == 0;
    let mut flags = packet.tcp;
    // What was not sent is not acknowledged: the receiver ignores it.
    if !state::acknowledges(packet.acknowledged, own.sent, own.other, own.acknowledged, other.end) {
        flags &= !tcp::ACK;
    }
    // The reply to a SYN: the other direction ends the handshake by what is sent from here on. Whatever came before it was not
    // of the receiver of the SYN.
    let replies = first && flags & (tcp::SYN | tcp::ACK) == tcp::SYN | tcp::ACK;
    if replies && other.sent & sent::ACK == 0 {
        other.acknowledged = packet.sequence.wrapping_add(1);
    }
    if plausible || flags & (tcp::FIN | tcp::RST) == 0 {
        own.end = if known && !replies { state::later(packet.end, own.end) } else { packet.end };
        if flags & tcp::ACK != 0 {
            let before = own.acknowledged;
            own.acknowledged =
                if first { packet.acknowledged } else { state::later(packet.acknowledged, before) };
        }
    }
    let sent = own.sent | state::record(flags, own.other, plausible);
    if sent != own.sent {
        own.sent = sent;
        other.other = sent;
        if side != 0 && !seen && sent & sent::ANY != 0 {
            flows::count(FlowEvent::Answered);
        }
    }
    0
}

/// Evaluates the flow that was found by the current rules.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_revalidate(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    ctv_appeared(packet, packet.entry >> 1, packet.entry & 1);
    // SAFETY: a record of the map; if it is another flow's meanwhile, the verdict is not stored.
    let flow = unsafe { &*flow };
    flow.received(false, &mut packet.spare);
    if flow.head.flags & Flow::NAT != 0 {
        flow.translate(false, &mut packet.spare);
    }
    let hairpin = flow.head.flags & Flow::HAIRPIN;
    // Read once: the verdict is for these.
    let ends = FlowHalf::ends(flow.halves[0].groups, flow.halves[0].identities);
    policy::ctv_evaluate(packet, &raw const packet.spare, ends as u32, hairpin.into(), (ends >> 32) as u32);
    let [out, into] = packet.rules;
    let rules = u64::from(out) | u64::from(into) << 32;
    flows::ctv_set_verdict(packet.entry >> 1, packet.generation, packet.verdict, rules, ends)
}

/// Notes the group of an endpoint elsewhere whose record has arrived since the flow began: the sender of the packet in hand.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_appeared(packet: *mut Packet, number: u32, reply: u32) -> u32 {
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

/// An error about a packet of a flow belongs to the flow: it goes by the tuple of a packet of the flow in the direction of the
/// error. `NEW` for one to another endpoint than the sender of that packet: no flow is known by it.
///
/// This and the next are functions of their own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_inside(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return NEW };
    packet.wanted = packet.inner;
    packet.wanted.reverse();
    let is_for_sender = packet.wanted.destination.same(&packet.tuple.destination);
    if packet.icmp_error == Told::FLOW && is_for_sender && is_on_path(packet) { GO_ON } else { NEW }
}

/// Whether an ICMP error comes from the receiver of the packet that it quotes, or from a router: no endpoint is one. On the wire, the
/// gateway may be a virtual address of several routers (RFC 5798), which send from addresses of their own in the subnet.
#[inline(always)]
fn is_on_path(packet: &Packet) -> bool {
    let (source, ip6) = (&packet.tuple.source, packet.ip6 != 0);
    let is_strange = || {
        if packet.ingress == Ingress::WIRE {
            claim::is_of_link(source, ip6)
        } else {
            claim::is_inside(packet.domain, source, ip6)
        }
    };
    source.same(&packet.inner.destination)
        || maps::neighbour(&NeighKey::new(packet.domain, *source)).is_none() && !is_strange()
}

/// Whether the flow of the ICMP error in hand is between two addresses of one link: its packets pass no router, unless other nodes are
/// behind the kernel of the node.
#[inline(always)]
fn is_on_link(packet: &Packet) -> bool {
    let Some(flow) = flows::record(packet.entry >> 1) else { return false };
    // SAFETY: a record of the map.
    let flow = unsafe { &*flow };
    let client = Address::from_words(flow.client.words());
    if packet.ip6 != 0 && client.is_link_local() {
        return true;
    }
    let Some(subnet) = maps::subnet(packet.domain, &client) else { return false };
    !subnet.is_on_node() && (subnet.contains(&flow.backend) || flow.backend.same(&subnet.gateway))
}

/// What the error itself is to be, and what it quotes.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_outside(packet: *mut Packet) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if !packet.inner.destination.same(&packet.tuple.source) && is_on_link(packet) {
        return DropReason::UnrelatedIcmpError as u32;
    }
    packet.inner_wanted = packet.wanted;
    packet.wanted = packet.tuple;
    if packet.translated == 0 {
        return GO_ON;
    }
    // A router on the path stays the source; its errors are its own.
    if packet.inner.destination.same(&packet.tuple.source) {
        packet.wanted.source = packet.inner_wanted.source;
    }
    packet.wanted.destination = packet.inner_wanted.destination;
    packet.inner_wanted.reverse();
    GO_ON
}
