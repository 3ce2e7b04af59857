use contiv_model::{group::GroupNumber, policy::Identity};

use super::node::Node;
use crate::{datapath::Group, state::State};

/// The settings of a group, if it has endpoints on this node and settings for them.
///
/// Endpoints count with and without an interface, so the rules are in effect before the interface appears. A group whose settings
/// are unknown is always planned, and denies everything: the reconciler does not change it in the datapath and delays its new
/// endpoints.
pub(super) fn group(state: &State, node: &Node, identity: Identity) -> Option<Group> {
    let number = GroupNumber::try_from(identity.get()).ok()?;
    if !state.is_group_on(number, &node.host) {
        return None;
    }
    let profile = state.group(number);
    let (dscp, rate) = (profile.and_then(|group| group.dscp), profile.and_then(|group| group.rate));
    let rules = state.policies_on(number).flat_map(|policy| policy.rules.iter().cloned()).collect();
    let group = Group { identity, dscp, rate, rules };
    if state.blocked_groups(&node.host).contains_key(&number) {
        return Some(group.closed());
    }
    let has_settings = dscp.is_some() || rate.is_some() || !group.rules.is_empty();
    has_settings.then_some(group)
}
