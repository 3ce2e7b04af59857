//! State derived from policies attached to groups. Every change of a group, policy or rule updates
//! it.

mod unreadable;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use contiv_model::api::{EndpointGroup, Link, Network, Policy, Rule};
use contiv_model::key::ObjectType;
use contiv_model::policy::{DirectionalRule, DirectionalRuleState, ExpandedRule, PolicyState, expand};

use unreadable::{check_all_decodable, is_kept};
pub use unreadable::{check_attachable, check_decodable};

use super::fabric;
use super::object_key;
use crate::cache::{ClusterCache, Derived as _, DerivedKeys, StagedTxn};
use crate::problem::Problem;

/// Largest number of rules of a group, in all its policies. A change of the group expands all of them
/// while other requests wait.
pub const MAX_GROUP_RULES: usize = 16_384;

/// Largest number of rules of a policy on all its groups together, of the policies that a created or deleted group or network
/// changes, and of all policies when the cluster leaves ACI mode. A change of one rule writes the record of its policy on
/// each group, with all rules of the policy.
pub const MAX_EXPANDED_RULES: usize = 524_288;

/// Number of rules of the group's policies.
pub fn count_rules(group: &EndpointGroup, staged: &StagedTxn<'_>) -> usize {
    let policies: BTreeSet<&String> = group.policies.iter().collect();
    let keys = policies.into_iter().map(|name| object_key(&group.tenant_name, name));
    keys.map(|key| staged.count_linked::<Policy, Rule>(&key)).sum()
}

/// Converts the object key `<tenant>:<group>` to the state key `<group>:<tenant>`.
pub fn state_key(group: &str) -> String {
    group.split_once(':').map(|(tenant, name)| format!("{name}:{tenant}")).unwrap_or_default()
}

/// Name of the group that the rule refers to, or the empty string.
pub fn remote_name(rule: &Rule) -> &str {
    if rule.from_endpoint_group.is_empty() { &rule.to_endpoint_group } else { &rule.from_endpoint_group }
}

/// Expands the policy again on all its groups, after several of its rules changed.
pub fn refresh_policy(staged: &mut StagedTxn<'_>, policy: &str) {
    for group in groups(staged, policy).iter() {
        refresh(staged, group, policy);
    }
}

/// Expands one created or deleted rule on all groups of the policy. Only the directional rules of this
/// rule are compared; the record of the policy on a group has all of its rules in any case.
pub fn refresh_rule(staged: &mut StagedTxn<'_>, policy: &str, rule: &str) {
    for group in groups(staged, policy).iter() {
        if is_kept(staged, group, policy) {
            continue;
        }
        let (id, number) = (attached_id(group, policy), staged.group_number(&state_key(group)));
        match number.filter(|_| staged.has_derived::<PolicyState>(&id)) {
            Some(number) => refresh_one(staged, &Attachment { id, group, policy }, number, rule),
            None => refresh(staged, group, policy),
        }
    }
}

/// A policy on a group.
struct Attachment<'a> {
    id: String,
    group: &'a str,
    policy: &'a str,
}

fn groups(staged: &StagedTxn<'_>, policy: &str) -> Arc<BTreeSet<String>> {
    match staged.get::<Policy>(policy) {
        Some(_) => staged.linked::<Policy, EndpointGroup>(policy),
        None => Arc::default(),
    }
}

pub fn attached_id(group: &str, policy: &str) -> String {
    format!("{group}:{policy}")
}

fn refresh_one(staged: &mut StagedTxn<'_>, attachment: &Attachment<'_>, number: i64, rule: &str) {
    let Attachment { id, group, policy } = attachment;
    let in_policy = staged.get::<Policy>(policy).is_some() && staged.is_linked::<Policy, Rule>(policy, rule);
    let new = if in_policy { expanded(staged, id, number, rule) } else { None };
    let directed = new.as_ref().map(|new| new.directed.clone()).unwrap_or_default();
    let prefix = format!("{id}:{rule}:");
    let mut old = staged.derived_ids::<DirectionalRuleState>(&prefix);
    old.retain(|id| !id[prefix.len()..].contains(':'));
    put_directed(staged, old, directed);
    match (staged.staged_derived::<PolicyState>(id), new) {
        (Some(state), Some(new)) => drop(state.rules.insert(rule.to_owned(), new)),
        (Some(state), None) => drop(state.rules.remove(rule)),
        (None, _) => {
            let state = attached(staged, id, group, policy);
            staged.derive(id, state);
        }
    }
}

/// Makes the stored expansion of `policy` on `group` match the objects, unless one of them cannot be decoded.
pub fn refresh(staged: &mut StagedTxn<'_>, group: &str, policy: &str) {
    if is_kept(staged, group, policy) {
        return;
    }
    let id = attached_id(group, policy);
    let new = attached(staged, &id, group, policy);
    let directed = new.iter().flat_map(|state| state.rules.values());
    let directed = directed.flat_map(|rule| rule.directed.clone()).collect();
    let old = staged.derived_ids::<DirectionalRuleState>(&format!("{id}:"));
    put_directed(staged, old, directed);
    staged.derive(&id, new);
}

/// Replaces the directional rules with ids `old` by `new`.
fn put_directed(staged: &mut StagedTxn<'_>, old: BTreeSet<String>, new: BTreeMap<String, DirectionalRule>) {
    for gone in old.iter().filter(|id| !new.contains_key(*id)) {
        staged.derive::<DirectionalRuleState>(gone, None);
    }
    for (id, rule) in new {
        staged.derive(&id, Some(DirectionalRuleState { id: String::new(), rule }));
    }
}

/// Expansion of the policy on the group. None if the policy is not attached, if either is missing,
/// or in ACI mode.
fn attached(staged: &mut StagedTxn<'_>, id: &str, group: &str, policy: &str) -> Option<PolicyState> {
    let number = number_if_attached(staged, group, policy)?;
    let mut state = PolicyState { id: id.into(), key: id.into(), group: number, ..PolicyState::default() };
    for key in staged.linked::<Policy, Rule>(policy).iter() {
        if let Some(rule) = expanded(staged, id, number, key) {
            state.rules.insert(key.clone(), rule);
        }
    }
    Some(state)
}

/// Number of the group if the policy has an expansion on it.
fn number_if_attached(staged: &StagedTxn<'_>, group: &str, policy: &str) -> Option<i64> {
    staged.get::<Policy>(policy)?;
    // In ACI mode the fabric enforces the policies.
    if !staged.is_linked::<Policy, EndpointGroup>(policy, group) || fabric::is_enabled(staged) {
        return None;
    }
    staged.group_number(&state_key(group))
}

/// Expansion of the rule on the group with id `number`; none if the rule does not exist.
fn expanded(staged: &mut StagedTxn<'_>, attached: &str, number: i64, key: &str) -> Option<ExpandedRule> {
    let rule = resolved(staged, key)?;
    // A rule whose peer group or network is missing must match neither all peers nor those that have the subnet now.
    let directed = match remote(staged, &rule).filter(|_| has_network(staged, &rule)) {
        Some(remote) => expand(attached, number, remote, &rule, v6_of_network(staged, &rule).as_deref()),
        None => BTreeMap::new(),
    };
    Some(ExpandedRule { rule, directed })
}

/// The rule with its networks resolved to subnets: a network that was created again may have another one. Without the
/// network, the stored rule keeps the last subnet. It has no effect then, but to a netmaster of an earlier release a rule
/// without an address would match all peers.
fn resolved(staged: &mut StagedTxn<'_>, key: &str) -> Option<Rule> {
    let mut rule = (*staged.get::<Rule>(key)?).clone();
    let subnet = |name: &str| {
        staged.get::<Network>(&object_key(&rule.tenant_name, name)).map(|network| network.subnet.clone())
    };
    let from = subnet(&rule.from_network).filter(|subnet| *subnet != rule.from_ip_address);
    let to = subnet(&rule.to_network).filter(|subnet| *subnet != rule.to_ip_address);
    if from.is_some() || to.is_some() {
        rule.from_ip_address = from.unwrap_or(rule.from_ip_address);
        rule.to_ip_address = to.unwrap_or(rule.to_ip_address);
        staged.put(key, rule.clone());
    }
    Some(rule)
}

/// IPv6 subnet of the network that the rule refers to.
fn v6_of_network(staged: &StagedTxn<'_>, rule: &Rule) -> Option<String> {
    let network = staged.get::<Network>(&object_key(&rule.tenant_name, network_name(rule)))?;
    Some(network.ipv6_subnet.clone()).filter(|subnet| !subnet.is_empty())
}

/// Whether the network that the rule refers to exists, or the rule refers to none.
fn has_network(staged: &StagedTxn<'_>, rule: &Rule) -> bool {
    let name = network_name(rule);
    name.is_empty() || staged.get::<Network>(&object_key(&rule.tenant_name, name)).is_some()
}

/// Name of the network that the rule refers to, or the empty string.
fn network_name(rule: &Rule) -> &str {
    if rule.from_network.is_empty() { &rule.to_network } else { &rule.from_network }
}

/// Id of the rule's peer group: 0 if the rule refers to none, none if the group does not exist.
fn remote(staged: &StagedTxn<'_>, rule: &Rule) -> Option<i64> {
    let link = &rule.links.match_endpoint_group.key;
    match remote_name(rule) {
        "" => Some(0),
        _ if link.is_empty() => None,
        _ => staged.group_number(&state_key(link)),
    }
}

/// Rules of `tenant` that refer to the group called `name`, which need not exist.
pub fn rules_referencing(staged: &StagedTxn<'_>, tenant: &str, name: &str) -> Vec<Rule> {
    let rules = staged.linked::<EndpointGroup, Rule>(&object_key(tenant, name));
    let rules = rules.iter().filter_map(|rule| staged.get::<Rule>(rule));
    rules
        .filter(|rule| rule.tenant_name == tenant && remote_name(rule) == name)
        .map(Arc::unwrap_or_clone)
        .collect()
}

/// Keys of the policies on groups whose rules refer to the network with key `network`, which need not exist.
pub fn policies_with_network(staged: &StagedTxn<'_>, network: &str) -> BTreeSet<String> {
    let rules = staged.linked::<Network, Rule>(network);
    let rules = rules.iter().filter_map(|rule| staged.get::<Rule>(rule));
    let policies = rules.map(|rule| object_key(&rule.tenant_name, &rule.policy_name));
    policies.filter(|policy| staged.count_linked::<Policy, EndpointGroup>(policy) > 0).collect()
}

/// Fails if [`link_rules`] would write more than [`MAX_EXPANDED_RULES`] rules for `rules`, which refer to `group`, or
/// policies that are derived from what cannot be decoded.
pub fn check_link_rules(group: &str, rules: &[Rule], staged: &StagedTxn<'_>) -> Result<(), Problem> {
    let policies = rules.iter().map(|rule| object_key(&rule.tenant_name, &rule.policy_name));
    check_refresh("group", group, &policies.collect(), staged)
}

/// Fails if expanding these policies again, whose rules refer to the object, would write more than [`MAX_EXPANDED_RULES`]
/// rules, or policies that are derived from what cannot be decoded.
pub fn check_refresh(
    kind: &str,
    name: &str,
    policies: &BTreeSet<String>,
    staged: &StagedTxn<'_>,
) -> Result<(), Problem> {
    if fabric::is_enabled(staged) {
        return Ok(());
    }
    policies.iter().try_for_each(|policy| check_decodable(policy, None, staged))?;
    let written: usize = policies.iter().map(|policy| rules_on_all_groups(policy, staged)).sum();
    if written <= MAX_EXPANDED_RULES {
        return Ok(());
    }
    let count = policies.len();
    Err(Problem::conflict(format!(
        "{kind} {name}: the {count} policies whose rules refer to it have {written} rules on all their groups, and this change writes all of them; the limit is {MAX_EXPANDED_RULES}; delete some of the rules that refer to the {kind} first"
    )))
}

fn rules_on_all_groups(policy: &str, staged: &StagedTxn<'_>) -> usize {
    staged.count_linked::<Policy, Rule>(policy) * staged.count_linked::<Policy, EndpointGroup>(policy)
}

/// Links the rules to group `key`, or unlinks them, and expands their policies again.
pub fn link_rules(staged: &mut StagedTxn<'_>, rules: Vec<Rule>, key: Option<&str>) {
    let mut policies = BTreeSet::new();
    for mut rule in rules {
        let link = key.map(|key| Link::to(ObjectType::EndpointGroup, key)).unwrap_or_default();
        policies.insert(object_key(&rule.tenant_name, &rule.policy_name));
        if rule.links.match_endpoint_group != link {
            rule.links.match_endpoint_group = link;
            staged.put(&rule.key.clone(), rule);
        }
    }
    for policy in policies {
        refresh_policy(staged, &policy);
    }
}

/// Keys of the groups with policies.
pub fn groups_with_policies(cache: &ClusterCache) -> Vec<String> {
    let groups = cache.all::<EndpointGroup>().filter(|group| !group.link_sets.policies.is_empty());
    groups.map(|group| group.key.clone()).collect()
}

/// Records that [`restore_group`] compares, as far as their values were not read yet.
pub fn unread_of_group(cache: &ClusterCache, group: &str) -> Vec<DerivedKeys> {
    let policies = cache.get::<EndpointGroup>(group).into_iter();
    let policies = policies.flat_map(|group| group.link_sets.policies.keys());
    let ids = policies.map(|policy| attached_id(group, policy));
    let keys = ids.flat_map(|id| {
        let rules = DerivedKeys::Below(DirectionalRuleState::path(&format!("{id}:")));
        [DerivedKeys::One(PolicyState::path(&id)), rules]
    });
    keys.filter(|keys| cache.has_unread(keys)).collect()
}

/// Expands all policies on the group again.
pub fn restore_group(staged: &mut StagedTxn<'_>, group: &str) {
    for policy in policies_of(staged, group) {
        refresh(staged, group, &policy);
    }
}

/// Expands the policies that have no expansion on a group, and deletes expansions without a policy or group. What
/// an expansion contains is not compared.
pub fn restore_keys(staged: &mut StagedTxn<'_>) {
    let expansions = Expansions::of(staged);
    for (id, (group, policy)) in &expansions.known {
        if !staged.has_derived::<PolicyState>(id) {
            refresh(staged, group, policy);
        }
    }
    for (id, _) in staged.cache().derived::<PolicyState>().filter(|(id, _)| !expansions.has(id)) {
        let directed = staged.derived_ids::<DirectionalRuleState>(&format!("{id}:"));
        put_directed(staged, directed, BTreeMap::new());
        staged.derive::<PolicyState>(&id, None);
    }
}

/// Deletes the directional rules among `ids` without a policy on a group.
pub fn delete_detached(staged: &mut StagedTxn<'_>, ids: &BTreeSet<String>) {
    let expansions = Expansions::of(staged);
    for id in ids.iter().filter(|id| !expansions.has_directed(id)) {
        staged.derive::<DirectionalRuleState>(id, None);
    }
}

/// Expansions that must exist, or stay as they are because they are derived from what cannot be decoded.
pub struct Expansions {
    /// Groups and policies by the id of the expansion.
    known: HashMap<String, (String, String)>,
    /// Keys of groups that cannot be decoded: all expansions on them stay.
    unreadable: HashSet<String>,
}

impl Expansions {
    pub fn of(staged: &StagedTxn<'_>) -> Expansions {
        let cache = staged.cache();
        let pairs = cache.all::<EndpointGroup>().flat_map(|EndpointGroup { key, .. }| {
            policies_of(staged, key).into_iter().map(move |policy| (key.clone(), policy))
        });
        let pairs = pairs.filter(|(group, policy)| {
            number_if_attached(staged, group, policy).is_some() || is_kept(staged, group, policy)
        });
        let known = pairs.map(|(group, policy)| (attached_id(&group, &policy), (group, policy))).collect();
        Expansions { known, unreadable: cache.unreadable_ids::<EndpointGroup>().map(str::to_owned).collect() }
    }

    fn has(&self, id: &str) -> bool {
        self.known.contains_key(id) || self.is_on_unreadable(id)
    }

    /// Whether a directional rule is of one of the expansions. The id of one ends at the fourth colon, unless a name contains
    /// colons.
    pub fn has_directed(&self, id: &str) -> bool {
        let mut ends = id.match_indices(':').skip(3);
        ends.any(|(end, _)| self.known.contains_key(&id[..end])) || self.is_on_unreadable(id)
    }

    /// The key of the group ends at the second colon, unless a name contains colons.
    fn is_on_unreadable(&self, id: &str) -> bool {
        let mut ends = id.match_indices(':').skip(1);
        !self.unreadable.is_empty() && ends.any(|(end, _)| self.unreadable.contains(&id[..end]))
    }
}

/// Fails if [`restore_policies`] would write more than [`MAX_EXPANDED_RULES`] rules when the cluster leaves ACI mode, or
/// policies that are derived from what cannot be decoded.
pub fn check_restore_policies(staged: &StagedTxn<'_>) -> Result<(), Problem> {
    check_all_decodable(staged)?;
    let policies = staged.cache().all::<Policy>();
    let written: usize = policies.map(|policy| rules_on_all_groups(&policy.key, staged)).sum();
    if written <= MAX_EXPANDED_RULES {
        return Ok(());
    }
    Err(Problem::conflict(format!(
        "leave ACI mode: the policies have {written} rules on all their groups, and this change writes all of them; the limit is {MAX_EXPANDED_RULES}; take policies off groups first"
    )))
}

/// Expands all policies on all groups again, and deletes expansions without a policy or group.
pub fn restore_policies(staged: &mut StagedTxn<'_>) {
    for group in staged.cache().all::<EndpointGroup>() {
        restore_group(staged, &group.key);
    }
    restore_keys(staged);
}

fn policies_of(staged: &StagedTxn<'_>, group: &str) -> Vec<String> {
    let group = staged.get::<EndpointGroup>(group);
    group.map(|group| group.link_sets.policies.keys().cloned().collect()).unwrap_or_default()
}
