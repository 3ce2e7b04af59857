//! Tags that separate networks on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A VLAN id, 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Vlan(u16);

/// A VXLAN network identifier, 1 to 2^24 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Vni(u32);

/// A number outside the range of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {value}: expected {min} to {max}")]
pub struct TagError {
    kind: &'static str,
    value: u64,
    min: u32,
    max: u32,
}

impl Vlan {
    /// The number, 1 to 4094.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Vni {
    /// The number, 1 to 2^24 - 1.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u16> for Vlan {
    type Error = TagError;
    fn try_from(value: u16) -> Result<Self, TagError> {
        match value {
            1..=4094 => Ok(Vlan(value)),
            _ => Err(TagError { kind: "vlan", value: value.into(), min: 1, max: 4094 }),
        }
    }
}

impl TryFrom<u32> for Vni {
    type Error = TagError;
    fn try_from(value: u32) -> Result<Self, TagError> {
        match value {
            1..=0xff_ffff => Ok(Vni(value)),
            _ => Err(TagError { kind: "vni", value: value.into(), min: 1, max: 0xff_ffff }),
        }
    }
}

impl From<Vlan> for u16 {
    fn from(vlan: Vlan) -> u16 {
        vlan.0
    }
}

impl From<Vni> for u32 {
    fn from(vni: Vni) -> u32 {
        vni.0
    }
}

impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Encapsulation of a network's frames between nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Encap {
    /// An 802.1Q tag on the uplinks.
    Vlan(Vlan),
    /// A VXLAN tunnel between the nodes' VTEPs.
    Vxlan {
        /// VNI on the wire (`extPktTag`).
        vni: Vni,
        /// Cluster-wide number of the network inside a node's switch (`pktTag`).
        local: Vlan,
    },
}

impl fmt::Display for Encap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Encap::Vlan(vlan) => write!(f, "vlan {vlan}"),
            Encap::Vxlan { vni, .. } => write!(f, "vxlan {vni}"),
        }
    }
}
