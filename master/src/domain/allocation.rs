//! Allocation of addresses from a network, or from the address pool of a group on it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use contiv_model::{api, group, network};

use super::network_record::require_network_record;
use crate::cache::{AllocationRecord, StagedTxn};
use crate::ipam::{IpPool, RangeSet, Subnet, Subnet6, in_use};
use crate::problem::Problem;

/// The network, and optionally the group, that addresses are allocated from.
pub struct AllocationScope<'w> {
    pub network: &'w AllocationRecord<network::State>,
    pub group: Option<&'w AllocationRecord<group::State>>,
    pub subnet: Subnet,
    pub subnet6: Option<Subnet6>,
}

/// An IPv4 address that was selected and is not allocated yet.
pub struct Candidate {
    pub host: usize,
    /// State key of the group whose pool contains the address.
    pool: Option<String>,
}

/// An IPv6 address that was selected and is not allocated yet.
pub struct Candidate6 {
    pub host: u128,
    automatic: bool,
}

impl<'w> AllocationScope<'w> {
    /// Scope of a network by tenant and name.
    pub fn of_network(
        staged: &StagedTxn<'w>,
        tenant: &str,
        network: &str,
    ) -> Result<AllocationScope<'w>, Problem> {
        let record = require_network_record(staged, tenant, network)?;
        AllocationScope::find(staged, &record.body.id, None)
    }

    pub fn find(
        staged: &StagedTxn<'w>,
        network: &str,
        group: Option<&str>,
    ) -> Result<AllocationScope<'w>, Problem> {
        let network = staged.committed::<network::State>(network).ok_or_else(Problem::key_not_found)?;
        let group = match group {
            Some(key) => Some(staged.committed::<group::State>(key).ok_or_else(Problem::key_not_found)?),
            None => None,
        };
        Ok(AllocationScope {
            network,
            group,
            subnet: subnet(staged, &network.body)?,
            subnet6: Subnet6::of_state(&network.body).filter(|subnet| subnet.len > 0),
        })
    }

    fn id(&self) -> &'w str {
        &self.network.body.id
    }

    /// Lowest free address of the group's pool, or of the network if the group has no pool.
    pub fn lowest_free(&self, staged: &mut StagedTxn<'w>) -> Result<Candidate, Problem> {
        let failed = |of| Problem::conflict(format!("auto allocation failed - address exhaustion in {of}"));
        if let Some(group) = self.group.filter(|group| !group.body.ip_pool.is_empty()) {
            let body = &group.body;
            if body.network_name != self.network.body.network_name {
                let (group, network) = (&body.group_name, &body.network_name);
                let error = format!("group {group} has its addresses on network {network}");
                return Err(Problem::conflict(error));
            }
            let (record, change) =
                staged.allocation::<group::State>(&body.id).ok_or_else(Problem::key_not_found)?;
            let host = change.pool.lowest_free(&record.pool);
            let host = host.ok_or_else(|| failed(format!("pool {}", body.ip_pool)))?;
            return Ok(Candidate { host, pool: Some(body.id.clone()) });
        }
        let (record, change) =
            staged.allocation::<network::State>(self.id()).ok_or_else(Problem::key_not_found)?;
        let host = change.pool.lowest_free(&record.pool);
        let host = host.ok_or_else(|| failed(format!("subnet {}", self.subnet)))?;
        Ok(Candidate { host, pool: None })
    }

    /// The requested address. Fails if an endpoint or service has it, or if it is reserved.
    pub fn requested(&self, staged: &StagedTxn<'w>, address: &str) -> Result<Candidate, Problem> {
        let host = self.subnet.host(address)?;
        let ip = self.subnet.address(host);
        if self.is_reserved(host) || staged.address_owner(self.id(), ip.into()).is_some() {
            return Err(in_use(ip));
        }
        Ok(Candidate { host, pool: self.pool_containing(staged, host) })
    }

    /// Whether the address is marked as allocated. An address without endpoint was allocated by
    /// `allocAddress`.
    pub fn is_taken(&self, staged: &mut StagedTxn<'w>, candidate: &Candidate) -> bool {
        match &candidate.pool {
            Some(group) => {
                let found = staged.allocation::<group::State>(group);
                found.is_some_and(|(record, change)| change.pool.is_taken(&record.pool, candidate.host))
            }
            None => {
                let found = staged.allocation::<network::State>(self.id());
                found.is_some_and(|(record, change)| change.pool.is_taken(&record.pool, candidate.host))
            }
        }
    }

    pub fn take(&self, staged: &mut StagedTxn<'w>, candidate: &Candidate) {
        let taken = match &candidate.pool {
            Some(group) => staged
                .allocation::<group::State>(group)
                .is_some_and(|(record, change)| change.pool.take(&record.pool, candidate.host)),
            None => staged
                .allocation::<network::State>(self.id())
                .is_some_and(|(record, change)| change.pool.take(&record.pool, candidate.host)),
        };
        self.count(staged, taken as i64);
    }

    /// Marks an address that is already in use. Returns false if it was marked before, or is not in
    /// the network.
    pub fn mark_in_use(&self, staged: &mut StagedTxn<'w>, address: &str) -> bool {
        if address.contains(':') {
            let host = self.subnet6.and_then(|subnet| subnet.host(address, true).ok());
            let candidate = host.map(|host| Candidate6 { host, automatic: false });
            let free = candidate.filter(|candidate| !self.is_taken_v6(staged, candidate));
            return free.inspect(|candidate| self.take_v6(staged, candidate)).is_some();
        }
        let host = self.subnet.host(address).ok();
        let candidate = host.map(|host| Candidate { host, pool: self.pool_containing(staged, host) });
        let free = candidate.filter(|candidate| !self.is_taken(staged, candidate));
        free.inspect(|candidate| self.take(staged, candidate)).is_some()
    }

    /// IPv6 addresses allocated before this transaction.
    pub fn addresses_v6(&self) -> impl Iterator<Item = String> {
        let subnet = self.subnet6;
        let hosts = subnet.iter().flat_map(|_| self.network.hosts.iter()).collect::<Vec<_>>();
        hosts.into_iter().filter_map(move |host| Some(subnet?.address(host).to_string()))
    }

    /// Frees an address. Returns false and changes nothing if the address is reserved, outside the
    /// range, or in use by an endpoint or service.
    pub fn release(&self, staged: &mut StagedTxn<'w>, host: usize) -> bool {
        let ip = self.subnet.address(host);
        let held = staged.address_owner(self.id(), ip.into()).is_some();
        if self.is_reserved(host) || self.subnet.is_outside_range(host) || held {
            return false;
        }
        let freed = match self.pool_containing(staged, host) {
            Some(group) => staged
                .allocation::<group::State>(&group)
                .is_some_and(|(record, change)| change.pool.free(&record.pool, host)),
            None => staged
                .allocation::<network::State>(self.id())
                .is_some_and(|(record, change)| change.pool.free(&record.pool, host)),
        };
        self.count(staged, -(freed as i64));
        freed
    }

    /// The requested IPv6 address, or the next free one if `address` is empty. None if the network
    /// has no IPv6.
    pub fn next_free_v6(
        &self,
        staged: &mut StagedTxn<'w>,
        address: &str,
    ) -> Result<Option<Candidate6>, Problem> {
        let Some(subnet) = self.subnet6 else { return Ok(None) };
        if address.is_empty() {
            // Rejects the prefix lengths that the original rejects.
            subnet.host(&subnet.base.to_string(), false)?;
            let (record, change) =
                staged.allocation::<network::State>(self.id()).ok_or_else(Problem::key_not_found)?;
            let host = change.hosts.next_free(&record.hosts, &subnet)?;
            return Ok(Some(Candidate6 { host, automatic: true }));
        }
        let host = subnet.host(address, true)?;
        let ip = subnet.address(host);
        let is_reserved = subnet.is_reserved(host, &self.network.body.ipv6_gateway);
        if is_reserved || staged.address_owner(self.id(), ip.into()).is_some() {
            return Err(in_use(ip));
        }
        Ok(Some(Candidate6 { host, automatic: false }))
    }

    pub fn is_taken_v6(&self, staged: &mut StagedTxn<'w>, candidate: &Candidate6) -> bool {
        let found = staged.allocation::<network::State>(self.id());
        found.is_some_and(|(record, change)| change.hosts.is_taken(&record.hosts, candidate.host))
    }

    pub fn take_v6(&self, staged: &mut StagedTxn<'w>, candidate: &Candidate6) {
        if let Some((record, change)) = staged.allocation::<network::State>(self.id()) {
            let taken = change.hosts.take(&record.hosts, candidate.host);
            if candidate.automatic {
                change.hosts.last = Some(candidate.host);
            }
            change.addresses += taken as i64;
        }
    }

    pub fn release_v6(&self, staged: &mut StagedTxn<'w>, address: &str) -> bool {
        let Some(subnet) = self.subnet6 else { return false };
        let Ok(host) = subnet.host(address, true) else { return false };
        let held = staged.address_owner(self.id(), IpAddr::V6(subnet.address(host))).is_some();
        if subnet.is_gateway(host, &self.network.body.ipv6_gateway) || held {
            return false;
        }
        let Some((record, change)) = staged.allocation::<network::State>(self.id()) else { return false };
        let freed = change.hosts.free(&record.hosts, host);
        change.addresses -= freed as i64;
        freed
    }

    /// Adds `more` to the endpoint counts of the network and of the group.
    pub fn count_endpoint(&self, staged: &mut StagedTxn<'w>, more: i64) {
        if let Some((_, change)) = staged.allocation::<network::State>(self.id()) {
            change.endpoints += more;
        }
        if let Some((_, change)) = self.group.and_then(|g| staged.allocation::<group::State>(&g.body.id)) {
            change.endpoints += more;
        }
    }

    fn count(&self, staged: &mut StagedTxn<'w>, more: i64) {
        if let Some((_, change)) = staged.allocation::<network::State>(self.id()) {
            change.addresses += more;
        }
    }

    /// Whether the host number is the subnet address, the broadcast address or the gateway.
    fn is_reserved(&self, host: usize) -> bool {
        self.subnet.is_reserved(host, &self.network.body.gateway)
    }

    /// Host numbers that were allocated before this transaction, of the range that is allocated from.
    /// Addresses of a group's pool are included if they are allocated in the pool.
    pub fn allocated_hosts(&self, staged: &StagedTxn<'w>) -> RangeSet<usize> {
        let mut hosts = RangeSet::default();
        let Some((first, last)) = self.subnet.allocation_range() else { return hosts };
        for (a, b) in self.network.pool.allocated_ranges(first, last) {
            hosts.insert_range(a, b);
        }
        let groups = self.group_keys(staged);
        for group in groups.iter().filter_map(|key| group_record(staged, key)) {
            let Some(pool) = self.pool_of(group) else { continue };
            hosts.remove_range(pool.first, pool.last);
            for (a, b) in group.pool.allocated_ranges(pool.first, pool.last) {
                hosts.insert_range(a, b);
            }
        }
        hosts
    }

    /// State key of the group on the network whose pool contains `host`.
    fn pool_containing(&self, staged: &StagedTxn<'w>, host: usize) -> Option<String> {
        let has = |group: &AllocationRecord<group::State>| {
            self.pool_of(group).is_some_and(|pool| pool.contains(host))
        };
        if let Some(group) = self.group.filter(|group| has(group)) {
            return Some(group.body.id.clone());
        }
        let groups = self.group_keys(staged);
        let mut records = groups.iter().filter_map(|key| group_record(staged, key));
        records.find(|record| has(record)).map(|record| record.body.id.clone())
    }

    /// Keys of the groups on the network.
    fn group_keys(&self, staged: &StagedTxn<'w>) -> Arc<BTreeSet<String>> {
        let body = &self.network.body;
        staged.linked::<api::Network, api::EndpointGroup>(&format!("{}:{}", body.tenant, body.network_name))
    }

    /// Address pool of a group on the network.
    fn pool_of(&self, group: &AllocationRecord<group::State>) -> Option<IpPool> {
        IpPool::read(&group.body.ip_pool, &self.subnet).ok().flatten()
    }
}

/// Record of the group with this object key.
fn group_record<'w>(staged: &StagedTxn<'w>, key: &str) -> Option<&'w AllocationRecord<group::State>> {
    let (tenant, group) = key.split_once(':')?;
    staged.committed(&format!("{group}:{tenant}"))
}

/// The subnet as the user wrote it.
fn subnet(staged: &StagedTxn<'_>, body: &network::State) -> Result<Subnet, Problem> {
    let object = staged.get::<api::Network>(&format!("{}:{}", body.tenant, body.network_name));
    match object.and_then(|network| Subnet::parse(&network.subnet).ok()) {
        Some(subnet) => Ok(subnet),
        None => Subnet::of_state(body),
    }
}
