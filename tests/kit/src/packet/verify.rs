//! Verifies the lengths and checksums of a frame.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{checksum::Addresses, ethertype, internet_checksum, protocol};

const VXLAN_PORT: u16 = 4789;

/// Checks every length and checksum from Ethernet down, through VLAN tags and VXLAN on port 4789. Fragments are checked up
/// to IP. Padding after the IP packet is allowed.
///
/// # Errors
///
/// Names the field that is wrong.
pub fn verify(frame: &[u8]) -> Result<(), String> {
    let mut kind = number(frame, 12)?;
    let mut at = 14;
    while kind == ethertype::VLAN {
        kind = number(frame, at + 2)?;
        at += 4;
    }
    match kind {
        ethertype::IPV4 => ipv4(&frame[at..]),
        ethertype::IPV6 => ipv6(&frame[at..]),
        ethertype::ARP => part(frame, at, 28).map(drop),
        _ => Ok(()),
    }
}

fn ipv4(packet: &[u8]) -> Result<(), String> {
    let length = usize::from(part(packet, 0, 1)?[0] & 0x0f) * 4;
    let header = part(packet, 0, length)?;
    if header[0] >> 4 != 4 || length < 20 {
        return Err(format!("IPv4: first byte {:#04x}", header[0]));
    }
    if internet_checksum(&[header]) != 0 {
        return Err("IPv4: header checksum".to_owned());
    }
    let total = usize::from(number(packet, 2)?);
    let segment =
        part(packet, length, total.saturating_sub(length)).map_err(|e| format!("IPv4 length: {e}"))?;
    if number(packet, 6)? & 0x3fff != 0 {
        return Ok(());
    }
    let src: [u8; 4] = fixed(packet, 12)?;
    let dst: [u8; 4] = fixed(packet, 16)?;
    transport(header[9], Addresses::V4(Ipv4Addr::from(src), Ipv4Addr::from(dst)), segment)
}

fn ipv6(packet: &[u8]) -> Result<(), String> {
    if part(packet, 0, 40)?[0] >> 4 != 6 {
        return Err(format!("IPv6: first byte {:#04x}", packet[0]));
    }
    let length = usize::from(number(packet, 4)?);
    let segment = part(packet, 40, length).map_err(|e| format!("IPv6 length: {e}"))?;
    let src: [u8; 16] = fixed(packet, 8)?;
    let dst: [u8; 16] = fixed(packet, 24)?;
    match packet[6] {
        protocol::FRAGMENT => Ok(()),
        next => transport(next, Addresses::V6(Ipv6Addr::from(src), Ipv6Addr::from(dst)), segment),
    }
}

fn transport(kind: u8, addresses: Addresses, segment: &[u8]) -> Result<(), String> {
    let right = || addresses.checksum(kind, segment) == 0;
    match kind {
        protocol::ICMP if internet_checksum(&[segment]) != 0 => Err("ICMP: checksum".to_owned()),
        protocol::ICMPV6 if !right() => Err("ICMPv6: checksum".to_owned()),
        protocol::TCP if !right() => Err("TCP: checksum".to_owned()),
        protocol::UDP => {
            if usize::from(number(segment, 4)?) != segment.len() {
                return Err(format!("UDP: length {}, have {}", number(segment, 4)?, segment.len()));
            }
            if number(segment, 6)? != 0 && !right() {
                return Err("UDP: checksum".to_owned());
            }
            if number(segment, 2)? == VXLAN_PORT {
                part(segment, 0, 16)?;
                return verify(&segment[16..]).map_err(|inner| format!("VXLAN payload: {inner}"));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn part(bytes: &[u8], at: usize, length: usize) -> Result<&[u8], String> {
    bytes.get(at..at + length).ok_or_else(|| format!("{} bytes end before {}", bytes.len(), at + length))
}

fn fixed<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], String> {
    part(bytes, at, N)?.try_into().map_err(|_| "short".to_owned())
}

fn number(bytes: &[u8], at: usize) -> Result<u16, String> {
    fixed(bytes, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Packet, mac, nd_flags, tcp_flags};

    const A: [u8; 6] = [2, 2, 10, 1, 1, 1];
    const B: [u8; 6] = [2, 2, 10, 1, 1, 2];

    #[test]
    fn built_frames_verify_and_a_flipped_bit_is_detected() {
        let v6 = |last| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last);
        let inner =
            Packet::eth(B, A).ipv4([10, 1, 1, 1], [10, 1, 1, 2]).tcp(1, 2, tcp_flags::SYN).payload(b"odd");
        let frames = [
            Packet::arp_request(A, [10, 1, 1, 1], [10, 1, 1, 2]),
            Packet::arp_reply(B, [10, 1, 1, 2], A, [10, 1, 1, 1]).vlan(0),
            Packet::eth(B, A).vlan(100).ipv4([10, 1, 1, 1], [10, 1, 1, 2]).dscp(46).udp(4, 5).payload(b"abc"),
            Packet::eth(B, A).ipv4([1, 2, 3, 4], [4, 3, 2, 1]).ip_options(&[7, 3, 4]).tcp(
                1,
                2,
                tcp_flags::ACK,
            ),
            Packet::eth(B, A).ipv6(v6(1), v6(2)).flow_label(7).icmpv6_echo_request(1, 2).payload(b"x"),
            Packet::neighbour_solicitation(A, v6(1), v6(2)),
            Packet::neighbour_solicitation(A, Ipv6Addr::UNSPECIFIED, v6(2)),
            Packet::neighbour_advertisement((A, v6(1)), (B, v6(2)), B, nd_flags::SOLICITED),
            Packet::eth(B, A)
                .ipv4([1, 1, 1, 1], [2, 2, 2, 2])
                .udp_unchecked(50_000, 4789)
                .vxlan(10_001, inner),
            Packet::eth(B, A).ipv6(v6(1), v6(2)).protocol(17).fragment(9, 185, false).payload(&[0; 100]),
        ];
        for (at, packet) in frames.iter().enumerate() {
            let frame = packet.build();
            assert_eq!(verify(&frame), Ok(()), "frame {at}");
            // ARP packets and fragments have no checksum that covers the last byte.
            if ![0, 1, frames.len() - 1].contains(&at) {
                let mut bad = frame.clone();
                let end = bad.len() - 1;
                bad[end] ^= 1;
                assert!(verify(&bad).is_err(), "frame {at} with a flipped bit");
            }
        }
    }

    #[test]
    #[should_panic(expected = "is not a MAC address")]
    fn invalid_mac_literal_panics() {
        mac("02:02:0a");
    }
}
