//! Answers of a node to packets that it does not forward.

use std::{net::IpAddr, ops::Range};

use contiv_model::policy::{ICMP, ICMPV6, TCP, UDP};

use super::{
    frame::{ETHERNET, Ethernet, IPV4, IPV6, bytes, checksum},
    packet::Packet,
};

/// TTL or hop limit of the answers.
const TTL: u8 = 64;
/// The header of IPv4 and 8 bytes (RFC 792).
const QUOTED_V4: usize = 28;
/// The header of IPv6 and 8 bytes.
const QUOTED_V6: usize = 48;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Returns the reply to an echo request; `None` for another packet.
pub(crate) fn echo_reply(frame: &[u8], packet: &Packet) -> Option<Vec<u8>> {
    let mut reply = frame.to_vec();
    packet.is_echo_request(frame).then_some(())?;
    reply[..6].copy_from_slice(&frame[6..12]);
    reply[6..12].copy_from_slice(&frame[..6]);
    packet.answer_echo(&mut reply, TTL);
    Some(reply)
}

/// Returns "time exceeded" about a packet, from the gateway of its sender; `None` for packets that must not be answered.
pub(crate) fn time_exceeded(frame: &[u8], packet: &Packet, gateway: IpAddr) -> Option<Vec<u8>> {
    let source = packet.tuple.source.0;
    if packet.quoted(frame).is_some() || source.is_unspecified() {
        return None;
    }
    message(frame, packet, gateway, [[11, 0], [3, 0]])
}

/// Returns the refusal of a packet to a service that has no backend for it: a reset that the client accepts (RFC 9293
/// section 3.10.7.1), or "port unreachable"; `None` for packets that must not be answered.
pub(crate) fn refusal(frame: &[u8], packet: &Packet) -> Option<Vec<u8>> {
    match packet.tuple.protocol {
        TCP => reset(frame, packet),
        UDP => message(frame, packet, packet.tuple.destination.0, [[3, 3], [1, 4]]),
        _ => None,
    }
}

fn reset(frame: &[u8], packet: &Packet) -> Option<Vec<u8>> {
    packet.is_plain(frame).then_some(())?;
    let Range { start: tcp, end } = packet.body();
    let number = |at: usize| bytes(frame, tcp + at).map(u32::from_be_bytes);
    let (sequence, acknowledged) = (number(4)?, number(8)?);
    let [offset, flags] = bytes(frame, tcp + 12)?;
    if flags & RST != 0 {
        return None;
    }
    let (next, accepted, answer) = if flags & ACK != 0 {
        (acknowledged, 0, RST)
    } else {
        let data = (end - tcp).checked_sub(usize::from(offset >> 4) * 4)?;
        // SYN and FIN occupy one sequence number each.
        let counted = u32::from(flags & SYN != 0) + u32::from(flags & FIN != 0);
        (0, sequence.wrapping_add(data as u32).wrapping_add(counted), RST | ACK)
    };
    let ports = [frame.get(tcp + 2..tcp + 4)?, frame.get(tcp..tcp + 2)?].concat();
    let segment = [&ports[..], &next.to_be_bytes(), &u32::to_be_bytes(accepted), &[5 << 4, answer]].concat();
    let segment = [&segment[..], &[0; 6]].concat();
    let ends = (packet.tuple.destination.0, packet.tuple.source.0);
    envelope(frame, ends, (TCP, 16), segment)
}

/// Returns an ICMP message of these types and codes for IPv4 and IPv6, which quotes the packet; `None` for fragments and
/// for packets with options.
fn message(frame: &[u8], packet: &Packet, from: IpAddr, kinds: [[u8; 2]; 2]) -> Option<Vec<u8>> {
    packet.is_plain(frame).then_some(())?;
    let (kind, quoted, protocol) = match Ethernet::read(frame)?.kind {
        IPV4 => (kinds[0], QUOTED_V4, ICMP),
        _ => (kinds[1], QUOTED_V6, ICMPV6),
    };
    let quoted = frame.get(ETHERNET..ETHERNET + quoted)?;
    let message = [&kind[..], &[0; 6], quoted].concat();
    envelope(frame, (from, packet.tuple.source.0), (protocol, 2), message)
}

/// Puts headers before a message for the sender of a frame. `sum` is the offset of the checksum.
fn envelope(
    frame: &[u8],
    ends: (IpAddr, IpAddr),
    (protocol, sum): (u8, usize),
    mut message: Vec<u8>,
) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    let ethernet = Ethernet::read(frame)?;
    // A group address must not be a source (RFC 1122 section 3.2.2).
    if ethernet.destination.0[0] & 1 != 0 {
        return None;
    }
    let (kind, header, addresses) = match ends {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let total = (20 + length).to_be_bytes();
            let fields = [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, TTL, protocol, 0, 0], &addresses];
            let mut header = fields.concat();
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            (IPV4, header, addresses)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let fields = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, TTL], &addresses];
            (IPV6, fields.concat(), addresses)
        }
        _ => return None,
    };
    let pseudo_header = match protocol {
        ICMP => vec![],
        _ => [&addresses[..], &[0, protocol], &length.to_be_bytes()].concat(),
    };
    let value = checksum(&[&pseudo_header[..], &message].concat());
    message[sum..sum + 2].copy_from_slice(&value.to_be_bytes());
    let addresses = [ethernet.source.0, ethernet.destination.0].concat();
    Some([&addresses[..], &u16::to_be_bytes(kind), &header, &message].concat())
}

#[cfg(test)]
mod tests {
    use testkit::packet::{self, verify};

    use super::*;

    /// Flags of the segment, its data, and sequence number, acknowledgement and flags of the reset.
    type Reset = (u8, &'static [u8], Option<(u32, u32, u8)>);

    #[test]
    fn resets_are_accepted_by_the_client() {
        let cases: [Reset; 6] = [
            (SYN, b"", Some((0, 1001, RST | ACK))),
            (SYN, b"fast", Some((0, 1005, RST | ACK))),
            (SYN | FIN, b"", Some((0, 1002, RST | ACK))),
            (ACK, b"data", Some((77, 0, RST))),
            (SYN | ACK, b"", Some((77, 0, RST))),
            (RST, b"", None),
        ];
        let v4 = packet::Packet::eth([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9]);
        let [a, b]: [std::net::Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::9"].map(|ip| ip.parse().unwrap());
        let v6 = packet::Packet::eth([2; 6], [4; 6]).ipv6(a, b);
        for (flags, data, expected) in cases {
            for (sent, header) in [(v4.clone(), 20), (v6.clone(), 40)] {
                let frame = sent.tcp(4000, 80, flags).sequence(1000, 77).payload(data).build();
                let answer = refusal(&frame, &Packet::read(&frame).unwrap());
                let Some((sequence, acknowledged, flags)) = expected else {
                    assert_eq!(answer, None);
                    continue;
                };
                let answer = answer.unwrap();
                verify(&answer).unwrap();
                assert_eq!((&answer[..6], &answer[6..12]), (&[4; 6][..], &[2; 6][..]));
                let tcp = &answer[ETHERNET + header..];
                assert_eq!(tcp.len(), 20);
                assert_eq!(tcp[..4], [0, 80, 0x0f, 0xa0]);
                let number = |at: usize| u32::from_be_bytes(tcp[at..at + 4].try_into().unwrap());
                assert_eq!((number(4), number(8), tcp[13]), (sequence, acknowledged, flags));
            }
        }
    }

    #[test]
    fn datagrams_are_unreachable_and_fragments_are_not_answered() {
        let sent = packet::Packet::eth([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9]);
        let frame = sent.udp(4000, 80).payload(b"what is too long to be quoted").build();
        let answer = refusal(&frame, &Packet::read(&frame).unwrap()).unwrap();
        verify(&answer).unwrap();
        let message = &answer[ETHERNET + 20..];
        assert_eq!(message[..2], [3, 3]);
        assert_eq!(message[8..], frame[ETHERNET..ETHERNET + QUOTED_V4]);
        let mut fragment = frame;
        fragment[ETHERNET + 6] = 0x20;
        assert_eq!(refusal(&fragment, &Packet::read(&fragment).unwrap()), None);
    }
}
