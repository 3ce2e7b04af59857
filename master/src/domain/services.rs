//! Providers of services (INVENTORY 1.6).
//!
//! An endpoint whose container runs is a provider of every service of its tenant whose selectors
//! are all among the endpoint's labels. The order of creation does not matter.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::service::{Provider, Providers, State};
use contiv_model::{api, endpoint, network};

use super::network_record::network_record;
use crate::cache::{Labels, StagedTxn};

/// State key `<service>:<tenant>`. The object key has the reverse order.
pub fn state_key(service: &str, tenant: &str) -> String {
    format!("{service}:{tenant}")
}

/// Labels of the endpoint, if its container runs.
fn labels(endpoint: &endpoint::State) -> Option<&Labels> {
    endpoint.labels.as_ref().filter(|_| !endpoint.container_id.is_empty())
}

fn selects(service: &State, labels: &Labels) -> bool {
    let mut selectors = service.selectors.iter().flatten().peekable();
    selectors.peek().is_some() && selectors.all(|(name, value)| labels.get(name) == Some(value))
}

/// Key of a provider within its service.
fn provider_key(endpoint: &endpoint::State, tenant: &str) -> String {
    format!("{}:{tenant}", endpoint.ip_address)
}

fn provider(endpoint: &endpoint::State, network: &network::State, services: Vec<String>) -> Provider {
    Provider {
        ip_address: endpoint.ip_address.clone(),
        container_id: endpoint.container_id.clone(),
        labels: endpoint.labels.clone(),
        tenant: network.tenant.clone(),
        network: network.network_name.clone(),
        services: Some(services),
        container: String::new(),
        endpoint: endpoint.id.clone(),
    }
}

/// Updates the services after an endpoint changed or was deleted. `old` is the endpoint before the
/// change.
pub fn update_providers(old: &endpoint::State, staged: &mut StagedTxn<'_>) {
    let Some(network) = staged.committed::<network::State>(&old.net_id) else {
        return remove_from_services(old, staged);
    };
    let network = &network.body;
    let new = staged.get::<endpoint::State>(&old.id);
    let chosen = |staged: &StagedTxn<'_>, id: &str| {
        let labels = new.as_deref().and_then(labels);
        staged.get::<State>(id).zip(labels).is_some_and(|(service, labels)| selects(&service, labels))
    };
    let services = affected_services(old, new.as_deref(), &network.tenant, staged);
    let serves: Vec<String> = services.iter().filter(|id| chosen(staged, id)).cloned().collect();
    let key = provider_key(old, &network.tenant);
    for id in &services {
        let entry = match new.as_deref() {
            Some(endpoint) if serves.contains(id) => Some(provider(endpoint, network, serves.clone())),
            _ => None,
        };
        set_provider(id, &key, &old.id, entry, staged);
    }
}

/// Removes an endpoint whose network was deleted before it.
fn remove_from_services(old: &endpoint::State, staged: &mut StagedTxn<'_>) {
    let services: Vec<String> = staged.cache().services_of(&old.id).map(str::to_owned).collect();
    services.iter().for_each(|id| set_provider(id, "", &old.id, None, staged));
}

/// Services that have the endpoint as a provider, or whose first selector matches its old or new
/// labels.
fn affected_services(
    old: &endpoint::State,
    new: Option<&endpoint::State>,
    tenant: &str,
    staged: &StagedTxn<'_>,
) -> BTreeSet<String> {
    let cache = staged.cache();
    let labels = [Some(old), new].into_iter().flatten().filter_map(|endpoint| endpoint.labels.as_ref());
    let selecting = labels.flat_map(|labels| cache.services_selecting(tenant, labels));
    cache.services_of(&old.id).chain(selecting).map(str::to_owned).collect()
}

/// Adds, replaces or removes the endpoint as a provider of the service.
fn set_provider(id: &str, key: &str, endpoint: &str, entry: Option<Provider>, staged: &mut StagedTxn<'_>) {
    let Some(service) = staged.get::<State>(id) else { return };
    let has = |key: &str| service.providers.as_ref().and_then(|providers| providers.get(key));
    // Other programs may use another key for the same endpoint.
    let elsewhere = || {
        let mut all = service.providers.iter().flatten();
        all.find(|(known, p)| *known != key && p.endpoint == endpoint).map(|(known, _)| known.clone())
    };
    let obsolete = match has(key) {
        Some(known) if known.endpoint == endpoint => None,
        _ => elsewhere(),
    };
    // If two endpoints share an address, the entry may belong to the other one.
    let current = has(key).filter(|known| entry.is_some() || known.endpoint == endpoint);
    if obsolete.is_none() && current == entry.as_ref() {
        return;
    }
    let mut state = (*service).clone();
    let providers = state.providers.get_or_insert_default();
    if let Some(obsolete) = obsolete {
        providers.remove(&obsolete);
    }
    match entry {
        Some(entry) => drop(providers.insert(key.to_owned(), entry)),
        None if current.is_some() => drop(providers.remove(key)),
        None => {}
    }
    put(state, staged);
}

/// Puts the state of a service with its current providers. The transaction must not change
/// endpoints as well.
pub fn put_with_providers(mut state: State, staged: &mut StagedTxn<'_>) {
    let tenant = &state.tenant_name;
    let known = staged.get::<State>(&state.id).and_then(|known| known.providers.clone()).unwrap_or_default();
    let mut providers = BTreeMap::new();
    for (network, endpoint, labels) in selected(&state, staged) {
        let mut serves = affected_services(endpoint, None, tenant, staged);
        serves.retain(|id| staged.get::<State>(id).is_some_and(|service| selects(&service, labels)));
        serves.insert(state.id.clone());
        let key = provider_key(endpoint, tenant);
        let entry = provider(endpoint, network, serves.into_iter().collect());
        // The list of services in an entry is kept as of the time of its creation.
        let as_known = known
            .get(&key)
            .filter(|known| **known == Provider { services: known.services.clone(), ..entry.clone() });
        providers.insert(key, as_known.cloned().unwrap_or(entry));
    }
    state.providers = Some(providers);
    put(state, staged);
}

/// Endpoints of the tenant that the service selects, with their networks and labels.
fn selected<'w>(
    service: &State,
    staged: &StagedTxn<'w>,
) -> Vec<(&'w network::State, &'w endpoint::State, &'w Labels)> {
    let (cache, tenant) = (staged.cache(), &service.tenant_name);
    let Some((name, value)) = service.selectors.iter().flatten().next() else { return vec![] };
    let networks = staged.linked::<api::Tenant, api::Network>(tenant);
    let mut found = vec![];
    for network in networks.iter().filter_map(|key| key.split_once(':')).map(|(_, name)| name) {
        let Some(network) = network_record(cache, tenant, network) else { continue };
        let endpoints = cache
            .endpoints_with_label(&network.body.id, (name, value))
            .filter_map(|id| cache.get::<endpoint::State>(id));
        found.extend(endpoints.filter_map(|endpoint| {
            let labels = labels(endpoint).filter(|labels| selects(service, labels))?;
            Some((&network.body, endpoint, labels))
        }));
    }
    found
}

/// Puts the state and the list of provider addresses that agents read.
fn put(state: State, staged: &mut StagedTxn<'_>) {
    let id = state.id.clone();
    let addresses: Vec<String> =
        state.providers.iter().flat_map(BTreeMap::values).map(|p| p.ip_address.clone()).collect();
    let providers = Providers {
        id: id.clone(),
        service_name: id.clone(),
        // The original writes an empty list as null.
        providers: (!addresses.is_empty()).then_some(addresses),
    };
    if staged.get::<Providers>(&id).is_none_or(|known| *known != providers) {
        staged.put(&id, providers);
    }
    if staged.get::<State>(&id).is_none_or(|known| *known != state) {
        staged.put(&id, state);
    }
}

pub fn delete(id: &str, staged: &mut StagedTxn<'_>) {
    if staged.get::<Providers>(id).is_some() {
        staged.delete::<Providers>(id);
    }
    if staged.get::<State>(id).is_some() {
        staged.delete::<State>(id);
    }
}
