//! Policies on groups that are derived from objects which cannot be decoded. They stay as they are: derived again without
//! the object, they would lose its rules on all nodes.

use std::fmt::Arguments;

use contiv_model::api::{EndpointGroup, Network, Policy, Rule};
use contiv_model::{global, group};

use super::state_key;
use crate::cache::{ClusterCache, Entry as _, ONLY, RecordBody as _, StagedTxn};
use crate::domain::{fabric, object_key};
use crate::problem::Problem;

/// Fails if a change of the policy's rules could not be carried out on all its groups, because a record that its expansions
/// are derived from cannot be decoded. What the rule `deleted` refers to does not count: the change deletes this rule.
pub fn check_decodable(policy: &str, deleted: Option<&str>, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    if !staged.cache().has_unreadable() {
        return Ok(());
    }
    let groups = staged.linked::<Policy, EndpointGroup>(policy);
    // On no group, the policy has no expansions.
    if groups.is_empty() {
        return Ok(());
    }
    let of_groups = || groups.iter().find_map(|group| source_of_group(group, staged));
    let key = source(policy, deleted, staged).or_else(of_groups);
    refuse(format_args!("change policy {policy} on its groups"), key)
}

/// Fails if the policy could not be derived on the group, which it is not on yet, because a record cannot be decoded.
pub fn check_attachable(policy: &str, group: &str, staged: &StagedTxn<'_>) -> Result<(), Problem> {
    if !staged.cache().has_unreadable() {
        return Ok(());
    }
    let key = source(policy, None, staged).or_else(|| source_of_group(group, staged));
    refuse(format_args!("attach policy {policy} to group {group}"), key)
}

/// Fails if the policies on all groups cannot be derived, because a record of a policy, a rule, a group or a network cannot
/// be decoded.
pub(super) fn check_all_decodable(staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let cache = staged.cache();
    let objects = [
        cache.first_unreadable::<Policy>(""),
        cache.first_unreadable::<Rule>(""),
        cache.first_unreadable::<EndpointGroup>(""),
        cache.first_unreadable::<Network>(""),
    ];
    let object = objects.into_iter().flatten().next().map(str::to_owned);
    let record = cache.unreadable_allocations::<group::State>().next();
    let key = object.or_else(|| record.map(|id| group::State::key(id).to_string()));
    refuse(format_args!("change all policies on groups"), key)
}

/// Fails if there is a key of a record that cannot be decoded.
fn refuse(change: Arguments<'_>, key: Option<String>) -> Result<(), Problem> {
    match key {
        Some(key) => Err(Problem::conflict(format!(
            "{change}: the record {key} cannot be decoded; repair or delete it first"
        ))),
        None => Ok(()),
    }
}

/// Whether the expansion of the policy on the group stays as it is. Without a link between them, it need not.
pub(super) fn is_kept(staged: &StagedTxn<'_>, group: &str, policy: &str) -> bool {
    let cache = staged.cache();
    if !cache.has_unreadable() {
        return false;
    }
    if cache.is_unreadable::<EndpointGroup>(group) {
        return true;
    }
    staged.is_linked::<Policy, EndpointGroup>(policy, group)
        && (source(policy, None, staged).is_some() || source_of_group(group, staged).is_some())
}

/// Key of the object or of the allocation record of the group, if it cannot be decoded.
fn source_of_group(group: &str, staged: &StagedTxn<'_>) -> Option<String> {
    let (cache, id) = (staged.cache(), state_key(group));
    if cache.is_unreadable::<EndpointGroup>(group) {
        return Some(EndpointGroup::path(group));
    }
    // In ACI mode a group has no expansions.
    let is_unreadable = cache.is_unreadable_allocation::<group::State>(&id) && !fabric::is_enabled(staged);
    is_unreadable.then(|| group::State::key(&id).to_string())
}

/// Key of a record that the expansions of the policy on all groups are derived from and that cannot be decoded. The
/// records that the rule `deleted` refers to do not count.
fn source(policy: &str, deleted: Option<&str>, staged: &StagedTxn<'_>) -> Option<String> {
    let cache = staged.cache();
    match fabric::aci_mode(staged) {
        None => return Some(global::Config::path(ONLY)),
        // In ACI mode there are no expansions.
        Some(true) => return None,
        Some(false) => {}
    }
    if cache.is_unreadable::<Policy>(policy) {
        return Some(Policy::path(policy));
    }
    // The key of a rule begins with that of its policy.
    if let Some(rule) = cache.first_unreadable::<Rule>(&object_key(policy, "")) {
        return Some(rule.to_owned());
    }
    let rules = staged.linked::<Policy, Rule>(policy);
    let mut rules = rules.iter().filter(|key| deleted != Some(key.as_str()));
    rules.find_map(|key| reference(&*staged.get::<Rule>(key)?, cache))
}

/// Key of the record of a network or of the peer group of the rule, if it cannot be decoded.
fn reference(rule: &Rule, cache: &ClusterCache) -> Option<String> {
    let networks = [&rule.from_network, &rule.to_network].map(|name| object_key(&rule.tenant_name, name));
    let network = networks.into_iter().find(|key| cache.is_unreadable::<Network>(key));
    let peer = state_key(&rule.links.match_endpoint_group.key);
    let is_unreadable = cache.is_unreadable_allocation::<group::State>(&peer);
    let peer = is_unreadable.then(|| group::State::key(&peer).to_string());
    network.map(|network| Network::path(&network)).or(peer)
}
