//! Results that the oracle allows for ICMP errors.
//!
//! An error about a packet of a connection belongs to the connection, from whatever source: it passes while the
//! connection may, and is translated like its packets, including the quoted packet. Any other error is a plain ICMP
//! packet, and so is an error from a client about a TCP reply that was never sent.

use std::net::IpAddr;

use contiv_abi::DropReason;
use contiv_model::policy::{ICMP, ICMPV6, TCP, UDP};
use testkit::packet::Packet;

use super::{
    Made,
    expected::{Described, Ends, Fate, Message, Oracle, Way},
    scene::{Complaint, Content, LOCALS, SCTP, Trouble, address},
};
use crate::node::Endpoint;

/// Added to the source port or identifier of a packet that was never sent.
pub(super) const INVENTED: usize = 20_000;

/// An ICMP error without frame.
pub(super) struct Error<'a> {
    pub(super) trouble: Trouble,
    pub(super) tos: u8,
    pub(super) quote: &'a [u8],
}

impl Error<'_> {
    pub(super) fn build(&self, packet: Packet, from: IpAddr, to: IpAddr) -> Vec<u8> {
        let packet = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let (kind, code, rest) = self.trouble.v4();
                packet.ipv4(from, to).tos(self.tos).icmp(kind, code, rest)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let (kind, code, rest) = self.trouble.v6();
                packet.ipv6(from, to).tos(self.tos).icmpv6(kind, code, rest)
            }
            _ => unreachable!("two families in one packet"),
        };
        packet.payload(self.quote).build()
    }
}

/// The beginning of a packet, as errors quote it.
pub(super) struct Quote {
    pub(super) bytes: Vec<u8>,
    /// Whether the quote identifies the connection.
    pub(super) is_readable: bool,
}

impl Quote {
    /// Truncates the quote to `len` bytes, or one less: half a checksum cannot be updated.
    pub(super) fn new(described: &Described, ends: ((IpAddr, u16), (IpAddr, u16)), length: usize) -> Quote {
        let mut bytes = described.build(Packet::bare(), ends.0, ends.1);
        let is_piece = matches!(described.way, Way::There(piece) if piece.is_part());
        let (checksum, needed) = match described.content.protocol(described.ip6) {
            // The sequence number.
            TCP => (Some(16), 8),
            UDP => (Some(6), 4),
            SCTP => (None, 4),
            // The identifier of an echo request.
            ICMP | ICMPV6 => (None, 6),
            _ => (None, 0),
        };
        let header = if described.ip6 { 40 + if is_piece { 8 } else { 0 } } else { 20 };
        if described.content.protocol(described.ip6) == TCP && !described.way.is_later() {
            // A SYN that was acknowledged causes no error: one about the data after it. The checksum is the same.
            bytes[header + 4..header + 8].fill(0);
        }
        let splits = checksum.is_some_and(|at| length == header + at + 1);
        bytes.truncate(if splits { length - 1 } else { length });
        let is_readable = bytes.len() >= header + needed && !described.way.is_later();
        Quote { bytes, is_readable }
    }
}

impl Oracle<'_> {
    /// The error as sent, and its allowed results. `None` if no endpoint here would send it.
    pub(super) fn complaint(&self, complaint: &Complaint, made: &Made) -> Option<Message> {
        let Complaint { of_answer, by, trouble, quoted, invented, .. } = *complaint;
        let number = complaint.about.index(self.scene.probes.len());
        let probe = &self.scene.probes[number];
        let known = made.fates.get(&number).filter(|_| !invented);
        // No segment of the answer can be on the way before there is one.
        let is_early =
            of_answer && matches!(probe.content, Content::Tcp { .. }) && !made.answered.contains(&number);
        // Protocols without ports have one connection per address pair.
        if known.is_none() && !invented || invented && matches!(probe.content, Content::Gre) {
            return None;
        }
        let number = if invented { number + INVENTED } else { number };
        let sent = self.sent_to(number, probe);
        let seen = match known {
            Some(fate) => self.seen(number, probe, fate)?,
            None => self.sent_to(number, probe),
        };
        let by = if of_answer { probe.from } else { by.or_else(|| self.local(seen.to.0))? };
        // In a hairpin connection the pod sees the service address; without a service, it receives no error.
        let (is_own, is_hairpin) = (sent.from.0 == sent.to.0, seen.from.0 == sent.to.0);
        if is_own || by == probe.from && !of_answer && !is_hairpin {
            return None;
        }
        let content = if of_answer { probe.content.answer() } else { probe.content };
        let pieces = probe.pieces();
        let way = if of_answer { Way::Back } else { Way::There(pieces[quoted % pieces.len()]) };
        let described = self.described(number, probe, content, probe.tos, way);
        let quote = |ends: &Ends| {
            let (from, to) = if of_answer { (ends.to, ends.from) } else { (ends.from, ends.to) };
            Quote::new(&described, (from, to), quoted)
        };
        let error = |quote: &Quote, tos, macs: ([u8; 6], [u8; 6]), from, to| {
            Error { trouble, tos, quote: &quote.bytes }.build(Packet::eth(macs.0, macs.1), from, to)
        };
        let own = address(by, probe.ip6);
        let (mac, to) = match of_answer {
            true => (sent.macs.0, sent.to.0),
            false => (if is_hairpin { sent.macs.0 } else { sent.macs.1 }, seen.from.0),
        };
        let (written, marked) = (quote(if of_answer { &sent } else { &seen }), self.marked(by, probe.tos));
        let frame = error(&written, probe.tos, (mac, Endpoint(by).mac()), own, to);
        // Only the receiver of a packet sends errors about it: no other endpoint is on the path.
        let is_peer = of_answer || own == seen.to.0;
        let fate = if known.is_none() || is_early || !written.is_readable || !is_peer {
            Fate::Refused(DropReason::UnrelatedIcmpError)
        } else if !self.may(probe, seen.to) {
            Fate::Denied { backend: None }
        } else {
            let (mac, from, to) = match of_answer {
                true => (seen.macs.0, seen.from.0, seen.to.0),
                false => (sent.macs.1, sent.to.0, sent.from.0),
            };
            let bytes = error(
                &quote(if of_answer { &seen } else { &sent }),
                marked,
                (mac, Endpoint(by).mac()),
                from,
                to,
            );
            let translated = known.is_some_and(Fate::is_translated);
            Fate::Arrives { place: to, bytes, translated }
        };
        Some(Message { from: by, frame, fate })
    }

    fn local(&self, ip: IpAddr) -> Option<u8> {
        LOCALS.into_iter().find(|endpoint| address(*endpoint, ip.is_ipv6()) == ip)
    }
}
