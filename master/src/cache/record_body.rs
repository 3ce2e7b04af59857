//! Bodies of allocation records: networks, and groups with an address pool of their own.

use std::mem;

use contiv_model::{group, key::Key, network};
use serde::{Serialize, de::DeserializeOwned};

use super::allocation_change::{AllocationChange, Traffic};
use super::{AllocationTable, ClusterCache};
use crate::ipam::{ChunkId, Hosts, Pool};

/// A record without its bitmaps.
pub trait RecordBody: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {
    fn key(id: &str) -> Key;
    fn journal_key(id: &str) -> Key;
    fn chunk_key(id: &str, chunk: ChunkId) -> Key;
    fn id(&self) -> &str;
    /// Moves the bitmaps out of the record.
    fn split(&mut self) -> (Pool, Hosts);
    /// Builds the whole record, with `change` applied.
    fn join(&self, pool: &Pool, hosts: &Hosts, change: &AllocationChange) -> Self;
    /// Number of bits of the bitmap that the whole record has at most.
    fn stored_bits(pool: &Pool) -> usize;
    /// Number of allocated addresses and number of endpoints.
    fn counts(&self) -> (i64, i64);
    fn set_counts(&mut self, counts: (i64, i64));
    fn set_traffic(&mut self, _traffic: &Traffic) {}
    #[doc(hidden)]
    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self>;
    #[doc(hidden)]
    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self>;
}

impl RecordBody for network::State {
    fn key(id: &str) -> Key {
        Key::Network(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::NetworkJournal(id.into())
    }

    fn chunk_key(id: &str, chunk: ChunkId) -> Key {
        Key::NetworkChunk { network: id.into(), chunk: chunk.to_string() }
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        let hosts = Hosts::of_state(self);
        // An empty map is kept: it marks a network with IPv6.
        if let Some(map) = &mut self.ipv6_alloc_map {
            map.clear();
        }
        (Pool::new(mem::take(&mut self.ip_alloc_map)), hosts)
    }

    fn join(&self, pool: &Pool, hosts: &Hosts, change: &AllocationChange) -> Self {
        network::State {
            ip_alloc_map: pool.with(&change.pool).into_bitset(),
            ipv6_alloc_map: self.ipv6_alloc_map.as_ref().map(|_| hosts.map_with(&change.hosts)),
            ipv6_last_host: hosts.last_with(&change.hosts),
            ep_addr_count: self.ep_addr_count + change.addresses,
            ep_count: self.ep_count + change.endpoints,
            ..self.clone()
        }
    }

    fn stored_bits(pool: &Pool) -> usize {
        pool.size()
    }

    fn counts(&self) -> (i64, i64) {
        (self.ep_addr_count, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        (self.ep_addr_count, self.ep_count) = counts;
    }

    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self> {
        &cache.networks
    }

    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self> {
        &mut cache.networks
    }
}

impl RecordBody for group::State {
    fn key(id: &str) -> Key {
        Key::Group(id.into())
    }

    fn journal_key(id: &str) -> Key {
        Key::GroupJournal(id.into())
    }

    fn chunk_key(id: &str, chunk: ChunkId) -> Key {
        Key::GroupChunk { group: id.into(), chunk: chunk.to_string() }
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn split(&mut self) -> (Pool, Hosts) {
        (Pool::new(self.take_pool_map()), Hosts::default())
    }

    fn join(&self, pool: &Pool, _hosts: &Hosts, change: &AllocationChange) -> Self {
        let mut whole = group::State { ep_count: self.ep_count + change.endpoints, ..self.clone() };
        whole.set_pool_map(pool.with(&change.pool));
        if let Some(traffic) = &change.traffic {
            whole.set_traffic(traffic);
        }
        whole
    }

    fn set_traffic(&mut self, traffic: &Traffic) {
        self.dscp = traffic.dscp;
        self.bandwidth.clone_from(&traffic.bandwidth);
        self.burst = traffic.burst;
    }

    fn stored_bits(pool: &Pool) -> usize {
        match pool.size() > group::State::MAX_WHOLE_MAP {
            true => pool.window_size(),
            false => pool.size(),
        }
    }

    fn counts(&self) -> (i64, i64) {
        (0, self.ep_count)
    }

    fn set_counts(&mut self, counts: (i64, i64)) {
        self.ep_count = counts.1;
    }

    fn allocations(cache: &ClusterCache) -> &AllocationTable<Self> {
        &cache.groups
    }

    fn allocations_mut(cache: &mut ClusterCache) -> &mut AllocationTable<Self> {
        &mut cache.groups
    }
}
