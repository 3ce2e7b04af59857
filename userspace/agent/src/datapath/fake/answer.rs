//! ICMP messages of the router.

use std::net::IpAddr;

use contiv_model::mac::Mac;

use super::{
    frame::{ETHERNET, Ethernet, ICMPV6, IPV4, IPV6, bytes, checksum},
    packet::Packet,
};

const ICMP: u8 = 1;
/// TTL or hop limit of the messages.
const TTL: u8 = 64;
/// The header of IPv4 and 8 bytes (RFC 792).
const QUOTED_V4: usize = 28;
/// The header of IPv6 and 8 bytes.
const QUOTED_V6: usize = 48;

/// Returns the reply to an echo request; `None` for another packet.
pub(super) fn echo_reply(frame: &[u8], packet: &Packet) -> Option<Vec<u8>> {
    let mut reply = frame.to_vec();
    packet.is_echo_request(frame).then_some(())?;
    reply[..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&Mac::ROUTER.0);
    packet.answer_echo(&mut reply, TTL);
    Some(reply)
}

/// Returns "time exceeded" about a packet, from the gateway of its sender; `None` for packets that must not be answered so.
pub(super) fn time_exceeded(frame: &[u8], packet: &Packet, gateway: IpAddr) -> Option<Vec<u8>> {
    let (source, kind) = (packet.tuple.source.0, Ethernet::read(frame)?.kind);
    if !packet.is_plain(frame) || packet.quoted(frame).is_some() || source.is_unspecified() {
        return None;
    }
    let quoted = if kind == IPV4 { QUOTED_V4 } else { QUOTED_V6 };
    let quoted = frame.get(ETHERNET..ETHERNET + quoted)?;
    let (network, message) = match (gateway, source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut message = [&[11, 0, 0, 0, 0, 0, 0, 0][..], quoted].concat();
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let length = (20 + message.len() as u16).to_be_bytes();
            let fields = [&[0x45, 0][..], &length, &[0, 0, 0x40, 0, TTL, ICMP, 0, 0]].concat();
            let mut header = [&fields[..], &from.octets(), &to.octets()].concat();
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            (header, message)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let mut message = [&[3, 0, 0, 0, 0, 0, 0, 0][..], quoted].concat();
            let length = (message.len() as u16).to_be_bytes();
            let ends = [from.octets(), to.octets()].concat();
            let sum = checksum(&[&ends[..], &[0, 0], &length, &[0, 0, 0, ICMPV6], &message].concat());
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            ([&[0x60, 0, 0, 0][..], &length, &[ICMPV6, TTL], &ends].concat(), message)
        }
        _ => return None,
    };
    let kind = if kind == IPV4 { IPV4 } else { IPV6 };
    let sender: [u8; 6] = bytes(frame, 6)?;
    Some([&sender[..], &Mac::ROUTER.0, &kind.to_be_bytes(), &network, &message].concat())
}
