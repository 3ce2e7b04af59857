//! IP packets: what policies and services read and rewrite.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{
    group::Dscp,
    mac::Mac,
    policy::{self, ICMP, ICMPV6, TCP, UDP},
};

use super::frame::{ETHERNET, IPV4, IPV6, bytes};

/// Address and port of one side of a connection; for ICMP echo the identifier instead of a port.
pub(super) type End = (IpAddr, u16);

/// Connection tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    pub(super) protocol: u8,
    pub(super) source: End,
    pub(super) destination: End,
}

impl Tuple {
    /// Returns the packet for policy evaluation with the destination port `port`.
    pub(super) fn policy_packet(self, port: u16) -> policy::Packet {
        let port = matches!(self.protocol, TCP | UDP).then_some(port);
        policy::Packet { protocol: self.protocol, port }
    }
}

/// An IP packet in a frame without a tag. Fragments after the first and packets with IPv6 extension headers have no
/// ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) tuple: Tuple,
    v6: bool,
    /// Offset of the TCP, UDP or ICMP header.
    body: usize,
    /// False for fragments after the first.
    has_body: bool,
    kind: u8,
}

impl Packet {
    pub(super) fn read(frame: &[u8]) -> Option<Packet> {
        let v6 = match u16::from_be_bytes(bytes(frame, 12)?) {
            IPV4 => false,
            IPV6 => true,
            _ => return None,
        };
        let (source, destination, protocol, body, has_body) = if v6 {
            let address = |at| Some(IpAddr::from(Ipv6Addr::from(bytes::<16>(frame, at)?)));
            (address(ETHERNET + 8)?, address(ETHERNET + 24)?, *frame.get(ETHERNET + 6)?, ETHERNET + 40, true)
        } else {
            let address = |at| Some(IpAddr::from(Ipv4Addr::from(bytes::<4>(frame, at)?)));
            let length = usize::from(frame.get(ETHERNET)? & 0x0f) * 4;
            let first = u16::from_be_bytes(bytes(frame, ETHERNET + 6)?) & 0x1fff == 0;
            let protocol = *frame.get(ETHERNET + 9)?;
            (address(ETHERNET + 12)?, address(ETHERNET + 16)?, protocol, ETHERNET + length, first)
        };
        let word = |at| bytes(frame, body + at).map_or(0, u16::from_be_bytes);
        let kind = frame.get(body).copied().filter(|_| has_body).unwrap_or_default();
        let (from, to) = match protocol {
            TCP | UDP if has_body => (word(0), word(2)),
            ICMP if matches!(kind, 0 | 8) && has_body => (word(4), word(4)),
            ICMPV6 if matches!(kind, 128 | 129) => (word(4), word(4)),
            _ => (0, 0),
        };
        let tuple = Tuple { protocol, source: (source, from), destination: (destination, to) };
        Some(Packet { tuple, v6, body, has_body, kind })
    }

    /// Whether the packet is neighbour discovery, which policies do not apply to.
    pub(super) fn is_neighbour_discovery(&self) -> bool {
        self.v6 && self.tuple.protocol == ICMPV6 && matches!(self.kind, 133..=137)
    }

    /// Rewrites destination address and port, and the destination Ethernet address.
    pub(super) fn rewrite_destination(&self, frame: &mut [u8], to: End, mac: Mac) {
        frame[..6].copy_from_slice(&mac.0);
        let at = if self.v6 { ETHERNET + 24 } else { ETHERNET + 16 };
        self.translate(frame, at, self.body + 2, to);
    }

    /// Rewrites source address and port.
    pub(super) fn rewrite_source(&self, frame: &mut [u8], from: End) {
        let at = if self.v6 { ETHERNET + 8 } else { ETHERNET + 12 };
        self.translate(frame, at, self.body, from);
    }

    fn translate(&self, frame: &mut [u8], address: usize, port: usize, (ip, number): End) {
        match ip {
            IpAddr::V4(ip) => self.write(frame, address, &ip.octets()),
            IpAddr::V6(ip) => self.write(frame, address, &ip.octets()),
        }
        if matches!(self.tuple.protocol, TCP | UDP) && self.has_body {
            self.write(frame, port, &number.to_be_bytes());
        }
    }

    /// Sets the DSCP.
    pub(super) fn set_dscp(&self, frame: &mut [u8], dscp: Dscp) {
        let class = dscp.get();
        if self.v6 {
            let [first, second] = [frame[ETHERNET], frame[ETHERNET + 1]];
            frame[ETHERNET] = first & 0xf0 | class >> 2;
            frame[ETHERNET + 1] = class << 6 | second & 0x3f;
        } else {
            let [version, tos] = [frame[ETHERNET], frame[ETHERNET + 1]];
            self.write(frame, ETHERNET, &[version, class << 2 | tos & 0x03]);
        }
    }

    /// Writes at an even offset and updates the checksums that cover it (RFC 1624).
    fn write(&self, frame: &mut [u8], at: usize, new: &[u8]) {
        let Some(old) = frame.get(at..at + new.len()).map(<[u8]>::to_vec) else { return };
        frame[at..at + new.len()].copy_from_slice(new);
        if !self.v6 && at < self.body {
            adjust(frame, ETHERNET + 10, &old, new);
        }
        // The pseudo header contains only the addresses of the IP header.
        let covered = at >= ETHERNET + if self.v6 { 8 } else { 12 };
        let sum = match self.tuple.protocol {
            TCP => self.body + 16,
            UDP => self.body + 6,
            ICMPV6 => self.body + 2,
            _ => return,
        };
        let unchecked = self.tuple.protocol == UDP && !self.v6 && bytes(frame, sum) == Some([0, 0]);
        if covered && self.has_body && !unchecked {
            adjust(frame, sum, &old, new);
            if self.tuple.protocol == UDP && bytes(frame, sum) == Some([0, 0]) {
                frame[sum..sum + 2].copy_from_slice(&[0xff, 0xff]);
            }
        }
    }
}

fn adjust(frame: &mut [u8], at: usize, old: &[u8], new: &[u8]) {
    let Some(before) = bytes(frame, at).map(u16::from_be_bytes) else { return };
    let words = |bytes: &[u8]| -> Vec<u16> {
        bytes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
    };
    let mut sum = u32::from(!before);
    sum += words(old).iter().map(|word| u32::from(!*word)).sum::<u32>();
    sum += words(new).iter().map(|word| u32::from(*word)).sum::<u32>();
    let folded = (0..2).fold(sum, |sum, _| (sum & 0xffff) + (sum >> 16));
    frame[at..at + 2].copy_from_slice(&(!(folded as u16)).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use testkit::packet::{self, verify};

    use super::*;

    fn frames() -> Vec<packet::Packet> {
        let v4 = || packet::Packet::eth([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9]);
        let v6 = || {
            let [a, b]: [Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::9"].map(|ip| ip.parse().unwrap());
            packet::Packet::eth([2; 6], [4; 6]).ipv6(a, b)
        };
        vec![
            v4().tcp(40_000, 80, 2),
            v4().udp(40_000, 80).payload(b"odd"),
            v4().udp_unchecked(40_000, 80).payload(b"x"),
            v6().tcp(40_000, 80, 2).payload(b"x"),
            v6().udp(40_000, 80).payload(b"even"),
            v4().icmp_echo_request(7, 1),
            v6().icmpv6_echo_request(7, 1),
        ]
    }

    #[test]
    fn rewritten_packets_have_valid_checksums() {
        for before in frames() {
            let mut frame = before.build();
            let packet = Packet::read(&frame).unwrap();
            let v6 = packet.tuple.source.0.is_ipv6();
            let [to, from]: [IpAddr; 2] = match v6 {
                true => ["2001:db8::7", "2001:db8::8"].map(|ip| ip.parse().unwrap()),
                false => ["10.0.0.7", "192.0.2.8"].map(|ip| ip.parse().unwrap()),
            };
            packet.rewrite_destination(&mut frame, (to, 8080), Mac([6; 6]));
            packet.rewrite_source(&mut frame, (from, 443));
            packet.set_dscp(&mut frame, 46.try_into().unwrap());
            verify(&frame).unwrap();
            let after = Packet::read(&frame).unwrap().tuple;
            assert_eq!((after.source.0, after.destination.0), (from, to));
            if matches!(after.protocol, TCP | UDP) {
                assert_eq!((after.source.1, after.destination.1), (443, 8080));
            }
            assert_eq!((super::super::frame::dscp(&frame), &frame[..6]), (46, &[6; 6][..]));
        }
    }
}
