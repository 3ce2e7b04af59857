//! BGP speakers of the nodes, under `state/bgp`, and their sessions, under `oper/bgp`.

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

/// The body of `/contiv.io/oper/bgp/<host>`, a key that the original does not have: the session as the node's agent reports
/// it. It exists while the node has BGP settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Oper {
    /// Name of the node.
    pub host: String,
    /// `up`, or `down` if the speaker does not run.
    pub admin_status: String,
    /// State of the session in lower case, such as `established`.
    pub neighbor_status: String,
    /// Number of prefixes in the routing table, announced and learnt.
    pub num_routes: u64,
    /// The first of these prefixes, at most [`MAX_ROUTES`](Oper::MAX_ROUTES).
    pub routes: Vec<String>,
    /// Why there is no session; empty if there is one.
    pub failure: String,
}

impl Oper {
    /// Maximum number of listed prefixes, which bounds the size of the record.
    pub const MAX_ROUTES: usize = 1000;
}
