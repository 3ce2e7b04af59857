//! Providers of services (INVENTORY 1.6).
//!
//! An endpoint whose container runs is a provider of every service of its tenant whose selectors
//! are all among the endpoint's labels. The order of creation does not matter.
//!
//! The addresses of the providers are stored in slices of bounded size, which agents read. An address
//! stays in its slice, so a change of a provider writes one slice. Empty slices are deleted together
//! with the service: agents take the deletion of a slice of an existing service for a loss of data.
//! What else is known about providers is derived from the endpoints.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::name::NetworkId;
use contiv_model::service::{Provider, Providers, State};
use contiv_model::{api, endpoint, network};

use super::network_record::network_record;
use super::object_key;
use crate::cache::{ClusterCache, Labels, StagedTxn};

/// Largest number of addresses in a slice.
const SLICE_SIZE: usize = 256;
/// Of a label that more endpoints have, those of a tenant are found by the tenant's networks.
const FEW_ENDPOINTS: usize = 64;
/// Slices with a larger number are not ours.
const MAX_SLICES: usize = 4096;

/// State key `<service>:<tenant>`. The object key has the reverse order.
pub fn state_key(service: &str, tenant: &str) -> String {
    format!("{service}:{tenant}")
}

/// Key of a slice: that of the service for the first one, then `<service>:<tenant>/<number>`.
fn slice_key(id: &str, number: usize) -> String {
    match number {
        0 => id.to_owned(),
        _ => format!("{id}/{number}"),
    }
}

/// Labels of the endpoint, if its container runs.
fn labels(endpoint: &endpoint::State) -> Option<&Labels> {
    endpoint.labels.as_ref().filter(|_| !endpoint.container_id.is_empty())
}

fn selects(service: &State, labels: &Labels) -> bool {
    let mut selectors = service.selectors.iter().flatten().peekable();
    selectors.peek().is_some() && selectors.all(|(name, value)| labels.get(name) == Some(value))
}

/// Updates the services after an endpoint changed or was deleted. `old` is the endpoint before the
/// change.
pub fn update_providers(old: &endpoint::State, staged: &mut StagedTxn<'_>) {
    let tenants = possible_tenants(old, staged);
    let new = staged.get::<endpoint::State>(&old.id);
    let services: BTreeSet<String> = {
        let cache = staged.cache();
        let labels = [Some(old), new.as_deref()].into_iter().flatten().filter_map(|e| e.labels.as_ref());
        let pairs = labels.flat_map(|labels| tenants.iter().map(move |tenant| (*tenant, labels)));
        pairs
            .flat_map(|(tenant, labels)| cache.services_selecting(tenant, labels))
            .map(str::to_owned)
            .collect()
    };
    update_services(old, services, staged);
}

/// Removes an endpoint that was deleted from the services of its tenant, whatever its labels were.
pub fn remove_provider(old: &endpoint::State, staged: &mut StagedTxn<'_>) {
    let tenants = possible_tenants(old, staged);
    let services = staged.cache().all::<State>();
    let services = services.filter(|service| tenants.contains(&service.tenant_name.as_str()));
    let services: BTreeSet<String> = services.map(|service| service.id.clone()).collect();
    update_services(old, services, staged);
}

/// Tenants that the endpoint may belong to.
fn possible_tenants<'a>(endpoint: &'a endpoint::State, staged: &StagedTxn<'a>) -> Vec<&'a str> {
    let network = &endpoint.net_id;
    match staged.committed::<network::State>(network) {
        Some(record) => vec![record.body.tenant.as_str()],
        // The network was deleted before the endpoint. Names may contain dots.
        None => network.match_indices('.').map(|(at, _)| &network[at + 1..]).collect(),
    }
}

/// Adds the address of an endpoint to these services, or removes it, as the endpoints say that have it
/// now. A service with providers that cannot be decoded stays as it is.
fn update_services(old: &endpoint::State, services: BTreeSet<String>, staged: &mut StagedTxn<'_>) {
    let new = staged.get::<endpoint::State>(&old.id);
    // By tenant: the possible tenants are several if the network was deleted.
    let mut others: BTreeMap<String, Vec<Arc<endpoint::State>>> = BTreeMap::new();
    for id in services {
        let Some(service) = staged.get::<State>(&id) else { continue };
        // One that cannot be decoded seems to be missing: a change would conflict with it again and again.
        if has_unreadable_slice(&id, staged.cache()) {
            continue;
        }
        let of_tenant = others.entry(service.tenant_name.clone());
        let others = of_tenant.or_insert_with(|| sharing_address(old, &service.tenant_name, staged));
        let mut now = new.iter().chain(others.iter()).filter_map(|endpoint| labels(endpoint));
        let is_provider = now.any(|labels| selects(&service, labels));
        set_provider(&id, &old.ip_address, is_provider, staged);
    }
}

/// Other endpoints with the address of `endpoint`: on its network, where the original may have allocated it twice, and on
/// networks of the tenant. These have other ranges, but an address outside the range can be requested.
fn sharing_address(
    endpoint: &endpoint::State,
    tenant: &str,
    staged: &StagedTxn<'_>,
) -> Vec<Arc<endpoint::State>> {
    let Ok(ip) = endpoint.ip_address.parse::<IpAddr>() else { return vec![] };
    let cache = staged.cache();
    let own = endpoint.net_id.as_str();
    let others = networks(tenant, cache).map(|network| network.id.as_str()).filter(|id| *id != own);
    let owners = others.chain([own]).flat_map(|network| cache.address_owners(network, ip));
    owners.filter(|id| **id != endpoint.id).filter_map(|id| staged.get(id)).collect()
}

/// Order of addresses in a slice: that of the keys `<address>:<tenant>` of the original.
fn order(a: &str, b: &str) -> Ordering {
    a.bytes().chain([b':']).cmp(b.bytes().chain([b':']))
}

/// Slices of a service. A missing slice before another one is empty.
fn slices(id: &str, staged: &StagedTxn<'_>) -> Vec<Arc<Providers>> {
    let below = format!("{id}/");
    let stored = staged.cache().table::<Providers>().range(below.clone()..);
    let stored = stored.map_while(|(key, _)| key.strip_prefix(&below));
    let numbers = stored.filter_map(|number| number.parse().ok()).filter(|number| *number < MAX_SLICES);
    let count = numbers.max().unwrap_or(0) + 1;
    let slice = |number| staged.get::<Providers>(&slice_key(id, number));
    let stored = (0..count).map(|number| slice(number).unwrap_or_default());
    stored.chain((count..).map_while(slice)).collect()
}

fn has_unreadable_slice(id: &str, cache: &ClusterCache) -> bool {
    cache.is_unreadable::<Providers>(id) || cache.first_unreadable::<Providers>(&format!("{id}/")).is_some()
}

fn addresses(slice: &Providers) -> &[String] {
    slice.providers.as_deref().unwrap_or_default()
}

fn insert(addresses: &mut Vec<String>, address: &str) {
    let at = addresses.partition_point(|known| order(known, address).is_lt());
    addresses.insert(at, address.to_owned());
}

/// Adds or removes the address as a provider of the service.
fn set_provider(id: &str, address: &str, is_provider: bool, staged: &mut StagedTxn<'_>) {
    let slices = slices(id, staged);
    let has = |slice: &Arc<Providers>| addresses(slice).iter().any(|known| known == address);
    match (slices.iter().position(has), is_provider) {
        (None, true) => {
            let with_room = slices.iter().position(|slice| addresses(slice).len() < SLICE_SIZE);
            let number = with_room.unwrap_or(slices.len());
            let mut list = slices.get(number).map(|slice| addresses(slice).to_vec()).unwrap_or_default();
            insert(&mut list, address);
            put_slice(id, number, list, staged);
        }
        (Some(number), false) => {
            let mut list = addresses(&slices[number]).to_vec();
            list.retain(|known| known != address);
            put_slice(id, number, list, staged);
        }
        (Some(_), true) | (None, false) => {}
    }
}

fn put_slice(id: &str, number: usize, addresses: Vec<String>, staged: &mut StagedTxn<'_>) {
    let key = slice_key(id, number);
    let slice = Providers {
        id: key.clone(),
        service_name: id.to_owned(),
        // The original writes an empty list as null.
        providers: (!addresses.is_empty()).then_some(addresses),
    };
    if staged.get::<Providers>(&key).is_none_or(|known| *known != slice) {
        staged.put(&key, slice);
    }
}

/// Puts the state of a service and its current providers. The transaction must not change endpoints
/// as well.
pub fn put_with_providers(state: State, staged: &mut StagedTxn<'_>) {
    let wanted = selected(&state, staged.cache());
    let mut missing: BTreeSet<String> =
        wanted.into_iter().map(|endpoint| endpoint.ip_address.clone()).collect();
    let mut lists: Vec<_> = slices(&state.id, staged).iter().map(|slice| addresses(slice).to_vec()).collect();
    // A list that an older release wrote may have any size.
    if lists.iter().any(|list| list.len() > SLICE_SIZE) {
        lists.iter_mut().for_each(Vec::clear);
    }
    for list in &mut lists {
        list.retain(|address| missing.remove(address));
        list.sort_by(|a, b| order(a, b));
    }
    let mut missing: Vec<String> = missing.into_iter().collect();
    missing.sort_by(|a, b| order(a, b));
    // Each address goes to the first list with room.
    let mut number = 0;
    for address in &missing {
        while lists.get(number).is_some_and(|list| list.len() >= SLICE_SIZE) {
            number += 1;
        }
        if number == lists.len() {
            lists.push(vec![]);
        }
        insert(&mut lists[number], address);
    }
    for (number, list) in lists.into_iter().enumerate() {
        put_slice(&state.id, number, list, staged);
    }
    // Providers are derived. The original writes an empty map.
    let state = State { providers: Some(BTreeMap::new()), ..state };
    if staged.get::<State>(&state.id).is_none_or(|known| *known != state) {
        let id = state.id.clone();
        staged.put(&id, state);
    }
}

/// Networks of the tenant, also those whose objects cannot be decoded.
fn networks<'w>(tenant: &str, cache: &'w ClusterCache) -> impl Iterator<Item = &'w network::State> {
    let is_of = move |key: &&str| {
        let tenant_name = key.split_once(':').map(|(tenant, _)| tenant);
        tenant_name == Some(tenant) && cache.get::<api::Network>(key).is_none()
    };
    let unreadable = cache.unreadable_ids::<api::Network>().filter(is_of);
    let keys = cache.linked::<api::Tenant, api::Network>(tenant).chain(unreadable);
    let names = keys.filter_map(|key| key.split_once(':')).map(|(_, name)| name);
    names.filter_map(move |name| network_record(cache, tenant, name)).map(|record| &record.body)
}

/// Endpoints of the tenant that have the label that the first selector of the service names, by network.
fn labelled<'w>(service: &State, cache: &'w ClusterCache) -> Vec<(&'w network::State, Vec<&'w String>)> {
    let all = first_selector(service).and_then(|label| cache.endpoints_with_label(label));
    let Some(all) = all else { return vec![] };
    let tenant = &service.tenant_name;
    let on = |network: &NetworkId| {
        let of_network = all.range((network.clone(), String::new())..);
        of_network.take_while(|(id, _)| id == network).map(|(_, endpoint)| endpoint).collect()
    };
    if all.len() > FEW_ENDPOINTS {
        // Other tenants may have many.
        let networks = networks(tenant, cache).map(|network| (network, on(&network.id.as_str().into())));
        return networks.filter(|(_, endpoints): &(_, Vec<_>)| !endpoints.is_empty()).collect();
    }
    let ids: BTreeSet<&NetworkId> = all.iter().map(|(network, _)| network).collect();
    let of_tenant = |network: &NetworkId| {
        let body = &cache.allocation::<network::State>(network.as_str())?.body;
        let key = object_key(tenant, &body.network_name);
        let is_of = body.tenant == *tenant && cache.exists::<api::Network>(&key);
        is_of.then(|| (body, on(network)))
    };
    ids.into_iter().filter_map(of_tenant).collect()
}

/// Endpoints of the tenant that the service selects.
fn selected<'w>(service: &State, cache: &'w ClusterCache) -> Vec<&'w endpoint::State> {
    let endpoints = labelled(service, cache).into_iter().flat_map(|(_, endpoints)| endpoints);
    let endpoints = endpoints.filter_map(|id| cache.get::<endpoint::State>(id));
    endpoints.filter(|e| labels(e).is_some_and(|labels| selects(service, labels))).collect()
}

fn first_selector(service: &State) -> Option<(&str, &str)> {
    let (name, value) = service.selectors.iter().flatten().next()?;
    Some((name.as_str(), value.as_str()))
}

/// Key of a provider within its service.
fn provider_key(endpoint: &endpoint::State, tenant: &str) -> String {
    format!("{}:{tenant}", endpoint.ip_address)
}

/// What the providers of services are derived from, taken out of the cache.
pub struct ProviderSources {
    endpoints: Vec<Arc<endpoint::State>>,
    /// Tenant and name of each network, by its id.
    networks: HashMap<String, (String, String)>,
}

impl ProviderSources {
    /// Those of all services.
    pub fn of(cache: &ClusterCache) -> ProviderSources {
        let networks = cache.allocations::<network::State>().map(|record| named(&record.body));
        ProviderSources { endpoints: cache.all_shared(), networks: networks.collect() }
    }

    /// Those of one service: the endpoints with the label that its first selector names.
    pub fn of_service(service: &State, cache: &ClusterCache) -> ProviderSources {
        let mut sources = ProviderSources { endpoints: vec![], networks: HashMap::new() };
        for (network, endpoints) in labelled(service, cache) {
            sources.endpoints.extend(endpoints.into_iter().filter_map(|id| cache.shared(id)));
            sources.networks.extend([named(network)]);
        }
        sources
    }

    /// Endpoints that are providers of the service, in the order of [`ProviderSources::providers`].
    pub fn endpoints_of(&self, service: &State) -> Vec<&endpoint::State> {
        let selected = self.endpoints.iter().filter(|e| labels(e).is_some_and(|l| selects(service, l)));
        let by_key: BTreeMap<String, &endpoint::State> = selected
            .filter_map(|endpoint| {
                let (tenant, _) = self.networks.get(&endpoint.net_id)?;
                Some((provider_key(endpoint, tenant), &**endpoint))
            })
            .collect();
        by_key.into_values().collect()
    }

    /// Providers of each of the services, by the id of the service.
    pub fn providers(&self, services: &[Arc<State>]) -> HashMap<String, BTreeMap<String, Provider>> {
        // Services by tenant and first selector.
        let mut selecting: HashMap<(&str, &str, &str), Vec<&State>> = HashMap::new();
        for service in services {
            if let Some((name, value)) = service.selectors.iter().flatten().next() {
                selecting
                    .entry((service.tenant_name.as_str(), name.as_str(), value.as_str()))
                    .or_default()
                    .push(service);
            }
        }
        let mut all: HashMap<String, BTreeMap<String, Provider>> = HashMap::new();
        for endpoint in &self.endpoints {
            let Some(labels) = labels(endpoint) else { continue };
            let Some((tenant, network)) = self.networks.get(&endpoint.net_id) else { continue };
            let candidates = labels
                .iter()
                .filter_map(|(name, value)| selecting.get(&(tenant.as_str(), name.as_str(), value.as_str())));
            let served = candidates.flatten().filter(|service| selects(service, labels));
            let ids: BTreeSet<&String> = served.map(|service| &service.id).collect();
            if ids.is_empty() {
                continue;
            }
            let provider = provider(endpoint, tenant, network, ids.iter().copied().cloned().collect());
            for id in ids {
                all.entry(id.clone()).or_default().insert(provider_key(endpoint, tenant), provider.clone());
            }
        }
        all
    }
}

/// Id, tenant and name of a network.
fn named(network: &network::State) -> (String, (String, String)) {
    let network::State { id, tenant, network_name, .. } = network;
    (id.clone(), (tenant.clone(), network_name.clone()))
}

fn provider(endpoint: &endpoint::State, tenant: &str, network: &str, services: Vec<String>) -> Provider {
    Provider {
        ip_address: endpoint.ip_address.clone(),
        container_id: endpoint.container_id.clone(),
        labels: endpoint.labels.clone(),
        tenant: tenant.to_owned(),
        network: network.to_owned(),
        services: Some(services),
        container: String::new(),
        endpoint: endpoint.id.clone(),
    }
}

pub fn delete(id: &str, staged: &mut StagedTxn<'_>) {
    let slices = slices(id, staged).len();
    for key in (0..slices).map(|number| slice_key(id, number)) {
        if staged.get::<Providers>(&key).is_some() {
            staged.delete::<Providers>(&key);
        }
    }
    if staged.get::<State>(id).is_some() {
        staged.delete::<State>(id);
    }
}

/// Whether the state and the providers of the service stay as they are, because a record cannot be decoded: its state, its
/// object, or that of a network of its tenant, whose endpoints may be providers.
pub fn is_kept(id: &str, cache: &ClusterCache) -> bool {
    if !cache.has_unreadable() {
        return false;
    }
    let (name, tenant) = id.rsplit_once(':').unwrap_or((id, ""));
    let is_of_tenant = |network: &str| network.strip_suffix(tenant).is_some_and(|name| name.ends_with('.'));
    cache.is_unreadable::<State>(id)
        || cache.is_unreadable::<api::ServiceLb>(&object_key(tenant, name))
        || cache.unreadable_allocations::<network::State>().any(is_of_tenant)
}

/// Deletes slices of services that do not exist.
pub fn delete_stray_slices(staged: &mut StagedTxn<'_>) {
    for key in staged.cache().table::<Providers>().keys() {
        let service = Providers::service_of(key);
        let is_service = staged.get::<State>(service).is_some() || is_kept(service, staged.cache());
        if !is_service && staged.get::<Providers>(key).is_some() {
            staged.delete::<Providers>(key);
        }
    }
}
