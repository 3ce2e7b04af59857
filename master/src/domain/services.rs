//! Which endpoints are behind which services (INVENTORY 1.6).
//!
//! There is one rule, whoever came first: an endpoint whose container runs is behind every service of its tenant whose
//! selectors are all among its labels.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::service::{Provider, Providers, State};
use contiv_model::{api, endpoint, network};

use crate::cache::{Draft, Labels};

/// `<service>:<tenant>`: the other way round than the object's key.
pub fn state_key(service: &str, tenant: &str) -> String {
    format!("{service}:{tenant}")
}

/// The labels, if the container runs.
fn labels(endpoint: &endpoint::State) -> Option<&Labels> {
    endpoint.labels.as_ref().filter(|_| !endpoint.container_id.is_empty())
}

fn selects(service: &State, labels: &Labels) -> bool {
    let mut selectors = service.selectors.iter().flatten().peekable();
    selectors.peek().is_some() && selectors.all(|(name, value)| labels.get(name) == Some(value))
}

/// The key of a provider within its service.
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

/// The endpoint, which was `old`, has changed or is gone in the draft: the services follow.
pub fn follow(old: &endpoint::State, draft: &mut Draft<'_>) {
    let Some(network) = draft.ledger_before::<network::State>(&old.net_id) else {
        return drop_out(old, draft);
    };
    let network = &network.body;
    let new = draft.get::<endpoint::State>(&old.id);
    let chosen = |draft: &Draft<'_>, id: &str| {
        let labels = new.as_deref().and_then(labels);
        draft.get::<State>(id).zip(labels).is_some_and(|(service, labels)| selects(&service, labels))
    };
    let services = concerned(old, new.as_deref(), &network.tenant, draft);
    let serves: Vec<String> = services.iter().filter(|id| chosen(draft, id)).cloned().collect();
    let key = provider_key(old, &network.tenant);
    for id in &services {
        let entry = match new.as_deref() {
            Some(endpoint) if serves.contains(id) => Some(provider(endpoint, network, serves.clone())),
            _ => None,
        };
        place(id, &key, &old.id, entry, draft);
    }
}

/// The endpoint is gone, and its network before it.
fn drop_out(old: &endpoint::State, draft: &mut Draft<'_>) {
    let services: Vec<String> = draft.world().provided(&old.id).map(str::to_owned).collect();
    services.iter().for_each(|id| place(id, "", &old.id, None, draft));
}

/// Those that have the endpoint, had it, or select it.
fn concerned(
    old: &endpoint::State,
    new: Option<&endpoint::State>,
    tenant: &str,
    draft: &Draft<'_>,
) -> BTreeSet<String> {
    let world = draft.world();
    let labels = [Some(old), new].into_iter().flatten().filter_map(|endpoint| endpoint.labels.as_ref());
    let selecting = labels.flat_map(|labels| world.selecting(tenant, labels));
    world.provided(&old.id).chain(selecting).map(str::to_owned).collect()
}

/// Puts the endpoint behind the service, or takes it away.
fn place(id: &str, key: &str, endpoint: &str, entry: Option<Provider>, draft: &mut Draft<'_>) {
    let Some(service) = draft.get::<State>(id) else { return };
    let has = |key: &str| service.providers.as_ref().and_then(|providers| providers.get(key));
    // Another program may keep it under another key.
    let elsewhere = || {
        let mut all = service.providers.iter().flatten();
        all.find(|(known, p)| *known != key && p.endpoint == endpoint).map(|(known, _)| known.clone())
    };
    let stray = match has(key) {
        Some(known) if known.endpoint == endpoint => None,
        _ => elsewhere(),
    };
    // An address that two endpoints have is somebody else's entry.
    let mine = has(key).filter(|known| entry.is_some() || known.endpoint == endpoint);
    if stray.is_none() && mine == entry.as_ref() {
        return;
    }
    let mut state = (*service).clone();
    let providers = state.providers.get_or_insert_default();
    if let Some(stray) = stray {
        providers.remove(&stray);
    }
    match entry {
        Some(entry) => drop(providers.insert(key.to_owned(), entry)),
        None if mine.is_some() => drop(providers.remove(key)),
        None => {}
    }
    put(state, draft);
}

/// Puts the state of a service with the endpoints that are behind it now. Not together with changes to endpoints.
pub fn gather(mut state: State, draft: &mut Draft<'_>) {
    let tenant = &state.tenant_name;
    let known = draft.get::<State>(&state.id).and_then(|known| known.providers.clone()).unwrap_or_default();
    let mut providers = BTreeMap::new();
    for (network, endpoint, labels) in selected(&state, draft) {
        let mut serves = concerned(endpoint, None, tenant, draft);
        serves.retain(|id| draft.get::<State>(id).is_some_and(|service| selects(&service, labels)));
        serves.insert(state.id.clone());
        let key = provider_key(endpoint, tenant);
        let entry = provider(endpoint, network, serves.into_iter().collect());
        // Which services it serves is told as of when the entry was made.
        let as_known = known
            .get(&key)
            .filter(|known| **known == Provider { services: known.services.clone(), ..entry.clone() });
        providers.insert(key, as_known.cloned().unwrap_or(entry));
    }
    state.providers = Some(providers);
    put(state, draft);
}

/// The endpoints of the tenant that the service selects, with their networks and labels.
fn selected<'w>(
    service: &State,
    draft: &Draft<'w>,
) -> Vec<(&'w network::State, &'w endpoint::State, &'w Labels)> {
    let (world, tenant) = (draft.world(), &service.tenant_name);
    let Some((name, value)) = service.selectors.iter().flatten().next() else { return vec![] };
    let networks = draft.get::<api::Tenant>(tenant);
    let networks = networks.iter().flat_map(|tenant| tenant.link_sets.networks.keys());
    let mut found = vec![];
    for network in networks.filter_map(|key| key.split_once(':')).map(|(_, name)| name) {
        let id = format!("{network}.{tenant}");
        let Some(network) = world.ledger::<network::State>(&id) else { continue };
        let endpoints = world.labelled(&id, (name, value)).filter_map(|id| world.get::<endpoint::State>(id));
        found.extend(endpoints.filter_map(|endpoint| {
            let labels = labels(endpoint).filter(|labels| selects(service, labels))?;
            Some((&network.body, endpoint, labels))
        }));
    }
    found
}

/// The state, and the addresses that agents read beside it.
fn put(state: State, draft: &mut Draft<'_>) {
    let id = state.id.clone();
    let addresses: Vec<String> =
        state.providers.iter().flat_map(BTreeMap::values).map(|p| p.ip_address.clone()).collect();
    let providers = Providers {
        id: id.clone(),
        service_name: id.clone(),
        // As the original writes an empty list.
        providers: (!addresses.is_empty()).then_some(addresses),
    };
    if draft.get::<Providers>(&id).is_none_or(|known| *known != providers) {
        draft.put(&id, providers);
    }
    if draft.get::<State>(&id).is_none_or(|known| *known != state) {
        draft.put(&id, state);
    }
}

pub fn delete(id: &str, draft: &mut Draft<'_>) {
    if draft.get::<Providers>(id).is_some() {
        draft.delete::<Providers>(id);
    }
    if draft.get::<State>(id).is_some() {
        draft.delete::<State>(id);
    }
}
