//! The stages between the Ethernet addresses: a packet of IP for one receiver is parsed, belongs to a flow,
//! and is translated when the flow is.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{DropReason, FlowEvent, FlowHalf, NeighKey, Segment, SegmentEntry};

use crate::{
    flows,
    frame::{self, Ethernet},
    guard, maps, nat, open,
    packet::{self, AGAIN, Admission, GO_ON, NEW, REFUSE},
    parse, refuse, track,
};

/// Who sent the frame: a pod's port and group, both zero for a frame from outside.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) port: u32,
    pub(crate) group: u32,
    /// From the wire, for the Ethernet address of a service.
    pub(crate) to_service: bool,
}

impl Sender {
    /// Not a pod here.
    #[inline(always)]
    pub(crate) const fn outside(to_service: bool) -> Sender {
        Sender { port: 0, group: 0, to_service }
    }
}

/// What becomes of a frame that passes the stages; it goes by `Packet::destination_mac`. No enum: the half of it that is not there
/// would be an unknown register to the verifier.
#[derive(Clone, Copy)]
pub(crate) struct Passed {
    /// It goes to another node's pod, which has all the rest to do.
    pub(crate) relayed: bool,
    /// Zero, or the number of the reason for which it has become its own refusal, for the sender.
    pub(crate) refused: u32,
}

/// Takes a frame through the stages; what is not IP, or for many, goes by its Ethernet address alone.
///
/// Frames from the `WIRE` of a VLAN go by a function of their own, so that the other programs are not longer by what only
/// they have.
#[inline(always)]
pub(crate) fn pass<const WIRE: bool>(
    ctx: &TcContext,
    ethernet: &Ethernet,
    segment: Segment,
    entry: &SegmentEntry,
    sender: Sender,
) -> Result<Passed, DropReason> {
    let ip6 = ethernet.kind == frame::IPV6;
    let mut passed = Passed { relayed: false, refused: 0 };
    let packet = packet::in_hand().ok_or(DropReason::Malformed)?;
    packet.receiver = packet::ANYBODY;
    packet.receiver_identity = FlowHalf::UNKNOWN.into();
    packet.admission = if ethernet.kind == frame::ARP { Admission::ALL } else { Admission::WITHOUT_RULES };
    if !(ip6 || ethernet.kind == frame::IPV4) {
        return Ok(passed);
    }
    packet.admission = Admission::ALL;
    packet.segment = segment;
    packet.segment_flags = entry.flags;
    packet.source_port = sender.port;
    packet.source_group = sender.group;
    packet.ip6 = u8::from(ip6);
    packet.to_service = u8::from(sender.to_service);
    packet.for_many = u8::from(ethernet.is_group());
    packet.destination_mac = ethernet.destination;
    packet.source_mac = ethernet.source;
    let code = if WIRE { ctv_pass_wire(ctx.skb.skb) } else { ctv_pass(ctx.skb.skb) };
    if code & REFUSE != 0 {
        passed.refused = code & !REFUSE;
    } else if code == packet::TRANSLATED || WIRE && code == packet::RELAY {
        passed.relayed = WIRE && code == packet::RELAY;
    } else if code != GO_ON {
        return Err(packet::reason(code));
    }
    Ok(passed)
}

/// Prepares the evaluation of an IP packet in a broadcast or multicast frame for each port that may receive it. Refuses one to
/// the unicast address of an endpoint: the kernel of a pod accepts what is for its address from such a frame, too.
///
/// A function of its own for the verifier; the result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_bum() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if maps::neighbour(&NeighKey { segment: packet.segment, ip: packet.tuple.destination }).is_some() {
        return DropReason::UnicastInMulticast as u32;
    }
    GO_ON
}

/// The stages themselves. A function of its own for the verifier; the result is that of `packet::code`,
/// `TRANSLATED`, or `REFUSE` and the reason.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_pass(skb: *mut __sk_buff) -> u32 {
    stages(skb, || open::ctv_open())
}

/// Likewise; the result may be `RELAY`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_pass_wire(skb: *mut __sk_buff) -> u32 {
    stages(skb, || open::ctv_open_wire())
}

#[inline(always)]
fn stages(skb: *mut __sk_buff, begin: impl Fn() -> u32) -> u32 {
    // First, because the stack has no room for one more call on the way to the parser.
    let code = parse::ctv_parse(skb);
    if code != GO_ON {
        // Neighbour discovery has no flow, and policies do not apply to it.
        return if code == AGAIN { GO_ON } else { code };
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet.admission = Admission::RULES;
    let for_many = packet.for_many != 0;
    let code = guard::ctv_guard_ports();
    if code != GO_ON {
        return code;
    }
    if for_many {
        return ctv_bum();
    }
    let code = guard::ctv_guard_destination();
    if code != GO_ON {
        return code;
    }
    let mut code = track::ctv_track(skb);
    if code == NEW {
        code = begin();
    }
    if code == AGAIN {
        // Another CPU has inserted the flow meanwhile.
        code = track::ctv_track(skb);
        if code == NEW {
            code = begin();
        }
    }
    if code == AGAIN {
        flows::count(FlowEvent::Failed);
        code = DropReason::NotTracked as u32;
    }
    if code & REFUSE != 0 {
        // What cannot be refused is dropped for the same reason.
        return if refuse::ctv_refuse(skb) == GO_ON { code } else { code & !REFUSE };
    }
    if code != GO_ON {
        return code;
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    if packet.translated == 0 {
        return GO_ON;
    }
    match nat::ctv_translate(skb) {
        GO_ON => packet::TRANSLATED,
        code => code,
    }
}
