//! Match fields: names, wire numbers and widths.
//!
//! OXM fields follow OpenFlow 1.3.5 section 7.2.3.7, NXM fields `nicira-ext.h` and `meta-flow.h` of Open vSwitch,
//! described in ovs-fields(7).

use bytes::BufMut;

use crate::wire::{DecodeError, EXPERIMENTER_ONF, Reader, put_uint};

const NXM_OF: u16 = 0x0000;
const NXM_NX: u16 = 0x0001;
const OXM: u16 = 0x8000;
const PACKET_REGISTER: u16 = 0x8001;
/// Class of the two Ericsson ND fields of Open vSwitch.
const ERICSSON: u16 = 0x1000;
const EXPERIMENTER: u16 = 0xffff;
/// `NXM_NX_TCP_FLAGS`: NXM number of the only field of an experimenter.
const NXM_TCP_FLAGS: (u16, u8) = (NXM_NX, 34);

/// Text form of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Decimal,
    Hex,
    Mac,
    Ipv4,
    Ipv6,
    Port,
    TcpFlags,
    CtState,
    Fragment,
}

/// One row of the table of fields.
#[derive(Debug)]
pub(crate) struct Spec {
    class: u16,
    number: u8,
    /// Width in bits.
    pub(crate) bits: u16,
    /// Width on the wire in bytes.
    bytes: u8,
    pub(crate) style: Style,
    /// Name in a match of `ovs-ofctl`.
    pub(crate) name: &'static str,
    /// Name as the target of a `set_field`.
    pub(crate) target: &'static str,
    /// Name in `move` and `load`.
    pub(crate) long: &'static str,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident: $class:ident $number:literal, $bits:literal / $bytes:literal, $style:ident, $name:literal, $target:literal, $long:literal;)*) => {
        /// A header or metadata field of a packet.
        ///
        /// The order of the variants is the order on the wire: a field follows its prerequisites.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Field { $($(#[$doc])* $variant,)* }

        impl Field {
            /// All fields.
            pub const ALL: &[Field] = &[$(Field::$variant,)*];
        }

        const SPECS: &[Spec] = &[$(Spec {
            class: $class, number: $number, bits: $bits, bytes: $bytes, style: Style::$style,
            name: $name, target: $target, long: $long,
        },)*];
    };
}

fields! {
    /// EtherType.
    EthType: OXM 5, 16/2, Hex, "dl_type", "eth_type", "NXM_OF_ETH_TYPE";
    /// IP protocol number, or the low byte of the ARP operation.
    IpProto: OXM 10, 8/1, Decimal, "nw_proto", "nw_proto", "NXM_OF_IP_PROTO";
    /// Packet mark (`skb->mark`).
    PktMark: NXM_NX 33, 32/4, Hex, "pkt_mark", "pkt_mark", "NXM_NX_PKT_MARK";
    /// Id of the conjunction whose clauses all matched.
    ConjId: NXM_NX 37, 32/4, Decimal, "conj_id", "conj_id", "NXM_NX_CONJ_ID";
    /// Connection state; bits in [`crate::ct_state`].
    CtState: NXM_NX 105, 32/4, CtState, "ct_state", "ct_state", "NXM_NX_CT_STATE";
    /// Connection tracking zone.
    CtZone: NXM_NX 106, 16/2, Decimal, "ct_zone", "ct_zone", "NXM_NX_CT_ZONE";
    /// Mark of the connection.
    CtMark: NXM_NX 107, 32/4, Hex, "ct_mark", "ct_mark", "NXM_NX_CT_MARK";
    /// Label of the connection.
    CtLabel: NXM_NX 108, 128/16, Hex, "ct_label", "ct_label", "NXM_NX_CT_LABEL";
    /// IPv4 source of the original direction of the connection.
    CtIpv4Src: NXM_NX 120, 32/4, Ipv4, "ct_nw_src", "ct_nw_src", "NXM_NX_CT_NW_SRC";
    /// IPv6 source of the original direction of the connection.
    CtIpv6Src: NXM_NX 122, 128/16, Ipv6, "ct_ipv6_src", "ct_ipv6_src", "NXM_NX_CT_IPV6_SRC";
    /// IPv4 destination of the original direction of the connection.
    CtIpv4Dst: NXM_NX 121, 32/4, Ipv4, "ct_nw_dst", "ct_nw_dst", "NXM_NX_CT_NW_DST";
    /// IPv6 destination of the original direction of the connection.
    CtIpv6Dst: NXM_NX 123, 128/16, Ipv6, "ct_ipv6_dst", "ct_ipv6_dst", "NXM_NX_CT_IPV6_DST";
    /// IP protocol of the original direction of the connection.
    CtIpProto: NXM_NX 119, 8/1, Decimal, "ct_nw_proto", "ct_nw_proto", "NXM_NX_CT_NW_PROTO";
    /// Source port of the original direction of the connection.
    CtPortSrc: NXM_NX 124, 16/2, Decimal, "ct_tp_src", "ct_tp_src", "NXM_NX_CT_TP_SRC";
    /// Destination port of the original direction of the connection.
    CtPortDst: NXM_NX 125, 16/2, Decimal, "ct_tp_dst", "ct_tp_dst", "NXM_NX_CT_TP_DST";
    /// Register 0.
    Reg0: NXM_NX 0, 32/4, Hex, "reg0", "reg0", "NXM_NX_REG0";
    /// Register 1.
    Reg1: NXM_NX 1, 32/4, Hex, "reg1", "reg1", "NXM_NX_REG1";
    /// Register 2.
    Reg2: NXM_NX 2, 32/4, Hex, "reg2", "reg2", "NXM_NX_REG2";
    /// Register 3.
    Reg3: NXM_NX 3, 32/4, Hex, "reg3", "reg3", "NXM_NX_REG3";
    /// Register 4.
    Reg4: NXM_NX 4, 32/4, Hex, "reg4", "reg4", "NXM_NX_REG4";
    /// Register 5.
    Reg5: NXM_NX 5, 32/4, Hex, "reg5", "reg5", "NXM_NX_REG5";
    /// Register 6.
    Reg6: NXM_NX 6, 32/4, Hex, "reg6", "reg6", "NXM_NX_REG6";
    /// Register 7.
    Reg7: NXM_NX 7, 32/4, Hex, "reg7", "reg7", "NXM_NX_REG7";
    /// Register 8.
    Reg8: NXM_NX 8, 32/4, Hex, "reg8", "reg8", "NXM_NX_REG8";
    /// Register 9.
    Reg9: NXM_NX 9, 32/4, Hex, "reg9", "reg9", "NXM_NX_REG9";
    /// Register 10.
    Reg10: NXM_NX 10, 32/4, Hex, "reg10", "reg10", "NXM_NX_REG10";
    /// Register 11.
    Reg11: NXM_NX 11, 32/4, Hex, "reg11", "reg11", "NXM_NX_REG11";
    /// Register 12.
    Reg12: NXM_NX 12, 32/4, Hex, "reg12", "reg12", "NXM_NX_REG12";
    /// Register 13.
    Reg13: NXM_NX 13, 32/4, Hex, "reg13", "reg13", "NXM_NX_REG13";
    /// Register 14.
    Reg14: NXM_NX 14, 32/4, Hex, "reg14", "reg14", "NXM_NX_REG14";
    /// Register 15.
    Reg15: NXM_NX 15, 32/4, Hex, "reg15", "reg15", "NXM_NX_REG15";
    /// Registers 0 and 1. A switch reports a match on it as matches on both registers.
    XReg0: PACKET_REGISTER 0, 64/8, Hex, "xreg0", "xreg0", "OXM_OF_PKT_REG0";
    /// Registers 2 and 3.
    XReg1: PACKET_REGISTER 1, 64/8, Hex, "xreg1", "xreg1", "OXM_OF_PKT_REG1";
    /// Registers 4 and 5.
    XReg2: PACKET_REGISTER 2, 64/8, Hex, "xreg2", "xreg2", "OXM_OF_PKT_REG2";
    /// Registers 6 and 7.
    XReg3: PACKET_REGISTER 3, 64/8, Hex, "xreg3", "xreg3", "OXM_OF_PKT_REG3";
    /// Registers 8 and 9.
    XReg4: PACKET_REGISTER 4, 64/8, Hex, "xreg4", "xreg4", "OXM_OF_PKT_REG4";
    /// Registers 10 and 11.
    XReg5: PACKET_REGISTER 5, 64/8, Hex, "xreg5", "xreg5", "OXM_OF_PKT_REG5";
    /// Registers 12 and 13.
    XReg6: PACKET_REGISTER 6, 64/8, Hex, "xreg6", "xreg6", "OXM_OF_PKT_REG6";
    /// Registers 14 and 15.
    XReg7: PACKET_REGISTER 7, 64/8, Hex, "xreg7", "xreg7", "OXM_OF_PKT_REG7";
    /// Registers 0 to 3.
    XXReg0: NXM_NX 111, 128/16, Hex, "xxreg0", "xxreg0", "NXM_NX_XXREG0";
    /// Registers 4 to 7.
    XXReg1: NXM_NX 112, 128/16, Hex, "xxreg1", "xxreg1", "NXM_NX_XXREG1";
    /// Registers 8 to 11.
    XXReg2: NXM_NX 113, 128/16, Hex, "xxreg2", "xxreg2", "NXM_NX_XXREG2";
    /// Registers 12 to 15.
    XXReg3: NXM_NX 114, 128/16, Hex, "xxreg3", "xxreg3", "NXM_NX_XXREG3";
    /// Tunnel id: VNI of VXLAN, key of GRE.
    TunnelId: OXM 38, 64/8, Hex, "tun_id", "tun_id", "NXM_NX_TUN_ID";
    /// Outer IPv4 source of a tunnelled packet.
    TunnelIpv4Src: NXM_NX 31, 32/4, Ipv4, "tun_src", "tun_src", "NXM_NX_TUN_IPV4_SRC";
    /// Outer IPv4 destination of a tunnelled packet.
    TunnelIpv4Dst: NXM_NX 32, 32/4, Ipv4, "tun_dst", "tun_dst", "NXM_NX_TUN_IPV4_DST";
    /// Outer IPv6 source of a tunnelled packet.
    TunnelIpv6Src: NXM_NX 109, 128/16, Ipv6, "tun_ipv6_src", "tun_ipv6_src", "NXM_NX_TUN_IPV6_SRC";
    /// Outer IPv6 destination of a tunnelled packet.
    TunnelIpv6Dst: NXM_NX 110, 128/16, Ipv6, "tun_ipv6_dst", "tun_ipv6_dst", "NXM_NX_TUN_IPV6_DST";
    /// Metadata that tables pass on.
    Metadata: OXM 2, 64/8, Hex, "metadata", "metadata", "OXM_OF_METADATA";
    /// Ingress port.
    InPort: OXM 0, 32/4, Port, "in_port", "in_port_oxm", "OXM_OF_IN_PORT";
    /// VLAN id, with bit 12 set if the packet has a tag; see [`crate::Match::vlan`].
    VlanVid: OXM 6, 13/2, Decimal, "dl_vlan", "vlan_vid", "OXM_OF_VLAN_VID";
    /// VLAN priority.
    VlanPcp: OXM 7, 3/1, Decimal, "dl_vlan_pcp", "vlan_pcp", "OXM_OF_VLAN_PCP";
    /// Ethernet source.
    EthSrc: OXM 4, 48/6, Mac, "dl_src", "eth_src", "NXM_OF_ETH_SRC";
    /// Ethernet destination.
    EthDst: OXM 3, 48/6, Mac, "dl_dst", "eth_dst", "NXM_OF_ETH_DST";
    /// IPv6 source.
    Ipv6Src: OXM 26, 128/16, Ipv6, "ipv6_src", "ipv6_src", "NXM_NX_IPV6_SRC";
    /// IPv6 destination.
    Ipv6Dst: OXM 27, 128/16, Ipv6, "ipv6_dst", "ipv6_dst", "NXM_NX_IPV6_DST";
    /// IPv6 flow label.
    Ipv6Label: OXM 28, 20/4, Hex, "ipv6_label", "ipv6_label", "NXM_NX_IPV6_LABEL";
    /// ARP sender protocol address.
    ArpSpa: OXM 22, 32/4, Ipv4, "arp_spa", "arp_spa", "NXM_OF_ARP_SPA";
    /// ARP target protocol address.
    ArpTpa: OXM 23, 32/4, Ipv4, "arp_tpa", "arp_tpa", "NXM_OF_ARP_TPA";
    /// IPv4 source.
    Ipv4Src: OXM 11, 32/4, Ipv4, "nw_src", "ip_src", "NXM_OF_IP_SRC";
    /// IPv4 destination.
    Ipv4Dst: OXM 12, 32/4, Ipv4, "nw_dst", "ip_dst", "NXM_OF_IP_DST";
    /// ARP operation.
    ArpOp: OXM 21, 16/2, Decimal, "arp_op", "arp_op", "NXM_OF_ARP_OP";
    /// ARP sender hardware address.
    ArpSha: OXM 24, 48/6, Mac, "arp_sha", "arp_sha", "NXM_NX_ARP_SHA";
    /// ARP target hardware address.
    ArpTha: OXM 25, 48/6, Mac, "arp_tha", "arp_tha", "NXM_NX_ARP_THA";
    /// DSCP, 0 to 63.
    IpDscp: OXM 8, 6/1, Decimal, "nw_tos", "ip_dscp", "OXM_OF_IP_DSCP";
    /// ECN, 0 to 3.
    IpEcn: OXM 9, 2/1, Decimal, "nw_ecn", "nw_ecn", "NXM_NX_IP_ECN";
    /// IPv4 TTL or IPv6 hop limit.
    IpTtl: NXM_NX 29, 8/1, Decimal, "nw_ttl", "nw_ttl", "NXM_NX_IP_TTL";
    /// Fragment flags: bit 0 for any fragment, bit 1 for a later fragment.
    IpFragment: NXM_NX 26, 2/1, Fragment, "nw_frag", "ip_frag", "NXM_NX_IP_FRAG";
    /// TCP source port.
    TcpSrc: OXM 13, 16/2, Decimal, "tp_src", "tcp_src", "NXM_OF_TCP_SRC";
    /// TCP destination port.
    TcpDst: OXM 14, 16/2, Decimal, "tp_dst", "tcp_dst", "NXM_OF_TCP_DST";
    /// UDP source port.
    UdpSrc: OXM 15, 16/2, Decimal, "tp_src", "udp_src", "NXM_OF_UDP_SRC";
    /// UDP destination port.
    UdpDst: OXM 16, 16/2, Decimal, "tp_dst", "udp_dst", "NXM_OF_UDP_DST";
    /// SCTP source port.
    SctpSrc: OXM 17, 16/2, Decimal, "tp_src", "sctp_src", "OXM_OF_SCTP_SRC";
    /// SCTP destination port.
    SctpDst: OXM 18, 16/2, Decimal, "tp_dst", "sctp_dst", "OXM_OF_SCTP_DST";
    /// TCP flags.
    TcpFlags: EXPERIMENTER 42, 12/2, TcpFlags, "tcp_flags", "tcp_flags", "NXM_NX_TCP_FLAGS";
    /// ICMP type.
    Icmpv4Type: OXM 19, 8/1, Decimal, "icmp_type", "icmp_type", "NXM_OF_ICMP_TYPE";
    /// ICMP code.
    Icmpv4Code: OXM 20, 8/1, Decimal, "icmp_code", "icmp_code", "NXM_OF_ICMP_CODE";
    /// ICMPv6 type.
    Icmpv6Type: OXM 29, 8/1, Decimal, "icmp_type", "icmpv6_type", "NXM_NX_ICMPV6_TYPE";
    /// ICMPv6 code.
    Icmpv6Code: OXM 30, 8/1, Decimal, "icmp_code", "icmpv6_code", "NXM_NX_ICMPV6_CODE";
    /// Target address of a neighbour message.
    NdTarget: OXM 31, 128/16, Ipv6, "nd_target", "nd_target", "NXM_NX_ND_TARGET";
    /// Source link-layer address option of a neighbour solicitation.
    NdSll: OXM 32, 48/6, Mac, "nd_sll", "nd_sll", "NXM_NX_ND_SLL";
    /// Target link-layer address option of a neighbour advertisement.
    NdTll: OXM 33, 48/6, Mac, "nd_tll", "nd_tll", "NXM_NX_ND_TLL";
    /// Reserved word of a neighbour message; in an advertisement the top three bits are router, solicited and override.
    NdReserved: ERICSSON 1, 32/4, Decimal, "nd_reserved", "nd_reserved", "ERICOXM_OF_ICMPV6_ND_RESERVED";
    /// Type of the first option of a neighbour message.
    NdOptionsType: ERICSSON 2, 8/1, Decimal, "nd_options_type", "nd_options_type", "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE";
}

impl Field {
    pub(crate) fn spec(self) -> &'static Spec {
        // The table and the enum come from one macro, in one order.
        &SPECS[self as usize]
    }

    /// Returns the name of the field in a match of `ovs-ofctl`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the width in bits.
    pub fn bits(self) -> u16 {
        self.spec().bits
    }

    /// Returns the mask of an exact match: all bits of the field, right-aligned.
    pub fn mask(self) -> u128 {
        u128::MAX >> (128 - u32::from(self.spec().bits))
    }

    /// Returns the 32-bit register `n`, or `None` if `n` exceeds 15.
    pub fn reg(n: u8) -> Option<Field> {
        let index = usize::from(n);
        (n < 16).then(|| Field::ALL[Field::Reg0 as usize + index])
    }

    fn experimenter(self) -> Option<u32> {
        (self.spec().class == EXPERIMENTER).then_some(EXPERIMENTER_ONF)
    }

    fn find(class: u16, number: u8, experimenter: Option<u32>) -> Option<Field> {
        Field::ALL.iter().copied().find(|field| {
            let spec = field.spec();
            spec.class == class && spec.number == number && field.experimenter() == experimenter
        })
    }

    fn number(class: u16, number: u8, has_mask: bool, length: usize) -> u32 {
        u32::from(class) << 16 | u32::from(number) << 9 | u32::from(has_mask) << 8 | length as u32
    }

    /// Writes the header that identifies the field in `move` and `load`.
    pub(crate) fn put_header(self, out: &mut Vec<u8>) {
        let spec = self.spec();
        let extra = if self.experimenter().is_some() { 4 } else { 0 };
        out.put_u32(Field::number(spec.class, spec.number, false, usize::from(spec.bytes) + extra));
        if let Some(experimenter) = self.experimenter() {
            out.put_u32(experimenter);
        }
    }

    /// Writes the header to a place with room for 4 bytes. The header of an experimenter has 8; the field has an NXM number, too.
    pub(crate) fn put_short_header(self, out: &mut Vec<u8>) {
        let spec = self.spec();
        let (class, number) =
            if self.experimenter().is_some() { NXM_TCP_FLAGS } else { (spec.class, spec.number) };
        out.put_u32(Field::number(class, number, false, usize::from(spec.bytes)));
    }

    /// Reads a header of 4 bytes. Those of experimenters are unknown.
    pub(crate) fn read_short_header(r: &mut Reader<'_>) -> Result<Field, DecodeError> {
        let header = r.u32()?;
        let (class, number) = Field::class_and_number(header);
        let known = Field::find(class, number, None).or_else(|| Field::find_legacy(class, number));
        known.ok_or(DecodeError::Field { header })
    }

    fn class_and_number(header: u32) -> (u16, u8) {
        ((header >> 16) as u16, (header >> 9 & 0x7f) as u8)
    }

    pub(crate) fn read_header(r: &mut Reader<'_>) -> Result<Field, DecodeError> {
        let header = r.u32()?;
        Field::from_header(header, r)
    }

    fn from_header(header: u32, r: &mut Reader<'_>) -> Result<Field, DecodeError> {
        let (class, number) = Field::class_and_number(header);
        let experimenter = if class == EXPERIMENTER { Some(r.u32()?) } else { None };
        Field::find(class, number, experimenter)
            .or_else(|| Field::find_legacy(class, number))
            .ok_or(DecodeError::Field { header })
    }

    /// Resolves NXM numbers of fields that also have an OXM number.
    fn find_legacy(class: u16, number: u8) -> Option<Field> {
        Some(match (class, number) {
            (NXM_OF, 1) => Field::EthDst,
            (NXM_OF, 2) => Field::EthSrc,
            (NXM_OF, 3) => Field::EthType,
            (NXM_OF, 6) => Field::IpProto,
            (NXM_OF, 7) => Field::Ipv4Src,
            (NXM_OF, 8) => Field::Ipv4Dst,
            (NXM_OF, 9) => Field::TcpSrc,
            (NXM_OF, 10) => Field::TcpDst,
            (NXM_OF, 11) => Field::UdpSrc,
            (NXM_OF, 12) => Field::UdpDst,
            (NXM_OF, 15) => Field::ArpOp,
            (NXM_OF, 16) => Field::ArpSpa,
            (NXM_OF, 17) => Field::ArpTpa,
            NXM_TCP_FLAGS => Field::TcpFlags,
            (NXM_NX, 16) => Field::TunnelId,
            (NXM_NX, 17) => Field::ArpSha,
            (NXM_NX, 18) => Field::ArpTha,
            (NXM_NX, 19) => Field::Ipv6Src,
            (NXM_NX, 20) => Field::Ipv6Dst,
            (NXM_NX, 23) => Field::NdTarget,
            (NXM_NX, 24) => Field::NdSll,
            (NXM_NX, 25) => Field::NdTll,
            _ => return None,
        })
    }

    /// Writes an OXM element: header, value and, if given, mask.
    pub(crate) fn put(self, out: &mut Vec<u8>, value: u128, mask: Option<u128>) {
        let spec = self.spec();
        let bytes = usize::from(spec.bytes);
        let experimenter = self.experimenter();
        let length = bytes * (1 + usize::from(mask.is_some())) + if experimenter.is_some() { 4 } else { 0 };
        out.put_u32(Field::number(spec.class, spec.number, mask.is_some(), length));
        if let Some(experimenter) = experimenter {
            out.put_u32(experimenter);
        }
        put_uint(out, value, bytes);
        if let Some(mask) = mask {
            put_uint(out, mask, bytes);
        }
    }

    /// Reads the bytes of an OXM element, whatever its field.
    pub(crate) fn element<'a>(r: &mut Reader<'a>) -> Result<Reader<'a>, DecodeError> {
        let mut ahead = *r;
        let length = ahead.u32()? & 0xff;
        r.take(4 + length as usize, "match field")
    }

    /// Reads an OXM element. Without a mask on the wire, the result has the full mask of the field.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<(Field, u128, u128), DecodeError> {
        let header = r.u32()?;
        let mut body = r.take((header & 0xff) as usize, "match field")?;
        let field = Field::from_header(header, &mut body)?;
        let has_mask = header & 0x100 != 0;
        let parts = 1 + usize::from(has_mask);
        if body.len() != usize::from(field.spec().bytes) * parts {
            return Err(DecodeError::Length { what: "match field", length: body.len() });
        }
        let bytes = body.len() / parts;
        let value = body.uint(bytes)? & field.mask();
        let mask = if has_mask { body.uint(bytes)? & field.mask() } else { field.mask() };
        Ok((field, value, mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_found_by_its_own_header() {
        for field in Field::ALL {
            let mut out = vec![];
            field.put(&mut out, 1, Some(field.mask()));
            assert_eq!(
                Field::read(&mut Reader::new(&out, "test")),
                Ok((*field, 1, field.mask())),
                "{field:?}"
            );
        }
    }

    #[test]
    fn every_field_is_found_by_its_short_header() {
        for field in Field::ALL {
            let mut out = vec![];
            field.put_short_header(&mut out);
            assert_eq!(out.len(), 4, "{field:?}");
            assert_eq!(Field::read_short_header(&mut Reader::new(&out, "test")), Ok(*field));
        }
    }
}
