//! IP packets: the fields that policies and services read and rewrite.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Range,
};

use contiv_model::{
    group::Dscp,
    mac::Mac,
    policy::{self, ICMP, ICMPV6, TCP, UDP},
};

use super::frame::{ETHERNET, IPV4, IPV6, bytes, checksum};

/// Address and port of one side of a connection; for ICMP echo the identifier instead of a port.
pub(crate) type End = (IpAddr, u16);

/// Connection tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) protocol: u8,
    pub(crate) source: End,
    pub(crate) destination: End,
}

impl Tuple {
    /// Returns the packet for policy evaluation with the destination port `port`.
    pub(crate) fn policy_packet(self, port: u16) -> policy::Packet {
        let port = matches!(self.protocol, TCP | UDP).then_some(port);
        policy::Packet { protocol: self.protocol, port }
    }
}

/// An IP packet in a frame without a tag. Fragments after the first have no ports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) tuple: Tuple,
    v6: bool,
    /// Offset of the TCP, UDP or ICMP header.
    body: usize,
    /// Offset of the end, which may precede that of the frame.
    end: usize,
    /// False for fragments after the first.
    has_body: bool,
    /// Whether more fragments follow.
    is_continued: bool,
}

impl Packet {
    /// Reads the packet. Returns `None` for another frame, and for a packet that is longer than its frame or inconsistent
    /// with its headers.
    pub(crate) fn read(frame: &[u8]) -> Option<Packet> {
        let v6 = match u16::from_be_bytes(bytes(frame, 12)?) {
            IPV4 => false,
            IPV6 => true,
            _ => return None,
        };
        let headers = if v6 { Headers::v6(frame)? } else { Headers::v4(frame)? };
        let Headers { source, destination, protocol, body, end, has_body, is_continued } = headers;
        // Ports and flags of TCP, ports of UDP, the header of ICMP.
        let needed = match protocol {
            TCP => 14,
            UDP => 4,
            ICMP | ICMPV6 => 8,
            _ => 0,
        };
        if end > frame.len() || has_body && body + needed > end {
            return None;
        }
        let word = |at| bytes(frame, body + at).map_or(0, u16::from_be_bytes);
        let kind = frame.get(body).copied().filter(|_| has_body).unwrap_or_default();
        let (from, to) = match (protocol, v6) {
            (TCP | UDP, _) if has_body => (word(0), word(2)),
            (ICMP, false) | (ICMPV6, true) if has_body => echo(kind, word(4)),
            _ => (0, 0),
        };
        let tuple = Tuple { protocol, source: (source, from), destination: (destination, to) };
        Some(Packet { tuple, v6, body, end, has_body, is_continued })
    }

    /// Reports whether an IPv6 packet has extension headers before neighbour discovery.
    pub(crate) fn discovery_behind_headers(frame: &[u8]) -> bool {
        let headers = Headers::v6(frame);
        headers.is_some_and(|headers| {
            headers.has_body
                && headers.protocol == ICMPV6
                && headers.body > ETHERNET + 40
                && matches!(frame.get(headers.body), Some(133..=137))
        })
    }

    /// TTL or hop limit.
    pub(crate) fn ttl(&self, frame: &[u8]) -> u8 {
        frame.get(self.ttl_at()).copied().unwrap_or_default()
    }

    /// Assigns the TTL or hop limit.
    pub(crate) fn set_ttl(&self, frame: &mut [u8], ttl: u8) {
        match self.v6 {
            true => frame[self.ttl_at()] = ttl,
            // Written together with the protocol, because checksums are computed over words.
            false => self.write(frame, self.ttl_at(), &[ttl, frame[self.ttl_at() + 1]]),
        }
    }

    fn ttl_at(&self) -> usize {
        ETHERNET + if self.v6 { 7 } else { 8 }
    }

    /// Reports whether this is not a fragment and has neither options nor extension headers.
    pub(crate) fn is_plain(&self, frame: &[u8]) -> bool {
        let fragment = bytes(frame, ETHERNET + 6).map(u16::from_be_bytes);
        match self.v6 {
            true => self.body == ETHERNET + 40,
            false => self.body == ETHERNET + 20 && fragment.is_some_and(|field| field & 0x3fff == 0),
        }
    }

    /// Range of the bytes after the IP headers.
    pub(crate) fn body(&self) -> Range<usize> {
        self.body..self.end
    }

    /// Whether this is the first segment of a TCP connection: a SYN without an ACK.
    pub(crate) fn opens_tcp(&self, frame: &[u8]) -> bool {
        const FLAGS: usize = 13;
        const SYN: u8 = 0x02;
        const ACK: u8 = 0x10;
        let flags = frame.get(self.body + FLAGS).copied().unwrap_or_default();
        self.tuple.protocol == TCP && self.has_body && flags & (SYN | ACK) == SYN
    }

    /// Whether this is a whole ICMP echo request.
    pub(crate) fn is_echo_request(&self, frame: &[u8]) -> bool {
        let request = if self.v6 { (ICMPV6, [128, 0]) } else { (ICMP, [8, 0]) };
        self.is_plain(frame)
            && self.has_body
            && (self.tuple.protocol, bytes(frame, self.body)) == (request.0, Some(request.1))
    }

    /// Type of an ICMPv6 message. `None` for other packets, and for fragments after the first.
    pub(crate) fn icmpv6_type(&self, frame: &[u8]) -> Option<u8> {
        let is_message = self.v6 && self.has_body && self.tuple.protocol == ICMPV6;
        frame.get(self.body).copied().filter(|_| is_message)
    }

    /// Turns an echo request into the reply.
    pub(crate) fn answer_echo(&self, frame: &mut [u8], ttl: u8) {
        let (at, len) = if self.v6 { (ETHERNET + 8, 16) } else { (ETHERNET + 12, 4) };
        let (source, destination) = frame[at..at + 2 * len].split_at_mut(len);
        // Checksums do not depend on the order of words.
        source.swap_with_slice(destination);
        self.set_ttl(frame, ttl);
        let reply = if self.v6 { [129, 0] } else { [0, 0] };
        let request = [frame[self.body], frame[self.body + 1]];
        frame[self.body..self.body + 2].copy_from_slice(&reply);
        adjust(frame, self.body + 2, &request, &reply);
    }

    /// Returns the packet that an ICMP error quotes. Returns `Some(None)` if the quote is too short, or if the error is a
    /// fragment, so that other fragments hold the rest of the quote. Returns `None` if this is not an error.
    pub(crate) fn quoted(&self, frame: &[u8]) -> Option<Option<Tuple>> {
        const ICMP_HEADER: usize = 8;
        let kind = *frame.get(self.body)?;
        let is_error = match self.tuple.protocol {
            ICMP => !self.v6 && matches!(kind, 3 | 4 | 5 | 11 | 12),
            ICMPV6 => self.v6 && kind < 128,
            _ => false,
        };
        if !is_error || !self.has_body {
            return None;
        }
        if self.is_continued {
            return Some(None);
        }
        // The quoted packet is often truncated, so its length is not checked.
        let quote = frame.get(self.body + ICMP_HEADER..self.end).unwrap_or_default();
        let inner = [&frame[..ETHERNET], quote].concat();
        let headers = if self.v6 { Headers::v6(&inner) } else { Headers::v4(&inner) };
        Some(headers.filter(|headers| headers.has_body).and_then(|headers| {
            let word = |at: usize| bytes(&inner, headers.body + at).map(u16::from_be_bytes);
            let (from, to) = match headers.protocol {
                TCP | UDP => (word(0)?, word(2)?),
                ICMP | ICMPV6 => echo(*inner.get(headers.body)?, word(4)?),
                _ => (0, 0),
            };
            let Headers { source, destination, protocol, .. } = headers;
            Some(Tuple { protocol, source: (source, from), destination: (destination, to) })
        }))
    }

    /// Rewrites an ICMP error: sets the quoted destination address and port to those to which its receiver has sent the
    /// quoted packet. If the quoted destination sent the error, also sets its source address. Returns `None` if the quote
    /// is too short.
    pub(crate) fn rewrite_error(&self, frame: &mut [u8], sent_to: End) -> Option<()> {
        let address = if self.v6 { ETHERNET + 24 } else { ETHERNET + 16 };
        let quoted =
            self.requote(frame, |quoted, inner| quoted.translate(inner, address, quoted.body + 2, sent_to))?;
        if self.tuple.source.0 == quoted.tuple.destination.0 {
            self.rewrite_source(frame, (sent_to.0, 0));
        }
        Some(())
    }

    /// Rewrites an ICMP error for the sender of the quoted packet: sets the sender's address and port, and its Ethernet
    /// address. Returns `None` if the quote is too short.
    pub(crate) fn return_error(&self, frame: &mut [u8], sender: End, mac: Mac) -> Option<()> {
        let source = if self.v6 { ETHERNET + 8 } else { ETHERNET + 12 };
        self.requote(frame, |quoted, inner| quoted.translate(inner, source, quoted.body, sender))?;
        self.rewrite_destination(frame, (sender.0, 0), mac);
        Some(())
    }

    /// Sets the source address of the packet that an ICMP error quotes. Returns `None` if the quote is too short.
    pub(crate) fn rewrite_quoted_source(&self, frame: &mut [u8], source: Ipv4Addr) -> Option<()> {
        self.rewrite_quoted(frame, ETHERNET + 12, source)
    }

    /// Sets the destination address of the packet that an ICMP error quotes. Returns `None` if the quote is too short.
    pub(crate) fn rewrite_quoted_destination(&self, frame: &mut [u8], destination: Ipv4Addr) -> Option<()> {
        self.rewrite_quoted(frame, ETHERNET + 16, destination)
    }

    fn rewrite_quoted(&self, frame: &mut [u8], at: usize, address: Ipv4Addr) -> Option<()> {
        let at = (!self.v6).then_some(at)?;
        self.requote(frame, |quoted, inner| quoted.write(inner, at, &address.octets())).map(drop)
    }

    /// Changes the packet that an ICMP error quotes, and returns the previous one.
    fn requote(&self, frame: &mut [u8], change: impl FnOnce(&Packet, &mut [u8])) -> Option<Packet> {
        const ICMP_HEADER: usize = 8;
        let at = self.body + ICMP_HEADER;
        // The quoted packet is often truncated, so its length is not checked.
        let mut inner = [&frame[..ETHERNET], frame.get(at..self.end)?].concat();
        let headers = if self.v6 { Headers::v6(&inner)? } else { Headers::v4(&inner)? };
        let Headers { source, destination, protocol, body, end, has_body, is_continued } = headers;
        let tuple = Tuple { protocol, source: (source, 0), destination: (destination, 0) };
        let quoted = Packet { tuple, v6: self.v6, body, end, has_body, is_continued };
        change(&quoted, &mut inner);
        frame.get_mut(at..self.end)?.copy_from_slice(&inner[ETHERNET..]);
        let sum = self.body + 2;
        frame.get_mut(sum..sum + 2)?.copy_from_slice(&[0; 2]);
        let message = frame.get(self.body..self.end)?;
        let pseudo_header = match self.v6 {
            true => {
                [&frame[ETHERNET + 8..ETHERNET + 40], &[0, ICMPV6], &(message.len() as u16).to_be_bytes()]
                    .concat()
            }
            false => vec![],
        };
        let value = checksum(&[&pseudo_header[..], message].concat());
        frame[sum..sum + 2].copy_from_slice(&value.to_be_bytes());
        Some(quoted)
    }

    /// Rewrites destination address and port, and the destination Ethernet address.
    pub(crate) fn rewrite_destination(&self, frame: &mut [u8], to: End, mac: Mac) {
        frame[..6].copy_from_slice(&mac.0);
        let at = if self.v6 { ETHERNET + 24 } else { ETHERNET + 16 };
        self.translate(frame, at, self.body + 2, to);
    }

    /// Rewrites source address and port.
    pub(crate) fn rewrite_source(&self, frame: &mut [u8], from: End) {
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
    pub(crate) fn set_dscp(&self, frame: &mut [u8], dscp: Dscp) {
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
        // Over IPv6, too, both ends may agree to omit the checksum (RFC 6935).
        let unchecked = self.tuple.protocol == UDP && bytes(frame, sum) == Some([0, 0]);
        if covered && self.has_body && !unchecked {
            adjust(frame, sum, &old, new);
            if self.tuple.protocol == UDP && bytes(frame, sum) == Some([0, 0]) {
                frame[sum..sum + 2].copy_from_slice(&[0xff, 0xff]);
            }
        }
    }
}

/// Ports of an ICMP message. The identifier of an echo is the port of the end that sends requests.
fn echo(kind: u8, identifier: u16) -> (u16, u16) {
    match kind {
        8 | 128 => (identifier.max(1), 0),
        0 | 129 => (0, identifier.max(1)),
        _ => (0, 0),
    }
}

/// The headers of IP.
struct Headers {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    /// Offset of the data after the headers.
    body: usize,
    /// Offset of the end of the packet.
    end: usize,
    has_body: bool,
    is_continued: bool,
}

impl Headers {
    fn v4(frame: &[u8]) -> Option<Headers> {
        let address = |at| Some(IpAddr::from(Ipv4Addr::from(bytes::<4>(frame, at)?)));
        let first = *frame.get(ETHERNET)?;
        let length = usize::from(first & 0x0f) * 4;
        let total = usize::from(u16::from_be_bytes(bytes(frame, ETHERNET + 2)?));
        let fragment = u16::from_be_bytes(bytes(frame, ETHERNET + 6)?);
        let valid = first >> 4 == 4 && length >= 20 && total >= length;
        valid.then_some(Headers {
            source: address(ETHERNET + 12)?,
            destination: address(ETHERNET + 16)?,
            protocol: *frame.get(ETHERNET + 9)?,
            body: ETHERNET + length,
            end: ETHERNET + total,
            has_body: fragment & 0x1fff == 0,
            is_continued: fragment & 0x2000 != 0,
        })
    }

    fn v6(frame: &[u8]) -> Option<Headers> {
        /// The same limit as in the eBPF programs.
        const EXTENSIONS: usize = 4;
        let address = |at| Some(IpAddr::from(Ipv6Addr::from(bytes::<16>(frame, at)?)));
        let payload = usize::from(u16::from_be_bytes(bytes(frame, ETHERNET + 4)?));
        let (mut protocol, mut body, mut has_body) = (*frame.get(ETHERNET + 6)?, ETHERNET + 40, true);
        let mut is_continued = false;
        if *frame.get(ETHERNET)? >> 4 != 6 {
            return None;
        }
        for _ in 0..EXTENSIONS {
            // Hop-by-hop options, routing, destination options; authentication; fragment (RFC 8200 4).
            let unit = match protocol {
                0 | 43 | 60 => 8,
                51 => 4,
                44 => 0,
                _ => break,
            };
            let [next, length] = bytes(frame, body)?;
            if protocol == 44 {
                let fragment = u16::from_be_bytes(bytes(frame, body + 2)?);
                has_body = fragment >> 3 == 0;
                is_continued |= fragment & 1 != 0;
            }
            protocol = next;
            body += usize::from(length) * unit + 8;
            if !has_body {
                break;
            }
        }
        let more = has_body && matches!(protocol, 0 | 43 | 44 | 51 | 60);
        (!more).then_some(Headers {
            source: address(ETHERNET + 8)?,
            destination: address(ETHERNET + 24)?,
            protocol,
            body,
            end: ETHERNET + 40 + payload,
            has_body,
            is_continued,
        })
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
            v6().udp_unchecked(40_000, 80).payload(b"x"),
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
            let is_unchecked =
                |frame: &[u8]| packet.tuple.protocol == UDP && bytes(frame, packet.body + 6) == Some([0, 0]);
            let was_unchecked = is_unchecked(&frame);
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
            assert_eq!(is_unchecked(&frame), was_unchecked);
        }
    }

    #[test]
    fn extension_headers_are_read_up_to_a_limit() {
        let [a, b]: [Ipv6Addr; 2] = ["2001:db8::1", "2001:db8::9"].map(|ip| ip.parse().unwrap());
        let read = |count: usize| {
            // Destination options.
            let header = |left: usize| [if left > 0 { 60 } else { UDP }, 0, 1, 4, 0, 0, 0, 0];
            let headers: Vec<u8> = (0..count).rev().flat_map(header).collect();
            let udp = packet::Packet::bare().ipv6(a, b).udp(1, 2).build();
            let first = if count > 0 { 60 } else { UDP };
            let packet = packet::Packet::eth([2; 6], [4; 6]).ipv6(a, b).protocol(first);
            let frame = packet.payload(&[&headers[..], &udp[40..]].concat()).build();
            Packet::read(&frame).map(|packet| packet.tuple.destination.1)
        };
        assert_eq!([0, 1, 2, 3, 4].map(read), [Some(2); 5]);
        assert_eq!(read(5), None);
    }

    #[test]
    fn packets_are_read_up_to_their_end() {
        let headers = || packet::Packet::eth([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9]);
        let quote = packet::Packet::bare().ipv4([10, 0, 0, 9], [10, 0, 0, 1]).udp(53, 4000).build();
        let quoted = |frame: &[u8]| Packet::read(frame).map(|packet| packet.quoted(frame));
        let error = headers().icmp(3, 3, [0; 4]);
        let whole = error.clone().payload(&quote).build();
        assert!(matches!(quoted(&whole), Some(Some(Some(_)))));
        let behind = [error.build(), quote.clone()].concat();
        assert_eq!(quoted(&behind), Some(Some(None)));
        // The fragments after it continue the quote.
        let fragment = headers().fragment(7, 0, true).icmp(3, 3, [0; 4]).payload(&quote).build();
        assert_eq!(quoted(&fragment), Some(Some(None)));
        let mut short = [error.build(), quote].concat();
        short[17] -= 1;
        assert_eq!(quoted(&short), None);
    }
}
