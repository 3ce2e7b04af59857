//! Restores state that is derived from objects when a netmaster becomes leader: links in the records
//! of the referring objects, services, and policies as nodes read them. Another program may have changed the
//! store. Links to referring objects, which older releases stored, are removed.

use contiv_model::api::{
    AppProfile, EndpointGroup, ExtContractsGroup, Link, Netprofile, Network, Policy, Rule, Tenant,
};
use contiv_model::group;
use contiv_model::key::ObjectType;

use crate::cache::{AllocationRecord, StagedTxn, Traffic, clear_stored_links};
use crate::domain::attachment::{remote_name, restore_keys, state_key};
use crate::domain::object_key;
use crate::objects::{Object, restore_services};

/// Stages all missing, wrong or obsolete derived state, except what expansions of policies contain
/// ([`restore_group`](crate::domain::attachment::restore_group)). Records that cannot be decoded stay, and so does what
/// is derived from them. Must be in a transaction of its own: agents take an expansion for lost that is deleted without
/// a change of its group or policy.
pub fn restore(staged: &mut StagedTxn<'_>) {
    restore_links(staged);
    restore_traffic(staged);
    restore_keys(staged);
    restore_services(staged);
    staged.keep_unreadable();
}

/// Puts each object of `T` that `update` changes.
fn update_all<T: Object + PartialEq>(staged: &mut StagedTxn<'_>, update: impl Fn(&mut T, &StagedTxn<'_>)) {
    let cache = staged.cache();
    for object in cache.all::<T>() {
        let mut new = object.clone();
        update(&mut new, staged);
        if new != *object {
            staged.put(object.key(), new);
        }
    }
}

/// Link to the object; empty if it does not exist.
fn link<T: Object>(staged: &StagedTxn<'_>, key: &str) -> Link {
    match staged.exists::<T>(key) {
        true => Link::to(T::KIND, key),
        false => Link::default(),
    }
}

fn restore_links(staged: &mut StagedTxn<'_>) {
    update_all::<Tenant>(staged, |tenant, _| clear_stored_links(tenant));
    update_all::<ExtContractsGroup>(staged, |contracts, _| clear_stored_links(contracts));
    update_all::<Network>(staged, |network, staged| {
        clear_stored_links(network);
        network.links.tenant = link::<Tenant>(staged, &network.tenant_name);
    });
    update_all::<Policy>(staged, |policy, staged| {
        clear_stored_links(policy);
        policy.links.tenant = link::<Tenant>(staged, &policy.tenant_name);
    });
    update_all::<Netprofile>(staged, |profile, staged| {
        clear_stored_links(profile);
        profile.links.tenant = link::<Tenant>(staged, &profile.tenant_name);
    });
    restore_links_of_rules(staged);
    update_all::<EndpointGroup>(staged, |group, staged| {
        clear_stored_links(group);
        let policies = policies_of(group).into_iter().filter(|key| staged.exists::<Policy>(key));
        group.link_sets.policies =
            policies.map(|key| (key.clone(), Link::to(ObjectType::Policy, key))).collect();
        let contracts = contracts_of(group).into_iter();
        let contracts = contracts.filter(|key| staged.exists::<ExtContractsGroup>(key));
        group.link_sets.ext_contracts_grps =
            contracts.map(|key| (key.clone(), Link::to(ObjectType::ExtContractsGroup, key))).collect();
        group.links.net_profile =
            profile_of(group).map(|key| link::<Netprofile>(staged, &key)).unwrap_or_default();
        group.links.network = link::<Network>(staged, &object_key(&group.tenant_name, &group.network_name));
        group.links.tenant = link::<Tenant>(staged, &group.tenant_name);
        group.links.app_profile = link::<AppProfile>(staged, &group.links.app_profile.key);
    });
}

fn policies_of(group: &EndpointGroup) -> Vec<String> {
    group.policies.iter().map(|name| object_key(&group.tenant_name, name)).collect()
}

fn contracts_of(group: &EndpointGroup) -> Vec<String> {
    group.ext_contracts_grps.iter().map(|name| object_key(&group.tenant_name, name)).collect()
}

fn profile_of(group: &EndpointGroup) -> Option<String> {
    (!group.net_profile.is_empty()).then(|| object_key(&group.tenant_name, &group.net_profile))
}

fn remote_of(rule: &Rule) -> Option<String> {
    let name = remote_name(rule);
    (!name.is_empty()).then(|| object_key(&rule.tenant_name, name))
}

/// Rules may be many: of those that are right, nothing is copied or built.
fn restore_links_of_rules(staged: &mut StagedTxn<'_>) {
    for rule in staged.cache().all::<Rule>() {
        let policy = Some(object_key(&rule.tenant_name, &rule.policy_name));
        let policy = policy.filter(|key| staged.exists::<Policy>(key));
        let group = remote_of(rule).filter(|key| staged.exists::<EndpointGroup>(key));
        if has_links(rule, policy.as_deref(), group.as_deref()) {
            continue;
        }
        let mut rule = rule.clone();
        let link = |key: String| (key.clone(), Link::to(ObjectType::Policy, key));
        rule.link_sets.policies = policy.into_iter().map(link).collect();
        rule.links.match_endpoint_group =
            group.map(|key| Link::to(ObjectType::EndpointGroup, key)).unwrap_or_default();
        staged.put(&rule.key.clone(), rule);
    }
}

/// Whether the links of the rule are to `policy` and to `group`, and to nothing else.
fn has_links(rule: &Rule, policy: Option<&str>, group: Option<&str>) -> bool {
    let is = |link: &Link, kind: ObjectType, key: &str| link.kind == kind.as_str() && link.key == key;
    let policies = &rule.link_sets.policies;
    let has_policy = policies.len() == usize::from(policy.is_some())
        && policy.is_none_or(|key| policies.get(key).is_some_and(|link| is(link, ObjectType::Policy, key)));
    let linked = &rule.links.match_endpoint_group;
    let has_group =
        group.map_or(*linked == Link::default(), |key| is(linked, ObjectType::EndpointGroup, key));
    has_policy && has_group
}

/// Restores the traffic settings that groups have from network profiles.
fn restore_traffic(staged: &mut StagedTxn<'_>) {
    let cache = staged.cache();
    for group in cache.all::<EndpointGroup>() {
        let (key, profile) = (state_key(&group.key), profile_of(group));
        if cache.is_unreadable::<EndpointGroup>(&group.key)
            || cache.is_unreadable_allocation::<group::State>(&key)
            || profile.as_ref().is_some_and(|key| cache.is_unreadable::<Netprofile>(key))
        {
            continue;
        }
        let profile = profile.and_then(|key| staged.get::<Netprofile>(&key));
        let wanted = profile.map(|profile| Traffic::of(&profile)).unwrap_or_default();
        let differs = |record: &AllocationRecord<group::State>| Traffic::of_group(&record.body) != wanted;
        if staged.committed::<group::State>(&key).is_some_and(differs)
            && let Some((_, change)) = staged.allocation::<group::State>(&key)
        {
            change.traffic = Some(wanted);
        }
    }
}
