//! IPv4 and IPv6: their fields, and registers as wide as an address.

use std::net::IpAddr;

use contiv_model::policy::{ICMP, ICMPV6};
use openflow_rs::{
    Field, Match,
    matching::{ETH_TYPE_IPV4, ETH_TYPE_IPV6},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub(super) const ALL: [Family; 2] = [Family::V4, Family::V6];
    /// The 32-bit parts of [`Family::register`] for IPv6. The switch reports a match on a wider register as matches on its parts.
    pub(super) const PARTS: [Field; 4] = [Field::Reg4, Field::Reg5, Field::Reg6, Field::Reg7];

    pub(super) fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(super) fn packets(self, matching: Match) -> Match {
        match self {
            Family::V4 => matching.ipv4(),
            Family::V6 => matching.ipv6(),
        }
    }

    pub(super) fn eth_type(self) -> u16 {
        match self {
            Family::V4 => ETH_TYPE_IPV4,
            Family::V6 => ETH_TYPE_IPV6,
        }
    }

    /// IP protocol number of ICMP.
    pub(super) fn icmp(self) -> u8 {
        match self {
            Family::V4 => ICMP,
            Family::V6 => ICMPV6,
        }
    }

    pub(super) fn source(self) -> Field {
        match self {
            Family::V4 => Field::Ipv4Src,
            Family::V6 => Field::Ipv6Src,
        }
    }

    pub(super) fn destination(self) -> Field {
        match self {
            Family::V4 => Field::Ipv4Dst,
            Family::V6 => Field::Ipv6Dst,
        }
    }

    /// Register that holds an address until policies store the source of the connection in it.
    pub(super) fn register(self) -> Field {
        match self {
            Family::V4 => Field::Reg4,
            Family::V6 => Field::XXReg1,
        }
    }
}

/// Requires this address in [`Family::register`]. The family is not matched.
pub(super) fn with_address(matching: Match, ip: IpAddr) -> Match {
    match ip {
        IpAddr::V4(ip) => matching.field(Family::V4.register(), ip.to_bits()),
        IpAddr::V6(ip) => {
            let words = [96, 64, 32, 0].map(|shift| (ip.to_bits() >> shift) as u32);
            let parts = Family::PARTS.into_iter().zip(words);
            parts.fold(matching, |m, (register, word)| m.field(register, word))
        }
    }
}

pub(super) fn address_bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}
