//! A node's BGP speaker under `state/bgp`.

use serde::{Deserialize, Serialize};

/// `/contiv.io/state/bgp/<host>`: the settings as agents read them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct State {
    /// The node's name.
    pub id: String,
    /// The node's name.
    pub hostname: String,
    /// The speaker's address, with the length of its subnet.
    pub router_ip: String,
    /// The node's AS.
    #[serde(rename = "as")]
    pub asn: String,
    /// The neighbor's AS.
    pub neighbor_as: String,
    /// The neighbor's address.
    pub neighbor: String,
}
