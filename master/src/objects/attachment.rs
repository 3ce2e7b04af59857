//! What follows from policies being on groups: kept right by whoever changes a group, a policy or a rule.

use std::collections::BTreeSet;

use contiv_model::api::{EndpointGroup, Link, Network, Policy, Rule};
use contiv_model::key::ObjectType;

use super::object_key;
use crate::policy::{Attached, DirectedState, Expanded, expand};
use crate::world::Draft;

/// `<group>:<tenant>` of the object's key, `<tenant>:<group>`.
pub(super) fn state_key(group: &str) -> String {
    group.split_once(':').map(|(tenant, name)| format!("{name}:{tenant}")).unwrap_or_default()
}

/// The name of the group that the rule names, or nothing.
pub(super) fn remote_name(rule: &Rule) -> &str {
    if rule.from_endpoint_group.is_empty() { &rule.to_endpoint_group } else { &rule.from_endpoint_group }
}

/// The groups that `policy` is on have `rule` changed, made or gone.
pub(super) fn refresh_policy(draft: &mut Draft<'_>, policy: &str) {
    let groups: Vec<String> = match draft.get::<Policy>(policy) {
        Some(policy) => policy.link_sets.endpoint_groups.keys().cloned().collect(),
        None => vec![],
    };
    for group in groups {
        refresh(draft, &group, policy);
    }
}

/// Makes what the store has of `policy` on `group` what follows from the objects.
pub(super) fn refresh(draft: &mut Draft<'_>, group: &str, policy: &str) {
    let id = format!("{group}:{policy}");
    let old = draft.get::<Attached>(&id);
    let new = attached(draft, &id, group, policy);
    let directed_of = |state: &Attached| -> Vec<_> {
        state.rules.values().flat_map(|rule| rule.directed.values().cloned()).collect()
    };
    let rules = new.as_ref().map(directed_of).unwrap_or_default();
    for gone in old.as_deref().map(directed_of).unwrap_or_default() {
        let stays = rules.iter().any(|rule| rule.rule_id == gone.rule_id);
        if !stays && draft.get::<DirectedState>(&gone.rule_id).is_some() {
            draft.delete::<DirectedState>(&gone.rule_id);
        }
    }
    for rule in rules {
        let rule = DirectedState { id: String::new(), rule };
        let id = rule.rule.rule_id.clone();
        if draft.get::<DirectedState>(&id).is_none_or(|known| *known != rule) {
            draft.put(&id, rule);
        }
    }
    match (old, new) {
        (Some(_), None) => draft.delete::<Attached>(&id),
        (old, Some(new)) if old.as_deref() != Some(&new) => draft.put(&id, new),
        _ => {}
    }
}

/// None if the policy is not on the group, or one of them is gone.
fn attached(draft: &mut Draft<'_>, id: &str, group: &str, policy: &str) -> Option<Attached> {
    let policy = draft.get::<Policy>(policy).filter(|p| p.link_sets.endpoint_groups.contains_key(group))?;
    draft.get::<EndpointGroup>(group)?;
    let number = draft.group_number(&state_key(group))?;
    let mut state = Attached { id: id.into(), key: id.into(), group: number, ..Attached::default() };
    for key in policy.link_sets.rules.keys() {
        let Some(rule) = resolved(draft, key) else { continue };
        let directed = match remote(draft, &rule) {
            Some(remote) => expand(id, number, remote, &rule),
            // What names a group that is gone must not be taken for a rule about all.
            None => Default::default(),
        };
        state.rules.insert(key.clone(), Expanded { rule, directed });
    }
    Some(state)
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
pub(super) fn rules_naming(draft: &Draft<'_>, tenant: &str, name: &str) -> Vec<Rule> {
    let rules = draft.world().all::<Rule>();
    rules.filter(|rule| rule.tenant_name == tenant && remote_name(rule) == name).cloned().collect()
}

/// Links the rules to the group `key`, or to none, and expands them anew.
pub(super) fn link_rules(draft: &mut Draft<'_>, rules: Vec<Rule>, key: Option<&str>) {
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
