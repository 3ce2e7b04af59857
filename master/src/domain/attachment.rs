//! What follows from policies being on groups: kept right by whoever changes a group, a policy or a rule.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::api::{EndpointGroup, Link, Network, Policy, Rule};
use contiv_model::key::ObjectType;
use contiv_model::policy::{DirectionalRule, DirectionalRuleState, ExpandedRule, PolicyState, expand};

use super::fabric;
use super::object_key;
use crate::cache::Draft;

/// `<group>:<tenant>` of the object's key, `<tenant>:<group>`.
pub fn state_key(group: &str) -> String {
    group.split_once(':').map(|(tenant, name)| format!("{name}:{tenant}")).unwrap_or_default()
}

/// The name of the group that the rule names, or nothing.
pub fn remote_name(rule: &Rule) -> &str {
    if rule.from_endpoint_group.is_empty() { &rule.to_endpoint_group } else { &rule.from_endpoint_group }
}

/// The groups that `policy` is on have several of its rules changed.
pub fn refresh_policy(draft: &mut Draft<'_>, policy: &str) {
    for group in groups(draft, policy) {
        refresh(draft, &group, policy);
    }
}

/// The groups that `policy` is on have `rule` made or gone. Costs the same however many rules there are.
pub fn refresh_rule(draft: &mut Draft<'_>, policy: &str, rule: &str) {
    for group in groups(draft, policy) {
        let (id, number) = (attached_id(&group, policy), draft.group_number(&state_key(&group)));
        match draft.get::<PolicyState>(&id).map(|state| state.group) {
            Some(known) if Some(known) == number => refresh_one(draft, &id, known, policy, rule),
            _ => refresh(draft, &group, policy),
        }
    }
}

fn groups(draft: &Draft<'_>, policy: &str) -> Vec<String> {
    match draft.get::<Policy>(policy) {
        Some(policy) => policy.link_sets.endpoint_groups.keys().cloned().collect(),
        None => vec![],
    }
}

pub fn attached_id(group: &str, policy: &str) -> String {
    format!("{group}:{policy}")
}

fn refresh_one(draft: &mut Draft<'_>, id: &str, number: i64, policy: &str, rule: &str) {
    let in_policy =
        draft.get::<Policy>(policy).is_some_and(|policy| policy.link_sets.rules.contains_key(rule));
    let new = if in_policy { expanded(draft, id, number, rule) } else { None };
    let directed = new.as_ref().map(|new| new.directed.clone()).unwrap_or_default();
    let Some(state) = draft.edit::<PolicyState>(id) else { return };
    let old = match new {
        Some(new) => state.rules.insert(rule.to_owned(), new),
        None => state.rules.remove(rule),
    };
    put_directed(draft, old.into_iter().flat_map(|old| old.directed.into_keys()), directed);
}

/// Makes what the store has of `policy` on `group` what follows from the objects.
pub fn refresh(draft: &mut Draft<'_>, group: &str, policy: &str) {
    let id = attached_id(group, policy);
    let old = draft.get::<PolicyState>(&id);
    let new = attached(draft, &id, group, policy);
    let rules = |state: &PolicyState| state.rules.values().flat_map(|rule| rule.directed.clone()).collect();
    let before: BTreeMap<String, DirectionalRule> = old.as_deref().map(rules).unwrap_or_default();
    put_directed(draft, before.into_keys(), new.as_ref().map(rules).unwrap_or_default());
    match (old, new) {
        (Some(_), None) => draft.delete::<PolicyState>(&id),
        (old, Some(new)) if old.as_deref() != Some(&new) => draft.put(&id, new),
        _ => {}
    }
}

/// The rules of one direction: `new` ones instead of those that had the ids `old`.
fn put_directed(
    draft: &mut Draft<'_>,
    old: impl Iterator<Item = String>,
    new: BTreeMap<String, DirectionalRule>,
) {
    for gone in old.filter(|id| !new.contains_key(id)) {
        if draft.get::<DirectionalRuleState>(&gone).is_some() {
            draft.delete::<DirectionalRuleState>(&gone);
        }
    }
    for (id, rule) in new {
        let rule = DirectionalRuleState { id: String::new(), rule };
        if draft.get::<DirectionalRuleState>(&id).is_none_or(|known| *known != rule) {
            draft.put(&id, rule);
        }
    }
}

/// None if the policy is not on the group, or one of them is gone; at an ACI fabric, always.
fn attached(draft: &mut Draft<'_>, id: &str, group: &str, policy: &str) -> Option<PolicyState> {
    let policy = draft.get::<Policy>(policy).filter(|p| p.link_sets.endpoint_groups.contains_key(group))?;
    draft.get::<EndpointGroup>(group)?;
    // There the fabric does what policies say.
    if fabric::is_on(draft) {
        return None;
    }
    let number = draft.group_number(&state_key(group))?;
    let mut state = PolicyState { id: id.into(), key: id.into(), group: number, ..PolicyState::default() };
    for key in policy.link_sets.rules.keys() {
        if let Some(rule) = expanded(draft, id, number, key) {
            state.rules.insert(key.clone(), rule);
        }
    }
    Some(state)
}

/// The rule on the group with that number; none if there is no such rule.
fn expanded(draft: &mut Draft<'_>, attached: &str, number: i64, key: &str) -> Option<ExpandedRule> {
    let rule = resolved(draft, key)?;
    let directed = match remote(draft, &rule) {
        Some(remote) => expand(attached, number, remote, &rule, v6_of_network(draft, &rule).as_deref()),
        // What names a group that is gone must not be taken for a rule about all.
        None => BTreeMap::new(),
    };
    Some(ExpandedRule { rule, directed })
}

/// The rule; a network that it names stands in it as addresses from when the rule is first on a group.
fn resolved(draft: &mut Draft<'_>, key: &str) -> Option<Rule> {
    let mut rule = (*draft.get::<Rule>(key)?).clone();
    let subnet = |name: &str| {
        draft.get::<Network>(&object_key(&rule.tenant_name, name)).map(|network| network.subnet.clone())
    };
    let from = subnet(&rule.from_network).filter(|_| rule.from_ip_address.is_empty());
    let to = subnet(&rule.to_network).filter(|_| rule.to_ip_address.is_empty());
    if from.is_some() || to.is_some() {
        rule.from_ip_address = from.unwrap_or(rule.from_ip_address);
        rule.to_ip_address = to.unwrap_or(rule.to_ip_address);
        draft.put(key, rule.clone());
    }
    Some(rule)
}

/// The IPv6 subnet of the network that the rule names.
fn v6_of_network(draft: &Draft<'_>, rule: &Rule) -> Option<String> {
    let name = if rule.from_network.is_empty() { &rule.to_network } else { &rule.from_network };
    let network = draft.get::<Network>(&object_key(&rule.tenant_name, name))?;
    Some(network.ipv6_subnet.clone()).filter(|subnet| !subnet.is_empty())
}

/// The number of the group that the rule names: 0 if it names none, nothing if there is none.
fn remote(draft: &Draft<'_>, rule: &Rule) -> Option<i64> {
    let link = &rule.links.match_endpoint_group.key;
    match remote_name(rule) {
        "" => Some(0),
        _ if link.is_empty() => None,
        _ => draft.group_number(&state_key(link)),
    }
}

/// Rules that name the group `key` of `tenant`, which was made, know it (again). Gives them, to be linked.
pub fn rules_naming(draft: &Draft<'_>, tenant: &str, name: &str) -> Vec<Rule> {
    let rules = draft.world().all::<Rule>();
    rules.filter(|rule| rule.tenant_name == tenant && remote_name(rule) == name).cloned().collect()
}

/// Links the rules to the group `key`, or to none, and expands them anew.
pub fn link_rules(draft: &mut Draft<'_>, rules: Vec<Rule>, key: Option<&str>) {
    let mut policies = BTreeSet::new();
    for mut rule in rules {
        let link = key.map(|key| Link::to(ObjectType::EndpointGroup, key)).unwrap_or_default();
        policies.insert(object_key(&rule.tenant_name, &rule.policy_name));
        if rule.links.match_endpoint_group != link {
            rule.links.match_endpoint_group = link;
            draft.put(&rule.key.clone(), rule);
        }
    }
    for policy in policies {
        refresh_policy(draft, &policy);
    }
}

/// The policies on groups, and their rules by direction; what is of none is deleted.
pub fn restore_policies(draft: &mut Draft<'_>) {
    let world = draft.world();
    let mut attached: BTreeSet<String> = BTreeSet::new();
    let mut directed: BTreeSet<String> = BTreeSet::new();
    for group in world.all::<EndpointGroup>() {
        let policies = draft.get::<EndpointGroup>(&group.key).map(|group| group.link_sets.policies.clone());
        for policy in policies.unwrap_or_default().keys() {
            refresh(draft, &group.key, policy);
            let id = attached_id(&group.key, policy);
            if let Some(state) = draft.get::<PolicyState>(&id) {
                directed.extend(state.rules.values().flat_map(|rule| rule.directed.keys().cloned()));
                attached.insert(id);
            }
        }
    }
    let strays = world.table::<PolicyState>().keys().filter(|id| !attached.contains(*id));
    strays.for_each(|id| draft.delete::<PolicyState>(id));
    let strays = world.table::<DirectionalRuleState>().keys().filter(|id| !directed.contains(*id));
    strays.for_each(|id| draft.delete::<DirectionalRuleState>(id));
}
