//! What follows from the objects is made so again when a netmaster begins to lead: links, and policies as the nodes read
//! them. Somebody may have edited the store, or another program may have written it.

use std::collections::BTreeMap;

use contiv_model::api::{
    AppProfile, EndpointGroup, ExtContractsGroup, Link, LinkSet, Netprofile, Network, Policy, Rule,
    ServiceLb, Tenant,
};
use contiv_model::group;
use contiv_model::key::ObjectType;

use crate::cache::{Draft, Ledger, Traffic};
use crate::domain::attachment::{remote_name, restore_policies, state_key};
use crate::domain::object_key;
use crate::objects::{Object, restore_services};

/// Plans whatever is missing, wrong or left over. Planned alone, and first.
pub fn restore(draft: &mut Draft<'_>) {
    restore_links(draft);
    restore_traffic(draft);
    restore_policies(draft);
    restore_services(draft);
}

/// For each key that is linked to, the keys of `T` that it is to have links to.
fn links<T: Object>(draft: &Draft<'_>, target: impl Fn(&T) -> Vec<String>) -> BTreeMap<String, LinkSet> {
    let mut all: BTreeMap<String, LinkSet> = BTreeMap::new();
    for object in draft.world().all::<T>() {
        for key in target(object) {
            let link = Link::to(T::KIND, object.key());
            all.entry(key).or_default().insert(object.key().to_owned(), link);
        }
    }
    all
}

/// Puts each object of `T` that `mend` changes.
fn mend<T: Object + PartialEq>(draft: &mut Draft<'_>, mend: impl Fn(&mut T, &Draft<'_>)) {
    let world = draft.world();
    for object in world.all::<T>() {
        let mut new = object.clone();
        mend(&mut new, draft);
        if new != *object {
            draft.put(object.key(), new);
        }
    }
}

/// A link to what is there, else none.
fn link<T: Object>(draft: &Draft<'_>, key: &str) -> Link {
    match draft.get::<T>(key) {
        Some(_) => Link::to(T::KIND, key),
        None => Link::default(),
    }
}

fn restore_links(draft: &mut Draft<'_>) {
    let in_tenant = |name: &String| vec![name.clone()];
    let tenant_groups = links::<EndpointGroup>(draft, |group| in_tenant(&group.tenant_name));
    let tenant_networks = links::<Network>(draft, |network| in_tenant(&network.tenant_name));
    let tenant_policies = links::<Policy>(draft, |policy| in_tenant(&policy.tenant_name));
    let tenant_profiles = links::<Netprofile>(draft, |profile| in_tenant(&profile.tenant_name));
    let tenant_apps = links::<AppProfile>(draft, |profile| in_tenant(&profile.tenant_name));
    let tenant_services = links::<ServiceLb>(draft, |service| in_tenant(&service.tenant_name));
    let network_services =
        links::<ServiceLb>(draft, |service| vec![object_key(&service.tenant_name, &service.network_name)]);
    let contracts_groups = links::<EndpointGroup>(draft, contracts_of);
    let network_groups =
        links::<EndpointGroup>(draft, |group| vec![object_key(&group.tenant_name, &group.network_name)]);
    let policy_groups = links::<EndpointGroup>(draft, policies_of);
    let policy_rules = links::<Rule>(draft, |rule| vec![object_key(&rule.tenant_name, &rule.policy_name)]);
    let profile_groups = links::<EndpointGroup>(draft, |group| profile_of(group).into_iter().collect());
    let group_rules = links::<Rule>(draft, |rule| remote_of(rule).into_iter().collect());
    let of = |all: &BTreeMap<String, LinkSet>, key: &str| all.get(key).cloned().unwrap_or_default();

    mend::<Tenant>(draft, |tenant, _| {
        let (key, sets) = (&tenant.tenant_name, &mut tenant.link_sets);
        sets.endpoint_groups = of(&tenant_groups, key);
        sets.networks = of(&tenant_networks, key);
        sets.policies = of(&tenant_policies, key);
        sets.net_profiles = of(&tenant_profiles, key);
        sets.app_profiles = of(&tenant_apps, key);
        sets.servicelbs = of(&tenant_services, key);
    });
    mend::<Network>(draft, |network, draft| {
        network.link_sets.endpoint_groups = of(&network_groups, &network.key);
        network.link_sets.servicelbs = of(&network_services, &network.key);
        network.links.tenant = link::<Tenant>(draft, &network.tenant_name);
    });
    mend::<Policy>(draft, |policy, draft| {
        policy.link_sets.endpoint_groups = of(&policy_groups, &policy.key);
        policy.link_sets.rules = of(&policy_rules, &policy.key);
        policy.links.tenant = link::<Tenant>(draft, &policy.tenant_name);
    });
    mend::<ExtContractsGroup>(draft, |contracts, _| {
        contracts.link_sets.endpoint_groups = of(&contracts_groups, &contracts.key);
    });
    mend::<Netprofile>(draft, |profile, draft| {
        profile.link_sets.endpoint_groups = of(&profile_groups, &profile.key);
        profile.links.tenant = link::<Tenant>(draft, &profile.tenant_name);
    });
    mend::<Rule>(draft, |rule, draft| {
        let policy = object_key(&rule.tenant_name, &rule.policy_name);
        rule.link_sets.policies = match draft.get::<Policy>(&policy) {
            Some(_) => LinkSet::from([(policy.clone(), Link::to(ObjectType::Policy, policy))]),
            None => LinkSet::new(),
        };
        let remote = remote_of(rule);
        rule.links.match_endpoint_group =
            remote.map(|key| link::<EndpointGroup>(draft, &key)).unwrap_or_default();
    });
    mend::<EndpointGroup>(draft, |group, draft| {
        group.link_sets.match_rules = of(&group_rules, &group.key);
        let policies = policies_of(group).into_iter().filter(|key| draft.get::<Policy>(key).is_some());
        group.link_sets.policies =
            policies.map(|key| (key.clone(), Link::to(ObjectType::Policy, key))).collect();
        let contracts = contracts_of(group).into_iter();
        let contracts = contracts.filter(|key| draft.get::<ExtContractsGroup>(key).is_some());
        group.link_sets.ext_contracts_grps =
            contracts.map(|key| (key.clone(), Link::to(ObjectType::ExtContractsGroup, key))).collect();
        group.links.net_profile =
            profile_of(group).map(|key| link::<Netprofile>(draft, &key)).unwrap_or_default();
        group.links.network = link::<Network>(draft, &object_key(&group.tenant_name, &group.network_name));
        group.links.tenant = link::<Tenant>(draft, &group.tenant_name);
        group.links.app_profile = link::<AppProfile>(draft, &group.links.app_profile.key);
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

/// What profiles say of the groups that have them.
fn restore_traffic(draft: &mut Draft<'_>) {
    for group in draft.world().all::<EndpointGroup>() {
        let profile = profile_of(group).and_then(|key| draft.get::<Netprofile>(&key));
        let wanted = profile.map(|profile| Traffic::of(&profile)).unwrap_or_default();
        let key = state_key(&group.key);
        let differs = |ledger: &Ledger<group::State>| Traffic::in_force(&ledger.body) != wanted;
        if draft.ledger_before::<group::State>(&key).is_some_and(differs)
            && let Some((_, change)) = draft.ledger::<group::State>(&key)
        {
            change.traffic = Some(wanted);
        }
    }
}
