//! Which packets a flow means.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

use crate::field::Field;
use crate::port::Port;
use crate::wire::{DecodeError, Reader, pad8};

pub const ETH_TYPE_IPV4: u16 = 0x0800;
pub const ETH_TYPE_ARP: u16 = 0x0806;
pub const ETH_TYPE_IPV6: u16 = 0x86dd;
pub const ETH_TYPE_VLAN: u16 = 0x8100;
pub const IP_PROTO_ICMP: u8 = 1;
pub const IP_PROTO_TCP: u8 = 6;
pub const IP_PROTO_UDP: u8 = 17;
pub const IP_PROTO_ICMPV6: u8 = 58;
pub const IP_PROTO_SCTP: u8 = 132;
pub const ICMPV6_NEIGHBOUR_SOLICITATION: u8 = 135;
pub const ICMPV6_NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// The bit of [`Field::VlanVid`] that says "there is a tag".
pub const VLAN_PRESENT: u16 = 0x1000;

/// What one field must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Masked {
    pub value: u128,
    pub mask: u128,
}

/// A set of conditions on fields, all of which must hold; the empty set matches every packet.
///
/// The methods that name a protocol's field also set its prerequisites:
///
/// ```
/// use openflow_rs::Match;
/// let m = Match::new().in_port(3.into()).arp_op(1).arp_tpa([10, 1, 1, 2].into());
/// assert_eq!(m.to_string(), "arp,in_port=3,arp_tpa=10.1.1.2,arp_op=1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Match {
    /// In the order of the fields: a switch has very many matches of very few fields.
    fields: Vec<(Field, Masked)>,
}

/// A condition on a field that has no meaning without another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a match on {field} needs {needs}", field = field.name())]
pub struct MissingPrerequisite {
    pub field: Field,
    pub needs: &'static str,
}

impl Match {
    pub fn new() -> Self {
        Match::default()
    }

    /// Requires `field` to be exactly `value`; bits beyond the field's width are cut off.
    #[must_use]
    pub fn field(self, field: Field, value: impl Into<u128>) -> Self {
        self.masked(field, value, field.mask())
    }

    /// Requires the bits of `field` that are set in `mask` to be those of `value`.
    #[must_use]
    pub fn masked(mut self, field: Field, value: impl Into<u128>, mask: impl Into<u128>) -> Self {
        let mask = mask.into() & field.mask();
        let masked = Masked { value: value.into() & mask, mask };
        match (self.fields.binary_search_by_key(&field, |(field, _)| *field), mask) {
            (Ok(at), 0) => {
                self.fields.remove(at);
            }
            (Ok(at), _) => self.fields[at].1 = masked,
            (Err(_), 0) => {}
            (Err(at), _) => self.fields.insert(at, (field, masked)),
        }
        self
    }

    /// What is required of `field`.
    pub fn get(&self, field: Field) -> Option<Masked> {
        let at = self.fields.binary_search_by_key(&field, |(field, _)| *field).ok()?;
        Some(self.fields[at].1)
    }

    /// The value of a field that is matched exactly.
    pub fn exact(&self, field: Field) -> Option<u128> {
        self.get(field).filter(|m| m.mask == field.mask()).map(|m| m.value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Field, Masked)> + '_ {
        self.fields.iter().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    #[must_use]
    pub fn in_port(self, port: Port) -> Self {
        self.field(Field::InPort, port.0)
    }

    #[must_use]
    pub fn eth_type(self, eth_type: u16) -> Self {
        self.field(Field::EthType, eth_type)
    }

    #[must_use]
    pub fn eth_src(self, mac: [u8; 6]) -> Self {
        self.field(Field::EthSrc, mac_bits(mac))
    }

    #[must_use]
    pub fn eth_dst(self, mac: [u8; 6]) -> Self {
        self.field(Field::EthDst, mac_bits(mac))
    }

    /// Frames to a group address, broadcast included.
    #[must_use]
    pub fn to_many(self) -> Self {
        let bit = mac_bits([1, 0, 0, 0, 0, 0]);
        self.masked(Field::EthDst, bit, bit)
    }

    /// Frames that claim to come from a group address, which no station may.
    #[must_use]
    pub fn from_many(self) -> Self {
        let bit = mac_bits([1, 0, 0, 0, 0, 0]);
        self.masked(Field::EthSrc, bit, bit)
    }

    /// Frames tagged `vid`.
    #[must_use]
    pub fn vlan(self, vid: u16) -> Self {
        self.field(Field::VlanVid, vid | VLAN_PRESENT)
    }

    /// Frames with any tag.
    #[must_use]
    pub fn any_vlan(self) -> Self {
        self.masked(Field::VlanVid, VLAN_PRESENT, VLAN_PRESENT)
    }

    /// Frames without a tag.
    #[must_use]
    pub fn no_vlan(self) -> Self {
        self.field(Field::VlanVid, 0u16)
    }

    #[must_use]
    pub fn tunnel_id(self, id: u64) -> Self {
        self.field(Field::TunnelId, id)
    }

    #[must_use]
    pub fn metadata(self, value: u64, mask: u64) -> Self {
        self.masked(Field::Metadata, value, mask)
    }

    #[must_use]
    pub fn ip_proto(self, proto: u8) -> Self {
        self.field(Field::IpProto, proto)
    }

    #[must_use]
    pub fn ipv4(self) -> Self {
        self.eth_type(ETH_TYPE_IPV4)
    }

    #[must_use]
    pub fn ipv6(self) -> Self {
        self.eth_type(ETH_TYPE_IPV6)
    }

    #[must_use]
    pub fn ipv4_src(self, address: Ipv4Addr, prefix: u8) -> Self {
        self.ipv4().masked(Field::Ipv4Src, address.to_bits(), v4_mask(prefix))
    }

    #[must_use]
    pub fn ipv4_dst(self, address: Ipv4Addr, prefix: u8) -> Self {
        self.ipv4().masked(Field::Ipv4Dst, address.to_bits(), v4_mask(prefix))
    }

    #[must_use]
    pub fn ipv6_src(self, address: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6().masked(Field::Ipv6Src, address.to_bits(), v6_mask(prefix))
    }

    #[must_use]
    pub fn ipv6_dst(self, address: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6().masked(Field::Ipv6Dst, address.to_bits(), v6_mask(prefix))
    }

    #[must_use]
    pub fn arp(self) -> Self {
        self.eth_type(ETH_TYPE_ARP)
    }

    /// 1 is a request, 2 a reply.
    #[must_use]
    pub fn arp_op(self, op: u16) -> Self {
        self.arp().field(Field::ArpOp, op)
    }

    #[must_use]
    pub fn arp_spa(self, address: Ipv4Addr) -> Self {
        self.arp().field(Field::ArpSpa, address.to_bits())
    }

    #[must_use]
    pub fn arp_tpa(self, address: Ipv4Addr) -> Self {
        self.arp().field(Field::ArpTpa, address.to_bits())
    }

    #[must_use]
    pub fn icmpv6(self, kind: u8) -> Self {
        self.ipv6().ip_proto(IP_PROTO_ICMPV6).field(Field::Icmpv6Type, kind)
    }

    /// A neighbour solicitation for `target`.
    #[must_use]
    pub fn neighbour_solicitation(self, target: Ipv6Addr) -> Self {
        self.icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION)
            .field(Field::Icmpv6Code, 0u8)
            .field(Field::NdTarget, target.to_bits())
    }

    #[must_use]
    pub fn tcp(self) -> Self {
        self.ip_proto(IP_PROTO_TCP)
    }

    #[must_use]
    pub fn udp(self) -> Self {
        self.ip_proto(IP_PROTO_UDP)
    }

    /// Requires of the connection state that the bits of `mask` be those of `state`; see [`ct_state`].
    #[must_use]
    pub fn ct_state(self, state: u32, mask: u32) -> Self {
        self.masked(Field::CtState, state, mask)
    }

    /// The first field that would be refused for want of another.
    pub fn check(&self) -> Result<(), MissingPrerequisite> {
        self.fields.iter().try_for_each(|(field, _)| self.check_field(*field))
    }

    fn check_field(&self, field: Field) -> Result<(), MissingPrerequisite> {
        let eth = self.exact(Field::EthType);
        let proto = self.exact(Field::IpProto);
        let (v4, v6) = (eth == Some(ETH_TYPE_IPV4.into()), eth == Some(ETH_TYPE_IPV6.into()));
        let ip = v4 || v6;
        let is = |number: u8| ip && proto == Some(number.into());
        let icmp6_type = self.exact(Field::Icmpv6Type);
        let nd = v6 && is(IP_PROTO_ICMPV6) && matches!(icmp6_type, Some(135 | 136));
        let (met, needs) = match field {
            Field::Ipv4Src | Field::Ipv4Dst | Field::CtIpv4Src | Field::CtIpv4Dst => (v4, "IPv4"),
            Field::Ipv6Src | Field::Ipv6Dst | Field::Ipv6Label | Field::CtIpv6Src | Field::CtIpv6Dst => {
                (v6, "IPv6")
            }
            Field::IpProto | Field::IpDscp | Field::IpEcn | Field::IpTtl | Field::IpFragment => {
                (ip, "IPv4 or IPv6")
            }
            Field::ArpOp | Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpTha => {
                (eth == Some(ETH_TYPE_ARP.into()), "ARP")
            }
            Field::TcpSrc | Field::TcpDst | Field::TcpFlags => (is(IP_PROTO_TCP), "TCP"),
            Field::UdpSrc | Field::UdpDst => (is(IP_PROTO_UDP), "UDP"),
            Field::SctpSrc | Field::SctpDst => (is(IP_PROTO_SCTP), "SCTP"),
            Field::Icmpv4Type | Field::Icmpv4Code => (v4 && is(IP_PROTO_ICMP), "ICMP over IPv4"),
            Field::Icmpv6Type | Field::Icmpv6Code => (v6 && is(IP_PROTO_ICMPV6), "ICMPv6"),
            Field::NdTarget | Field::NdReserved | Field::NdOptionsType => {
                (nd, "an ICMPv6 type of 135 or 136")
            }
            Field::NdSll => (nd && icmp6_type == Some(135), "an ICMPv6 type of 135"),
            Field::NdTll => (nd && icmp6_type == Some(136), "an ICMPv6 type of 136"),
            Field::VlanPcp => (
                self.get(Field::VlanVid).is_some_and(|m| m.value & u128::from(VLAN_PRESENT) != 0),
                "a VLAN tag",
            ),
            _ => (true, ""),
        };
        if met { Ok(()) } else { Err(MissingPrerequisite { field, needs }) }
    }

    /// The `ofp_match` structure, padding included.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(1);
        out.put_u16(0);
        for (field, masked) in &self.fields {
            let mask = (masked.mask != field.mask()).then_some(masked.mask);
            field.put(out, masked.value, mask);
        }
        crate::wire::patch_length(out, start, 2);
        pad8(out, start);
    }

    pub(crate) fn decode(r: &mut Reader<'_>) -> Result<Match, DecodeError> {
        let before = r.len();
        let (kind, mut body) = r.tlv("match")?;
        if kind != 1 {
            return Err(DecodeError::Value { what: "match type", value: kind.into() });
        }
        let mut matching = Match::new();
        while !body.is_empty() {
            let (field, value, mask) = Field::read(&mut body)?;
            matching = matching.masked(field, value, mask);
        }
        let over = (before - r.len()) % 8;
        if over != 0 {
            r.skip(8 - over)?;
        }
        Ok(matching)
    }
}

/// A MAC address as the number a field holds.
pub fn mac_bits(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |acc, byte| acc << 8 | u64::from(*byte))
}

fn v4_mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

fn v6_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

/// Bits of [`Field::CtState`].
pub mod ct_state {
    pub const NEW: u32 = 0x01;
    pub const ESTABLISHED: u32 = 0x02;
    pub const RELATED: u32 = 0x04;
    pub const REPLY: u32 = 0x08;
    pub const INVALID: u32 = 0x10;
    pub const TRACKED: u32 = 0x20;
    pub const SOURCE_NAT: u32 = 0x40;
    pub const DESTINATION_NAT: u32 = 0x80;
}
