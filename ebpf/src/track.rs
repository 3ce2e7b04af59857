//! Connection tracking: which flow a packet belongs to, and what follows from that.
//!
//! A flow is keyed by its tuple beyond the translation of services, as the backend knows it. A client's
//! packets to a service find it through an alias, which is keyed by what the client sends; the answers find
//! it at once. So a service and its backend can both be talked to, from the same port, without mistaking one
//! for the other: when the tuples beyond the translation would be the same, the later flow gets another port.

use aya_ebpf::{bindings::__sk_buff, cty::c_void, helpers::generated::bpf_loop, programs::TcContext};
use contiv_abi::{Be16, DropReason, FdbKey, Flow, FlowEvent, FlowKey, NeighKey, TCP};

use crate::{
    claim, flows, maps,
    packet::{self, AGAIN, BESIDE, NEW, Packet, REFUSE, RELAY, REOPEN, REVIEW, Told, set_key, tcp},
    policy, relay, served, service, tell,
};

/// Finds the flow of the packet in hand, if there is one, and says in `wanted` where the packet goes.
///
/// It and what it calls are functions of their own for the verifier: it walks each once, and what one leaves
/// in the packet is unknown to the next, so that ways do not multiply. The results are those of
/// `packet::code`, `NEW`, and among them `AGAIN`, `BESIDE`, `REVIEW` and `REOPEN`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_track(skb: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(skb);
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.now = flows::now();
    packet.len = ctx.len();
    packet.confirmed = 0;
    packet.reopens = 0;
    if packet.icmp_error != Told::NOTHING && ctv_inside() == NEW {
        return NEW;
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.from_low = set_key(&packet.wanted, &raw mut packet.key, FlowKey::FLOW);
    let mut code = look_up();
    if code == BESIDE {
        code = ctv_look_again(BESIDE);
    }
    if code == AGAIN {
        code = look_up();
    }
    if code == REVIEW {
        code = ctv_look_again(REVIEW);
    }
    if code == REOPEN {
        return ctv_reopen();
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if packet.confirmed != 0 {
        // From here and not from where it is noticed: the stack of Linux 6.1 would not hold the calls in between.
        let confirmed = flows::ctv_confirm();
        if confirmed != packet::GO_ON {
            return confirmed;
        }
    }
    if code == packet::GO_ON && packet.icmp_error != Told::NOTHING {
        return ctv_outside();
    }
    // The rules have changed once more: the next packet will do.
    if code == REVIEW { DropReason::Policy as u32 } else { code }
}

/// The packet passes by the flow with its key, if there is one.
#[inline(always)]
fn look_up() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if let Some(flow) = flows::answered(&packet.key) {
        let code = ctv_by(flow, 1);
        if code != NEW {
            return code;
        }
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    flows::young(&packet.key).map_or(NEW, |flow| ctv_by(flow, 0))
}

/// Looks beside what was found, or judges it and looks again.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_look_again(why: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if why == BESIDE {
        packet.aside = Flow::COLLISION;
        set_key(&packet.wanted, &raw mut packet.key, FlowKey::COLLISION);
    } else if let Some(flow) = flows::either(&packet.key) {
        policy::ctv_review(flow);
    }
    look_up()
}

/// Whether the packet is the first of a TCP connection: what a client sends before it has been answered.
#[inline(always)]
fn opens(packet: &Packet) -> bool {
    packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN && packet.tuple.protocol == TCP
}

/// Whether the packet in hand may go to a pod of this group, as far as its flow is concerned: rules have judged that for who
/// had the address then.
#[inline(always)]
pub(crate) fn receives(group: u32) -> Result<(), DropReason> {
    match ctv_receives(group) {
        packet::GO_ON => Ok(()),
        reason => Err(packet::reason(reason)),
    }
}

/// A function of its own for the verifier; the result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_receives(group: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if packet.receiver == packet::ANYBODY || packet.receiver == group & u32::from(u16::MAX) {
        return packet::GO_ON;
    }
    flows::ctv_forget();
    DropReason::StaleFlow as u32
}

/// A new connection has the ports of one that has ended, or of one that another pod had, whose flow it gets if it goes the same
/// way.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_reopen() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    flows::count(FlowEvent::Reused);
    packet.reopens = 1;
    packet.spare = packet.wanted;
    NEW
}

/// The packet passes by a flow.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_by(flow: *mut Flow, answered: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole flow. Another CPU may
    // make the entry another flow's at this very moment only when its time is over.
    let Some(flow) = (unsafe { flow.as_mut() }) else { return NEW };
    let answered = answered != 0;
    if flow.flags & Flow::FORWARD_NAT != 0 {
        flow.translate(&mut packet.wanted);
        packet.from_low = set_key(&packet.wanted, &raw mut packet.key, FlowKey::FLOW);
        packet.translated = 1;
        return AGAIN;
    }
    let original = flow.origin_is_low == packet.from_low;
    let translates = flow.flags & Flow::NAT != 0;
    if translates && original && packet.translated == 0 {
        // This is not how packets of a translated flow begin here: another connection, on its own.
        return BESIDE;
    }
    if flows::is_over(flow, &packet.key, packet.now, answered) {
        return NEW;
    }
    if flow.is_closing() && opens(packet) || is_anothers(packet, flow, original) {
        return REOPEN;
    }
    let code = policy::stands(flow);
    if code != packet::GO_ON {
        return code;
    }
    if translates && !original {
        flow.untranslate(&packet.key, &mut packet.wanted);
        packet.wanted.reverse();
        packet.translated = 1;
    }
    if packet.icmp_error != Told::NOTHING {
        return packet::GO_ON;
    }
    pass(packet, flow, original, answered)
}

/// Whether the flow is one of a pod of another group, which had the address of the pod here that sends. Errors come from
/// anybody on the way.
#[inline(always)]
fn is_anothers(packet: &Packet, flow: &Flow, original: bool) -> bool {
    let judged = flow.group(original);
    // By numbers and not by cases, which the verifier would all follow.
    let is_end = (packet.source_port != 0) & (packet.icmp_error == Told::NOTHING);
    (packet.source_group ^ judged) & 0_u32.wrapping_sub(u32::from(is_end)) != 0
}

/// One more packet of a flow.
#[inline(always)]
fn pass(packet: &mut Packet, flow: &mut Flow, original: bool, answered: bool) -> u32 {
    packet.reply = u8::from(!original);
    packet.receiver = flow.group(!original);
    let ending = packet.tcp & (tcp::FIN | tcp::RST);
    // Written only when it changes, so that CPUs do not fight over the line.
    if flow.seen != packet.now {
        flow.seen = packet.now;
    } else if answered && flow.is_open() && ending == 0 {
        packet.busy = 1;
        packet.judges = flow.groups;
        packet.served = flow.service;
        packet.judged_by = [flow.outward.generation, flow.inward.generation];
    }
    if ending != 0 && answered && flow.tcp[0] | flow.tcp[1] == 0 {
        flows::ctv_hurry();
    }
    served::passed(flow, !original, packet.len);
    if original {
        flow.packets[0] += 1;
        flow.bytes[0] += u64::from(packet.len);
        flow.tcp[0] |= ending;
        return packet::GO_ON;
    }
    flow.packets[1] += 1;
    flow.bytes[1] += u64::from(packet.len);
    flow.tcp[1] |= ending;
    // A connection that was refused at once needs no long memory.
    if ending & tcp::RST != 0 {
        return packet::GO_ON;
    }
    if !answered {
        packet.confirmed = 1;
    } else if flow.flags & Flow::OPENING != 0 {
        flow.flags &= !Flow::OPENING;
        flows::count(FlowEvent::Answered);
    }
    packet::GO_ON
}

/// An error about a packet of a flow belongs to the flow: it goes by the ends that a packet of the flow has which goes the way of
/// the error. `NEW` of one to somebody else than who sent the packet: nothing that we know.
///
/// This and the next are functions of their own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_inside() -> u32 {
    let Some(packet) = packet::in_hand() else { return NEW };
    packet.wanted = packet.inner;
    packet.wanted.reverse();
    let is_for_sender = packet.wanted.destination.same(&packet.tuple.destination);
    if packet.icmp_error == Told::FLOW && is_for_sender && is_on_path(packet) { packet::GO_ON } else { NEW }
}

/// Whether an ICMP error comes from the receiver of the packet that it quotes, or from a router: no endpoint is one.
#[inline(always)]
fn is_on_path(packet: &Packet) -> bool {
    let source = &packet.tuple.source;
    source.same(&packet.inner.destination)
        || maps::neighbour(&NeighKey { segment: packet.segment, ip: *source }).is_none()
            && !claim::is_inside(packet.segment, source, packet.ip6 != 0)
}

/// What the error itself is to be, and what it quotes.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_outside() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.inner_wanted = packet.wanted;
    packet.wanted = packet.tuple;
    if packet.translated == 0 {
        return packet::GO_ON;
    }
    // A router on the way stays the source; its errors are its own.
    if packet.inner.destination.same(&packet.tuple.source) {
        packet.wanted.source = packet.inner_wanted.source;
    }
    packet.wanted.destination = packet.inner_wanted.destination;
    packet.inner_wanted.reverse();
    packet::GO_ON
}

/// A new flow: to a service or not, allowed or not, noted. The result is that of `packet::code`, or `REFUSE` and the
/// reason.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_open() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    // An endpoint would believe an error about a flow that is not known here.
    if packet.icmp_error != Told::NOTHING {
        return DropReason::UnrelatedIcmpError as u32;
    }
    begin(packet);
    // Services are translated where their clients are.
    if packet.source_port != 0 {
        let mut code = service::ctv_choose();
        if code == AGAIN {
            code = service::ctv_choose();
        }
        if code != packet::GO_ON {
            return REFUSE | code;
        }
    }
    admit()
}

/// The same of a packet from the wire of a VLAN: for clients there, services are translated where the backend is. The
/// result may be `RELAY`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_open_wire() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    let (to_service, error) = (packet.to_service != 0, packet.icmp_error);
    begin(packet);
    if error != Told::NOTHING {
        let relayed = to_service && error == Told::FLOW && relay::ctv_known() == RELAY;
        return if relayed { RELAY } else { DropReason::UnrelatedIcmpError as u32 };
    }
    let mut code = if to_service { relay::ctv_relay() } else { relay::ctv_arrive() };
    if code == AGAIN && !to_service {
        code = relay::ctv_arrive();
    }
    if code == RELAY || code == DropReason::NotLocal as u32 {
        return code;
    }
    if code == AGAIN {
        // The service has changed once more: the client will try again.
        return DropReason::NoBackend as u32;
    }
    if code != packet::GO_ON {
        return REFUSE | code;
    }
    admit()
}

#[inline(always)]
fn begin(packet: &mut Packet) {
    packet.wanted = packet.tuple;
    packet.from_low = set_key(&packet.tuple, &raw mut packet.alias, FlowKey::FLOW);
    if packet.translated != 0 && packet.reopens == 0 && packet.icmp_error == Told::NOTHING {
        // By an alias that leads nowhere any more.
        flows::forget_alias(packet);
    }
    packet.translated = 0;
}

#[inline(always)]
fn admit() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if packet.aside != 0 {
        packet.translated = 1;
        packet.alias.kind = FlowKey::COLLISION;
    }
    let code = ctv_judge();
    if code != packet::GO_ON {
        return code;
    }
    let noted = ctv_note();
    ctv_noted(noted)
}

/// What follows from whether the flow of the packet in hand was noted. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_noted(noted: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if noted == TAKEN {
        return DropReason::NoPort as u32;
    }
    if noted == FAILED {
        flows::count(FlowEvent::Failed);
        // One that is not translated goes without: its answers will be judged as if they were questions.
        return if packet.translated != 0 { DropReason::NotTracked as u32 } else { packet::GO_ON };
    }
    if packet.again != 0 {
        served::passed(&packet.flow, false, packet.len);
        return packet::GO_ON;
    }
    flows::count(FlowEvent::Made);
    served::began(packet.service, packet.len);
    tell::began();
    packet::GO_ON
}

/// Ports that are tried for a translated flow before giving up, after its own. With nine of ten ports of client and
/// backend taken, one connection in 700,000 finds none.
const TRIES: u32 = 128;

/// What becomes of a flow: it is noted by its key,
const NOTED: u32 = 0;
/// another flow has that,
const TAKEN: u32 = 1;
/// or there is no memory.
const FAILED: u32 = 2;

/// Writes the flow's entries.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_note() -> u32 {
    let Some(packet) = packet::in_hand() else { return FAILED };
    packet.again = 0;
    packet.flow.flags = 0;
    packet.flow.packets = [1, 0];
    packet.flow.bytes = [packet.len.into(), 0];
    packet.flow.seen = packet.now;
    packet.flow.made = packet.now;
    packet.flow.service = packet.service;
    packet.flow.tcp = [packet.tcp & (tcp::FIN | tcp::RST), 0];
    packet.flow.nat_ip = packet.tuple.destination;
    packet.flow.nat_port = packet.tuple.destination_port;
    packet.flow.nat_client_port = packet.tuple.source_port;
    packet.flow.origin_is_low = packet.from_low;
    if packet.translated != 0 {
        let named = if opens(packet) { 0 } else { Flow::NAMED };
        packet.flow.flags = Flow::NAT | named | packet.hairpin | packet.aside;
    }
    if packet.reopens != 0 {
        if ctv_reuse() != 0 {
            return NOTED;
        }
        flows::ctv_forget();
        let Some(packet) = packet::in_hand() else { return FAILED };
        // That of what was forgotten is there.
        set_key(&packet.tuple, &raw mut packet.alias, u8::from(packet.aside != 0));
    }
    let Some(packet) = packet::in_hand() else { return FAILED };
    if packet.translated == 0 {
        return if flows::note(&packet.alias, &packet.flow) { NOTED } else { FAILED };
    }
    let mut noted = ctv_claim(0);
    if noted == TAKEN {
        // The result is how many it took.
        // SAFETY: `try_port` expects a number, which outlives the loop.
        let _tries =
            unsafe { bpf_loop(TRIES, try_port as *mut c_void, (&raw mut noted).cast::<c_void>(), 0) };
    }
    let Some(packet) = packet::in_hand() else { return FAILED };
    if noted == NOTED && packet.flow.flags & Flow::NAMED != 0 { ctv_named() } else { noted }
}

/// The new connection of the packet in hand, which has the ports of one that has ended, gets that one's entries if it goes
/// the same way. Not zero if so.
///
/// A function of its own for the verifier, as those that follow.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_reuse() -> u32 {
    const KIND: u8 = Flow::NAT | Flow::HAIRPIN | Flow::COLLISION;
    let Some(packet) = packet::in_hand() else { return 0 };
    let (wanted, ended) = (&packet.wanted, &packet.spare);
    if wanted.source_port != ended.source_port
        || wanted.destination_port != ended.destination_port
        || !wanted.destination.same(&ended.destination)
    {
        return 0;
    }
    let Some(flow) = flows::answered(&packet.key) else { return 0 };
    // SAFETY: an entry that was found.
    let flow = unsafe { &mut *flow };
    if flow.flags & KIND != packet.flow.flags {
        return 0;
    }
    if packet.translated != 0 {
        packet.flow.origin_is_low = flow.origin_is_low;
    }
    packet.flow.flags |= Flow::OPENING;
    // SAFETY: an entry of a map is not in the packet. An assignment would go by way of the stack.
    unsafe { core::ptr::copy_nonoverlapping(&raw const packet.flow, flow, 1) };
    flows::ctv_end_shortcuts();
    1
}

/// Writes the alias of the flow that the packet in hand begins.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_named() -> u32 {
    let Some(packet) = packet::in_hand() else { return FAILED };
    packet.flow.flags = packet.flow.flags & !(Flow::NAT | Flow::NAMED) | Flow::FORWARD_NAT;
    packet.flow.nat_ip = packet.wanted.destination;
    packet.flow.nat_port = packet.wanted.destination_port;
    packet.flow.nat_client_port = packet.wanted.source_port;
    if flows::note(&packet.alias, &packet.flow) { NOTED } else { FAILED }
}

extern "C" fn try_port(turn: u64, noted: *mut u32) -> i64 {
    let result = ctv_claim(turn as u32 + 1);
    // SAFETY: `note` passes its own.
    unsafe { *noted = result };
    i64::from(result != TAKEN)
}

/// Notes the flow of the packet in hand by its key beyond the translation, unless another flow has that. `turn` is zero for the
/// client's own port; then come others, the same ones in the same order for the same packet: what is sent again before the
/// answer finds its flow.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_claim(turn: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return FAILED };
    if turn != 0 {
        packet.wanted.source_port = Be16::new(service::port(packet, turn));
    }
    packet.from_low = set_key(&packet.wanted, &raw mut packet.key, FlowKey::FLOW);
    packet.flow.origin_is_low = packet.from_low;
    packet.again = 0;
    let taken = if let Some(flow) = flows::answered(&packet.key) {
        ctv_another(flow, 1)
    } else {
        // A pod that reaches itself might meet its own alias there.
        u32::from(packet.hairpin != 0 && same_ports(packet))
    };
    if taken != 0 {
        return TAKEN;
    }
    if flows::note_first(&packet.key, &packet.flow) {
        return NOTED;
    }
    let Some(flow) = flows::young(&packet.key) else { return FAILED };
    if ctv_another(flow, 0) != 0 {
        return TAKEN;
    }
    let Some(packet) = packet::in_hand() else { return FAILED };
    if flows::note(&packet.key, &packet.flow) { NOTED } else { FAILED }
}

/// Not zero if the entry is of another flow than this very one. If it is this one's, which was not answered yet, the packet in
/// hand is the first one once more.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_another(flow: *const Flow, answered: u32) -> u32 {
    let Some(packet) = packet::in_hand() else { return 1 };
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole flow.
    let Some(flow) = (unsafe { flow.as_ref() }) else { return 0 };
    if flows::is_over(flow, &packet.key, packet.now, answered != 0) {
        return 0;
    }
    if flow.flags & Flow::NAT == 0
        || flow.nat_port != packet.tuple.destination_port
        || flow.nat_client_port != packet.tuple.source_port
        || !flow.nat_ip.same(&packet.tuple.destination)
    {
        return 1;
    }
    if answered == 0 && !flow.is_closing() {
        repeat(packet, flow);
    }
    0
}

#[inline(always)]
fn repeat(packet: &mut Packet, flow: &Flow) {
    packet.again = 1;
    packet.flow.made = flow.made;
    packet.flow.packets[0] = flow.packets[0] + 1;
    packet.flow.bytes[0] = flow.bytes[0] + u64::from(packet.len);
}

#[inline(always)]
fn same_ports(packet: &Packet) -> bool {
    packet.key.low_port == packet.alias.low_port && packet.key.high_port == packet.alias.high_port
}

/// Asks the rules of both ends, as far as they are here.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_judge() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    // By the Ethernet address, which is what decides who gets it.
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    if policy::allows(packet, place) { packet::GO_ON } else { policy::denial() }
}
