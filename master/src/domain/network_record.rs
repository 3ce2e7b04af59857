//! Allocation records of networks, by tenant and name.
//!
//! The id of a record is `<network>.<tenant>`, and both names may contain dots: network `a.b` of
//! tenant `c` and network `a` of tenant `b.c` have the same id. Only one of them can exist. Every
//! access by tenant and name checks which network the record belongs to.

use contiv_model::key::Key;
use contiv_model::network;

use crate::cache::{AllocationRecord, ClusterCache, RecordBody as _, StagedTxn};
use crate::problem::Problem;

/// Id of the network's record.
pub fn network_id(tenant: &str, network: &str) -> String {
    format!("{network}.{tenant}")
}

/// Record of the network. None if there is none, or if the record with its id belongs to another
/// network.
pub fn network_record<'c>(
    cache: &'c ClusterCache,
    tenant: &str,
    network: &str,
) -> Option<&'c AllocationRecord<network::State>> {
    let record = cache.allocation::<network::State>(&network_id(tenant, network))?;
    is_of(&record.body, tenant, network).then_some(record)
}

/// Like [`network_record`], with an error that names the other network.
pub fn require_network_record<'w>(
    staged: &StagedTxn<'w>,
    tenant: &str,
    network: &str,
) -> Result<&'w AllocationRecord<network::State>, Problem> {
    let record = staged.committed::<network::State>(&network_id(tenant, network));
    let record = record.ok_or_else(Problem::key_not_found)?;
    match is_of(&record.body, tenant, network) {
        true => Ok(record),
        false => Err(conflict(&record.body, tenant, network)),
    }
}

/// Fails if a record with the id of the new network exists, whatever network it belongs to.
pub fn ensure_no_network_record(staged: &StagedTxn<'_>, tenant: &str, network: &str) -> Result<(), Problem> {
    match staged.committed::<network::State>(&network_id(tenant, network)) {
        None => Ok(()),
        Some(record) if is_of(&record.body, tenant, network) => {
            Err(left_over(&format!("network {network}"), &network::State::key(&record.body.id)))
        }
        Some(record) => Err(conflict(&record.body, tenant, network)),
    }
}

/// A record without an object, which a new object must not take over.
pub fn left_over(object: &str, key: &Key) -> Problem {
    Problem::conflict(format!(
        "{object} conflicts with a record without an object in the store; delete the key {key}"
    ))
}

fn is_of(record: &network::State, tenant: &str, network: &str) -> bool {
    record.tenant == tenant && record.network_name == network
}

fn conflict(other: &network::State, tenant: &str, network: &str) -> Problem {
    Problem::conflict(format!(
        "network {network} of tenant {tenant} conflicts with network {} of tenant {}: both have the key {}",
        other.network_name,
        other.tenant,
        network::State::key(&other.id)
    ))
}
