use serde::{Deserialize, Serialize};

/// Cluster-wide settings: the one object `global`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Global {
    /// `global`.
    pub key: String,
    /// `proxy` or `flood`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub arp_mode: String,
    /// `bridge` or `routing`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fwd_mode: String,
    /// `global`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// `default`, `aci` or `aci-opflex`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network_infra_type: String,
    /// Subnet of the nodes' host access to pods, a /16.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pvt_subnet: String,
    /// Range of VLAN ids, `a-b`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vlans: String,
    /// Range of VNIs, `a-b`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vxlans: String,
}
