//! Connection tracking: the keys and entries of flows.

use crate::{Address, Be16, Segment};

/// The two ends of a packet, in its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Tuple {
    /// Whose it is.
    pub source: Address,
    /// Whom it is for.
    pub destination: Address,
    /// Of TCP, UDP and SCTP; the identifier of an ICMP echo, else zero.
    pub source_port: Be16,
    /// Likewise.
    pub destination_port: Be16,
    /// The IP protocol: the last next header of IPv6.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 3],
}

impl Tuple {
    /// That of an answer.
    #[inline(always)]
    pub fn reversed(&self) -> Tuple {
        let mut tuple = *self;
        tuple.reverse();
        tuple
    }

    /// Makes it that of an answer.
    #[inline(always)]
    pub fn reverse(&mut self) {
        let (source, port) = (self.source.words(), self.source_port);
        self.source.set_words(self.destination.words());
        self.source_port = self.destination_port;
        self.destination.set_words(source);
        self.destination_port = port;
    }

    /// Whether the source is the lower end of the key. Any order will do as long as both directions agree.
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

/// A flow's key: the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowKey {
    /// The network.
    pub segment: Segment,
    /// The lower end.
    pub low: Address,
    /// The other.
    pub high: Address,
    /// The lower end's port.
    pub low_port: Be16,
    /// The other's.
    pub high_port: Be16,
    /// The IP protocol.
    pub protocol: u8,
    /// [`FlowKey::FLOW`] or [`FlowKey::COLLISION`].
    pub kind: u8,
    /// Zero.
    pub zero: [u8; 2],
}

impl FlowKey {
    /// The packet as it is seen.
    pub const FLOW: u8 = 0;
    /// The packet of a direct connection whose tuple a translated one has already on its far side. Only
    /// aliases have such keys.
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

    /// Makes it the key of a packet. In place, because the stack of a BPF program is small.
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

    /// The packets of the flow's first direction, if it began at the lower end or not.
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

/// What policy has said of one side of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct PolicyVerdict {
    /// The generation of the rules that were asked; zero when this side is not on this node.
    pub generation: u32,
    /// Which rule decided.
    pub rule: u32,
}

/// A flow, by its tuple as it is beyond the translation; or an alias, by a tuple that is translated.
///
/// Either direction writes its own half of what both count, so nothing is written by two CPUs at once
/// except the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Flow {
    /// Packets of the first direction, and of answers.
    pub packets: [u64; 2],
    /// Their bytes, from the Ethernet header on.
    pub bytes: [u64; 2],
    /// Of a translated flow: whom the client addresses. Of an alias: whom its packets go to.
    pub nat_ip: Address,
    /// The port that belongs to `nat_ip`.
    pub nat_port: Be16,
    /// Of a translated flow: the client's own port. Of an alias: the port that it appears with.
    pub nat_client_port: Be16,
    /// When the last packet passed, in seconds since boot.
    pub seen: u32,
    /// When the first did.
    pub made: u32,
    /// The number of the service; zero when it is none.
    pub service: u32,
    /// What the source's rules said.
    pub outward: PolicyVerdict,
    /// What the destination's rules said.
    pub inward: PolicyVerdict,
    /// [`Flow::NAT`] and the following.
    pub flags: u8,
    /// 1 when the lower end began.
    pub origin_is_low: u8,
    /// The TCP flags that either direction has sent, FIN and RST only.
    pub tcp: [u8; 2],
    /// The groups of the source and of the destination, as far as they are here; zero for none.
    pub groups: [u16; 2],
}

impl Flow {
    /// The flow is translated.
    pub const NAT: u8 = 1;
    /// Leads to a flow.
    pub const FORWARD_NAT: u8 = 2;
    /// Client and backend are the same pod, which sees the service as the client.
    pub const HAIRPIN: u8 = 4;
    /// A direct connection that appears with another port, because a translated one has its own.
    pub const COLLISION: u8 = 8;
    /// The rules of the source's group, as they are now, do not let it be.
    pub const DENIED_OUT: u8 = 16;
    /// Nor do those of the destination's.
    pub const DENIED_IN: u8 = 32;
    /// Among the answered ones by its entry, which was a connection's that has ended, but not answered yet itself.
    pub const OPENING: u8 = 64;
    /// Not answered yet, and has its alias all the same: it began with something else than a SYN.
    pub const NAMED: u8 = 128;
    /// One or the other.
    pub const DENIED: u8 = Flow::DENIED_OUT | Flow::DENIED_IN;

    /// FIN of TCP.
    pub const FIN: u8 = 1;
    /// RST of TCP.
    pub const RST: u8 = 4;

    /// Whether either side has ended the connection.
    #[inline(always)]
    pub const fn is_closing(&self) -> bool {
        (self.tcp[0] | self.tcp[1]) != 0
    }

    /// 1 if a flow among the answered ones has been answered itself. Without a branch, which the verifier would follow.
    #[inline(always)]
    pub const fn is_answered(&self) -> u32 {
        (((self.flags / Flow::OPENING) & 1) ^ 1) as u32
    }

    /// Whether it has been answered, if it is among those that have been, and neither side has ended the connection.
    #[inline(always)]
    pub const fn is_open(&self) -> bool {
        (self.tcp[0] | self.tcp[1] | self.flags & Flow::OPENING) == 0
    }

    /// The group of the source, or of the destination. Without a branch, which the verifier would follow.
    #[inline(always)]
    pub const fn group(&self, of_source: bool) -> u32 {
        let both = self.groups[0] as u32 | (self.groups[1] as u32) << 16;
        (both >> (16 * !of_source as u32)) & 0xffff
    }

    /// What the client of a translated flow sends: the tuple of its alias. In place, as `FlowKey::set` is.
    #[inline(always)]
    pub fn untranslate(&self, key: &FlowKey, to: &mut Tuple) {
        let from_low = self.origin_is_low != 0;
        // Of a pod that reaches itself, the backend's end is its own.
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

    /// The kind of the key of a translated flow's alias.
    #[inline(always)]
    pub const fn alias_kind(&self) -> u8 {
        if self.flags & Flow::COLLISION != 0 { FlowKey::COLLISION } else { FlowKey::FLOW }
    }

    /// Where an alias leads: the client's packet beyond the translation. `to` is the client's packet before.
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

/// TCP's protocol number.
pub const TCP: u8 = 6;
/// UDP's.
pub const UDP: u8 = 17;

/// The kernel's `struct bpf_timer`, which it finds in a map's value by this name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct bpf_timer {
    /// The kernel's; reads as zero.
    pub opaque: [u64; 2],
}

/// A flow that has been answered, with the clock that removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct TimedFlow {
    /// The flow.
    pub flow: Flow,
    /// Runs on the entry of a flow, not of an alias.
    pub timer: bpf_timer,
}

/// How long flows are remembered without a packet, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Timeouts {
    /// TCP, answered.
    pub tcp: u32,
    /// TCP before the first answer.
    pub tcp_opening: u32,
    /// TCP after a FIN or RST.
    pub tcp_closing: u32,
    /// UDP, answered.
    pub udp: u32,
    /// All others, answered.
    pub other: u32,
    /// All but TCP, before the first answer.
    pub unanswered: u32,
}

impl Default for Timeouts {
    fn default() -> Self {
        // TCP keepalive begins after two hours of silence (RFC 9293 3.8.4); a closed connection may have
        // packets on the way for two segment lifetimes of 30 s; RFC 4787 asks for two minutes of UDP.
        Timeouts { tcp: 8000, tcp_opening: 60, tcp_closing: 60, udp: 180, other: 180, unanswered: 30 }
    }
}

impl Timeouts {
    /// How long a flow is remembered without a packet.
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

/// A packet that comes in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentKey {
    /// The network.
    pub segment: Segment,
    /// Whose it is.
    pub source: Address,
    /// Whom it is for.
    pub destination: Address,
    /// The packet's number.
    pub identification: u32,
    /// The protocol.
    pub protocol: u32,
}

/// What the first piece told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FragmentPorts {
    /// Of the source.
    pub source: Be16,
    /// Of the destination.
    pub destination: Be16,
}

/// What is counted of flows; the number is the index in `ctv_ct_stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowEvent {
    /// A flow was noted.
    Made = 0,
    /// A flow was answered and moved to the table that nothing pushes it out of.
    Answered = 1,
    /// A flow ended by its timeout.
    Expired = 2,
    /// A flow was answered but the table was full; it stays among the unanswered, which may be pushed out.
    Full = 3,
    /// A flow could not be noted at all.
    Failed = 4,
    /// A new connection had the ports of one that was closed, or that was another pod's with the same address, in whose place it is.
    Reused = 5,
}

impl FlowEvent {
    /// All of them, with the labels of metrics.
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
    fn the_end_of_a_connection_shortens_its_memory() {
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
