//! Connection tracking: keys and entries of flows.

use crate::{Address, Be16, Segment};

/// Addresses, ports and protocol of a packet, in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Tuple {
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Source port of TCP, UDP and SCTP; the identifier of an ICMP echo; else zero.
    pub source_port: Be16,
    /// Destination port, likewise.
    pub destination_port: Be16,
    /// IP protocol number; for IPv6 that of the last header.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 3],
}

impl Tuple {
    /// The tuple of the reply direction.
    #[inline(always)]
    pub fn reversed(&self) -> Tuple {
        let mut tuple = *self;
        tuple.reverse();
        tuple
    }

    /// Changes the tuple to that of the reply direction.
    #[inline(always)]
    pub fn reverse(&mut self) {
        let (source, port) = (self.source.words(), self.source_port);
        self.source.set_words(self.destination.words());
        self.source_port = self.destination_port;
        self.destination.set_words(source);
        self.destination_port = port;
    }

    /// Returns true if the source is the lower end of the key. The order is arbitrary; both
    /// directions agree on it.
    #[inline(always)]
    pub const fn source_is_low(&self) -> bool {
        let ([a, b], [c, d]) = (self.source.words(), self.destination.words());
        if a != c {
            a < c
        } else if b != d {
            b < d
        } else {
            self.source_port.wire() <= self.destination_port.wire()
        }
    }
}

/// Key of a flow, the same for both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowKey {
    /// Network of the flow.
    pub segment: Segment,
    /// Address of the lower end.
    pub low: Address,
    /// Address of the higher end.
    pub high: Address,
    /// Port of the lower end.
    pub low_port: Be16,
    /// Port of the higher end.
    pub high_port: Be16,
    /// IP protocol number.
    pub protocol: u8,
    /// [`FlowKey::FLOW`] or [`FlowKey::COLLISION`].
    pub kind: u8,
    /// Zero.
    pub zero: [u8; 2],
}

impl FlowKey {
    /// The tuple of a packet as received.
    pub const FLOW: u8 = 0;
    /// The tuple of a direct connection that collides with that of a translated one beyond the
    /// translation. Only forward NAT entries have such keys.
    pub const COLLISION: u8 = 1;

    /// The key of a packet.
    #[inline(always)]
    pub fn new(segment: Segment, tuple: &Tuple, kind: u8) -> Self {
        let mut key = FlowKey {
            segment,
            low: tuple.source,
            high: tuple.source,
            low_port: tuple.source_port,
            high_port: tuple.source_port,
            protocol: tuple.protocol,
            kind,
            zero: [0; 2],
        };
        key.set(segment, tuple, kind);
        key
    }

    /// Assigns the key of a packet. In place, because the stack of a BPF program has 512 bytes.
    #[inline(always)]
    pub fn set(&mut self, segment: Segment, tuple: &Tuple, kind: u8) {
        self.segment = segment;
        self.protocol = tuple.protocol;
        self.kind = kind;
        self.zero = [0; 2];
        if tuple.source_is_low() {
            self.low.set_words(tuple.source.words());
            self.high.set_words(tuple.destination.words());
            self.low_port = tuple.source_port;
            self.high_port = tuple.destination_port;
        } else {
            self.low.set_words(tuple.destination.words());
            self.high.set_words(tuple.source.words());
            self.low_port = tuple.destination_port;
            self.high_port = tuple.source_port;
        }
    }

    /// The tuple of the flow's original direction; `origin_is_low` tells whether the lower end
    /// initiated the flow.
    #[inline(always)]
    pub fn original(&self, origin_is_low: bool) -> Tuple {
        let (source, source_port) = (self.low, self.low_port);
        let mut tuple = Tuple {
            source,
            destination: self.high,
            source_port,
            destination_port: self.high_port,
            protocol: self.protocol,
            zero: [0; 3],
        };
        if !origin_is_low {
            tuple.reverse();
        }
        tuple
    }
}

/// Result of the policy evaluation on one side of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct PolicyVerdict {
    /// Number of the rule set that was evaluated; zero if this side is not on this node.
    pub generation: u32,
    /// Number of the rule that decided; zero for none.
    pub rule: u32,
}

/// A flow, keyed by its tuple beyond the translation; or a forward NAT entry, keyed by the tuple
/// before the translation.
///
/// Each direction writes its own half of the counters, so only the time stamp is written by two
/// CPUs at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Flow {
    /// Packets of the original and of the reply direction.
    pub packets: [u64; 2],
    /// Bytes of these packets, including the Ethernet header.
    pub bytes: [u64; 2],
    /// Translated flow: address that the client sends to. Forward NAT entry: address that its
    /// packets are sent to.
    pub nat_ip: Address,
    /// Port that belongs to `nat_ip`.
    pub nat_port: Be16,
    /// Translated flow: the client's own port. Forward NAT entry: the client's port after the
    /// translation.
    pub nat_client_port: Be16,
    /// Time of the last packet, in seconds since boot.
    pub seen: u32,
    /// Time of the first packet, in seconds since boot.
    pub made: u32,
    /// Number of the service's port; zero for none.
    pub service: u32,
    /// Evaluation of the source's egress rules.
    pub outward: PolicyVerdict,
    /// Evaluation of the destination's ingress rules.
    pub inward: PolicyVerdict,
    /// [`Flow::NAT`] and the following.
    pub flags: u8,
    /// 1 if the lower end initiated the flow.
    pub origin_is_low: u8,
    /// FIN and RST flags that each direction has sent.
    pub tcp: [u8; 2],
    /// Groups of the source and of the destination if they are on this node; zero for none.
    pub groups: [u16; 2],
}

impl Flow {
    /// The flow is translated.
    pub const NAT: u8 = 1;
    /// The entry is a forward NAT entry: it refers to a flow.
    pub const FORWARD_NAT: u8 = 2;
    /// Client and backend are the same pod, which sees the service's address as the client.
    pub const HAIRPIN: u8 = 4;
    /// A direct connection whose source port is translated, because a translated connection has the
    /// same tuple.
    pub const COLLISION: u8 = 8;
    /// The current rules of the source's group deny the flow.
    pub const DENIED_OUT: u8 = 16;
    /// The current rules of the destination's group deny the flow.
    pub const DENIED_IN: u8 = 32;
    /// The flow reuses the established entry of a closed connection, and is itself unreplied.
    pub const OPENING: u8 = 64;
    /// The flow is unreplied and has its forward NAT entry already, because it did not begin with a
    /// SYN.
    pub const NAMED: u8 = 128;
    /// Both denial flags.
    pub const DENIED: u8 = Flow::DENIED_OUT | Flow::DENIED_IN;

    /// FIN flag of TCP.
    pub const FIN: u8 = 1;
    /// RST flag of TCP.
    pub const RST: u8 = 4;

    /// Returns true if either side has sent FIN or RST.
    #[inline(always)]
    pub const fn is_closing(&self) -> bool {
        (self.tcp[0] | self.tcp[1]) != 0
    }

    /// Returns 1 if an established entry has been replied to by its current connection.
    /// Branch-free, because the verifier would follow both branches.
    #[inline(always)]
    pub const fn is_answered(&self) -> u32 {
        (((self.flags / Flow::OPENING) & 1) ^ 1) as u32
    }

    /// Returns true if an established entry has been replied to and neither side has closed the
    /// connection.
    #[inline(always)]
    pub const fn is_open(&self) -> bool {
        (self.tcp[0] | self.tcp[1] | self.flags & Flow::OPENING) == 0
    }

    /// Number of the source's or of the destination's group. Branch-free, because the verifier
    /// would follow both branches.
    #[inline(always)]
    pub const fn group(&self, of_source: bool) -> u32 {
        let both = self.groups[0] as u32 | (self.groups[1] as u32) << 16;
        (both >> (16 * !of_source as u32)) & 0xffff
    }

    /// The tuple that the client of a translated flow sends: the key of the forward NAT entry. In
    /// place, as `FlowKey::set`.
    #[inline(always)]
    pub fn untranslate(&self, key: &FlowKey, to: &mut Tuple) {
        let from_low = self.origin_is_low != 0;
        // For a pod that reaches itself, the backend's end is its own.
        let client_is_low = from_low != (self.flags & Flow::HAIRPIN != 0);
        let client = if client_is_low { key.low.words() } else { key.high.words() };
        to.source.set_words(client);
        to.source_port = self.nat_client_port;
        to.destination.set_words(self.nat_ip.words());
        to.destination_port = self.nat_port;
        to.protocol = key.protocol;
        // SAFETY: bytes.
        unsafe { crate::clear(&raw mut to.zero) };
    }

    /// Kind of the key of a translated flow's forward NAT entry.
    #[inline(always)]
    pub const fn alias_kind(&self) -> u8 {
        if self.flags & Flow::COLLISION != 0 { FlowKey::COLLISION } else { FlowKey::FLOW }
    }

    /// Translates the client's packet by a forward NAT entry.
    #[inline(always)]
    pub fn translate(&self, to: &mut Tuple) {
        if self.flags & Flow::HAIRPIN != 0 {
            to.source.set_words(to.destination.words());
        }
        to.source_port = self.nat_client_port;
        to.destination.set_words(self.nat_ip.words());
        to.destination_port = self.nat_port;
    }
}

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// The kernel's `struct bpf_timer`, which it finds in a map's value by this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct bpf_timer {
    /// Opaque; reads as zero.
    pub opaque: [u64; 2],
}

/// An established flow, with the timer that removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct TimedFlow {
    /// The flow.
    pub flow: Flow,
    /// Armed on the entry of a flow, not on a forward NAT entry.
    pub timer: bpf_timer,
}

/// Timeouts of flows without packets, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Timeouts {
    /// TCP, established.
    pub tcp: u32,
    /// TCP, unreplied.
    pub tcp_opening: u32,
    /// TCP, after a FIN or RST.
    pub tcp_closing: u32,
    /// UDP, established.
    pub udp: u32,
    /// Other protocols, established.
    pub other: u32,
    /// All protocols but TCP, unreplied.
    pub unanswered: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        // TCP keepalives begin after two hours (RFC 9293 3.8.4); packets of a closed connection may
        // be in transit for two segment lifetimes of 30 s; RFC 4787 requires two minutes for UDP.
        Timeouts { tcp: 8000, tcp_opening: 60, tcp_closing: 60, udp: 180, other: 180, unanswered: 30 }
    }
}

impl Timeouts {
    /// The timeout of a flow in this state, in seconds.
    #[inline(always)]
    pub const fn of(&self, protocol: u8, answered: bool, closing: bool) -> u32 {
        match (protocol, answered) {
            (TCP, _) if closing => self.tcp_closing,
            (TCP, true) => self.tcp,
            (TCP, false) => self.tcp_opening,
            (UDP, true) => self.udp,
            (_, true) => self.other,
            (_, false) => self.unanswered,
        }
    }
}

/// A fragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentKey {
    /// Network of the packet.
    pub segment: Segment,
    /// Source address.
    pub source: Address,
    /// Destination address.
    pub destination: Address,
    /// Identification in the IPv4 header or in the IPv6 fragment header.
    pub identification: u32,
    /// Protocol in the IPv4 header, or the next header in the IPv6 fragment header: the same in all
    /// fragments of a packet, also if the first one has further extension headers.
    pub protocol: u32,
}

/// What only the first fragment shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentPorts {
    /// Source port.
    pub source: Be16,
    /// Destination port.
    pub destination: Be16,
    /// IP protocol number; for IPv6 that of the last header.
    pub protocol: u32,
}

/// Events of connection tracking that are counted; the number is the index in `ctv_ct_stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowEvent {
    /// A flow was inserted.
    Made = 0,
    /// A flow got its first reply and moved to the established table.
    Answered = 1,
    /// A flow ended by its timeout.
    Expired = 2,
    /// A flow got its first reply but the established table was full; it stays in the unreplied
    /// table, where it may be evicted.
    Full = 3,
    /// A flow could not be inserted.
    Failed = 4,
    /// A new connection reused the tuple of a closed one, or of another pod that had the same
    /// address, and replaced its entry.
    Reused = 5,
}

impl FlowEvent {
    /// All events, with their labels in metrics.
    pub const ALL: [(FlowEvent, &'static str); 6] = [
        (FlowEvent::Made, "made"),
        (FlowEvent::Answered, "answered"),
        (FlowEvent::Expired, "expired"),
        (FlowEvent::Full, "full"),
        (FlowEvent::Failed, "failed"),
        (FlowEvent::Reused, "reused"),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: Address = Address::v4([10, 1, 1, 1]);
    const BACKEND: Address = Address::v4([10, 1, 1, 2]);
    const VIP: Address = Address::v4([10, 1, 1, 250]);

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

    fn key(tuple: &Tuple) -> FlowKey {
        FlowKey::new(Segment::vxlan(7), tuple, FlowKey::FLOW)
    }

    fn flow(tuple: &Tuple, flags: u8, nat: (Address, u16), client: u16) -> Flow {
        Flow {
            packets: [0; 2],
            bytes: [0; 2],
            nat_ip: nat.0,
            nat_port: Be16::new(nat.1),
            nat_client_port: Be16::new(client),
            seen: 0,
            made: 0,
            service: 0,
            outward: PolicyVerdict::default(),
            inward: PolicyVerdict::default(),
            flags,
            origin_is_low: u8::from(tuple.source_is_low()),
            tcp: [0; 2],
            groups: [0; 2],
        }
    }

    #[test]
    fn both_directions_have_one_key() {
        let ends = [(CLIENT, 4000), (CLIENT, 80), (BACKEND, 80), (Address([0xfd; 16]), 80)];
        for source in ends {
            for destination in ends {
                let there = tuple(source, destination);
                assert_eq!(key(&there), key(&there.reversed()));
                assert_eq!(key(&there).original(there.source_is_low()), there);
            }
        }
    }

    #[test]
    fn a_translation_leads_there_and_back() {
        let sent = tuple((CLIENT, 4000), (VIP, 80));
        let alias = flow(&sent, Flow::FORWARD_NAT, (BACKEND, 8080), 4001);
        let mut beyond = sent;
        alias.translate(&mut beyond);
        assert_eq!(beyond, tuple((CLIENT, 4001), (BACKEND, 8080)));
        let translated = flow(&beyond, Flow::NAT, (VIP, 80), 4000);
        let mut back = beyond;
        translated.untranslate(&key(&beyond), &mut back);
        assert_eq!(back, sent);
    }

    #[test]
    fn a_hairpin_shows_the_service_to_the_pod() {
        let sent = tuple((BACKEND, 4000), (VIP, 80));
        let alias = flow(&sent, Flow::FORWARD_NAT | Flow::HAIRPIN, (BACKEND, 8080), 4000);
        let mut beyond = sent;
        alias.translate(&mut beyond);
        assert_eq!(beyond, tuple((VIP, 4000), (BACKEND, 8080)));
        let translated = flow(&beyond, Flow::NAT | Flow::HAIRPIN, (VIP, 80), 4000);
        let mut back = beyond;
        translated.untranslate(&key(&beyond), &mut back);
        assert_eq!(back, sent);
    }

    #[test]
    fn closing_a_connection_shortens_its_timeout() {
        let timeouts = Timeouts::default();
        assert_eq!(timeouts.of(TCP, true, false), timeouts.tcp);
        assert_eq!(timeouts.of(TCP, false, false), timeouts.tcp_opening);
        assert_eq!(timeouts.of(TCP, true, true), timeouts.tcp_closing);
        assert_eq!(timeouts.of(TCP, false, true), timeouts.tcp_closing);
        assert_eq!(timeouts.of(UDP, true, false), timeouts.udp);
        assert_eq!(timeouts.of(132, true, false), timeouts.other);
        assert_eq!(timeouts.of(UDP, false, false), timeouts.unanswered);
    }
}
