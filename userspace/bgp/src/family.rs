use std::fmt;

use ipnet::IpNet;
use rustbgpd_wire::{Afi, Safi};

/// Address family, always with unicast forwarding (SAFI 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// AFI 1.
    Ipv4,
    /// AFI 2.
    Ipv6,
}

impl Family {
    /// All families, in the order of their numbers.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    /// Family of a prefix.
    pub fn of(prefix: &IpNet) -> Family {
        match prefix {
            IpNet::V4(_) => Family::Ipv4,
            IpNet::V6(_) => Family::Ipv6,
        }
    }

    pub(crate) fn afi(self) -> Afi {
        match self {
            Family::Ipv4 => Afi::Ipv4,
            Family::Ipv6 => Afi::Ipv6,
        }
    }

    /// `None` for families that the speaker does not support.
    pub(crate) fn from_wire(afi: Afi, safi: Safi) -> Option<Family> {
        match (afi, safi) {
            (Afi::Ipv4, Safi::Unicast) => Some(Family::Ipv4),
            (Afi::Ipv6, Safi::Unicast) => Some(Family::Ipv6),
            _ => None,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::Ipv4 => "IPv4",
            Family::Ipv6 => "IPv6",
        })
    }
}
