//! Status of the nodes, stored without a lease.

use serde::{Deserialize, Serialize};

/// The body of `/contiv.io/oper/node/<host>`; the original has no such key.
///
/// The registrations under `/contiv.io/service/` expire when an agent is down for longer than their
/// lease. Its switch continues to forward, so the other nodes still need the location of its
/// endpoints: this body stays until the node is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(rename = "NodeStatus"))]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Name of the node.
    pub host: String,
    /// `ovs`, `ebpf` or `fake`.
    pub datapath: String,
    /// IP address of the node's VTEP.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// UDP port of the node's VTEP.
    pub vxlan_port: u16,
    /// Version of the agent.
    pub version: String,
    /// Whether the datapath follows the state; `failed` and `degraded` list the exceptions.
    pub ready: bool,
    /// Newest store revision that the datapath has applied as a whole; an object that fails and is retried holds it back.
    pub applied_revision: i64,
    /// Number of objects that the datapath refused or could not apply.
    pub failed: u64,
    /// Degraded conditions, one line each, for people.
    pub degraded: Vec<String>,
    /// Random id of the loss of data that the node reports as `store-regressed`; absent if it reports none, and from an agent of an
    /// earlier release.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub regression_id: String,
}

/// The body of `/contiv.io/oper/vtep/<host>`, a key that the original does not have. It hardly ever
/// changes, and the agents of all nodes follow it; the status changes often.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Vtep {
    /// Name of the node.
    pub host: String,
    /// IP address of the node's VTEP.
    #[serde(rename = "vtepIP")]
    pub vtep_ip: String,
    /// UDP port of the node's VTEP.
    pub vxlan_port: u16,
}

/// The body of `/contiv.io/state/gone-nodes/<host>`, a key that the original does not have: the
/// node's registrations have expired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Gone {
    /// Name of the node.
    pub host: String,
    /// Time at which the leading netmaster noticed, RFC 3339, for people.
    pub since: String,
    /// Seconds for which the node has been gone, as the leaders since then have counted them.
    pub counted_seconds: u64,
}

/// Begin of the degraded condition of a node whose store lost its data: the node forwards as before and ignores the store
/// until the data is back, or until an operator accepts the store.
pub const STORE_REGRESSED: &str = "store-regressed";

/// End of netmaster's answer to an operator who accepts the store for a node that does not report [`STORE_REGRESSED`].
pub const NOT_REGRESSED: &str = "has not reported store-regressed";

/// The body of `/contiv.io/oper/accepted-store/<host>`, a key that the original does not have: an operator tells the
/// node's agent to follow the store as it is. The agent deletes the key. It follows the store only if the id is that of its
/// present regression: an acceptance that remains must not accept the next loss of data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceptedStore {
    /// Name of the node.
    pub host: String,
    /// [`Status::regression_id`] at the time of the operator's request; empty from a netmaster of an earlier release, and for an
    /// agent of an earlier release, which does not compare it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub regression_id: String,
}

/// The body of `/contiv.io/state/node-datapath/<host>`, a key that the original does not have: the datapath that an operator has
/// chosen for the node. It goes before the agent's flag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChosenDatapath {
    /// Name of the node.
    pub host: String,
    /// One of [`DATAPATHS`].
    pub datapath: String,
}

/// Names of the datapaths that a node can have.
pub const DATAPATHS: [&str; 2] = ["ovs", "ebpf"];

/// End of an agent's answer to the request to remove an interface that it does not have.
pub const NOTHING_TO_RECLAIM: &str = "has no interface on this node";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_ignored() {
        let body = r#"{"host":"n1","datapath":"ebpf","vtepIP":"10.0.0.1","vxlanPort":4789,"zones":["a"]}"#;
        let status: Status = serde_json::from_str(body).unwrap();
        assert_eq!((status.vtep_ip.as_str(), status.vxlan_port, status.ready), ("10.0.0.1", 4789, false));
    }

    #[test]
    fn ids_of_regressions_are_written_only_if_there_is_one() {
        let mut accepted = AcceptedStore { host: "n1".into(), ..AcceptedStore::default() };
        assert_eq!(serde_json::to_string(&accepted).unwrap(), r#"{"host":"n1"}"#);
        accepted.regression_id = "7".into();
        assert_eq!(serde_json::to_string(&accepted).unwrap(), r#"{"host":"n1","regressionId":"7"}"#);
        let status = serde_json::to_value(Status::default()).unwrap();
        assert_eq!(status.get("regressionId"), None);
    }
}
