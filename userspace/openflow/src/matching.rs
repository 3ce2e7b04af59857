//! Flow matches: conditions on header and metadata fields (OpenFlow 1.3.5 sections 5.3 and 7.2.3).

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::BufMut;

use crate::field::Field;
use crate::port::Port;
use crate::wire::{DecodeError, EncodeError, Reader, pad8};

/// EtherType of IPv4.
pub const ETH_TYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETH_TYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETH_TYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const ETH_TYPE_VLAN: u16 = 0x8100;
/// IP protocol number of ICMP for IPv4.
pub const IP_PROTO_ICMP: u8 = 1;
/// IP protocol number of TCP.
pub const IP_PROTO_TCP: u8 = 6;
/// IP protocol number of UDP.
pub const IP_PROTO_UDP: u8 = 17;
/// IP protocol number of ICMPv6.
pub const IP_PROTO_ICMPV6: u8 = 58;
/// IP protocol number of SCTP.
pub const IP_PROTO_SCTP: u8 = 132;
/// ICMPv6 type of a neighbour solicitation (RFC 4861).
pub const ICMPV6_NEIGHBOUR_SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement (RFC 4861).
pub const ICMPV6_NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Bit of [`Field::VlanVid`] that is set if the packet has a VLAN tag (`OFPVID_PRESENT`).
pub const VLAN_PRESENT: u16 = 0x1000;

/// Value and mask of one field, right-aligned in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Masked {
    /// Required value of the bits in `mask`; the other bits are 0.
    pub value: u128,
    /// Bits that are compared.
    pub mask: u128,
}

/// A set of conditions on fields. A packet matches if all conditions hold; the empty set matches every packet.
///
/// A method for a field of a protocol also sets the prerequisites of the field (OpenFlow 1.3.5 section 7.2.3.8):
///
/// ```
/// use openflow_rs::Match;
/// let m = Match::new().in_port(3.into()).arp_op(1).arp_tpa([10, 1, 1, 2].into());
/// assert_eq!(m.to_string(), "arp,in_port=3,arp_tpa=10.1.1.2,arp_op=1");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Match {
    /// Sorted by field. A vector, because matches are many and have few fields.
    fields: Vec<(Field, Masked)>,
}

/// A field of a match whose prerequisite is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a match on {field} needs {needs}", field = field.name())]
pub struct MissingPrerequisite {
    /// Field without its prerequisite.
    pub field: Field,
    /// Missing prerequisite, for display.
    pub needs: &'static str,
}

impl Match {
    /// Returns a match without conditions.
    pub fn new() -> Self {
        Match::default()
    }

    /// Requires `field` to equal `value`; bits above the width of the field are cut off.
    #[must_use]
    pub fn field(self, field: Field, value: impl Into<u128>) -> Self {
        self.masked(field, value, field.mask())
    }

    /// Requires the bits of `field` in `mask` to equal those of `value`. A mask of 0 removes the condition.
    #[must_use]
    pub fn masked(self, field: Field, value: impl Into<u128>, mask: impl Into<u128>) -> Self {
        let mask = mask.into() & field.mask();
        self.with(field, Masked { value: value.into() & mask, mask })
    }

    fn with(mut self, field: Field, masked: Masked) -> Self {
        let mask = masked.mask;
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

    /// Returns the condition on `field`.
    pub fn get(&self, field: Field) -> Option<Masked> {
        let at = self.fields.binary_search_by_key(&field, |(field, _)| *field).ok()?;
        Some(self.fields[at].1)
    }

    /// Returns the value of `field` if all of its bits are compared.
    pub fn exact(&self, field: Field) -> Option<u128> {
        self.get(field).filter(|m| m.mask == field.mask()).map(|m| m.value)
    }

    /// Iterates over the conditions in wire order.
    pub fn iter(&self) -> impl Iterator<Item = (Field, Masked)> + '_ {
        self.fields.iter().copied()
    }

    /// Returns whether there is no condition: every packet matches.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Requires an ingress port.
    #[must_use]
    pub fn in_port(self, port: Port) -> Self {
        self.field(Field::InPort, port.0)
    }

    /// Requires an EtherType (host byte order).
    #[must_use]
    pub fn eth_type(self, eth_type: u16) -> Self {
        self.field(Field::EthType, eth_type)
    }

    /// Requires an Ethernet source address.
    #[must_use]
    pub fn eth_src(self, mac: [u8; 6]) -> Self {
        self.field(Field::EthSrc, mac_bits(mac))
    }

    /// Requires an Ethernet destination address.
    #[must_use]
    pub fn eth_dst(self, mac: [u8; 6]) -> Self {
        self.field(Field::EthDst, mac_bits(mac))
    }

    /// Requires a multicast or broadcast destination (the group bit of the Ethernet address).
    #[must_use]
    pub fn multicast_dst(self) -> Self {
        let bit = mac_bits([1, 0, 0, 0, 0, 0]);
        self.masked(Field::EthDst, bit, bit)
    }

    /// Requires a multicast source address, which IEEE 802 does not allow.
    #[must_use]
    pub fn multicast_src(self) -> Self {
        let bit = mac_bits([1, 0, 0, 0, 0, 0]);
        self.masked(Field::EthSrc, bit, bit)
    }

    /// Requires a VLAN tag with the id `vid` (1 to 4094). A match with an id above 4095 cannot be encoded.
    #[must_use]
    pub fn vlan(self, vid: u16) -> Self {
        // The sum has no other id: it exceeds the width of the field instead.
        let value = u128::from(vid) + u128::from(VLAN_PRESENT);
        self.with(Field::VlanVid, Masked { value, mask: Field::VlanVid.mask() })
    }

    /// Requires a VLAN tag with any id.
    #[must_use]
    pub fn any_vlan(self) -> Self {
        self.masked(Field::VlanVid, VLAN_PRESENT, VLAN_PRESENT)
    }

    /// Requires the absence of a VLAN tag.
    #[must_use]
    pub fn no_vlan(self) -> Self {
        self.field(Field::VlanVid, 0u16)
    }

    /// Requires a tunnel id: the VNI of VXLAN, the key of GRE.
    #[must_use]
    pub fn tunnel_id(self, id: u64) -> Self {
        self.field(Field::TunnelId, id)
    }

    /// Requires the metadata bits in `mask` to equal those of `value`.
    #[must_use]
    pub fn metadata(self, value: u64, mask: u64) -> Self {
        self.masked(Field::Metadata, value, mask)
    }

    /// Requires an IP protocol number. The caller adds [`Match::ipv4`] or [`Match::ipv6`].
    #[must_use]
    pub fn ip_proto(self, proto: u8) -> Self {
        self.field(Field::IpProto, proto)
    }

    /// Requires an IPv4 packet.
    #[must_use]
    pub fn ipv4(self) -> Self {
        self.eth_type(ETH_TYPE_IPV4)
    }

    /// Requires an IPv6 packet.
    #[must_use]
    pub fn ipv6(self) -> Self {
        self.eth_type(ETH_TYPE_IPV6)
    }

    /// Requires an IPv4 source in `address`/`prefix` (0 to 32 bits).
    #[must_use]
    pub fn ipv4_src(self, address: Ipv4Addr, prefix: u8) -> Self {
        self.ipv4().masked(Field::Ipv4Src, address.to_bits(), v4_mask(prefix))
    }

    /// Requires an IPv4 destination in `address`/`prefix` (0 to 32 bits).
    #[must_use]
    pub fn ipv4_dst(self, address: Ipv4Addr, prefix: u8) -> Self {
        self.ipv4().masked(Field::Ipv4Dst, address.to_bits(), v4_mask(prefix))
    }

    /// Requires an IPv6 source in `address`/`prefix` (0 to 128 bits).
    #[must_use]
    pub fn ipv6_src(self, address: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6().masked(Field::Ipv6Src, address.to_bits(), v6_mask(prefix))
    }

    /// Requires an IPv6 destination in `address`/`prefix` (0 to 128 bits).
    #[must_use]
    pub fn ipv6_dst(self, address: Ipv6Addr, prefix: u8) -> Self {
        self.ipv6().masked(Field::Ipv6Dst, address.to_bits(), v6_mask(prefix))
    }

    /// Requires an ARP packet.
    #[must_use]
    pub fn arp(self) -> Self {
        self.eth_type(ETH_TYPE_ARP)
    }

    /// Requires an ARP operation: 1 is a request, 2 is a reply (RFC 826).
    #[must_use]
    pub fn arp_op(self, op: u16) -> Self {
        self.arp().field(Field::ArpOp, op)
    }

    /// Requires an ARP sender protocol address.
    #[must_use]
    pub fn arp_spa(self, address: Ipv4Addr) -> Self {
        self.arp().field(Field::ArpSpa, address.to_bits())
    }

    /// Requires an ARP target protocol address.
    #[must_use]
    pub fn arp_tpa(self, address: Ipv4Addr) -> Self {
        self.arp().field(Field::ArpTpa, address.to_bits())
    }

    /// Requires an ICMPv6 message of type `kind`.
    #[must_use]
    pub fn icmpv6(self, kind: u8) -> Self {
        self.ipv6().ip_proto(IP_PROTO_ICMPV6).field(Field::Icmpv6Type, kind)
    }

    /// Requires a neighbour solicitation for `target` (RFC 4861 section 4.3).
    #[must_use]
    pub fn neighbour_solicitation(self, target: Ipv6Addr) -> Self {
        self.icmpv6(ICMPV6_NEIGHBOUR_SOLICITATION)
            .field(Field::Icmpv6Code, 0u8)
            .field(Field::NdTarget, target.to_bits())
    }

    /// Requires TCP. The caller adds [`Match::ipv4`] or [`Match::ipv6`].
    #[must_use]
    pub fn tcp(self) -> Self {
        self.ip_proto(IP_PROTO_TCP)
    }

    /// Requires UDP. The caller adds [`Match::ipv4`] or [`Match::ipv6`].
    #[must_use]
    pub fn udp(self) -> Self {
        self.ip_proto(IP_PROTO_UDP)
    }

    /// Requires the connection state bits in `mask` to equal those of `state`; see [`ct_state`].
    #[must_use]
    pub fn ct_state(self, state: u32, mask: u32) -> Self {
        self.masked(Field::CtState, state, mask)
    }

    /// Checks the prerequisites of all fields.
    ///
    /// # Errors
    ///
    /// Returns the first field, in wire order, whose prerequisite is missing. A switch rejects such a match with
    /// `OFPBMC_BAD_PREREQ`.
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
        let ct = self.requires_valid_connection();
        let nd = v6 && is(IP_PROTO_ICMPV6) && matches!(icmp6_type, Some(135 | 136));
        let (met, needs) = match field {
            Field::CtIpv4Src
            | Field::CtIpv4Dst
            | Field::CtIpv6Src
            | Field::CtIpv6Dst
            | Field::CtIpProto
            | Field::CtPortSrc
            | Field::CtPortDst
                if !ct =>
            {
                (false, "a ct_state of a valid connection")
            }
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

    /// Returns whether only packets of a valid connection match: a bit of its state is required, or that it is tracked and not invalid
    /// (`is_ct_valid` of Open vSwitch).
    fn requires_valid_connection(&self) -> bool {
        const OF_VALID: u32 = ct_state::NEW
            | ct_state::ESTABLISHED
            | ct_state::RELATED
            | ct_state::REPLY
            | ct_state::SOURCE_NAT
            | ct_state::DESTINATION_NAT;
        self.get(Field::CtState).is_some_and(|Masked { value, mask }| {
            let has = |bits: u128, bit: u32| bits & u128::from(bit) != 0;
            let is_explicit = has(value, ct_state::TRACKED)
                && has(mask, ct_state::INVALID)
                && !has(value, ct_state::INVALID);
            has(value, OF_VALID) || is_explicit
        })
    }

    /// Checks that the encoding has room for all values.
    pub(crate) fn check_values(&self) -> Result<(), EncodeError> {
        let misfit = self.fields.iter().find(|(_, masked)| masked.value & !masked.mask != 0);
        misfit.map_or(Ok(()), |(field, _)| Err(EncodeError::Match { field: field.name() }))
    }

    /// Encodes an `ofp_match` structure with its padding.
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
        Match::decode_elements(r, Err)
    }

    /// As `decode`, but without the fields that do not decode.
    pub(crate) fn decode_known(r: &mut Reader<'_>) -> Result<Match, DecodeError> {
        Match::decode_elements(r, |_| Ok(()))
    }

    /// `on_error` decides about the error of one field.
    fn decode_elements(
        r: &mut Reader<'_>,
        on_error: impl Fn(DecodeError) -> Result<(), DecodeError>,
    ) -> Result<Match, DecodeError> {
        let before = r.len();
        let (kind, mut body) = r.tlv("match")?;
        if kind != 1 {
            return Err(DecodeError::Value { what: "match type", value: kind.into() });
        }
        let mut matching = Match::new();
        while !body.is_empty() {
            let element = Field::element(&mut body)?;
            match Field::read(&mut element.clone()) {
                Ok((field, value, mask)) => matching = matching.masked(field, value, mask),
                Err(error) => on_error(error)?,
            }
        }
        let over = (before - r.len()) % 8;
        if over != 0 {
            r.skip(8 - over)?;
        }
        Ok(matching)
    }
}

/// Returns a MAC address as the value of a 48-bit field: the first octet is the most significant.
pub fn mac_bits(mac: [u8; 6]) -> u64 {
    mac.iter().fold(0, |acc, byte| acc << 8 | u64::from(*byte))
}

fn v4_mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

fn v6_mask(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0)
}

/// Bits of [`Field::CtState`] (ovs-fields(7), `ct_state`).
pub mod ct_state {
    /// Connection that is not committed yet.
    pub const NEW: u32 = 0x01;
    /// Connection that has seen packets in both directions, or is committed.
    pub const ESTABLISHED: u32 = 0x02;
    /// Packet related to another connection, such as an ICMP error.
    pub const RELATED: u32 = 0x04;
    /// Packet in the reply direction.
    pub const REPLY: u32 = 0x08;
    /// Packet that connection tracking cannot assign.
    pub const INVALID: u32 = 0x10;
    /// Packet that has passed connection tracking.
    pub const TRACKED: u32 = 0x20;
    /// Packet whose source is translated.
    pub const SOURCE_NAT: u32 = 0x40;
    /// Packet whose destination is translated.
    pub const DESTINATION_NAT: u32 = 0x80;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_original_tuple_of_a_connection_needs_a_valid_one() {
        let tuple: [(Field, Match); 7] = [
            (Field::CtIpv4Src, Match::new().ipv4()),
            (Field::CtIpv4Dst, Match::new().ipv4()),
            (Field::CtIpv6Src, Match::new().ipv6()),
            (Field::CtIpv6Dst, Match::new().ipv6()),
            (Field::CtIpProto, Match::new().ipv4()),
            (Field::CtPortSrc, Match::new().ipv4().tcp()),
            (Field::CtPortDst, Match::new().ipv4().tcp()),
        ];
        let state = |set: u32, unset: u32| (set, set | unset);
        let valid = [
            state(ct_state::NEW, 0),
            state(ct_state::TRACKED | ct_state::REPLY, ct_state::INVALID),
            state(ct_state::DESTINATION_NAT, 0),
            state(ct_state::TRACKED, ct_state::INVALID),
        ];
        let other = [
            state(ct_state::TRACKED, 0),
            state(ct_state::TRACKED | ct_state::INVALID, 0),
            state(0, ct_state::INVALID),
            state(0, ct_state::NEW),
        ];
        for (field, base) in tuple {
            let matching = base.field(field, 1u8);
            let check = |(value, mask): (u32, u32)| matching.clone().ct_state(value, mask).check();
            assert!(valid.into_iter().all(|state| check(state).is_ok()), "{matching}");
            assert!(other.into_iter().all(|state| check(state).is_err()), "{matching}");
            let error = matching.check().unwrap_err();
            assert_eq!(error.needs, "a ct_state of a valid connection", "{matching}");
        }
    }
}
