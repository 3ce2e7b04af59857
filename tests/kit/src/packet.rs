//! Builds the frames that tests send and expect.
//!
//! Lengths and checksums are computed from the RFCs, independently of the code of the datapaths.
//!
//! ```
//! use testkit::packet::{Packet, mac};
//! let frame = Packet::eth(mac("02:02:0a:01:01:02"), mac("02:02:0a:01:01:01"))
//!     .vlan(100)
//!     .ipv4([10, 1, 1, 1], [10, 1, 1, 2])
//!     .dscp(46)
//!     .udp(4000, 53)
//!     .payload(b"query")
//!     .build();
//! assert_eq!(frame.len(), 14 + 4 + 20 + 8 + 5);
//! ```

mod checksum;
mod encode;
mod verify;

use std::net::{Ipv4Addr, Ipv6Addr};

pub use checksum::internet_checksum;
pub use verify::verify;

pub type Mac = [u8; 6];

pub const BROADCAST: Mac = [0xff; 6];

pub mod ethertype {
    pub const IPV4: u16 = 0x0800;
    pub const ARP: u16 = 0x0806;
    pub const VLAN: u16 = 0x8100;
    pub const IPV6: u16 = 0x86dd;
}

pub mod protocol {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
    pub const FRAGMENT: u8 = 44;
    pub const ICMPV6: u8 = 58;
}

pub mod tcp_flags {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
}

/// Flags of a neighbour advertisement.
pub mod nd_flags {
    pub const ROUTER: u8 = 0x80;
    pub const SOLICITED: u8 = 0x40;
    pub const OVERRIDE: u8 = 0x20;
}

/// Parses a MAC address such as `02:02:0a:01:01:02`; panics if it is invalid.
#[expect(clippy::panic, reason = "an invalid literal is an error of the test")]
pub fn mac(text: &str) -> Mac {
    let octets: Option<Vec<u8>> = text.split(':').map(|octet| u8::from_str_radix(octet, 16).ok()).collect();
    match octets.and_then(|octets| Mac::try_from(octets).ok()) {
        Some(mac) => mac,
        None => panic!("{text:?} is not a MAC address"),
    }
}

/// Multicast MAC address of an IPv6 neighbour solicitation for `target`.
pub fn solicited_node_mac(target: Ipv6Addr) -> Mac {
    let octets = target.octets();
    [0x33, 0x33, 0xff, octets[13], octets[14], octets[15]]
}

/// Multicast IPv6 address of a neighbour solicitation for `target`.
pub fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., x, y, z] = target.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, x, y, z])
}

#[derive(Debug, Clone)]
enum Layer {
    Eth { dst: Mac, src: Mac },
    Vlan { tag: u16 },
    Arp { operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr) },
    Ipv4(Ipv4),
    Ipv6(Ipv6),
    Icmp { kind: u8, code: u8, rest: [u8; 4] },
    Icmpv6 { kind: u8, code: u8, rest: [u8; 4] },
    Udp { source: u16, destination: u16, checksum: bool },
    Tcp(Tcp),
    Vxlan { vni: u32 },
    Bytes(Vec<u8>),
}

#[derive(Debug, Clone)]
struct Ipv4 {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    tos: u8,
    id: u16,
    dont_fragment: bool,
    more_fragments: bool,
    /// In units of 8 bytes, as on the wire.
    offset: u16,
    ttl: u8,
    protocol: Option<u8>,
    options: Vec<u8>,
}

#[derive(Debug, Clone)]
struct Ipv6 {
    src: Ipv6Addr,
    dst: Ipv6Addr,
    traffic_class: u8,
    flow_label: u32,
    hop_limit: u8,
    protocol: Option<u8>,
    /// Offset in units of 8 bytes, more-fragments flag, identification.
    fragment: Option<(u16, bool, u32)>,
}

#[derive(Debug, Clone)]
struct Tcp {
    source: u16,
    destination: u16,
    sequence: u32,
    acknowledgement: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
}

/// A frame as a list of layers, outermost first. Setters such as [`Packet::ttl`] change the last layer with that field.
#[derive(Debug, Clone)]
#[must_use]
pub struct Packet(Vec<Layer>);

impl Packet {
    pub fn eth(dst: Mac, src: Mac) -> Packet {
        Packet(vec![Layer::Eth { dst, src }])
    }

    /// Without a link layer: an IP packet inside something else.
    pub fn bare() -> Packet {
        Packet(vec![])
    }

    /// An 802.1Q tag with priority 0.
    pub fn vlan(self, id: u16) -> Packet {
        self.with(Layer::Vlan { tag: id })
    }

    pub fn arp_request(
        sender: Mac,
        sender_ip: impl Into<Ipv4Addr>,
        target_ip: impl Into<Ipv4Addr>,
    ) -> Packet {
        Packet::eth(BROADCAST, sender).arp(1, (sender, sender_ip.into()), ([0; 6], target_ip.into()))
    }

    pub fn arp_reply(
        sender: Mac,
        sender_ip: impl Into<Ipv4Addr>,
        target: Mac,
        target_ip: impl Into<Ipv4Addr>,
    ) -> Packet {
        Packet::eth(target, sender).arp(2, (sender, sender_ip.into()), (target, target_ip.into()))
    }

    pub fn arp(self, operation: u16, sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr)) -> Packet {
        self.with(Layer::Arp { operation, sender, target })
    }

    /// IPv4 header with TTL 64, DF set and identification 0.
    pub fn ipv4(self, src: impl Into<Ipv4Addr>, dst: impl Into<Ipv4Addr>) -> Packet {
        self.with(Layer::Ipv4(Ipv4 {
            src: src.into(),
            dst: dst.into(),
            tos: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            offset: 0,
            ttl: 64,
            protocol: None,
            options: vec![],
        }))
    }

    /// IPv6 header with hop limit 64.
    pub fn ipv6(self, src: impl Into<Ipv6Addr>, dst: impl Into<Ipv6Addr>) -> Packet {
        self.with(Layer::Ipv6(Ipv6 {
            src: src.into(),
            dst: dst.into(),
            traffic_class: 0,
            flow_label: 0,
            hop_limit: 64,
            protocol: None,
            fragment: None,
        }))
    }

    pub fn udp(self, source: u16, destination: u16) -> Packet {
        self.with(Layer::Udp { source, destination, checksum: true })
    }

    /// UDP with checksum 0, as VXLAN's outer header has.
    pub fn udp_unchecked(self, source: u16, destination: u16) -> Packet {
        self.with(Layer::Udp { source, destination, checksum: false })
    }

    /// `flags` of [`tcp_flags`]; window 65535, sequence and acknowledgement 0. The sequence number of a SYN precedes 0, so that
    /// such packets are a handshake.
    pub fn tcp(self, source: u16, destination: u16, flags: u8) -> Packet {
        self.with(Layer::Tcp(Tcp {
            source,
            destination,
            sequence: if flags & tcp_flags::SYN == 0 { 0 } else { u32::MAX },
            acknowledgement: 0,
            flags,
            window: u16::MAX,
            options: vec![],
        }))
    }

    pub fn icmp(self, kind: u8, code: u8, rest: [u8; 4]) -> Packet {
        self.with(Layer::Icmp { kind, code, rest })
    }

    pub fn icmp_echo_request(self, id: u16, sequence: u16) -> Packet {
        self.icmp(8, 0, pair(id, sequence))
    }

    pub fn icmp_echo_reply(self, id: u16, sequence: u16) -> Packet {
        self.icmp(0, 0, pair(id, sequence))
    }

    pub fn icmpv6(self, kind: u8, code: u8, rest: [u8; 4]) -> Packet {
        self.with(Layer::Icmpv6 { kind, code, rest })
    }

    pub fn icmpv6_echo_request(self, id: u16, sequence: u16) -> Packet {
        self.icmpv6(128, 0, pair(id, sequence))
    }

    pub fn icmpv6_echo_reply(self, id: u16, sequence: u16) -> Packet {
        self.icmpv6(129, 0, pair(id, sequence))
    }

    /// Neighbour solicitation. In duplicate address detection `src` is `::`, and the source link-layer option is omitted.
    pub fn neighbour_solicitation(src_mac: Mac, src: Ipv6Addr, target: Ipv6Addr) -> Packet {
        let message = Packet::eth(solicited_node_mac(target), src_mac)
            .ipv6(src, solicited_node(target))
            .ttl(255)
            .icmpv6(135, 0, [0; 4])
            .payload(&target.octets());
        if src.is_unspecified() { message } else { message.link_layer_option(1, src_mac) }
    }

    /// Neighbour advertisement: `target` is at `target_mac`; `flags` of [`nd_flags`].
    pub fn neighbour_advertisement(
        dst: (Mac, Ipv6Addr),
        target: (Mac, Ipv6Addr),
        src_mac: Mac,
        flags: u8,
    ) -> Packet {
        Packet::eth(dst.0, src_mac)
            .ipv6(target.1, dst.1)
            .ttl(255)
            .icmpv6(136, 0, [flags, 0, 0, 0])
            .payload(&target.1.octets())
            .link_layer_option(2, target.0)
    }

    /// After UDP: the VXLAN header, then `inner` as a whole frame.
    pub fn vxlan(self, vni: u32, inner: Packet) -> Packet {
        let mut outer = self.with(Layer::Vxlan { vni });
        outer.0.extend(inner.0);
        outer
    }

    pub fn payload(self, bytes: &[u8]) -> Packet {
        self.with(Layer::Bytes(bytes.to_vec()))
    }

    /// DSCP of the last IP header; ECN 0.
    pub fn dscp(self, dscp: u8) -> Packet {
        self.tos(dscp << 2)
    }

    /// TOS or traffic class of the last IP header.
    pub fn tos(self, value: u8) -> Packet {
        self.set_ip(|ip| ip.tos = value, |ip| ip.traffic_class = value)
    }

    /// TTL or hop limit of the last IP header.
    pub fn ttl(self, value: u8) -> Packet {
        self.set_ip(|ip| ip.ttl = value, |ip| ip.hop_limit = value)
    }

    /// Protocol or next header, if the following layer does not determine it.
    pub fn protocol(self, value: u8) -> Packet {
        self.set_ip(|ip| ip.protocol = Some(value), |ip| ip.protocol = Some(value))
    }

    pub fn flow_label(self, value: u32) -> Packet {
        self.set_ip(|_| {}, |ip| ip.flow_label = value)
    }

    pub fn ip_id(self, value: u16) -> Packet {
        self.set_ip(|ip| ip.id = value, |_| {})
    }

    pub fn may_fragment(self) -> Packet {
        self.set_ip(|ip| ip.dont_fragment = false, |_| {})
    }

    /// Makes it a fragment: `offset` in units of 8 bytes. In IPv6 that adds a fragment header.
    pub fn fragment(self, id: u16, offset: u16, more: bool) -> Packet {
        self.set_ip(
            |ip| {
                (ip.id, ip.offset, ip.more_fragments, ip.dont_fragment) = (id, offset, more, false);
            },
            |ip| ip.fragment = Some((offset, more, id.into())),
        )
    }

    /// IPv4 options, padded with zeros to a multiple of 4 bytes.
    pub fn ip_options(self, options: &[u8]) -> Packet {
        self.set_ip(|ip| ip.options = padded(options), |_| {})
    }

    pub fn sequence(self, sequence: u32, acknowledgement: u32) -> Packet {
        self.set_tcp(|tcp| (tcp.sequence, tcp.acknowledgement) = (sequence, acknowledgement))
    }

    pub fn window(self, window: u16) -> Packet {
        self.set_tcp(|tcp| tcp.window = window)
    }

    /// TCP options, padded with zeros to a multiple of 4 bytes.
    pub fn tcp_options(self, options: &[u8]) -> Packet {
        self.set_tcp(|tcp| tcp.options = padded(options))
    }

    /// The bytes on the wire, without padding to 60 bytes and without the frame check sequence.
    pub fn build(&self) -> Vec<u8> {
        encode::encode(&self.0)
    }

    fn with(mut self, layer: Layer) -> Packet {
        self.0.push(layer);
        self
    }

    fn link_layer_option(self, kind: u8, mac: Mac) -> Packet {
        self.payload(&[&[kind, 1], &mac[..]].concat())
    }

    fn set_ip(mut self, v4: impl FnOnce(&mut Ipv4), v6: impl FnOnce(&mut Ipv6)) -> Packet {
        let last = self.0.iter_mut().rev().find(|layer| matches!(layer, Layer::Ipv4(_) | Layer::Ipv6(_)));
        match last {
            Some(Layer::Ipv4(ip)) => v4(ip),
            Some(Layer::Ipv6(ip)) => v6(ip),
            _ => {}
        }
        self
    }

    fn set_tcp(mut self, set: impl FnOnce(&mut Tcp)) -> Packet {
        if let Some(Layer::Tcp(tcp)) = self.0.iter_mut().rev().find(|layer| matches!(layer, Layer::Tcp(_))) {
            set(tcp);
        }
        self
    }
}

fn pair(first: u16, second: u16) -> [u8; 4] {
    let [[a, b], [c, d]] = [first.to_be_bytes(), second.to_be_bytes()];
    [a, b, c, d]
}

fn padded(options: &[u8]) -> Vec<u8> {
    let mut options = options.to_vec();
    options.resize(options.len().next_multiple_of(4), 0);
    options
}
