use std::fmt;

use contiv_model::{group::GroupNumber, key::Key, policy::Identity};

use super::node::Node;
use crate::{datapath::Group, state::State};

/// Reason why the settings of a group are unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// The store has not delivered the group's policies yet.
    Awaited,
    /// The record of the group, or of one of its policies, has never been valid: the first such record.
    Invalid(Key),
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unknown::Awaited => f.write_str("its policies have not arrived from the store"),
            Unknown::Invalid(key) => write!(f, "{key} is invalid; see /inspect/driver"),
        }
    }
}

/// Returns the settings of a group if it has endpoints on this node and settings for them.
///
/// Endpoints count with and without an interface, so the rules are in effect before the interface appears. A group whose
/// settings are unknown is always planned, and denies everything: the reconciler does not change it in the datapath and
/// delays its new endpoints.
pub(super) fn group(state: &State, node: &Node, identity: Identity) -> Option<Group> {
    let number = GroupNumber::try_from(identity.get()).ok()?;
    if !state.is_group_on(number, &node.host) {
        return None;
    }
    let profile = state.group(number);
    let (dscp, rate) = (profile.and_then(|group| group.dscp), profile.and_then(|group| group.rate));
    let rules = state.policies_on(number).flat_map(|policy| policy.rules.iter().cloned()).collect();
    let group = Group { identity, dscp, rate, rules };
    if state.lacks_policies_of(number, &node.host) || state.blocked_groups(&node.host).contains_key(&number) {
        return Some(group.closed());
    }
    let has_settings = dscp.is_some() || rate.is_some() || !group.rules.is_empty();
    has_settings.then_some(group)
}
