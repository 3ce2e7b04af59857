//! Connection tracking: records of flows, and events.

use crate::{Address, Be16, Timeouts, Tuple, tcp::sent};

/// A flow. Both directions share the record: the first cache line identifies it and is written once;
/// each direction writes a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Flow {
    /// Address of the client.
    pub client: Address,
    /// Destination address as the client sends it.
    pub destination: Address,
    /// Destination address after the translation.
    pub backend: Address,
    /// Port of the client.
    pub client_port: Be16,
    /// Destination port as the client sends it.
    pub destination_port: Be16,
    /// Port of the client after the translation.
    pub nat_port: Be16,
    /// Destination port after the translation.
    pub backend_port: Be16,
    /// Which flow this is, and whether it exists.
    pub head: FlowHead,
    /// The original and the reply direction.
    pub halves: [FlowHalf; 2],
}

/// Domain, protocol and generation of a flow, in one aligned 64-bit word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct FlowHead {
    /// [`Domain::number`](crate::Domain::number) of the flow.
    pub domain: u32,
    /// IP protocol number.
    pub protocol: u8,
    /// [`Flow::NAT`], [`Flow::HAIRPIN`] and [`Flow::INCOMPLETE`].
    pub flags: u8,
    /// Odd while the record describes a flow. Incremented when the flow is opened and when it ends: a reader that finds the same
    /// odd number before and after has read one flow.
    pub generation: u16,
}

impl FlowHead {
    /// The head as one number.
    #[inline(always)]
    pub const fn word(self) -> u64 {
        self.domain as u64
            | (self.protocol as u64) << 32
            | (self.flags as u64) << 40
            | (self.generation as u64) << 48
    }

    /// The inverse of [`FlowHead::word`].
    #[inline(always)]
    pub const fn from_word(word: u64) -> FlowHead {
        FlowHead {
            domain: word as u32,
            protocol: (word >> 32) as u8,
            flags: (word >> 40) as u8,
            generation: (word >> 48) as u16,
        }
    }

    /// Returns true if the record describes a flow of this domain and protocol.
    #[inline(always)]
    pub const fn is_of(self, domain: u32, protocol: u8) -> bool {
        self.exists() && self.domain == domain && self.protocol == protocol
    }

    /// Returns true if the record describes a flow.
    #[inline(always)]
    pub const fn exists(self) -> bool {
        self.generation & 1 != 0
    }
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowHalf {
    /// Packets of this direction.
    pub packets: u64,
    /// Bytes of these packets, including the Ethernet header.
    pub bytes: u64,
    /// Result of the policy evaluation, equal in both halves; a [`Verdict`].
    pub verdict: u64,
    /// Groups of the flow's source and destination if they are on this node, zero for none; equal
    /// in both halves.
    pub groups: [u16; 2],
    /// Number of the service's port, zero for none; equal in both halves.
    pub service: u32,
    /// Number of the rule that decided: in the original direction that of the source's egress
    /// rules, in the reply direction that of the destination's ingress rules; zero for none.
    pub rule: u32,
    /// Time of the last packet of this direction, in seconds since boot.
    pub seen: u32,
    /// TCP: sequence number after the last byte that this direction has sent.
    pub end: u32,
    /// TCP: last acknowledgement number that this direction has sent. It may exceed what the other direction has sent. Before the
    /// first one: the sequence number after the SYN that has replied to that of this direction.
    pub acknowledged: u32,
    /// Time of the first packet of the flow, in seconds since boot; equal in both halves.
    pub made: u32,
    /// Interface index of the endpoint with the quota that the flow uses, zero for none, with [`FlowHalf::RECEIVED`] if the
    /// endpoint did not open it; equal in both halves.
    pub owner: u32,
    /// What this direction has sent, as flags of [`sent`].
    pub sent: u8,
    /// What the other direction has sent.
    pub other: u8,
    /// Groups of the endpoints on any node that had the flow's source and destination address when it was opened; zero for none,
    /// and [`FlowHalf::UNKNOWN`] for an address without a record. Equal in both halves.
    pub identities: [u16; 2],
    /// The local port that receives the packets of this direction: [`PortSlot::number`](crate::PortSlot::number) plus one; zero
    /// if no packet was delivered to a port. A hint, which is compared with the port.
    pub receiver: u16,
}

const _: () = assert!(size_of::<Flow>() == 192 && size_of::<FlowHalf>() == 64);

impl FlowHalf {
    /// The group of an endpoint without a record. No group has this number.
    pub const UNKNOWN: u16 = u16::MAX;
    /// In `owner`: the flow was opened from another node or from outside. An endpoint has a separate quota for such flows: other
    /// hosts cannot use up the one for flows that it opens.
    pub const RECEIVED: u32 = 1 << 31;

    /// What the original and the reply direction have sent; `reply` is the direction of this half.
    #[inline(always)]
    pub const fn both_sent(&self, reply: bool) -> [u8; 2] {
        if reply { [self.other, self.sent] } else { [self.sent, self.other] }
    }

    /// Returns true if either direction has sent a plausible FIN or RST.
    #[inline(always)]
    pub const fn is_closing(&self) -> bool {
        (self.sent | self.other) & sent::END != 0
    }

    /// Number of the source's or of the destination's group if it is on this node. Branch-free, because the verifier would follow
    /// both branches.
    #[inline(always)]
    pub const fn group(&self, of_source: bool) -> u32 {
        pick(self.groups, of_source)
    }

    /// Group of the endpoint, on any node, that had the source or the destination address.
    #[inline(always)]
    pub const fn identity(&self, of_source: bool) -> u32 {
        pick(self.identities, of_source)
    }

    /// The endpoints that a verdict applies to: groups and identities of both as one number.
    #[inline(always)]
    pub const fn ends(groups: [u16; 2], identities: [u16; 2]) -> u64 {
        both(groups) as u64 | (both(identities) as u64) << 32
    }
}

#[inline(always)]
const fn both(groups: [u16; 2]) -> u32 {
    groups[0] as u32 | (groups[1] as u32) << 16
}

#[inline(always)]
const fn pick(groups: [u16; 2], first: bool) -> u32 {
    (both(groups) >> (16 * !first as u32)) & 0xffff
}

impl Flow {
    /// The flow is translated.
    pub const NAT: u8 = 1;
    /// Client and backend are the same pod, which sees the service's address as the client.
    pub const HAIRPIN: u8 = 2;
    /// The flow is being inserted: no other CPU removes it before both of its slots are in the index.
    pub const INCOMPLETE: u8 = 4;

    /// Ports of a packet of the original direction as received, see [`Tuple::ports`].
    #[inline(always)]
    pub const fn ports(&self) -> u32 {
        self.client_port.wire() as u32 | (self.destination_port.wire() as u32) << 16
    }

    /// Ports of a reply as received.
    #[inline(always)]
    pub const fn reply_ports(&self) -> u32 {
        self.backend_port.wire() as u32 | (self.nat_port.wire() as u32) << 16
    }

    /// The tuple of a packet as received: of the original direction, or of a reply. In place,
    /// because the stack of a BPF program has 512 bytes.
    #[inline(always)]
    pub fn received(&self, reply: bool, to: &mut Tuple) {
        if reply {
            to.source.set_words(self.backend.words());
            to.source_port = self.backend_port;
            let hairpin = self.head.flags & Flow::HAIRPIN != 0;
            to.destination.set_words(if hairpin { self.destination.words() } else { self.client.words() });
            to.destination_port = self.nat_port;
        } else {
            to.source.set_words(self.client.words());
            to.source_port = self.client_port;
            to.destination.set_words(self.destination.words());
            to.destination_port = self.destination_port;
        }
        to.set_protocol(self.head.protocol);
    }

    /// Changes the tuple of a packet as received to that of the packet as forwarded.
    #[inline(always)]
    pub fn translate(&self, reply: bool, to: &mut Tuple) {
        if reply {
            to.source.set_words(self.destination.words());
            to.source_port = self.destination_port;
            to.destination.set_words(self.client.words());
            to.destination_port = self.client_port;
        } else {
            if self.head.flags & Flow::HAIRPIN != 0 {
                to.source.set_words(self.destination.words());
            }
            to.source_port = self.nat_port;
            to.destination.set_words(self.backend.words());
            to.destination_port = self.backend_port;
        }
    }

    /// Returns true if the flow has had a reply.
    #[inline(always)]
    pub const fn is_replied(&self) -> bool {
        self.halves[1].sent & sent::ANY != 0
    }

    /// Returns true if the rules deny the flow. Its packets are dropped as long as the record exists.
    #[inline(always)]
    pub const fn is_denied(&self) -> bool {
        Verdict(self.halves[0].verdict).is_denied()
    }

    /// The timeout of the flow, in seconds. The timeout of a denied flow does not depend on its state: its endpoints may still
    /// have the connection, and its next packet would open a flow that other rules are evaluated for.
    #[inline(always)]
    pub const fn timeout(&self, timeouts: &Timeouts) -> u32 {
        if self.is_denied() {
            return timeouts.established(self.head.protocol);
        }
        timeouts.of(self.head.protocol, self.halves[0].sent, self.halves[1].sent)
    }

    /// Time of the last packet of either direction, in seconds since boot.
    #[inline(always)]
    pub const fn seen(&self) -> u32 {
        crate::tcp::later(self.halves[0].seen, self.halves[1].seen)
    }
}

/// Result of a policy evaluation: the revisions of both sides' rule sets and the denials, in one
/// word, so that a new revision never has an old denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict(pub u64);

impl Verdict {
    /// The egress rules of the source deny the flow.
    pub const DENIED_OUT: u64 = 1 << 31;
    /// The ingress rules of the destination deny the flow.
    pub const DENIED_IN: u64 = 1 << 63;
    /// Both denials.
    pub const DENIED: u64 = Verdict::DENIED_OUT | Verdict::DENIED_IN;

    /// A verdict that is outdated: no rule set has such a number.
    pub const OUTDATED: Verdict = Verdict::of([(1 << 31) - 1; 2]);

    /// A verdict by the rule sets with these numbers, both below 2^31; zero for none.
    #[inline(always)]
    pub const fn of(sets: [u32; 2]) -> Verdict {
        Verdict(sets[0] as u64 | (sets[1] as u64) << 32)
    }

    /// Returns true if the flow was evaluated with these rule sets.
    #[inline(always)]
    pub const fn is_by(self, sets: [u32; 2]) -> bool {
        self.0 & !Verdict::DENIED == Verdict::of(sets).0
    }

    /// Returns true if either side denies the flow.
    #[inline(always)]
    pub const fn is_denied(self) -> bool {
        self.0 & Verdict::DENIED != 0
    }
}

/// Events of connection tracking that are counted; the number is the index in `ctv_ct_stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowEvent {
    /// A flow was inserted.
    Made = 0,
    /// A flow got its first reply.
    Answered = 1,
    /// A flow ended by its timeout.
    Expired = 2,
    /// A flow could not be inserted: the table is full of established flows.
    Full = 3,
    /// A flow could not be inserted because of concurrent insertions.
    Failed = 4,
    /// A new connection reused the tuple of a closed one, or of another pod that had the same
    /// address, and replaced its entry.
    Reused = 5,
    /// A flow could not be inserted: the endpoint has used its share of the table.
    OverQuota = 6,
    /// An unreplied or ended flow was evicted for another one.
    Evicted = 7,
    /// A flow was imported from the table of another ABI version, or of another size.
    Imported = 8,
}

impl FlowEvent {
    /// All events, with their labels in metrics.
    pub const ALL: [(FlowEvent, &'static str); 9] = [
        (FlowEvent::Made, "made"),
        (FlowEvent::Answered, "answered"),
        (FlowEvent::Expired, "expired"),
        (FlowEvent::Full, "full"),
        (FlowEvent::Failed, "failed"),
        (FlowEvent::Reused, "reused"),
        (FlowEvent::OverQuota, "over-quota"),
        (FlowEvent::Evicted, "evicted"),
        (FlowEvent::Imported, "imported"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{TCP, UDP};

    const CLIENT: Address = Address::v4([10, 1, 1, 1]);
    const BACKEND: Address = Address::v4([10, 1, 1, 2]);
    const VIP: Address = Address::v4([10, 1, 1, 250]);
    const HALF: FlowHalf = FlowHalf {
        packets: 0,
        bytes: 0,
        verdict: 0,
        groups: [0; 2],
        service: 0,
        rule: 0,
        seen: 0,
        end: 0,
        acknowledged: 0,
        made: 0,
        owner: 0,
        sent: 0,
        other: 0,
        identities: [0; 2],
        receiver: 0,
    };

    fn tuple(source: (Address, u16), destination: (Address, u16)) -> Tuple {
        Tuple {
            source: source.0,
            destination: destination.0,
            source_port: Be16::new(source.1),
            destination_port: Be16::new(destination.1),
            protocol: TCP,
            zero: [0; 3],
        }
    }

    fn flow(sent: &Tuple, backend: (Address, u16), nat_port: u16, flags: u8) -> Flow {
        Flow {
            client: sent.source,
            destination: sent.destination,
            backend: backend.0,
            client_port: sent.source_port,
            destination_port: sent.destination_port,
            nat_port: Be16::new(nat_port),
            backend_port: Be16::new(backend.1),
            head: FlowHead { domain: 7, protocol: TCP, flags, generation: 1 },
            halves: [HALF; 2],
        }
    }

    /// The packet and its reply, as received and as forwarded.
    fn ways(flow: &Flow) -> [[Tuple; 2]; 2] {
        [false, true].map(|reply| {
            let mut received = tuple((VIP, 0), (VIP, 0));
            flow.received(reply, &mut received);
            let mut forwarded = received;
            flow.translate(reply, &mut forwarded);
            [received, forwarded]
        })
    }

    #[test]
    fn a_translation_leads_there_and_back() {
        let sent = tuple((CLIENT, 4000), (VIP, 80));
        let [[received, forwarded], [reply, shown]] = ways(&flow(&sent, (BACKEND, 8080), 4001, Flow::NAT));
        assert_eq!((received, forwarded), (sent, tuple((CLIENT, 4001), (BACKEND, 8080))));
        assert_eq!((reply, shown), (forwarded.reversed(), sent.reversed()));
    }

    #[test]
    fn a_hairpin_shows_the_service_to_the_pod() {
        let sent = tuple((BACKEND, 4000), (VIP, 80));
        let flags = Flow::NAT | Flow::HAIRPIN;
        let [[_, forwarded], [reply, shown]] = ways(&flow(&sent, (BACKEND, 8080), 4000, flags));
        assert_eq!(forwarded, tuple((VIP, 4000), (BACKEND, 8080)));
        assert_eq!((reply, shown), (forwarded.reversed(), sent.reversed()));
    }

    #[test]
    fn a_denied_flow_lives_as_an_established_one() {
        let timeouts = Timeouts::default();
        let mut closed = flow(&tuple((CLIENT, 4000), (VIP, 80)), (VIP, 80), 4000, 0);
        closed.halves[0].sent = sent::ANY | sent::ACK | sent::RST;
        for (protocol, allowed, denied) in
            [(TCP, timeouts.tcp_closing, timeouts.tcp), (UDP, timeouts.unanswered, timeouts.udp)]
        {
            closed.head.protocol = protocol;
            for (verdict, expected) in
                [(0, allowed), (Verdict::DENIED_IN, denied), (Verdict::DENIED_OUT, denied)]
            {
                closed.halves.iter_mut().for_each(|half| half.verdict = verdict);
                assert_eq!(closed.timeout(&timeouts), expected);
            }
        }
    }

    #[test]
    fn a_verdict_has_revisions_and_denials_apart() {
        let largest = (1 << 31) - 1;
        for sets in [[0, 0], [1, 2], [largest, largest]] {
            let verdict = Verdict::of(sets);
            assert!(verdict.is_by(sets) && !verdict.is_denied());
            for denied in [Verdict::DENIED_IN, Verdict::DENIED_OUT] {
                let verdict = Verdict(verdict.0 | denied);
                assert!(verdict.is_by(sets) && verdict.is_denied());
            }
            assert!(!verdict.is_by([sets[0] ^ 1, sets[1]]) && !verdict.is_by([sets[0], sets[1] ^ 1]));
        }
    }

    #[test]
    fn a_head_is_one_word() {
        let head = FlowHead { domain: 0x0100_0064, protocol: 6, flags: 3, generation: 0x8001 };
        assert_eq!(FlowHead::from_word(head.word()), head);
        // SAFETY: of the same size; every bit pattern is a number.
        assert_eq!(unsafe { core::mem::transmute::<FlowHead, u64>(head) }, head.word());
    }
}
