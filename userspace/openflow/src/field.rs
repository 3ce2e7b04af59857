//! Match fields (OXM): what each is called, how it is numbered on the wire, how wide it is.

use bytes::BufMut;

use crate::wire::{DecodeError, EXPERIMENTER_ONF, Reader, put_uint};

const NXM_OF: u16 = 0x0000;
const NXM_NX: u16 = 0x0001;
const OXM: u16 = 0x8000;
const PACKET_REGISTER: u16 = 0x8001;
/// Open vSwitch files the two ND fields that it took from Ericsson under this class.
const ERICSSON: u16 = 0x1000;
const EXPERIMENTER: u16 = 0xffff;

/// How a value is written in text.
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
    /// Width in bits; on the wire the next whole byte, or [`Spec::bytes`] where that differs.
    pub(crate) bits: u16,
    bytes: u8,
    pub(crate) style: Style,
    /// Its name in a match, as `ovs-ofctl` has it.
    pub(crate) name: &'static str,
    /// Its name as the target of a `set_field`.
    pub(crate) target: &'static str,
    /// Its name in `move` and `load`.
    pub(crate) long: &'static str,
}

macro_rules! fields {
    ($($(#[$doc:meta])* $variant:ident: $class:ident $number:literal, $bits:literal / $bytes:literal, $style:ident, $name:literal, $target:literal, $long:literal;)*) => {
        /// A header or metadata field of a packet.
        ///
        /// The order is the one in which they go on the wire: a field comes after its prerequisites.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Field { $($(#[$doc])* $variant,)* }

        impl Field {
            /// Every field this library knows.
            pub const ALL: &[Field] = &[$(Field::$variant,)*];
        }

        const SPECS: &[Spec] = &[$(Spec {
            class: $class, number: $number, bits: $bits, bytes: $bytes, style: Style::$style,
            name: $name, target: $target, long: $long,
        },)*];
    };
}

fields! {
    EthType: OXM 5, 16/2, Hex, "dl_type", "eth_type", "NXM_OF_ETH_TYPE";
    IpProto: OXM 10, 8/1, Decimal, "nw_proto", "nw_proto", "NXM_OF_IP_PROTO";
    PktMark: NXM_NX 33, 32/4, Hex, "pkt_mark", "pkt_mark", "NXM_NX_PKT_MARK";
    /// The conjunction that matched, for the flow that acts on it.
    ConjId: NXM_NX 37, 32/4, Decimal, "conj_id", "conj_id", "NXM_NX_CONJ_ID";
    CtState: NXM_NX 105, 32/4, CtState, "ct_state", "ct_state", "NXM_NX_CT_STATE";
    CtZone: NXM_NX 106, 16/2, Decimal, "ct_zone", "ct_zone", "NXM_NX_CT_ZONE";
    CtMark: NXM_NX 107, 32/4, Hex, "ct_mark", "ct_mark", "NXM_NX_CT_MARK";
    CtLabel: NXM_NX 108, 128/16, Hex, "ct_label", "ct_label", "NXM_NX_CT_LABEL";
    CtIpv4Src: NXM_NX 120, 32/4, Ipv4, "ct_nw_src", "ct_nw_src", "NXM_NX_CT_NW_SRC";
    CtIpv6Src: NXM_NX 122, 128/16, Ipv6, "ct_ipv6_src", "ct_ipv6_src", "NXM_NX_CT_IPV6_SRC";
    CtIpv4Dst: NXM_NX 121, 32/4, Ipv4, "ct_nw_dst", "ct_nw_dst", "NXM_NX_CT_NW_DST";
    CtIpv6Dst: NXM_NX 123, 128/16, Ipv6, "ct_ipv6_dst", "ct_ipv6_dst", "NXM_NX_CT_IPV6_DST";
    CtIpProto: NXM_NX 119, 8/1, Decimal, "ct_nw_proto", "ct_nw_proto", "NXM_NX_CT_NW_PROTO";
    CtPortSrc: NXM_NX 124, 16/2, Decimal, "ct_tp_src", "ct_tp_src", "NXM_NX_CT_TP_SRC";
    CtPortDst: NXM_NX 125, 16/2, Decimal, "ct_tp_dst", "ct_tp_dst", "NXM_NX_CT_TP_DST";
    Reg0: NXM_NX 0, 32/4, Hex, "reg0", "reg0", "NXM_NX_REG0";
    Reg1: NXM_NX 1, 32/4, Hex, "reg1", "reg1", "NXM_NX_REG1";
    Reg2: NXM_NX 2, 32/4, Hex, "reg2", "reg2", "NXM_NX_REG2";
    Reg3: NXM_NX 3, 32/4, Hex, "reg3", "reg3", "NXM_NX_REG3";
    Reg4: NXM_NX 4, 32/4, Hex, "reg4", "reg4", "NXM_NX_REG4";
    Reg5: NXM_NX 5, 32/4, Hex, "reg5", "reg5", "NXM_NX_REG5";
    Reg6: NXM_NX 6, 32/4, Hex, "reg6", "reg6", "NXM_NX_REG6";
    Reg7: NXM_NX 7, 32/4, Hex, "reg7", "reg7", "NXM_NX_REG7";
    Reg8: NXM_NX 8, 32/4, Hex, "reg8", "reg8", "NXM_NX_REG8";
    Reg9: NXM_NX 9, 32/4, Hex, "reg9", "reg9", "NXM_NX_REG9";
    Reg10: NXM_NX 10, 32/4, Hex, "reg10", "reg10", "NXM_NX_REG10";
    Reg11: NXM_NX 11, 32/4, Hex, "reg11", "reg11", "NXM_NX_REG11";
    Reg12: NXM_NX 12, 32/4, Hex, "reg12", "reg12", "NXM_NX_REG12";
    Reg13: NXM_NX 13, 32/4, Hex, "reg13", "reg13", "NXM_NX_REG13";
    Reg14: NXM_NX 14, 32/4, Hex, "reg14", "reg14", "NXM_NX_REG14";
    Reg15: NXM_NX 15, 32/4, Hex, "reg15", "reg15", "NXM_NX_REG15";
    /// Two registers as one; a switch reports a match on it as two matches.
    XReg0: PACKET_REGISTER 0, 64/8, Hex, "xreg0", "xreg0", "OXM_OF_PKT_REG0";
    XReg1: PACKET_REGISTER 1, 64/8, Hex, "xreg1", "xreg1", "OXM_OF_PKT_REG1";
    XReg2: PACKET_REGISTER 2, 64/8, Hex, "xreg2", "xreg2", "OXM_OF_PKT_REG2";
    XReg3: PACKET_REGISTER 3, 64/8, Hex, "xreg3", "xreg3", "OXM_OF_PKT_REG3";
    XReg4: PACKET_REGISTER 4, 64/8, Hex, "xreg4", "xreg4", "OXM_OF_PKT_REG4";
    XReg5: PACKET_REGISTER 5, 64/8, Hex, "xreg5", "xreg5", "OXM_OF_PKT_REG5";
    XReg6: PACKET_REGISTER 6, 64/8, Hex, "xreg6", "xreg6", "OXM_OF_PKT_REG6";
    XReg7: PACKET_REGISTER 7, 64/8, Hex, "xreg7", "xreg7", "OXM_OF_PKT_REG7";
    /// Four registers as one.
    XXReg0: NXM_NX 111, 128/16, Hex, "xxreg0", "xxreg0", "NXM_NX_XXREG0";
    XXReg1: NXM_NX 112, 128/16, Hex, "xxreg1", "xxreg1", "NXM_NX_XXREG1";
    XXReg2: NXM_NX 113, 128/16, Hex, "xxreg2", "xxreg2", "NXM_NX_XXREG2";
    XXReg3: NXM_NX 114, 128/16, Hex, "xxreg3", "xxreg3", "NXM_NX_XXREG3";
    TunnelId: OXM 38, 64/8, Hex, "tun_id", "tun_id", "NXM_NX_TUN_ID";
    TunnelIpv4Src: NXM_NX 31, 32/4, Ipv4, "tun_src", "tun_src", "NXM_NX_TUN_IPV4_SRC";
    TunnelIpv4Dst: NXM_NX 32, 32/4, Ipv4, "tun_dst", "tun_dst", "NXM_NX_TUN_IPV4_DST";
    TunnelIpv6Src: NXM_NX 109, 128/16, Ipv6, "tun_ipv6_src", "tun_ipv6_src", "NXM_NX_TUN_IPV6_SRC";
    TunnelIpv6Dst: NXM_NX 110, 128/16, Ipv6, "tun_ipv6_dst", "tun_ipv6_dst", "NXM_NX_TUN_IPV6_DST";
    Metadata: OXM 2, 64/8, Hex, "metadata", "metadata", "OXM_OF_METADATA";
    InPort: OXM 0, 32/4, Port, "in_port", "in_port_oxm", "OXM_OF_IN_PORT";
    /// The tag with bit 12 set when there is one: see [`crate::Match::vlan`].
    VlanVid: OXM 6, 13/2, Decimal, "dl_vlan", "vlan_vid", "OXM_OF_VLAN_VID";
    VlanPcp: OXM 7, 3/1, Decimal, "dl_vlan_pcp", "vlan_pcp", "OXM_OF_VLAN_PCP";
    EthSrc: OXM 4, 48/6, Mac, "dl_src", "eth_src", "NXM_OF_ETH_SRC";
    EthDst: OXM 3, 48/6, Mac, "dl_dst", "eth_dst", "NXM_OF_ETH_DST";
    Ipv6Src: OXM 26, 128/16, Ipv6, "ipv6_src", "ipv6_src", "NXM_NX_IPV6_SRC";
    Ipv6Dst: OXM 27, 128/16, Ipv6, "ipv6_dst", "ipv6_dst", "NXM_NX_IPV6_DST";
    Ipv6Label: OXM 28, 20/4, Hex, "ipv6_label", "ipv6_label", "NXM_NX_IPV6_LABEL";
    ArpSpa: OXM 22, 32/4, Ipv4, "arp_spa", "arp_spa", "NXM_OF_ARP_SPA";
    ArpTpa: OXM 23, 32/4, Ipv4, "arp_tpa", "arp_tpa", "NXM_OF_ARP_TPA";
    Ipv4Src: OXM 11, 32/4, Ipv4, "nw_src", "ip_src", "NXM_OF_IP_SRC";
    Ipv4Dst: OXM 12, 32/4, Ipv4, "nw_dst", "ip_dst", "NXM_OF_IP_DST";
    ArpOp: OXM 21, 16/2, Decimal, "arp_op", "arp_op", "NXM_OF_ARP_OP";
    ArpSha: OXM 24, 48/6, Mac, "arp_sha", "arp_sha", "NXM_NX_ARP_SHA";
    ArpTha: OXM 25, 48/6, Mac, "arp_tha", "arp_tha", "NXM_NX_ARP_THA";
    IpDscp: OXM 8, 6/1, Decimal, "nw_tos", "ip_dscp", "OXM_OF_IP_DSCP";
    IpEcn: OXM 9, 2/1, Decimal, "nw_ecn", "nw_ecn", "NXM_NX_IP_ECN";
    IpTtl: NXM_NX 29, 8/1, Decimal, "nw_ttl", "nw_ttl", "NXM_NX_IP_TTL";
    IpFragment: NXM_NX 26, 2/1, Fragment, "nw_frag", "ip_frag", "NXM_NX_IP_FRAG";
    TcpSrc: OXM 13, 16/2, Decimal, "tp_src", "tcp_src", "NXM_OF_TCP_SRC";
    TcpDst: OXM 14, 16/2, Decimal, "tp_dst", "tcp_dst", "NXM_OF_TCP_DST";
    UdpSrc: OXM 15, 16/2, Decimal, "tp_src", "udp_src", "NXM_OF_UDP_SRC";
    UdpDst: OXM 16, 16/2, Decimal, "tp_dst", "udp_dst", "NXM_OF_UDP_DST";
    SctpSrc: OXM 17, 16/2, Decimal, "tp_src", "sctp_src", "OXM_OF_SCTP_SRC";
    SctpDst: OXM 18, 16/2, Decimal, "tp_dst", "sctp_dst", "OXM_OF_SCTP_DST";
    TcpFlags: EXPERIMENTER 42, 12/2, TcpFlags, "tcp_flags", "tcp_flags", "NXM_NX_TCP_FLAGS";
    Icmpv4Type: OXM 19, 8/1, Decimal, "icmp_type", "icmp_type", "NXM_OF_ICMP_TYPE";
    Icmpv4Code: OXM 20, 8/1, Decimal, "icmp_code", "icmp_code", "NXM_OF_ICMP_CODE";
    Icmpv6Type: OXM 29, 8/1, Decimal, "icmp_type", "icmpv6_type", "NXM_NX_ICMPV6_TYPE";
    Icmpv6Code: OXM 30, 8/1, Decimal, "icmp_code", "icmpv6_code", "NXM_NX_ICMPV6_CODE";
    NdTarget: OXM 31, 128/16, Ipv6, "nd_target", "nd_target", "NXM_NX_ND_TARGET";
    NdSll: OXM 32, 48/6, Mac, "nd_sll", "nd_sll", "NXM_NX_ND_SLL";
    NdTll: OXM 33, 48/6, Mac, "nd_tll", "nd_tll", "NXM_NX_ND_TLL";
    /// The flags of a neighbour advertisement (router, solicited, override: the top three bits).
    NdReserved: ERICSSON 1, 32/4, Decimal, "nd_reserved", "nd_reserved", "ERICOXM_OF_ICMPV6_ND_RESERVED";
    NdOptionsType: ERICSSON 2, 8/1, Decimal, "nd_options_type", "nd_options_type", "ERICOXM_OF_ICMPV6_ND_OPTIONS_TYPE";
}

impl Field {
    pub(crate) fn spec(self) -> &'static Spec {
        // The table and the enum come from one macro, in one order.
        &SPECS[self as usize]
    }

    /// The field's name as `ovs-ofctl` writes it in a match.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Width in bits.
    pub fn bits(self) -> u16 {
        self.spec().bits
    }

    /// All bits of the field set: the mask of an exact match.
    pub fn mask(self) -> u128 {
        u128::MAX >> (128 - u32::from(self.spec().bits))
    }

    /// Register `n`, 0 to 15.
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

    /// The header that names this field in `move` and `load`.
    pub(crate) fn put_header(self, out: &mut Vec<u8>) {
        let spec = self.spec();
        let extra = if self.experimenter().is_some() { 4 } else { 0 };
        out.put_u32(Field::number(spec.class, spec.number, false, usize::from(spec.bytes) + extra));
        if let Some(experimenter) = self.experimenter() {
            out.put_u32(experimenter);
        }
    }

    pub(crate) fn read_header(r: &mut Reader<'_>) -> Result<Field, DecodeError> {
        let header = r.u32()?;
        Field::from_header(header, r)
    }

    fn from_header(header: u32, r: &mut Reader<'_>) -> Result<Field, DecodeError> {
        let class = (header >> 16) as u16;
        let number = (header >> 9 & 0x7f) as u8;
        let experimenter = if class == EXPERIMENTER { Some(r.u32()?) } else { None };
        Field::find(class, number, experimenter)
            .or_else(|| Field::find_legacy(class, number))
            .ok_or(DecodeError::Field { header })
    }

    /// The older Nicira numbers of fields that OpenFlow 1.3 numbers itself.
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

    /// The whole element: header, value and, unless exact, mask.
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

    /// Reads one element; an exact one has the field's full mask.
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
}
