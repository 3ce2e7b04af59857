//! Nodes in `inspect`; the original has no such list.

use serde::{Deserialize, Serialize};

use crate::node;

/// An element of `/api/v1/inspect/nodes/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// State derived from the other members.
    pub state: NodeState,
    /// Whether the agent's leased registration exists: the agent runs and reaches the store.
    pub registered: bool,
    /// IP address of the agent; empty if it is not registered.
    #[serde(rename = "controlIP", skip_serializing_if = "String::is_empty")]
    pub control_ip: String,
    /// Time at which the leading netmaster noticed that the registration had expired, RFC 3339;
    /// empty while it exists.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gone_since: String,
    /// Last status that the agent has reported. A node without one has its name and VTEP here, from
    /// its registration.
    #[serde(flatten)]
    pub status: node::Status,
}

/// State of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// Its datapath has applied all of the state.
    Ready,
    /// The agent runs, and its datapath refused some objects.
    Degraded,
    /// The agent runs, and has not applied the state yet.
    #[default]
    Starting,
    /// Its registration has expired. Its datapath may still forward.
    Gone,
}

impl NodeState {
    /// The name in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            NodeState::Ready => "ready",
            NodeState::Degraded => "degraded",
            NodeState::Starting => "starting",
            NodeState::Gone => "gone",
        }
    }
}

impl Node {
    /// Derives the state. `control_ip` is that of the agent's registration, if it has one.
    pub fn new(status: node::Status, control_ip: Option<String>) -> Node {
        let state = match (&control_ip, &status) {
            (None, _) => NodeState::Gone,
            (_, node::Status { ready: false, .. }) => NodeState::Starting,
            (_, node::Status { failed: 1.., .. }) => NodeState::Degraded,
            (_, status) if !status.degraded.is_empty() => NodeState::Degraded,
            _ => NodeState::Ready,
        };
        let (registered, control_ip) = (control_ip.is_some(), control_ip.unwrap_or_default());
        Node { state, registered, control_ip, gone_since: String::new(), status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_the_worst_that_applies() {
        let status = |ready, failed| node::Status { ready, failed, ..node::Status::default() };
        let state = |status, ip: Option<&str>| Node::new(status, ip.map(str::to_owned)).state;
        assert_eq!(state(status(true, 0), Some("10.0.0.1")), NodeState::Ready);
        assert_eq!(state(status(true, 2), Some("10.0.0.1")), NodeState::Degraded);
        assert_eq!(state(status(false, 2), Some("10.0.0.1")), NodeState::Starting);
        assert_eq!(state(status(true, 0), None), NodeState::Gone);
    }

    #[test]
    fn members_of_the_status_are_flattened() {
        let status = node::Status { host: "n1".into(), vxlan_port: 4789, ..node::Status::default() };
        let node = Node::new(status, Some("10.0.0.1".into()));
        let json = serde_json::to_string(&node).unwrap();
        assert!(
            json.starts_with(r#"{"state":"starting","registered":true,"controlIP":"10.0.0.1","host":"n1","#),
            "{json}"
        );
        assert_eq!(serde_json::from_str::<Node>(&json).unwrap(), node);
    }
}
