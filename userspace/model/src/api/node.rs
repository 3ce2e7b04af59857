//! What `inspect` tells of the nodes; the original has no such list.

use serde::{Deserialize, Serialize};

use crate::node;

/// An element of `/api/v1/inspect/nodes/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct Node {
    /// What the other members amount to.
    pub state: NodeState,
    /// Whether the agent's leased registration is there: it runs, and reaches the store.
    pub registered: bool,
    /// The address that the agent is reached at; empty when it is not registered.
    #[serde(rename = "controlIP", skip_serializing_if = "String::is_empty")]
    pub control_ip: String,
    /// When the leading netmaster noticed that the registration had run out, as in RFC 3339; empty while it is there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gone_since: String,
    /// What the agent last said of itself. A node that never said anything has its name and VTEP here, from its
    /// registration.
    #[serde(flatten)]
    pub status: node::Status,
}

/// How a node fares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum NodeState {
    /// Its datapath holds all that the state asks for.
    Ready,
    /// It runs, and its datapath refused some objects.
    Degraded,
    /// It runs, and has not taken in the state yet.
    #[default]
    Starting,
    /// Its registration has run out. Its datapath may well forward on.
    Gone,
}

impl NodeState {
    /// The word, as it is written.
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
    /// `control_ip`: of the agent's registration, if it has one.
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
    fn the_state_is_the_worst_that_is_true() {
        let status = |ready, failed| node::Status { ready, failed, ..node::Status::default() };
        let state = |status, ip: Option<&str>| Node::new(status, ip.map(str::to_owned)).state;
        assert_eq!(state(status(true, 0), Some("10.0.0.1")), NodeState::Ready);
        assert_eq!(state(status(true, 2), Some("10.0.0.1")), NodeState::Degraded);
        assert_eq!(state(status(false, 2), Some("10.0.0.1")), NodeState::Starting);
        assert_eq!(state(status(true, 0), None), NodeState::Gone);
    }

    #[test]
    fn members_of_the_status_stand_beside_the_others() {
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
