//! The cluster's settings, and the pools of tags.

use serde::{Deserialize, Serialize};

use crate::bitset::Bitset;

/// `/contiv.io/master/config/global`: what the agents read.
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
    /// The subnet for the nodes' own access to pods.
    pub pvt_subnet: String,
}

/// `/contiv.io/state/global/global`: the ranges that tags are taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Always empty.
    pub id: String,
    /// The ranges.
    pub auto: TagRanges,
}

/// The ranges of [`State`], such as `1-4094`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TagRanges {
    /// VLANs.
    #[serde(rename = "VLANs")]
    pub vlans: String,
    /// VNIs.
    #[serde(rename = "VXLANs")]
    pub vxlans: String,
}

/// `/contiv.io/oper/global/global`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Oper {
    /// Always empty.
    pub id: String,
    /// Never set (INVENTORY 2.5).
    #[serde(rename = "defaultNetwork")]
    pub default_network: String,
    /// The number that the bits of the VXLAN pool count from.
    #[serde(rename = "freeVXLANsStart")]
    pub free_vxlans_start: i64,
}

/// `/contiv.io/state/auto-vlan/global`: the VLANs of the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VlanPool {
    /// `global`.
    pub id: String,
    /// Bit n: VLAN n belongs to the range.
    pub vlans: Bitset,
}

/// `/contiv.io/oper/auto-vlan/global`: the VLANs that are free.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VlanPoolOper {
    /// `global`.
    pub id: String,
    /// Bit n: VLAN n is free.
    #[serde(rename = "freeVLANs")]
    pub free_vlans: Bitset,
}

/// `/contiv.io/state/auto-vxlan/global`: the VNIs of the range.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VxlanPool {
    /// `global`.
    pub id: String,
    /// Bit n: VNI start + n belongs to the range.
    pub vxlans: Bitset,
    /// Bit n: local VLAN n belongs to the pool.
    #[serde(rename = "LocalVLANs")]
    pub local_vlans: Bitset,
    /// The number that the bits count from.
    #[serde(rename = "FreeVXLANsStart")]
    pub free_vxlans_start: i64,
}

/// `/contiv.io/oper/auto-vxlan/global`: the VNIs that are free.
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

/// Whether ARP and neighbour discovery are answered for known endpoints or flooded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ArpMode {
    /// Answered where they are asked.
    #[default]
    Proxy,
    /// Carried to everybody on the network.
    Flood,
}

impl Config {
    /// The ARP mode; anything but `flood` is proxy, as in the original.
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
    fn bodies_are_the_originals_to_the_byte() {
        round_trips::<Config>(include_str!("../tests/golden/master-config-global.json"));
        round_trips::<State>(include_str!("../tests/golden/state-global.json"));
        round_trips::<Oper>(include_str!("../tests/golden/oper-global.json"));
        round_trips::<VlanPool>(include_str!("../tests/golden/state-auto-vlan.json"));
        round_trips::<VlanPoolOper>(include_str!("../tests/golden/oper-auto-vlan.json"));
        round_trips::<VxlanPool>(include_str!("../tests/golden/state-auto-vxlan.json"));
        round_trips::<VxlanPoolOper>(include_str!("../tests/golden/oper-auto-vxlan.json"));
    }
}
