//! New flows, once per connection: the service is resolved, the rules are evaluated, and the flow is inserted.

use aya_ebpf::{cty::c_void, helpers::generated::bpf_loop};
use contiv_abi::{
    Be16, DropReason, FdbEntry, Flow, FlowEvent, FlowHalf, FlowHash, FlowHead, LogResult, LogStage, Phase,
    TCP, UDP, entry,
    tcp::{self as state, sent},
};

use crate::{
    dsr, flow_collector,
    flow_index::{BUSY, FULL, INSERTED as SLOT_INSERTED, ctv_hash, ctv_is, ctv_put_slot, insert_slot},
    flow_records::{
        self, NONE, OVER_QUOTA as NO_QUOTA, ctv_complete, ctv_obtain, ctv_remove, make_room, share_against,
    },
    flows, log, maps,
    packet::{self, AGAIN, DSR, IcmpError, PacketMeta, REFUSE, Replaces, Route},
    packet_events, policy, receiver, route, service, service_counts, track,
};

/// Opens a flow for the current packet. The result is that of `packet::code`, `AGAIN` if another CPU has inserted the flow
/// concurrently, or `REFUSE` with the reason.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_open(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    // An ICMP error about an unknown flow is dropped, because an endpoint would accept it.
    if packet.icmp_error != IcmpError::NONE {
        return DropReason::UnrelatedIcmpError as u32;
    }
    begin(packet);
    // For clients that are pods, services are translated on the node of the client.
    if packet.source_port != 0 {
        let mut code = service::ctv_choose(packet);
        if code == AGAIN {
            code = service::ctv_choose(packet);
        }
        if code == AGAIN {
            // The service was changed again; the client retransmits.
            code = DropReason::NoBackend as u32;
        }
        log::code(LogStage::Service, code, chosen(packet));
        // The record of a backend may not have arrived; the client retransmits.
        if code == DropReason::AddressMismatch as u32 || code == DropReason::StrangeBackend as u32 {
            return code;
        }
        if code != packet::GO_ON {
            return refusal(packet, code);
        }
    }
    if packet.route == Route::ROUTER { DropReason::NoRoute as u32 } else { admit(packet) }
}

/// Evaluates whether the rules of the sender allow the current packet to the gateway, which answers it; no flow is inserted. The
/// result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_open_gateway(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    begin(packet);
    let code = ctv_evaluate(packet);
    log::code(LogStage::Policy, code, LogResult::Allowed);
    code
}

/// As [`ctv_open`], for a packet from the wire of a VLAN: for clients there, services are translated on the node of the backend.
/// The result may be `DSR`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_open_wire(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    let (to_service, error) = (packet.to_service != 0, packet.icmp_error);
    if error != IcmpError::NONE {
        let is_forwarded = to_service && error == IcmpError::FLOW && forwards_error(packet);
        return if is_forwarded { DSR } else { DropReason::UnrelatedIcmpError as u32 };
    }
    if to_service && dsr::ctv_lookup_dsr(&raw const packet.tuple) == DSR {
        return DSR;
    }
    begin(packet);
    if to_service && may_have_flow(packet) {
        return DropReason::FlowImport as u32;
    }
    let code = if to_service { dsr::ctv_dsr() } else { arrived() };
    if code == DSR || code == DropReason::NotLocal as u32 {
        return code;
    }
    if code == AGAIN {
        // The service was changed again; the client retransmits.
        return DropReason::NoBackend as u32;
    }
    // As for a packet from a pod.
    if code == DropReason::AddressMismatch as u32 || code == DropReason::StrangeBackend as u32 {
        return code;
    }
    if code != packet::GO_ON {
        // Only the node that answers for the service sends a refusal to the client.
        return if to_service { refusal(packet, code) } else { code };
    }
    admit(packet)
}

/// Whether the current ICMP error is forwarded to the node of the connection's backend, which has the flow.
#[inline(always)]
fn forwards_error(packet: &mut PacketMeta) -> bool {
    // `wanted` is the tuple by which the flow was looked up: that of packets in the direction of the error.
    if dsr::ctv_lookup_dsr(&raw const packet.wanted) == DSR {
        return true;
    }
    // Without an entry, the error goes to the node that the next such packet would go to.
    packet.tuple = packet.wanted;
    begin(packet);
    dsr::ctv_dsr() == DSR
}

/// Whether the current packet, which is for a service, may belong to a flow of another table. That flow has a backend, while the
/// hash might choose one on another node. A packet that opens a connection has no such flow, and forwarding it opens none.
#[inline(always)]
fn may_have_flow(packet: &PacketMeta) -> bool {
    matches!(maps::phase(), Phase::HOLDING | Phase::IMPORTING) && !track::opens(packet)
}

/// Translates the current packet for the pod with its destination Ethernet address, if the pod is a backend of the service.
#[inline(always)]
fn arrived() -> u32 {
    let mut code = dsr::ctv_arrive();
    if code == AGAIN {
        code = dsr::ctv_arrive();
    }
    if code != DropReason::NoBackend as u32 && code != DropReason::StrangeBackend as u32 {
        return code;
    }
    let late = dsr::ctv_arrive_late();
    // If the pod is no terminating backend, the first reason counts.
    if late == packet::GO_ON || late == AGAIN { late } else { code }
}

/// The result for a packet without a backend: a refusal, unless its flow may still be imported from another table.
#[inline(always)]
fn refusal(packet: &PacketMeta, code: u32) -> u32 {
    if is_held(packet) { DropReason::FlowImport as u32 } else { REFUSE | code }
}

/// The log entry for a packet that has passed the choice of a backend.
#[inline(always)]
const fn chosen(packet: &PacketMeta) -> LogResult {
    if packet.translated != 0 { LogResult::BackendChosen } else { LogResult::NoService }
}

#[inline(always)]
fn begin(packet: &mut PacketMeta) {
    packet.wanted = packet.tuple;
    packet.translated = 0;
}

/// Evaluates the rules of both endpoints that are on this node. Sets the owner of the flow.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_evaluate(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if is_held(packet) {
        return DropReason::FlowImport as u32;
    }
    // The Ethernet address determines the receiver.
    route::locate(packet);
    // The flow uses the quota of the endpoint that opens it, or that of the receiver if it is opened from outside.
    packet.owner = match (packet.source_port, packet.place.ifindex) {
        (0, 0) => 0,
        (0, reached) => reached | FlowHalf::RECEIVED,
        (port, _) => port,
    };
    if policy::allows(packet) { packet::GO_ON } else { policy::denial() }
}

/// Whether the packet may belong to a flow that is still to be imported from another table. If the reply of a backend opened a
/// new flow, it would not be translated; and a segment to a service might go to another backend than earlier ones.
#[inline(always)]
fn is_held(packet: &PacketMeta) -> bool {
    match maps::phase() {
        Phase::HOLDING => true,
        Phase::IMPORTING => (packet.translated == 0 || packet.tuple.protocol == TCP) && !track::opens(packet),
        _ => false,
    }
}

#[inline(always)]
fn admit(packet: &mut PacketMeta) -> u32 {
    let code = ctv_evaluate(packet);
    log::code(LogStage::Policy, code, LogResult::Allowed);
    if code != packet::GO_ON {
        return code;
    }
    // A packet from outside to no port on this node is dropped or replicated. It needs no flow, and no endpoint's quota would
    // account for one.
    if packet.owner == 0 {
        return packet::GO_ON;
    }
    let inserted = insert(packet);
    let code = ctv_inserted(packet, inserted);
    log::code(LogStage::Insert, code, LogResult::Inserted);
    code
}

/// A new flow was inserted, or has reused the record of one that has ended.
const INSERTED: u32 = 0;
/// The packet is a retransmission of the first packet of an unreplied flow.
const REPEATED: u32 = 1;
/// The replies of another flow have the same tuple.
const TAKEN: u32 = 2;
/// Another CPU has inserted the flow.
const EXISTS: u32 = 3;
/// No record or slot is available.
const NO_ROOM: u32 = 4;
/// The endpoint has used its quota.
const OVER_QUOTA: u32 = 5;
/// Concurrent insertions have prevented the insertion.
const FAILED: u32 = 6;
/// The flow that was found is another one, and was removed.
const REMOVED: u32 = 7;

/// Counts the outcome of the insertion of the current packet's flow. The result is that of `ctv_open`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_inserted(packet: *mut PacketMeta, inserted: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    match inserted {
        INSERTED => {
            flows::count(FlowEvent::Made);
            flow_collector::ensure(packet.now);
            service_counts::connection_opened(packet.service, packet.len);
            packet_events::flow_opened();
            return packet::GO_ON;
        }
        REPEATED => {
            service_counts::packet_forwarded(packet.service, false, packet.len);
            return packet::GO_ON;
        }
        EXISTS => return AGAIN,
        TAKEN => return DropReason::NoPort as u32,
        NO_ROOM => flows::count(FlowEvent::Full),
        OVER_QUOTA => flows::count(FlowEvent::OverQuota),
        _ => flows::count(FlowEvent::Failed),
    }
    // The packets of an untranslated flow are forwarded untracked; their replies are evaluated as new flows. Packets to the
    // node's kernel are not, because its connection tracking has no quota per endpoint.
    let is_needed = packet.translated != 0 || packet.route == Route::KERNEL;
    if is_needed { DropReason::NotTracked as u32 } else { packet::GO_ON }
}

/// Source ports that are tried for a flow after the client's own. If nine of ten ports of client and backend are in use, one
/// connection in 700,000 finds none.
const TRIES: u32 = 128;

/// Inserts the flow of the current packet: first the slot of its replies, which needs a free tuple, then that of its packets. So
/// a CPU that finds the flow by a packet finds it complete.
///
/// Inlined: the stack and the call depth of Linux 6.1 do not allow one more call before the index.
#[inline(always)]
fn insert(packet: &mut PacketMeta) -> u32 {
    if packet.replaces != Replaces::NOTHING {
        let replaced = ctv_replace(packet);
        if replaced != REMOVED {
            return replaced;
        }
    }
    let obtained = ctv_obtain(packet.hash, packet.owner, packet.now, quota_share(packet));
    if obtained == NONE {
        return NO_ROOM;
    }
    if obtained == NO_QUOTA {
        return OVER_QUOTA;
    }
    let number = obtained - 1;
    let generation = ctv_fill(packet, number);
    let mut code = commit_slot(packet, number, 0);
    if code == TAKEN && (packet.tuple.protocol == TCP || packet.tuple.protocol == UDP) {
        let mut attempt = Attempt { number, code };
        // The result is the number of attempts.
        // SAFETY: `try_port` expects an `Attempt`, which outlives the loop.
        let _tries =
            unsafe { bpf_loop(TRIES, try_port as *mut c_void, (&raw mut attempt).cast::<c_void>(), 0) };
        code = attempt.code;
    }
    if code == INSERTED {
        code = commit_slot(packet, number, ORIGINAL);
    }
    // Until this point, only this program removes the flow, so that no slot is left behind.
    ctv_complete(number, generation);
    if code != INSERTED {
        ctv_remove(number, generation);
    }
    code
}

/// Share of its endpoint's quota that the flow of the current packet may use. A packet may be the reply to one that was forwarded
/// untracked because the endpoint's quota for received flows was used up. Other hosts determine how many such flows the endpoint
/// opens, so they get half of the quota, and the endpoint's own connections keep the other half. Any TCP packet that does not
/// open a connection may be such a reply; for other protocols, any packet that is not to a service.
#[inline(always)]
fn quota_share(packet: &PacketMeta) -> u32 {
    if packet.translated != 0 || packet.owner & FlowHalf::RECEIVED != 0 {
        return flow_records::ALL;
    }
    match packet.tuple.protocol {
        TCP if track::opens(packet) => flow_records::ALL,
        TCP => flow_records::HALF,
        // Without a flow, the packet would be dropped.
        _ if packet.route == Route::KERNEL => flow_records::MOST_IF_FULL,
        _ => flow_records::HALF_IF_FULL,
    }
}

/// Inserts the slot of a direction, see [`ctv_commit_slot`]. If the buckets are full, evicts a flow from them first, as
/// [`ctv_obtain`] does: if necessary, an established flow of an endpoint with many.
#[inline(always)]
fn commit_slot(packet: &mut PacketMeta, number: u32, turn: u32) -> u32 {
    let code = ctv_commit_slot(packet, number, turn);
    let makes_room =
        |share| make_room(ctv_hash(&raw const packet.spare, packet.domain.number()), packet.now, share);
    if code == NO_ROOM && (makes_room(0) || makes_room(share_against(packet.owner))) {
        return ctv_commit_slot(packet, number, turn);
    }
    code
}

/// A search for a free port.
#[repr(C)]
struct Attempt {
    number: u32,
    code: u32,
}

extern "C" fn try_port(turn: u64, attempt: *mut Attempt) -> i64 {
    // SAFETY: `insert` passes an `Attempt` that outlives the loop.
    let attempt = unsafe { &mut *attempt };
    let Some(packet) = packet::current() else { return 1 };
    attempt.code = ctv_commit_slot(packet, attempt.number, turn as u32 + 1);
    i64::from(attempt.code != TAKEN)
}

/// Value of `turn` for the slot of the original direction.
const ORIGINAL: u32 = u32::MAX;
/// Attempts to insert a slot: concurrent insertions are rare.
const ATTEMPTS: u32 = 8;

/// Inserts the slot of a direction of a new flow, unless another flow has the tuple. For the `turn` [`ORIGINAL`], this is the
/// slot of its packets, else that of its replies. `turn` 0 uses the client's own port; each other `turn` uses another port, which
/// is always the same for the same packet.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_commit_slot(packet: *mut PacketMeta, number: u32, turn: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return FAILED };
    let Some(place) = flows::record(number) else { return FAILED };
    // SAFETY: a record that was allocated for this packet.
    let flow = unsafe { &mut *place };
    let reply = turn != ORIGINAL;
    if reply && turn != 0 {
        packet.wanted.source_port = Be16::new(service::port(packet, turn));
        packet.translated = 1;
        flow.nat_port = packet.wanted.source_port;
        let head = flows::head(place);
        flows::set_head(place, FlowHead { flags: head.flags | Flow::NAT, ..head });
    }
    flow.received(reply, &mut packet.spare);
    if reply && packet.spare.same(&packet.tuple) {
        // The replies of a pod that reaches itself through a service must not have the tuple of its packets. A pod that sends to
        // its own address has only one tuple.
        return if packet.translated != 0 { TAKEN } else { INSERTED };
    }
    let slot = entry(number, reply);
    if !reply && packet.searched != 0 {
        packet.searched = 0;
        match ctv_put_slot(packet.hash, slot, packet.insertions) {
            SLOT_INSERTED => return INSERTED,
            FULL => return NO_ROOM,
            // Try again, with a lookup.
            _ => {}
        }
    }
    for _ in 0..ATTEMPTS {
        let domain = packet.domain.number();
        let hash = ctv_hash(&raw const packet.spare, domain);
        let found = match insert_slot(&raw const packet.spare, hash, domain, slot) {
            SLOT_INSERTED => {
                if reply {
                    count_insertion(packet, hash);
                }
                return INSERTED;
            }
            FULL => return NO_ROOM,
            BUSY => continue,
            found => found,
        };
        let (other, generation) = (found as u32, (found >> 32) as u32);
        if flows::ctv_is_over(other >> 1, packet.now) == 0 {
            let same = ctv_is(&raw const packet.tuple, other & !1, packet.domain.number()) == generation;
            if same && reply {
                packet.replaces = Replaces::ARRIVING;
            }
            return if same || !reply { EXISTS } else { TAKEN };
        }
        if ctv_remove(other >> 1, generation) != 0 {
            flows::count(FlowEvent::Expired);
        }
    }
    FAILED
}

/// Counts the insertion of the slot of the current packet's replies if it is in the page that was searched for the packet.
#[inline(always)]
fn count_insertion(packet: &mut PacketMeta, hash: u64) {
    let Some(node) = maps::node() else { return };
    let [own, page] = [packet.hash, hash].map(|hash| FlowHash(hash).page(node.flow_pages));
    packet.insertions = packet.insertions.wrapping_add(u32::from(own == page));
}

/// Writes the flow of the current packet to an allocated record. The result is the generation of the record.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_fill(packet: *mut PacketMeta, number: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(place) = flows::record(number) else { return 0 };
    // SAFETY: a record that was allocated for this packet.
    let flow = unsafe { &mut *place };
    flow.client.set_words(packet.tuple.source.words());
    flow.destination.set_words(packet.tuple.destination.words());
    flow.backend.set_words(packet.wanted.destination.words());
    flow.client_port = packet.tuple.source_port;
    flow.destination_port = packet.tuple.destination_port;
    flow.nat_port = packet.wanted.source_port;
    flow.backend_port = packet.wanted.destination_port;
    let nat = if packet.translated != 0 { Flow::NAT } else { 0 };
    let head = FlowHead {
        domain: packet.domain.number(),
        protocol: packet.tuple.protocol,
        flags: nat | packet.hairpin | Flow::INCOMPLETE,
        // The next odd number.
        generation: flows::head(place).generation.wrapping_add(1) | 1,
    };
    ctv_start(packet, number);
    // From here on the record describes the flow.
    flows::set_head(place, head);
    head.generation.into()
}

/// Initializes both directions of a flow that the current packet opens.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_start(packet: *mut PacketMeta, number: u32) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(place) = flows::record(number) else { return 0 };
    // SAFETY: a record of the map.
    let [original, reply] = unsafe { &mut (*place).halves };
    for half in [&mut *original, &mut *reply] {
        half.verdict = packet.verdict;
        half.groups = packet.groups;
        half.identities = packet.identities;
        half.service = packet.service;
        half.seen = packet.now;
        half.made = packet.now;
        half.owner = packet.owner;
    }
    // The node's own port is not the host end of a pod's veth pair.
    let is_pod = packet.place.ifindex != 0 && packet.place.group & FdbEntry::NODE == 0;
    original.receiver = if is_pod { receiver::receiver_at(packet.place.ifindex) } else { 0 };
    reply.receiver = 0;
    original.packets = 1;
    original.bytes = packet.len.into();
    original.rule = packet.rules[0];
    original.end = packet.end;
    original.acknowledged = packet.acknowledged;
    original.sent = sent::ANY | state::record(packet.tcp, 0, true);
    original.other = 0;
    // SAFETY: numbers.
    unsafe {
        contiv_abi::clear(&raw mut reply.packets);
        contiv_abi::clear(&raw mut reply.bytes);
    }
    reply.rule = packet.rules[1];
    reply.end = 0;
    reply.acknowledged = 0;
    reply.sent = 0;
    reply.other = original.sent;
    0
}

/// Replaces the flow that was found, which has ended or is unreplied. If the packet's flow has the same backend and translation,
/// it reuses the record; else the flow that was found is removed.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_replace(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return FAILED };
    let (number, generation) = (packet.entry >> 1, packet.generation);
    let Some(place) = flows::record(number) else { return REMOVED };
    // SAFETY: a record of the map.
    let flow = unsafe { &mut *place };
    let current = u32::from(flows::head(place).generation) == generation;
    if !(current && packet.entry & 1 == 0 && goes_as(packet, flow)) {
        ctv_remove(number, generation);
        return REMOVED;
    }
    packet.wanted.source_port = flow.nat_port;
    packet.translated |= flow.head.flags & Flow::NAT;
    if packet.replaces == Replaces::ENDED {
        ctv_start(packet, number);
        return INSERTED;
    }
    let half = &mut flow.halves[0];
    half.packets += 1;
    half.bytes += u64::from(packet.len);
    half.seen = packet.now;
    let [out, into] = packet.rules;
    let rules = u64::from(out) | u64::from(into) << 32;
    let ends = FlowHalf::ends(packet.groups, packet.identities);
    flows::ctv_set_verdict(number, generation, packet.verdict, rules, ends);
    REPEATED
}

/// Whether the packet's flow has the same backend and translation, and uses the same quota.
#[inline(always)]
fn goes_as(packet: &PacketMeta, flow: &Flow) -> bool {
    flow.backend.same(&packet.wanted.destination)
        && flow.backend_port == packet.wanted.destination_port
        && flow.head.flags & Flow::HAIRPIN == packet.hairpin & Flow::HAIRPIN
        && flow.halves[0].owner == packet.owner
}
