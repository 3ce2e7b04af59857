//! Repairs allocation records that another program changed. Addresses of endpoints and services are
//! always marked as allocated; otherwise they would be allocated twice. Allocated addresses without
//! an owner are released only on request (`--repair`): `allocAddress` may have reserved them for a
//! future endpoint.

use std::collections::{HashMap, HashSet};

use contiv_model::key::Key;
use contiv_model::name::EndpointId;
use contiv_model::{endpoint, group, network, service};

use crate::cache::{ClusterCache, Stageable, StagedTxn};
use crate::domain::allocation::AllocationScope;
use crate::domain::network_addresses::NetworksById;
use crate::domain::network_record::network_id;

/// Marks the addresses of endpoints and services as allocated, also those that are known of endpoints whose records
/// cannot be decoded. Returns one line for each address that was free.
pub fn mark_in_use(staged: &mut StagedTxn<'_>) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    let groups = cache.allocations::<group::State>().map(|record| &record.body);
    let pooled: HashSet<String> = groups
        .filter(|group| !group.ip_pool.is_empty())
        .map(|group| network_id(&group.tenant_name, &group.network_name))
        .collect();
    let mut networks = NetworksById::new(cache);
    // Addresses of a group's pool are always allocated in the network record.
    let mut may_be_free = |network: &str, address: &str| {
        let is_taken = networks.get(network).map(|addresses| addresses.is_taken(address));
        is_taken.is_some_and(|is_taken| pooled.contains(network) || is_taken == Some(false))
    };
    // An endpoint whose record cannot be decoded may have the address of the last valid version, which the table
    // still has, or the one that is known of the invalid version.
    for endpoint in cache.all::<endpoint::State>().chain(cache.unreadable_endpoints()) {
        let network = &endpoint.net_id;
        for address in addresses(endpoint) {
            if may_be_free(network, address) && mark(staged, network, address) {
                let id = &endpoint.id;
                lines
                    .push(format!("endpoint {id}: address {address} was not allocated on network {network}"));
            }
        }
    }
    for service in cache.all::<service::State>() {
        let network = network_id(&service.tenant_name, &service.network_name);
        if may_be_free(&network, &service.ip_address) && mark(staged, &network, &service.ip_address) {
            let (id, address) = (&service.id, &service.ip_address);
            lines.push(format!("service {id}: address {address} was not allocated on network {network}"));
        }
    }
    lines
}

fn addresses(endpoint: &endpoint::State) -> [&String; 2] {
    [&endpoint.ip_address, &endpoint.ipv6_address]
}

/// Marks the address as allocated. Returns false if it was, or is not in the network.
fn mark(staged: &mut StagedTxn<'_>, network: &str, address: &str) -> bool {
    let scope = AllocationScope::find(staged, network, None);
    scope.is_ok_and(|scope| scope.mark_in_use(staged, address))
}

/// Replaces records whose journal cannot be decoded by whole records. The allocations in the
/// journal are restored from the endpoints and services that have the addresses.
pub fn replace_unreadable_journals(staged: &mut StagedTxn<'_>) {
    for key in staged.cache().unreadable_journals() {
        let network = match &key {
            Key::NetworkJournal(id) => id.as_str().to_owned(),
            Key::GroupJournal(id) => {
                let Some(group) = staged.committed::<group::State>(id.as_str()) else { continue };
                network_id(&group.body.tenant_name, &group.body.network_name)
            }
            _ => continue,
        };
        restore_allocations(staged, &network);
        match &key {
            Key::GroupJournal(id) => recount::<group::State>(staged, id.as_str(), |e| &e.endpoint_group_key),
            _ => recount::<network::State>(staged, &network, |e| &e.net_id),
        }
    }
}

fn restore_allocations(staged: &mut StagedTxn<'_>, network: &str) {
    let cache = staged.cache();
    for endpoint in endpoints(cache).filter(|endpoint| endpoint.net_id == network) {
        for address in addresses(endpoint) {
            mark(staged, network, address);
        }
    }
    let services = cache.all::<service::State>();
    for service in services.filter(|s| network_id(&s.tenant_name, &s.network_name) == network) {
        mark(staged, network, &service.ip_address);
    }
}

/// Endpoints, also those whose records cannot be decoded, as far as they are known.
fn endpoints(cache: &ClusterCache) -> impl Iterator<Item = &endpoint::State> {
    let is_alone = move |record: &&endpoint::State| cache.get::<endpoint::State>(&record.id).is_none();
    cache.all::<endpoint::State>().chain(cache.unreadable_endpoints().filter(is_alone))
}

/// Writes the whole record, with the number of endpoints that exist.
fn recount<B: Stageable>(staged: &mut StagedTxn<'_>, id: &str, of: impl Fn(&endpoint::State) -> &String) {
    let endpoints = endpoints(staged.cache()).filter(|endpoint| of(endpoint) == id).count();
    if let Some((record, change)) = staged.allocation::<B>(id) {
        let (_, known) = record.body.counts();
        change.endpoints = endpoints as i64 - known;
        change.checkpoint = true;
    }
}

/// Releases addresses that no endpoint, service or gateway has, and corrects numbers of endpoints.
/// Returns a line for each network with such addresses and for each wrong number. Leaves a network as
/// it is if an endpoint or a service whose record cannot be decoded may be on it.
pub fn release_unused(staged: &mut StagedTxn<'_>) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    let mut skipped = HashSet::new();
    for record in cache.allocations::<network::State>() {
        let id = &record.body.id;
        if let Some(owner) = unreadable_owner(&record.body, cache) {
            lines.push(format!("network {id}: not checked, because the record of {owner} cannot be decoded"));
            skipped.insert(id.as_str());
            continue;
        }
        let Ok(scope) = AllocationScope::find(staged, id, None) else { continue };
        let allocated = scope.allocated_hosts(staged);
        let hosts = allocated.iter().filter(|host| scope.release(staged, *host)).count();
        let hosts6: Vec<String> = scope.addresses_v6().collect();
        let hosts6 = hosts6.iter().filter(|address| scope.release_v6(staged, address)).count();
        if hosts + hosts6 > 0 {
            lines.push(format!("network {id}: {hosts} IPv4 and {hosts6} IPv6 addresses had no owner"));
        }
    }
    let is_checked = |network: &str| !skipped.contains(network);
    let networks = |body: &network::State| is_checked(&body.id);
    lines.extend(correct_counts::<network::State>(staged, "network", networks, |e| &e.net_id));
    let groups = |body: &group::State| is_checked(&network_id(&body.tenant_name, &body.network_name));
    lines.extend(correct_counts::<group::State>(staged, "group", groups, |e| &e.endpoint_group_key));
    lines
}

/// An endpoint or a service that may have an address of the network, and whose record cannot be decoded.
fn unreadable_owner(network: &network::State, cache: &ClusterCache) -> Option<String> {
    let endpoint = cache.unreadable_endpoints().find(|endpoint| may_be_on(endpoint, &network.id));
    // The id of a service is `<service>:<tenant>`.
    let is_of_tenant = |id: &&str| id.rsplit_once(':').is_none_or(|(_, tenant)| tenant == network.tenant);
    let service = || cache.unreadable_ids::<service::State>().find(is_of_tenant);
    let endpoint = endpoint.map(|endpoint| format!("endpoint {}", endpoint.id));
    endpoint.or_else(|| service().map(|id| format!("service {id}")))
}

/// Whether the endpoint, whose record cannot be decoded, may be on the network.
fn may_be_on(endpoint: &endpoint::State, network: &str) -> bool {
    match endpoint.net_id.as_str() {
        "" => {
            let id = EndpointId::from(endpoint.id.as_str());
            id.possible_networks().any(|possible| possible.as_str() == network)
        }
        known => known == network,
    }
}

/// Sets the numbers of endpoints of the records that are `checked` to those of the endpoints that
/// exist. Returns a line for each record whose number was another one.
fn correct_counts<B: Stageable>(
    staged: &mut StagedTxn<'_>,
    kind: &str,
    checked: impl Fn(&B) -> bool,
    of: impl Fn(&endpoint::State) -> &String,
) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    let mut existing: HashMap<&str, i64> = HashMap::new();
    for endpoint in cache.all::<endpoint::State>() {
        *existing.entry(of(endpoint).as_str()).or_default() += 1;
    }
    for record in cache.allocations::<B>().filter(|record| checked(&record.body)) {
        let id = record.body.id();
        let counted = record.body.counts().1;
        let exist = existing.get(id).copied().unwrap_or_default();
        if counted == exist {
            continue;
        }
        if let Some((_, change)) = staged.allocation::<B>(id) {
            change.endpoints = exist - counted;
            lines.push(format!("{kind} {id}: {counted} endpoints were counted, {exist} exist"));
        }
    }
    lines
}
