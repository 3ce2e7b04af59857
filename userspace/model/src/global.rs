//! Cluster-wide settings, and the pools of tags.

use std::hash::{BuildHasher as _, RandomState};

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::bitset::Bitset;

/// The body of `/contiv.io/master/config/global`, which agents read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Config {
    /// Always empty.
    pub id: String,
    /// `default`, `aci` or `aci-opflex`.
    pub nw_infra_type: String,
    /// `bridge` or `routing`.
    pub fwd_mode: String,
    /// `proxy` or `flood`.
    pub arp_mode: String,
    /// Subnet of the nodes' host access to pods.
    pub pvt_subnet: String,
}

/// The body of `/contiv.io/master/config/cluster`, a key that the original does not have.
///
/// netmaster writes it once, and no request changes or deletes it: a store with another identity, or without one, is
/// not the store of this cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterIdentity {
    /// Random number, 32 hexadecimal digits.
    pub id: String,
}

impl ClusterIdentity {
    /// An identity that no other cluster has.
    pub fn random() -> ClusterIdentity {
        // A fresh `RandomState` has random keys.
        let random = RandomState::new();
        ClusterIdentity { id: format!("{:016x}{:016x}", random.hash_one(0), random.hash_one(1)) }
    }
}

/// The body of `/contiv.io/state/global/global`: the ranges of the tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Always empty.
    pub id: String,
    /// The ranges.
    pub auto: TagRanges,
}

/// Ranges of tags that are assigned automatically, such as `1-4094`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TagRanges {
    /// VLAN ids.
    #[serde(rename = "VLANs")]
    pub vlans: String,
    /// VNIs.
    #[serde(rename = "VXLANs")]
    pub vxlans: String,
}

/// The body of `/contiv.io/oper/global/global`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Oper {
    /// Always empty.
    pub id: String,
    /// Always empty (INVENTORY 2.5).
    #[serde(rename = "defaultNetwork")]
    pub default_network: String,
    /// VNI of bit 0 in the VXLAN pool.
    #[serde(rename = "freeVXLANsStart")]
    pub free_vxlans_start: i64,
}

/// The body of `/contiv.io/state/auto-vlan/global`: VLANs in the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VlanPool {
    /// `global`.
    pub id: String,
    /// Bit n: VLAN n is in the range.
    pub vlans: Bitset,
}

/// The body of `/contiv.io/oper/auto-vlan/global`: free VLANs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VlanPoolOper {
    /// `global`.
    pub id: String,
    /// Bit n: VLAN n is free.
    #[serde(rename = "freeVLANs")]
    pub free_vlans: Bitset,
}

/// The body of `/contiv.io/state/auto-vxlan/global`: VNIs in the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VxlanPool {
    /// `global`.
    pub id: String,
    /// Bit n: VNI start + n is in the range.
    pub vxlans: Bitset,
    /// Bit n: local VLAN n is in the pool.
    #[serde(rename = "LocalVLANs")]
    pub local_vlans: Bitset,
    /// VNI of bit 0.
    #[serde(rename = "FreeVXLANsStart")]
    pub free_vxlans_start: i64,
}

/// The body of `/contiv.io/oper/auto-vxlan/global`: free VNIs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VxlanPoolOper {
    /// `global`.
    pub id: String,
    /// Bit n: VNI start + n is free.
    #[serde(rename = "freeVXLANs")]
    pub free_vxlans: Bitset,
    /// Bit n: local VLAN n is free.
    #[serde(rename = "freeLocalVLANs")]
    pub free_local_vlans: Bitset,
}

/// Whether ARP and neighbour solicitations for known endpoints are answered locally or flooded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArpMode {
    /// Answered by the node of the sender.
    #[default]
    Proxy,
    /// Flooded to all endpoints of the network.
    Flood,
}

impl Config {
    /// Whether the nodes route between the networks of a tenant. Without a forward mode they bridge.
    pub fn is_routing(&self) -> bool {
        self.fwd_mode == "routing"
    }

    /// Subnet of the nodes' host access to pods: a /16, as netmaster accepts.
    pub fn private_subnet(&self) -> Option<Ipv4Net> {
        let subnet: Ipv4Net = self.pvt_subnet.parse().ok()?;
        (subnet.prefix_len() == 16).then(|| subnet.trunc())
    }

    /// The ARP mode. Every value except `flood` means proxy, as in the original.
    pub fn arp_mode(&self) -> ArpMode {
        if self.arp_mode == "flood" { ArpMode::Flood } else { ArpMode::Proxy }
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn round_trips<T: DeserializeOwned + Serialize>(body: &str) {
        let value: T = serde_json::from_str(body).unwrap();
        assert_eq!(serde_json::to_string(&value).unwrap(), body.trim_end());
    }

    #[test]
    fn bodies_match_the_original_byte_for_byte() {
        round_trips::<Config>(include_str!("../tests/golden/master-config-global.json"));
        round_trips::<State>(include_str!("../tests/golden/state-global.json"));
        round_trips::<Oper>(include_str!("../tests/golden/oper-global.json"));
        round_trips::<VlanPool>(include_str!("../tests/golden/state-auto-vlan.json"));
        round_trips::<VlanPoolOper>(include_str!("../tests/golden/oper-auto-vlan.json"));
        round_trips::<VxlanPool>(include_str!("../tests/golden/state-auto-vxlan.json"));
        round_trips::<VxlanPoolOper>(include_str!("../tests/golden/oper-auto-vxlan.json"));
    }
}
