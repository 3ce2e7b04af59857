//! Updates of a flow by its packets: counters, and the state of a TCP connection. Also checks whether the segment that an ICMP
//! error quotes may be in flight.

use contiv_abi::{
    DropReason, FlowEvent, FlowHalf, TCP,
    tcp::{self as state, sent},
};

use crate::{
    flows::{self, half},
    packet::{self, Fragment, GO_ON, PacketMeta, tcp},
    service_counts,
};

/// Counts a packet of a flow.
#[inline(always)]
pub(crate) fn pass(packet: &mut PacketMeta, half: &mut FlowHalf, reply: bool) -> u32 {
    // Written only if it changes.
    if half.seen != packet.now {
        half.seen = packet.now;
    }
    half.packets += 1;
    half.bytes += u64::from(packet.len);
    let (len, service) = (packet.len, half.service);
    if packet.tuple.protocol == TCP && packet.fragment != Fragment::LATER {
        if !is_plain(packet, half) {
            ctv_segment(packet);
        } else {
            half.end = state::later(packet.end, half.end);
            half.acknowledged = state::later(packet.acknowledged, half.acknowledged);
        }
    } else if half.sent & sent::ANY == 0 {
        ctv_replied(packet);
    }
    service_counts::packet_forwarded(service, reply, len);
    GO_ON
}

/// Whether a segment cannot change the state of the connection.
#[inline(always)]
fn is_plain(packet: &PacketMeta, half: &FlowHalf) -> bool {
    const SEEN: u8 = sent::ANY | sent::ACK;
    packet.tcp & (tcp::SYN | tcp::FIN | tcp::RST | tcp::ACK) == tcp::ACK
        && half.sent & SEEN == SEEN
        && (half.other & sent::FIN == 0 || half.sent & sent::ACKED_FIN != 0)
}

/// Records the first reply of a flow of a protocol without states.
///
/// This and the next are global functions: the verifier checks each once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_replied(packet: *mut PacketMeta) -> u32 {
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

/// Updates the state of the connection for the current segment.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_segment(packet: *mut PacketMeta) -> u32 {
    let Some(packet) = packet::of(packet) else { return 0 };
    let Some(flow) = flows::record(packet.entry >> 1) else { return 0 };
    let side = (packet.entry & 1) as usize;
    // SAFETY: a record of the map.
    let (own, other) = unsafe { (half(flow, side), half(flow, side ^ 1)) };
    let seen = own.sent & sent::ANY != 0;
    // An imported flow of another datapath has no sequence numbers before its first segment here.
    let known = seen && own.sent & (sent::SYN | sent::ACK) != 0;
    let plausible = !known || state::is_plausible(packet.sequence, acknowledged(other, own), own.end);
    let first = own.sent & sent::ACK == 0;
    let mut flags = packet.tcp;
    // An acknowledgement of data that was not sent is ignored, as the receiver does.
    if !state::acknowledges(packet.acknowledged, own.sent, own.other, own.acknowledged, other.end) {
        flags &= !tcp::ACK;
    }
    // The reply to a SYN: to complete the handshake, the other direction acknowledges data from this number on. Earlier segments
    // were not from the receiver of the SYN.
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

/// Whether the segment that an ICMP error quotes may be in flight (RFC 5927, section 4.1): its sequence number is between the
/// acknowledgement of its receiver and the last byte that its sender has sent. Other protocols have no sequence numbers. `reply`
/// is the direction of the error. The result is that of `packet::code`.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_quoted(packet: *mut PacketMeta, number: u32, reply: u32) -> u32 {
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

/// The sequence number of this direction up to which the other direction has acknowledged. The record of the other direction has
/// the number as sent, plausible or not: a comparison with this half, which is in another cache line, would be necessary for each
/// packet.
#[inline(always)]
fn acknowledged(other: &FlowHalf, own: &FlowHalf) -> u32 {
    state::unacknowledged(other.acknowledged, other.sent & sent::ACK != 0, own.end)
}
