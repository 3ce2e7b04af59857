use serde::{Deserialize, Serialize};

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
