//! The stages for unicast IP packets: parse, look up the flow, translate.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use contiv_abi::{DropReason, FlowHalf, LogResult, LogStage, NeighKey};

use crate::{
    flows, frame, guard, log, maps, nat,
    packet::{self, AGAIN, Admission, GO_ON, IcmpError, NEW, PacketMeta, REVALIDATE, ROUTER, Route},
    parse, receiver, route,
    skb::NO_CHECKSUM,
    track,
};

/// Passes the frame of the packet metadata through the stages. A frame that is not IP, or has several receivers, is forwarded by
/// its Ethernet address alone. False if its flow is unknown; the slow path then continues with it.
#[inline(always)]
pub(crate) fn pass(ctx: &TcContext, packet: &mut PacketMeta) -> Result<bool, DropReason> {
    packet.receiver = packet::NO_FLOW;
    packet.guarded = 0;
    packet.route = Route::BRIDGED;
    packet.receiver_identity = FlowHalf::UNKNOWN.into();
    packet.admission = if packet.kind == frame::ARP { Admission::ALL } else { Admission::WITHOUT_RULES };
    let ip6 = packet.kind == frame::IPV6;
    if !(ip6 || packet.kind == frame::IPV4) {
        return Ok(true);
    }
    packet.admission = Admission::ALL;
    packet.ip6 = u8::from(ip6);
    match ctv_pass(packet, ctx.skb.skb) {
        GO_ON => Ok(true),
        NEW => Ok(false),
        code => Err(packet::reason(code)),
    }
}

/// Prepares the evaluation of an IP packet in a broadcast or multicast frame for each port that may receive it. Drops a packet to
/// the unicast address of an endpoint: the kernel of a pod accepts such a packet from a multicast frame, too. Drops ICMP errors:
/// they are addressed to the sender of a packet (RFC 1122 3.2.2, RFC 4443 2.2), but kernels process them from a multicast frame,
/// too.
///
/// A global function: the verifier checks it once. The result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_bum(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    if maps::neighbour(&NeighKey::new(packet.domain, packet.tuple.destination)).is_some() {
        return DropReason::UnicastInMulticast as u32;
    }
    if packet.icmp_error != IcmpError::NONE {
        return DropReason::UnrelatedIcmpError as u32;
    }
    GO_ON
}

/// The stages. The result is that of `packet::code`, or `NEW` if the slow path is to continue.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_pass(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::of(packet) else { return DropReason::Malformed as u32 };
    // First, because the stack has no room for a deeper call of the parser.
    let code = parse::ctv_parse(packet, skb);
    if code != GO_ON {
        // Neighbour discovery has no flow, and policies do not apply to it.
        return match code {
            AGAIN if packet.checksum == NO_CHECKSUM => GO_ON,
            AGAIN => DropReason::Malformed as u32,
            code => code,
        };
    }
    packet.admission = Admission::RULES;
    packet.now = flows::now();
    packet.len = TcContext::new(skb).len();
    let is_for_group = packet.is_for_group();
    let code = guard::ctv_guard_ports(packet, skb);
    if code != GO_ON {
        return code;
    }
    if is_for_group {
        return ctv_bum(packet);
    }
    let code = route::ctv_route(packet, skb);
    if code == ROUTER {
        packet.miss = ROUTER;
        return NEW;
    }
    if code != GO_ON {
        return code;
    }
    let code = track::ctv_track(packet);
    if code == NEW || code == REVALIDATE {
        packet.miss = code;
        log::stage(LogStage::Track, if code == NEW { LogResult::NoFlow } else { LogResult::RulesChanged });
        return NEW;
    }
    log::code(LogStage::Track, code, LogResult::FlowFound);
    if code != GO_ON {
        return code;
    }
    let code = ctv_rewrite(packet, skb);
    if code == DropReason::StrangeBackend as u32 {
        receiver::remove_stale_flow(packet);
    }
    code
}

/// Translates the current packet if its flow is translated. The result is that of `packet::code`.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_rewrite(packet: *mut PacketMeta, skb: *mut __sk_buff) -> u32 {
    match packet::of(packet) {
        Some(packet) if packet.translated != 0 => nat::ctv_translate(packet, skb),
        _ => GO_ON,
    }
}
