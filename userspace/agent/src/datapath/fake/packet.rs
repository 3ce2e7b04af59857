//! As much of a packet as policies and services look at.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use contiv_model::{
    group::Dscp,
    mac::Mac,
    policy::{self, ICMP, ICMPV6, TCP, UDP},
};

use super::frame::{ETHERNET, IPV4, IPV6, bytes};

/// One end: the address, and the port if there are ports. Of an echo, which has one number for both ends, that number.
pub(super) type End = (IpAddr, u16);

/// What tells connections apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tuple {
    pub(super) protocol: u8,
    pub(super) source: End,
    pub(super) destination: End,
}

impl Tuple {
    /// As policies are asked about it when the destination is `port`.
    pub(super) fn asked(self, port: u16) -> policy::Packet {
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
    /// Where the header of TCP, UDP or ICMP begins.
    body: usize,
    /// It is not there in fragments after the first.
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

    /// Neighbour discovery, which makes IPv6 work at all and is nothing that a policy is asked about.
    pub(super) fn is_neighbour_discovery(&self) -> bool {
        self.v6 && self.tuple.protocol == ICMPV6 && matches!(self.kind, 133..=137)
    }

    /// Sends it to another end, at that Ethernet address.
    pub(super) fn readdress(&self, frame: &mut [u8], to: End, mac: Mac) {
        frame[..6].copy_from_slice(&mac.0);
        let at = if self.v6 { ETHERNET + 24 } else { ETHERNET + 16 };
        self.translate(frame, at, self.body + 2, to);
    }

    /// Makes it come from another end.
    pub(super) fn pretend(&self, frame: &mut [u8], from: End) {
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

    /// Puts the class into the header.
    pub(super) fn mark(&self, frame: &mut [u8], dscp: Dscp) {
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

    /// Writes at an even place, and keeps the checksums right that cover it (RFC 1624).
    fn write(&self, frame: &mut [u8], at: usize, new: &[u8]) {
        let Some(old) = frame.get(at..at + new.len()).map(<[u8]>::to_vec) else { return };
        frame[at..at + new.len()].copy_from_slice(new);
        if !self.v6 && at < self.body {
            adjust(frame, ETHERNET + 10, &old, new);
        }
        // Of the IP header, only the addresses count in the checksum of what is inside.
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
    fn what_is_changed_stays_sound() {
        for before in frames() {
            let mut frame = before.build();
            let packet = Packet::read(&frame).unwrap();
            let v6 = packet.tuple.source.0.is_ipv6();
            let [to, from]: [IpAddr; 2] = match v6 {
                true => ["2001:db8::7", "2001:db8::8"].map(|ip| ip.parse().unwrap()),
                false => ["10.0.0.7", "192.0.2.8"].map(|ip| ip.parse().unwrap()),
            };
            packet.readdress(&mut frame, (to, 8080), Mac([6; 6]));
            packet.pretend(&mut frame, (from, 443));
            packet.mark(&mut frame, 46.try_into().unwrap());
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
