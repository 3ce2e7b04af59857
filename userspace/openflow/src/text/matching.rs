//! `ovs-ofctl` syntax of matches and field values.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Hex;
use crate::field::{Field, Style};
use crate::matching::{Masked, Match, VLAN_PRESENT};
use crate::port::Port;

pub(super) struct Mac(pub(super) u128);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [.., a, b, c, d, e, g] = self.0.to_be_bytes();
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

fn v4(value: u128) -> Ipv4Addr {
    Ipv4Addr::from_bits(value as u32)
}

fn fragment(value: u128) -> &'static str {
    match value {
        0 => "no",
        1 => "first",
        2 => "<error>",
        _ => "later",
    }
}

const TCP_FLAGS: [&str; 12] =
    ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"];
const CT_STATES: [&str; 8] = ["new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"];

/// Formats flags like `+syn-ack`: each bit of the mask with its required value.
fn signed(names: &[&str], masked: Masked) -> String {
    let named = names.iter().enumerate().filter(|(bit, _)| masked.mask >> bit & 1 == 1);
    named
        .map(|(bit, name)| format!("{}{name}", if masked.value >> bit & 1 == 1 { '+' } else { '-' }))
        .collect()
}

fn joined(names: &[&str], value: u128) -> String {
    let set: Vec<_> =
        names.iter().enumerate().filter(|(bit, _)| value >> bit & 1 == 1).map(|(_, name)| *name).collect();
    if set.is_empty() { "0".into() } else { set.join("|") }
}

/// Formats a value for `set_field`.
pub(super) fn value(field: Field, value: u128) -> String {
    match field.spec().style {
        Style::Decimal => value.to_string(),
        Style::Hex => Hex(value).to_string(),
        Style::Mac => Mac(value).to_string(),
        Style::Ipv4 => v4(value).to_string(),
        Style::Ipv6 => Ipv6Addr::from_bits(value).to_string(),
        Style::Port => Port(value as u32).to_string(),
        Style::TcpFlags => joined(&TCP_FLAGS, value),
        Style::CtState => joined(&CT_STATES, value),
        Style::Fragment => fragment(value).into(),
    }
}

/// Formats one condition, for example `nw_dst=10.0.0.0/8`.
fn condition(f: &mut fmt::Formatter<'_>, field: Field, masked: Masked) -> fmt::Result {
    let Masked { value: bits, mask } = masked;
    let exact = mask == field.mask();
    let name = field.name();
    match (field, field.spec().style) {
        (Field::VlanVid, _) if exact && bits & u128::from(VLAN_PRESENT) != 0 => {
            write!(f, "{name}={}", bits & u128::from(!VLAN_PRESENT))
        }
        (Field::VlanVid, _) => write!(f, "vlan_tci=0x{bits:04x}/0x{mask:04x}"),
        (Field::IpDscp, _) => write!(f, "{name}={}", bits << 2),
        (Field::Ipv6Label, _) if exact => write!(f, "{name}=0x{bits:05x}"),
        (Field::Ipv6Label, _) => write!(f, "{name}=0x{bits:05x}/0x{mask:05x}"),
        (Field::EthType, _) => write!(f, "{name}=0x{bits:04x}"),
        // All bits that exist: an exact match.
        (_, Style::CtState) if mask == 0xff => write!(f, "{name}={}", joined(&CT_STATES, bits)),
        (_, Style::CtState) => write!(f, "{name}={}", signed(&CT_STATES, masked)),
        (_, Style::TcpFlags) if !exact => write!(f, "{name}={}", signed(&TCP_FLAGS, masked)),
        (_, Style::Fragment) if !exact => {
            f.write_str(name)?;
            f.write_str(match (mask, bits) {
                (1, 0) => "=no",
                (1, _) => "=yes",
                (_, 0) => "=not_later",
                _ => "=later",
            })
        }
        _ if exact => write!(f, "{name}={}", value(field, bits)),
        (_, Style::Ipv4) => prefixed(f, name, v4(bits), mask << 96, 32, v4(mask)),
        (_, Style::Ipv6) => {
            prefixed(f, name, Ipv6Addr::from_bits(bits), mask, 128, Ipv6Addr::from_bits(mask))
        }
        (_, Style::Mac) => write!(f, "{name}={}/{}", Mac(bits), Mac(mask)),
        (_, Style::Decimal) => write!(f, "{name}={bits:#x}/{mask:#x}"),
        _ => write!(f, "{name}={}/{}", Hex(bits), Hex(mask)),
    }
}

/// Formats an address with its mask, as a prefix length where possible. `mask` is left-aligned.
fn prefixed<A: fmt::Display>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    address: A,
    mask: u128,
    width: u32,
    dotted: A,
) -> fmt::Result {
    let prefix = mask.leading_ones();
    if mask.checked_shl(prefix).unwrap_or(0) == 0 && prefix <= width {
        write!(f, "{name}={address}/{prefix}")
    } else {
        write!(f, "{name}={address}/{dotted}")
    }
}

/// Returns the keyword for an EtherType and IP protocol, and whether it covers the protocol.
fn protocol(matching: &Match) -> Option<(&'static str, bool)> {
    let proto = matching.exact(Field::IpProto);
    Some(match (matching.exact(Field::EthType)?, proto) {
        (0x0800, Some(1)) => ("icmp", true),
        (0x0800, Some(2)) => ("igmp", true),
        (0x0800, Some(6)) => ("tcp", true),
        (0x0800, Some(17)) => ("udp", true),
        (0x0800, Some(132)) => ("sctp", true),
        (0x0800, _) => ("ip", false),
        (0x86dd, Some(58)) => ("icmp6", true),
        (0x86dd, Some(6)) => ("tcp6", true),
        (0x86dd, Some(17)) => ("udp6", true),
        (0x86dd, Some(132)) => ("sctp6", true),
        (0x86dd, _) => ("ipv6", false),
        (0x0806, _) => ("arp", false),
        (0x8035, _) => ("rarp", false),
        _ => return None,
    })
}

/// Returns the position of a field in the order of `ovs-ofctl`. It differs from the wire order, in which the two protocol
/// fields come first.
fn place(field: Field) -> Field {
    match field {
        Field::EthType => Field::EthDst,
        Field::IpProto => Field::ArpOp,
        other => other,
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = protocol(self);
        let mut fields: Vec<_> = self
            .iter()
            .filter(|(field, _)| match field {
                Field::EthType => word.is_none(),
                Field::IpProto => !word.is_some_and(|(_, with_protocol)| with_protocol),
                _ => true,
            })
            .collect();
        // A stable sort by position puts `dl_type` before `dl_dst`; `ovs-ofctl` prints it after.
        fields.sort_by_key(|(field, _)| (place(*field), *field == Field::EthType));
        let mut word = word.map(|(word, _)| word);
        let mut comma = "";
        for (field, masked) in fields {
            if (field >= Field::Reg0 || field == Field::EthType || field == Field::IpProto)
                && let Some(word) = word.take()
            {
                write!(f, "{comma}{word}")?;
                comma = ",";
            }
            f.write_str(comma)?;
            comma = ",";
            condition(f, field, masked)?;
        }
        if let Some(word) = word {
            write!(f, "{comma}{word}")?;
        }
        Ok(())
    }
}
