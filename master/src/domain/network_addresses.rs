//! Allocated addresses of many networks.

use std::collections::HashMap;

use contiv_model::network;

use crate::cache::{AllocationRecord, ClusterCache};
use crate::ipam::{HostsChange, PoolChange, Subnet, Subnet6};

/// Which addresses of a network are allocated.
pub struct NetworkAddresses<'c> {
    record: &'c AllocationRecord<network::State>,
    subnet: Option<Subnet>,
    subnet6: Option<Subnet6>,
}

/// The networks that were asked for, by the ids of their records. The record of each is found and read once.
pub struct NetworksById<'c> {
    cache: &'c ClusterCache,
    found: HashMap<String, NetworkAddresses<'c>>,
}

impl<'c> NetworkAddresses<'c> {
    fn new(record: &'c AllocationRecord<network::State>) -> NetworkAddresses<'c> {
        let (subnet, subnet6) = (Subnet::of_state(&record.body).ok(), Subnet6::of_state(&record.body));
        NetworkAddresses { record, subnet, subnet6 }
    }

    /// Whether the address is allocated; none if the network does not contain it.
    pub fn is_taken(&self, address: &str) -> Option<bool> {
        if address.contains(':') {
            let host = self.subnet6?.host(address, true).ok()?;
            return Some(HostsChange::default().is_taken(&self.record.hosts, host));
        }
        let host = self.subnet?.host(address).ok()?;
        Some(PoolChange::default().is_taken(&self.record.pool, host))
    }
}

impl<'c> NetworksById<'c> {
    pub fn new(cache: &'c ClusterCache) -> NetworksById<'c> {
        NetworksById { cache, found: HashMap::new() }
    }

    /// The network whose record has this id, if there is one.
    pub fn get(&mut self, id: &str) -> Option<&NetworkAddresses<'c>> {
        if !self.found.contains_key(id) {
            let record = self.cache.allocation::<network::State>(id)?;
            self.found.insert(id.to_owned(), NetworkAddresses::new(record));
        }
        self.found.get(id)
    }
}
