use serde::{Deserialize, Serialize};

/// The BGP speaker of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Bgp {
    /// The node's name.
    pub key: String,
    /// The node's AS.
    #[serde(rename = "as", skip_serializing_if = "String::is_empty")]
    pub asn: String,
    /// The node's name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The neighbor's address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub neighbor: String,
    /// The neighbor's AS.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub neighbor_as: String,
    /// The speaker's address, with the length of its subnet.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub routerip: String,
}
