//! BGP speakers of the nodes, under `state/bgp`.

use serde::{Deserialize, Serialize};

/// The body of `/contiv.io/state/bgp/<host>`, which agents read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct State {
    /// Name of the node.
    pub id: String,
    /// Name of the node.
    pub hostname: String,
    /// Address of the speaker, with the prefix length of its subnet.
    pub router_ip: String,
    /// AS number of the node.
    #[serde(rename = "as")]
    pub asn: String,
    /// AS number of the neighbor.
    pub neighbor_as: String,
    /// Address of the neighbor.
    pub neighbor: String,
}
