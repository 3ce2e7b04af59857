//! The frame of a traced packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{
    mac::Mac,
    policy::{ICMP, ICMPV6, TCP, UDP},
    trace::Header,
};

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ETHERNET: usize = 14;
const HOPS: u8 = 64;

/// Builds the frame with valid checksums: a TCP segment or UDP datagram without data, an ICMP echo request, or a packet
/// of another protocol with eight zero bytes.
pub(super) fn build(header: &Header) -> Vec<u8> {
    let mut body = transport(header);
    let length = body.len() as u16;
    let (kind, mut ip) = match (header.source, header.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => (IPV4, v4(header, source, destination, length)),
        (source, destination) => (IPV6, v6(header, to_v6(source), to_v6(destination), length)),
    };
    let at = match header.protocol {
        TCP => Some(16),
        UDP => Some(6),
        ICMP | ICMPV6 => Some(2),
        _ => None,
    };
    if let Some(at) = at {
        let pseudo = match header.protocol {
            ICMP => vec![],
            _ => pseudo_header(header, length),
        };
        let sum = match checksum(&[&pseudo, &body]) {
            // RFC 768: zero means no checksum.
            0 if header.protocol == UDP => 0xffff,
            sum => sum,
        };
        body[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    }
    if kind == IPV4 {
        let sum = checksum(&[&ip]);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let (to, from) = (header.destination_mac.0, header.source_mac.0);
    [&to[..], &from, &kind.to_be_bytes(), &ip, &body].concat()
}

fn transport(header: &Header) -> Vec<u8> {
    let [from, to] = [header.source_port.to_be_bytes(), header.destination_port.to_be_bytes()];
    match header.protocol {
        TCP => {
            let flags = [0x50, header.tcp_flags.bits(), 0xff, 0xff];
            [&from[..], &to, &1u32.to_be_bytes(), &[0; 4], &flags, &[0; 4]].concat()
        }
        UDP => [&from[..], &to, &8u16.to_be_bytes(), &[0; 2]].concat(),
        ICMP => [&[8, 0, 0, 0][..], &from, &1u16.to_be_bytes()].concat(),
        ICMPV6 => [&[128, 0, 0, 0][..], &from, &1u16.to_be_bytes()].concat(),
        _ => vec![0; 8],
    }
}

fn v4(header: &Header, source: Ipv4Addr, destination: Ipv4Addr, length: u16) -> Vec<u8> {
    let total = (20 + length).to_be_bytes();
    let start = [0x45, header.dscp << 2, total[0], total[1], 0, 0, 0x40, 0, HOPS, header.protocol, 0, 0];
    [&start[..], &source.octets(), &destination.octets()].concat()
}

fn v6(header: &Header, source: Ipv6Addr, destination: Ipv6Addr, length: u16) -> Vec<u8> {
    let length = length.to_be_bytes();
    let class = [0x60 | header.dscp >> 2, header.dscp << 6, 0, 0];
    let rest = [length[0], length[1], header.protocol, HOPS];
    [&class[..], &rest, &source.octets(), &destination.octets()].concat()
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

fn pseudo_header(header: &Header, length: u16) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let tail = [&[0, header.protocol][..], &length.to_be_bytes()].concat();
    [octets(header.source), octets(header.destination), tail].concat()
}

/// Internet checksum (RFC 1071). Every part has an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (0..2).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    !(folded as u16)
}

/// Reads the headers; see [`super::read_header`].
pub(super) fn read(frame: &[u8]) -> Option<Header> {
    let word = |at: usize| bytes::<2>(frame, at).map(u16::from_be_bytes);
    let (source, destination, protocol, dscp, body): (IpAddr, IpAddr, u8, u8, usize) = match word(12)? {
        IPV4 => {
            let address = |at| bytes::<4>(frame, at).map(Ipv4Addr::from);
            let [version, tos] = bytes(frame, ETHERNET)?;
            if version != 0x45 {
                return None;
            }
            let [protocol] = bytes(frame, ETHERNET + 9)?;
            (
                address(ETHERNET + 12)?.into(),
                address(ETHERNET + 16)?.into(),
                protocol,
                tos >> 2,
                ETHERNET + 20,
            )
        }
        IPV6 => {
            let address = |at| bytes::<16>(frame, at).map(Ipv6Addr::from);
            let [first, second] = bytes(frame, ETHERNET)?;
            let [protocol] = bytes(frame, ETHERNET + 6)?;
            let dscp = (first << 2 | second >> 6) & 0x3f;
            (address(ETHERNET + 8)?.into(), address(ETHERNET + 24)?.into(), protocol, dscp, ETHERNET + 40)
        }
        _ => return None,
    };
    let (source_port, destination_port) = match protocol {
        TCP | UDP => (word(body)?, word(body + 2)?),
        ICMP | ICMPV6 => (word(body + 4).unwrap_or_default(), 0),
        _ => (0, 0),
    };
    let flags = frame.get(body + 13).copied().filter(|_| protocol == TCP).unwrap_or_default();
    Some(Header {
        destination_mac: Mac(bytes(frame, 0)?),
        source_mac: Mac(bytes(frame, 6)?),
        source,
        destination,
        protocol,
        source_port,
        destination_port,
        tcp_flags: flags.into(),
        dscp,
    })
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> Option<[u8; N]> {
    frame.get(at..at + N)?.try_into().ok()
}
