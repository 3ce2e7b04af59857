//! Repairs allocation records that another program changed. Addresses of endpoints are always
//! marked as allocated; otherwise they would be allocated twice. Allocated addresses without an
//! owner are released only on request (`--repair`): `allocAddress` may have reserved them for a
//! future endpoint.

use std::collections::HashSet;

use contiv_model::key::Key;
use contiv_model::{endpoint, group, network, service};

use crate::cache::{Stageable, StagedTxn};
use crate::domain::allocation::{AllocationScope, is_taken};
use crate::domain::network_record::network_id;

/// Marks the addresses of endpoints as allocated. Returns one line for each address that was free.
pub fn mark_in_use(staged: &mut StagedTxn<'_>) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    let groups = cache.allocations::<group::State>().map(|record| &record.body);
    let pooled: HashSet<String> = groups
        .filter(|group| !group.ip_pool.is_empty())
        .map(|group| network_id(&group.tenant_name, &group.network_name))
        .collect();
    for endpoint in cache.all::<endpoint::State>() {
        let network = &endpoint.net_id;
        let Some(record) = cache.allocation::<network::State>(network) else { continue };
        // Addresses of a group's pool are always allocated in the network record.
        let may_be_free =
            |address: &&String| pooled.contains(network) || is_taken(record, address) == Some(false);
        for address in addresses(endpoint).into_iter().filter(may_be_free) {
            if mark(staged, network, address) {
                lines.push(format!(
                    "endpoint {}: address {address} was not allocated on network {network}",
                    endpoint.id
                ));
            }
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
    for endpoint in cache.all::<endpoint::State>().filter(|endpoint| endpoint.net_id == network) {
        for address in addresses(endpoint) {
            mark(staged, network, address);
        }
    }
    let services = cache.all::<service::State>();
    for service in services.filter(|s| network_id(&s.tenant_name, &s.network_name) == network) {
        mark(staged, network, &service.ip_address);
    }
}

/// Writes the whole record, with the number of endpoints that exist.
fn recount<B: Stageable>(staged: &mut StagedTxn<'_>, id: &str, of: impl Fn(&endpoint::State) -> &String) {
    let endpoints = staged.cache().all::<endpoint::State>().filter(|endpoint| of(endpoint) == id).count();
    if let Some((record, change)) = staged.allocation::<B>(id) {
        let (_, known) = record.body.counts();
        change.endpoints = endpoints as i64 - known;
        change.checkpoint = true;
    }
}

/// Releases addresses that no endpoint, service or gateway has. Returns one line for each network
/// with such addresses.
pub fn release_unused(staged: &mut StagedTxn<'_>) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    for record in cache.allocations::<network::State>() {
        let id = &record.body.id;
        let Ok(scope) = AllocationScope::find(staged, id, None) else { continue };
        let allocated = scope.allocated_hosts(staged);
        let hosts = allocated.iter().filter(|host| scope.release(staged, *host)).count();
        let hosts6: Vec<String> = scope.addresses_v6().collect();
        let hosts6 = hosts6.iter().filter(|address| scope.release_v6(staged, address)).count();
        if hosts + hosts6 > 0 {
            lines.push(format!("network {id}: {hosts} IPv4 and {hosts6} IPv6 addresses had no owner"));
        }
    }
    lines
}
