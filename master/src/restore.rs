//! Restores state that is derived from objects when a netmaster becomes leader: links, and policies
//! as nodes read them. Another program may have changed the store.

use std::collections::BTreeMap;

use contiv_model::api::{
    AppProfile, EndpointGroup, ExtContractsGroup, Link, LinkSet, Netprofile, Network, Policy, Rule,
    ServiceLb, Tenant,
};
use contiv_model::group;
use contiv_model::key::ObjectType;

use crate::cache::{AllocationRecord, StagedTxn, Traffic};
use crate::domain::attachment::{remote_name, restore_policies, state_key};
use crate::domain::object_key;
use crate::objects::{Object, restore_services};

/// Stages all missing, wrong or obsolete derived state. Must be the first plan, in a transaction of
/// its own.
pub fn restore(staged: &mut StagedTxn<'_>) {
    restore_links(staged);
    restore_traffic(staged);
    restore_policies(staged);
    restore_services(staged);
}

/// Desired links to objects of `T`, by the key that links to them.
fn links<T: Object>(staged: &StagedTxn<'_>, target: impl Fn(&T) -> Vec<String>) -> BTreeMap<String, LinkSet> {
    let mut all: BTreeMap<String, LinkSet> = BTreeMap::new();
    for object in staged.cache().all::<T>() {
        for key in target(object) {
            let link = Link::to(T::KIND, object.key());
            all.entry(key).or_default().insert(object.key().to_owned(), link);
        }
    }
    all
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
    match staged.get::<T>(key) {
        Some(_) => Link::to(T::KIND, key),
        None => Link::default(),
    }
}

fn restore_links(staged: &mut StagedTxn<'_>) {
    let in_tenant = |name: &String| vec![name.clone()];
    let tenant_groups = links::<EndpointGroup>(staged, |group| in_tenant(&group.tenant_name));
    let tenant_networks = links::<Network>(staged, |network| in_tenant(&network.tenant_name));
    let tenant_policies = links::<Policy>(staged, |policy| in_tenant(&policy.tenant_name));
    let tenant_profiles = links::<Netprofile>(staged, |profile| in_tenant(&profile.tenant_name));
    let tenant_apps = links::<AppProfile>(staged, |profile| in_tenant(&profile.tenant_name));
    let tenant_services = links::<ServiceLb>(staged, |service| in_tenant(&service.tenant_name));
    let network_services =
        links::<ServiceLb>(staged, |service| vec![object_key(&service.tenant_name, &service.network_name)]);
    let contracts_groups = links::<EndpointGroup>(staged, contracts_of);
    let network_groups =
        links::<EndpointGroup>(staged, |group| vec![object_key(&group.tenant_name, &group.network_name)]);
    let policy_groups = links::<EndpointGroup>(staged, policies_of);
    let policy_rules = links::<Rule>(staged, |rule| vec![object_key(&rule.tenant_name, &rule.policy_name)]);
    let profile_groups = links::<EndpointGroup>(staged, |group| profile_of(group).into_iter().collect());
    let group_rules = links::<Rule>(staged, |rule| remote_of(rule).into_iter().collect());
    let of = |all: &BTreeMap<String, LinkSet>, key: &str| all.get(key).cloned().unwrap_or_default();

    update_all::<Tenant>(staged, |tenant, _| {
        let (key, sets) = (&tenant.tenant_name, &mut tenant.link_sets);
        sets.endpoint_groups = of(&tenant_groups, key);
        sets.networks = of(&tenant_networks, key);
        sets.policies = of(&tenant_policies, key);
        sets.net_profiles = of(&tenant_profiles, key);
        sets.app_profiles = of(&tenant_apps, key);
        sets.servicelbs = of(&tenant_services, key);
    });
    update_all::<Network>(staged, |network, staged| {
        network.link_sets.endpoint_groups = of(&network_groups, &network.key);
        network.link_sets.servicelbs = of(&network_services, &network.key);
        network.links.tenant = link::<Tenant>(staged, &network.tenant_name);
    });
    update_all::<Policy>(staged, |policy, staged| {
        policy.link_sets.endpoint_groups = of(&policy_groups, &policy.key);
        policy.link_sets.rules = of(&policy_rules, &policy.key);
        policy.links.tenant = link::<Tenant>(staged, &policy.tenant_name);
    });
    update_all::<ExtContractsGroup>(staged, |contracts, _| {
        contracts.link_sets.endpoint_groups = of(&contracts_groups, &contracts.key);
    });
    update_all::<Netprofile>(staged, |profile, staged| {
        profile.link_sets.endpoint_groups = of(&profile_groups, &profile.key);
        profile.links.tenant = link::<Tenant>(staged, &profile.tenant_name);
    });
    update_all::<Rule>(staged, |rule, staged| {
        let policy = object_key(&rule.tenant_name, &rule.policy_name);
        rule.link_sets.policies = match staged.get::<Policy>(&policy) {
            Some(_) => LinkSet::from([(policy.clone(), Link::to(ObjectType::Policy, policy))]),
            None => LinkSet::new(),
        };
        let remote = remote_of(rule);
        rule.links.match_endpoint_group =
            remote.map(|key| link::<EndpointGroup>(staged, &key)).unwrap_or_default();
    });
    update_all::<EndpointGroup>(staged, |group, staged| {
        group.link_sets.match_rules = of(&group_rules, &group.key);
        let policies = policies_of(group).into_iter().filter(|key| staged.get::<Policy>(key).is_some());
        group.link_sets.policies =
            policies.map(|key| (key.clone(), Link::to(ObjectType::Policy, key))).collect();
        let contracts = contracts_of(group).into_iter();
        let contracts = contracts.filter(|key| staged.get::<ExtContractsGroup>(key).is_some());
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

/// Restores the traffic settings that groups have from network profiles.
fn restore_traffic(staged: &mut StagedTxn<'_>) {
    for group in staged.cache().all::<EndpointGroup>() {
        let profile = profile_of(group).and_then(|key| staged.get::<Netprofile>(&key));
        let wanted = profile.map(|profile| Traffic::of(&profile)).unwrap_or_default();
        let key = state_key(&group.key);
        let differs = |record: &AllocationRecord<group::State>| Traffic::of_group(&record.body) != wanted;
        if staged.committed::<group::State>(&key).is_some_and(differs)
            && let Some((_, change)) = staged.allocation::<group::State>(&key)
        {
            change.traffic = Some(wanted);
        }
    }
}
