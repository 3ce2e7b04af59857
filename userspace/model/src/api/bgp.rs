use serde::{Deserialize, Serialize};

use super::is_zero;

/// BGP speaker of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Bgp {
    /// Name of the node.
    pub key: String,
    /// AS number of the node.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub asn: String,
    /// Name of the node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// Address of the neighbor.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub neighbor: String,
    /// AS number of the neighbor.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub neighbor_as: String,
    /// Address of the speaker, with the prefix length of its subnet.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub routerip: String,
}

/// Operational state of a BGP speaker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct BgpOper {
    /// `up`, or `down` if the speaker does not run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub admin_status: String,
    /// State of the session: `idle`, `connect`, `active`, `opensent`, `openconfirm` or `established`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub neighbor_status: String,
    /// Number of prefixes in the routing table, announced and learnt.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_routes: i64,
    /// Prefixes in the routing table, at most 1000.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<String>,
    /// Why there is no session. Not a member of the original.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failure: String,
}
