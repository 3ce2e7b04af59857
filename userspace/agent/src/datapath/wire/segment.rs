//! TCP segments and UDP datagrams without data.

use std::net::{IpAddr, SocketAddr};

use contiv_model::policy::{TCP, UDP};

use super::frame::{IPV4, IPV6, checksum};

const TTL: u8 = 64;
const ACK: u8 = 0x10;
/// Header length of TCP in units of 4 bytes, in the upper half of its byte.
const TCP_WORDS: u8 = 5 << 4;
const LARGEST_WINDOW: u16 = u16::MAX;

/// Returns an acknowledgement (RFC 9293) with its sequence and acknowledgement numbers, in a frame with zero Ethernet
/// addresses.
pub(crate) fn acknowledgement(
    from: SocketAddr,
    to: SocketAddr,
    [sequence, acknowledged]: [u32; 2],
) -> Vec<u8> {
    let header = [
        &from.port().to_be_bytes()[..],
        &to.port().to_be_bytes(),
        &sequence.to_be_bytes(),
        &acknowledged.to_be_bytes(),
        &[TCP_WORDS, ACK],
        &LARGEST_WINDOW.to_be_bytes(),
        &[0; 4],
    ];
    packet((from.ip(), to.ip()), TCP, header.concat(), 16)
}

/// Returns an empty datagram (RFC 768), in a frame with zero Ethernet addresses.
pub(crate) fn datagram(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let header = [&from.port().to_be_bytes()[..], &to.port().to_be_bytes(), &8_u16.to_be_bytes(), &[0; 2]];
    packet((from.ip(), to.ip()), UDP, header.concat(), 6)
}

/// `at` is the offset of the checksum in the header of the transport protocol.
fn packet((from, to): (IpAddr, IpAddr), protocol: u8, mut transport: Vec<u8>, at: usize) -> Vec<u8> {
    let length = transport.len() as u16;
    let (kind, mut header, addresses) = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let addresses = [from.octets(), to.octets()].concat();
            let total = (20 + length).to_be_bytes();
            let start = [&[0x45, 0][..], &total, &[0, 0, 0x40, 0, TTL, protocol, 0, 0]].concat();
            (IPV4, start, addresses)
        }
        (from, to) => {
            let v6 = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            let start = [&[0x60, 0, 0, 0][..], &length.to_be_bytes(), &[protocol, TTL]].concat();
            (IPV6, start, [v6(from).octets(), v6(to).octets()].concat())
        }
    };
    header.extend(&addresses);
    if kind == IPV4 {
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let pseudo = [&addresses[..], &[0, protocol], &length.to_be_bytes(), &transport].concat();
    // Zero means no checksum.
    let sum = match checksum(&pseudo) {
        0 => u16::MAX,
        sum => sum,
    };
    transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    [&[0; 12][..], &kind.to_be_bytes(), &header, &transport].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::wire::packet::Packet;

    #[test]
    fn packets_have_their_addresses_and_valid_checksums() {
        for (from, to) in [("10.1.0.1:4000", "10.1.0.200:80"), ("[fd00::1]:4000", "[fd00::2]:80")] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            for (frame, protocol) in
                [(acknowledgement(from, to, [7, 0x8000_0001]), TCP), (datagram(from, to), UDP)]
            {
                let tuple = Packet::read(&frame).unwrap().tuple;
                assert_eq!(
                    (tuple.source, tuple.destination),
                    ((from.ip(), from.port()), (to.ip(), to.port()))
                );
                assert_eq!(tuple.protocol, protocol);
                testkit::packet::verify(&frame).unwrap();
            }
        }
    }
}
