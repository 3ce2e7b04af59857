//! Repairs allocation records that another program changed. Addresses of endpoints are always
//! marked as allocated; otherwise they would be allocated twice. Allocated addresses without an
//! owner are released only on request (`--repair`): `allocAddress` may have reserved them for a
//! future endpoint.

use std::collections::HashSet;

use contiv_model::{endpoint, group, network};

use crate::cache::StagedTxn;
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
        for address in [&endpoint.ip_address, &endpoint.ipv6_address].into_iter().filter(may_be_free) {
            let Ok(scope) = AllocationScope::find(staged, network, None) else { continue };
            if scope.mark_in_use(staged, address) {
                lines.push(format!(
                    "endpoint {}: address {address} was not allocated on network {network}",
                    endpoint.id
                ));
            }
        }
    }
    lines
}

/// Releases addresses that no endpoint, service or gateway has. Returns one line for each network
/// with such addresses.
pub fn release_unused(staged: &mut StagedTxn<'_>) -> Vec<String> {
    let (cache, mut lines) = (staged.cache(), vec![]);
    for record in cache.allocations::<network::State>() {
        let id = &record.body.id;
        let Ok(scope) = AllocationScope::find(staged, id, None) else { continue };
        let hosts = record.pool.bits().iter().filter(|host| scope.release(staged, *host)).count();
        let hosts6: Vec<String> = scope.addresses_v6().collect();
        let hosts6 = hosts6.iter().filter(|address| scope.release_v6(staged, address)).count();
        if hosts + hosts6 > 0 {
            lines.push(format!("network {id}: {hosts} IPv4 and {hosts6} IPv6 addresses had no owner"));
        }
    }
    lines
}
