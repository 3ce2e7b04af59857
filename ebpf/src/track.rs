//! Connection tracking: which flow a packet belongs to, and what follows from that.
//!
//! A flow is keyed by its tuple beyond the translation of services, as the backend knows it. A client's
//! packets to a service find it through an alias, which is keyed by what the client sends; the answers find
//! it at once. So a service and its backend can both be talked to, from the same port, without mistaking one
//! for the other: when the tuples beyond the translation would be the same, the later flow gets another port.

use aya_ebpf::{
    bindings::__sk_buff,
    cty::c_void,
    helpers::generated::{bpf_get_prandom_u32, bpf_loop},
    programs::TcContext,
};
use contiv_abi::{Be16, DropReason, FdbKey, Flow, FlowEvent, FlowKey, TCP};

use crate::{
    flows, maps,
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
    if packet.icmp_error != Told::NOTHING && ctv_inside() == NEW {
        return NEW;
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.from_low = set_key(&packet.wanted, &raw mut packet.key, FlowKey::FLOW);
    let mut code = look_up();
    if code == BESIDE {
        let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
        packet.aside = Flow::ASIDE;
        set_key(&packet.wanted, &raw mut packet.key, FlowKey::ASIDE);
        code = look_up();
    }
    if code == AGAIN {
        code = look_up();
    }
    if code == REVIEW {
        let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
        if let Some(flow) = flows::answered(&packet.key) {
            policy::ctv_review(flow);
        } else if let Some(flow) = flows::young(&packet.key) {
            policy::ctv_review(flow);
        }
        code = look_up();
    }
    if code == REOPEN {
        return ctv_reopen();
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if packet.confirmed != 0 {
        // From here and not from where it is noticed: the stack of Linux 6.1 would not hold the calls in between.
        flows::ctv_confirm();
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

/// Makes room for the new connection of the packet in hand.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_reopen() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    flows::count(FlowEvent::Reused);
    packet.translated = 0;
    flows::forget(packet);
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
    if flow.flags & Flow::ALIAS != 0 {
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
    if reopens(packet, flow) {
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

/// A connection that ends where another one ended just now: the ports are used again.
#[inline(always)]
fn reopens(packet: &Packet, flow: &Flow) -> bool {
    packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN
        && packet.tuple.protocol == TCP
        && flow.tcp[0] | flow.tcp[1] != 0
}

/// One more packet of a flow.
#[inline(always)]
fn pass(packet: &mut Packet, flow: &mut Flow, original: bool, answered: bool) -> u32 {
    packet.reply = u8::from(!original);
    let ending = packet.tcp & (tcp::FIN | tcp::RST);
    // Written only when it changes, so that CPUs do not fight over the line.
    if flow.seen != packet.now {
        flow.seen = packet.now;
    } else if answered && !flow.is_closing() && ending == 0 {
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
    if !answered && ending & tcp::RST == 0 {
        packet.confirmed = 1;
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
    if packet.icmp_error == Told::FLOW && is_for_sender { packet::GO_ON } else { NEW }
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
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    // Errors are noted by nobody: each is judged by itself.
    if packet.icmp_error != Told::NOTHING { ctv_judge() } else { admit() }
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
        return if relayed { RELAY } else { ctv_judge() };
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
    if packet.translated != 0 && packet.icmp_error == Told::NOTHING {
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
        packet.alias.kind = FlowKey::ASIDE;
    }
    let code = ctv_judge();
    if code != packet::GO_ON {
        return code;
    }
    let code = ctv_note();
    let again = packet::in_hand().is_some_and(|packet| packet.again != 0);
    if code == packet::GO_ON && !again {
        tell::began();
    }
    code
}

/// Ports that are tried for a translated flow before giving up, after its own. With nine of ten ports of client and
/// backend taken, one connection in 700,000 finds none.
const TRIES: u32 = 128;

/// Writes the flow's entries.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_note() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet::code(note(packet))
}

#[inline(always)]
fn note(packet: &mut Packet) -> Result<(), DropReason> {
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
    if packet.translated == 0 {
        packet.flow.origin_is_low = packet.from_low;
        if flows::note(&packet.alias, &packet.flow) {
            flows::count(FlowEvent::Made);
        } else {
            // It goes without: its answers will be judged as if they were questions.
            flows::count(FlowEvent::Failed);
        }
        return Ok(());
    }
    if ctv_taken() != 0 {
        let mut taken = 1_u32;
        // The result is how many it took.
        // SAFETY: `try_port` expects a number, which outlives the loop.
        let _tries =
            unsafe { bpf_loop(TRIES, try_port as *mut c_void, (&raw mut taken).cast::<c_void>(), 0) };
        if taken != 0 {
            return Err(DropReason::NoPort);
        }
    }
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    if ctv_noted() == 0 {
        flows::count(FlowEvent::Failed);
        return Err(DropReason::NotTracked);
    }
    if packet.again != 0 {
        served::passed(&packet.flow, false, packet.len);
        return Ok(());
    }
    flows::count(FlowEvent::Made);
    served::began(packet.service, packet.len);
    Ok(())
}

/// Writes the entries of the flow that the packet in hand begins, which is translated. Zero without memory.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_noted() -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
    let kind = packet.hairpin | packet.aside;
    packet.flow.origin_is_low = packet.from_low;
    packet.flow.flags = Flow::NAT | kind;
    let noted = flows::note(&packet.key, &packet.flow);
    packet.flow.flags = Flow::ALIAS | kind;
    packet.flow.nat_ip = packet.wanted.destination;
    packet.flow.nat_port = packet.wanted.destination_port;
    packet.flow.nat_client_port = packet.wanted.source_port;
    u32::from(noted) & u32::from(flows::note(&packet.alias, &packet.flow))
}

extern "C" fn try_port(_try: u64, taken: *mut u32) -> i64 {
    let result = ctv_taken();
    // SAFETY: `note` passes its own.
    unsafe { *taken = result };
    i64::from(result == 0)
}

/// Sets the key of the flow beyond the translation. When another flow has it, the packet gets another port,
/// which is the result; else zero.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_taken() -> u32 {
    /// Not those that need a privilege.
    const LOWEST: u32 = 1024;
    let Some(packet) = packet::in_hand() else { return 1 };
    packet.from_low = set_key(&packet.wanted, &raw mut packet.key, FlowKey::FLOW);
    packet.again = 0;
    let taken = if let Some(flow) = flows::answered(&packet.key) {
        is_another(packet, flow, true)
    } else if let Some(flow) = flows::young(&packet.key) {
        let another = is_another(packet, flow, false);
        if !another {
            repeat(packet, flow);
        }
        another
    } else {
        // A pod that reaches itself might meet its own alias there.
        packet.hairpin != 0 && same_ports(packet)
    };
    if !taken {
        return 0;
    }
    // SAFETY: a helper without arguments.
    let random = unsafe { bpf_get_prandom_u32() };
    let port = LOWEST + random % (0x1_0000 - LOWEST);
    packet.wanted.source_port = Be16::new(port as u16);
    port
}

/// Whether the entry is of another flow than this very one, of which only the alias was lost.
#[inline(always)]
fn is_another(packet: &Packet, flow: *mut Flow, answered: bool) -> bool {
    // SAFETY: an entry that was found.
    let flow = unsafe { &*flow };
    !flows::is_over(flow, &packet.key, packet.now, answered)
        && (flow.flags & Flow::NAT == 0
            || flow.nat_port != packet.tuple.destination_port
            || flow.nat_client_port != packet.tuple.source_port
            || !flow.nat_ip.same(&packet.tuple.destination))
}

/// The first packet of a flow that was not answered, once more.
#[inline(always)]
fn repeat(packet: &mut Packet, flow: *const Flow) {
    // SAFETY: an entry that was found.
    let flow = unsafe { &*flow };
    packet.again = u8::from(!flow.is_closing());
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
    if policy::allows(packet, place) { packet::GO_ON } else { DropReason::Policy as u32 }
}
