//! What a node's agent says of itself, kept without a lease.

use serde::{Deserialize, Serialize};

/// `/contiv.io/oper/node/<host>`, a key of ours.
///
/// The registrations under `/contiv.io/service/` vanish when an agent is dead for longer than their
/// lease. Its switch forwards on, so the other nodes must still know where its endpoints live: this
/// body stays until the node is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "NodeStatus"))]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The node's name.
    pub host: String,
    /// `ovs`, `ebpf` or `fake`.
    pub datapath: String,
    /// The address of the node's VTEP.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// The UDP port of the node's VTEP.
    pub vxlan_port: u16,
    /// The program's version.
    pub version: String,
    /// Whether the datapath follows the state. What of it is not in force all the same is told below.
    pub ready: bool,
    /// The store revision that the datapath holds.
    pub applied_revision: i64,
    /// Objects that the datapath refused or could not take.
    pub failed: u64,
    /// The same by sort, a line each for people.
    pub degraded: Vec<String>,
}

/// `/contiv.io/state/gone-nodes/<host>`, a key of ours: the node's registrations have run out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gone {
    /// The node's name.
    pub host: String,
    /// When the leading netmaster noticed, as in RFC 3339.
    pub since: String,
}

/// How an agent's answer ends that was asked to take an interface away, and has none.
pub const NOTHING_TO_RECLAIM: &str = "has no interface on this node";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_a_later_version_adds_do_no_harm() {
        let body = r#"{"host":"n1","datapath":"ebpf","vtepIP":"10.0.0.1","vxlanPort":4789,"zones":["a"]}"#;
        let status: Status = serde_json::from_str(body).unwrap();
        assert_eq!((status.vtep_ip.as_str(), status.vxlan_port, status.ready), ("10.0.0.1", 4789, false));
    }
}
