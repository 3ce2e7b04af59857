//! Where an address comes from and goes back to: a network, or the pool of a group on it.

use std::net::IpAddr;

use contiv_model::{api, group, network};

use crate::cache::{Draft, Ledger};
use crate::ipam::{HostsChange, IpPool, PoolChange, Subnet, Subnet6, in_use};
use crate::problem::Problem;

/// A network, and a group if one is named.
pub struct Place<'w> {
    pub network: &'w Ledger<network::State>,
    pub group: Option<&'w Ledger<group::State>>,
    pub subnet: Subnet,
    pub subnet6: Option<Subnet6>,
}

/// An address that was chosen, and not taken yet.
pub struct Choice {
    pub host: usize,
    /// The group whose pool it is of.
    pool: Option<String>,
}

/// The same of IPv6.
pub struct Choice6 {
    pub host: u128,
    automatic: bool,
}

impl<'w> Place<'w> {
    pub fn find(draft: &Draft<'w>, network: &str, group: Option<&str>) -> Result<Place<'w>, Problem> {
        let network = draft.ledger_before::<network::State>(network).ok_or_else(Problem::key_not_found)?;
        let group = match group {
            Some(key) => Some(draft.ledger_before::<group::State>(key).ok_or_else(Problem::key_not_found)?),
            None => None,
        };
        Ok(Place {
            network,
            group,
            subnet: subnet(draft, &network.body)?,
            subnet6: Subnet6::of_state(&network.body).filter(|subnet| subnet.len > 0),
        })
    }

    fn id(&self) -> &'w str {
        &self.network.body.id
    }

    /// The lowest free address of the group's pool, or of the network.
    pub fn choose(&self, draft: &mut Draft<'w>) -> Result<Choice, Problem> {
        let failed = |of| Problem::conflict(format!("auto allocation failed - address exhaustion in {of}"));
        if let Some(group) = self.group.filter(|group| !group.body.ip_pool.is_empty()) {
            let body = &group.body;
            if body.network_name != self.network.body.network_name {
                let (group, network) = (&body.group_name, &body.network_name);
                let error = format!("group {group} has its addresses on network {network}");
                return Err(Problem::conflict(error));
            }
            let (ledger, change) =
                draft.ledger::<group::State>(&body.id).ok_or_else(Problem::key_not_found)?;
            let host = change.pool.lowest_free(&ledger.pool);
            let host = host.ok_or_else(|| failed(format!("pool {}", body.ip_pool)))?;
            return Ok(Choice { host, pool: Some(body.id.clone()) });
        }
        let (ledger, change) =
            draft.ledger::<network::State>(self.id()).ok_or_else(Problem::key_not_found)?;
        let host = change.pool.lowest_free(&ledger.pool);
        let host = host.ok_or_else(|| failed(format!("subnet {}", self.subnet)))?;
        Ok(Choice { host, pool: None })
    }

    /// The address that was asked for, unless an endpoint has it or it is nobody's to have.
    pub fn explicit(&self, draft: &Draft<'w>, address: &str) -> Result<Choice, Problem> {
        let host = self.subnet.host(address)?;
        let ip = self.subnet.address(host);
        if self.is_reserved(host) || draft.holder(self.id(), ip.into()).is_some() {
            return Err(in_use(ip));
        }
        Ok(Choice { host, pool: self.pool_with(draft, host) })
    }

    /// Is the address that was chosen marked as taken? Then a caller of `allocAddress` has it.
    pub fn is_taken(&self, draft: &mut Draft<'w>, choice: &Choice) -> bool {
        match &choice.pool {
            Some(group) => {
                let found = draft.ledger::<group::State>(group);
                found.is_some_and(|(ledger, change)| change.pool.is_taken(&ledger.pool, choice.host))
            }
            None => {
                let found = draft.ledger::<network::State>(self.id());
                found.is_some_and(|(ledger, change)| change.pool.is_taken(&ledger.pool, choice.host))
            }
        }
    }

    pub fn take(&self, draft: &mut Draft<'w>, choice: &Choice) {
        let taken = match &choice.pool {
            Some(group) => draft
                .ledger::<group::State>(group)
                .is_some_and(|(ledger, change)| change.pool.take(&ledger.pool, choice.host)),
            None => draft
                .ledger::<network::State>(self.id())
                .is_some_and(|(ledger, change)| change.pool.take(&ledger.pool, choice.host)),
        };
        self.count(draft, taken as i64);
    }

    /// Takes an address that somebody has already; false if it was taken, or is not of the network.
    pub fn mark(&self, draft: &mut Draft<'w>, address: &str) -> bool {
        if address.contains(':') {
            let host = self.subnet6.and_then(|subnet| subnet.host(address, true).ok());
            let choice = host.map(|host| Choice6 { host, automatic: false });
            let free = choice.filter(|choice| !self.is_taken6(draft, choice));
            return free.inspect(|choice| self.take6(draft, choice)).is_some();
        }
        let host = self.subnet.host(address).ok();
        let choice = host.map(|host| Choice { host, pool: self.pool_with(draft, host) });
        let free = choice.filter(|choice| !self.is_taken(draft, choice));
        free.inspect(|choice| self.take(draft, choice)).is_some()
    }

    /// The IPv6 addresses that are taken, before this draft.
    pub fn addresses6(&self) -> impl Iterator<Item = String> {
        let subnet = self.subnet6;
        let hosts = subnet.iter().flat_map(|_| self.network.hosts.iter()).collect::<Vec<_>>();
        hosts.into_iter().filter_map(move |host| Some(subnet?.address(host).to_string()))
    }

    /// Gives an address back; nothing happens, and false is returned, to one that is nobody's to give, or that is held by
    /// an endpoint or a service.
    pub fn release(&self, draft: &mut Draft<'w>, host: usize) -> bool {
        let ip = self.subnet.address(host);
        let held = draft.holder(self.id(), ip.into()).is_some();
        if self.is_reserved(host) || self.subnet.excludes(host) || held {
            return false;
        }
        let freed = match self.pool_with(draft, host) {
            Some(group) => draft
                .ledger::<group::State>(&group)
                .is_some_and(|(ledger, change)| change.pool.free(&ledger.pool, host)),
            None => draft
                .ledger::<network::State>(self.id())
                .is_some_and(|(ledger, change)| change.pool.free(&ledger.pool, host)),
        };
        self.count(draft, -(freed as i64));
        freed
    }

    /// The network's next IPv6 address, or the one that was asked for; none if the network has no IPv6.
    pub fn choose6(&self, draft: &mut Draft<'w>, address: &str) -> Result<Option<Choice6>, Problem> {
        let Some(subnet) = self.subnet6 else { return Ok(None) };
        if address.is_empty() {
            // Refuses the prefixes that the original refuses.
            subnet.host(&subnet.base.to_string(), false)?;
            let (ledger, change) =
                draft.ledger::<network::State>(self.id()).ok_or_else(Problem::key_not_found)?;
            let host = change.hosts.next_free(&ledger.hosts, &subnet)?;
            return Ok(Some(Choice6 { host, automatic: true }));
        }
        let host = subnet.host(address, true)?;
        let ip = subnet.address(host);
        if self.is_gateway6(&subnet, host) || draft.holder(self.id(), ip.into()).is_some() {
            return Err(in_use(ip));
        }
        Ok(Some(Choice6 { host, automatic: false }))
    }

    pub fn is_taken6(&self, draft: &mut Draft<'w>, choice: &Choice6) -> bool {
        let found = draft.ledger::<network::State>(self.id());
        found.is_some_and(|(ledger, change)| change.hosts.is_taken(&ledger.hosts, choice.host))
    }

    pub fn take6(&self, draft: &mut Draft<'w>, choice: &Choice6) {
        if let Some((ledger, change)) = draft.ledger::<network::State>(self.id()) {
            let taken = change.hosts.take(&ledger.hosts, choice.host);
            if choice.automatic {
                change.hosts.last = Some(choice.host);
            }
            change.addresses += taken as i64;
        }
    }

    pub fn release6(&self, draft: &mut Draft<'w>, address: &str) -> bool {
        let Some(subnet) = self.subnet6 else { return false };
        let Ok(host) = subnet.host(address, true) else { return false };
        let held = draft.holder(self.id(), IpAddr::V6(subnet.address(host))).is_some();
        if self.is_gateway6(&subnet, host) || held {
            return false;
        }
        let Some((ledger, change)) = draft.ledger::<network::State>(self.id()) else { return false };
        let freed = change.hosts.free(&ledger.hosts, host);
        change.addresses -= freed as i64;
        freed
    }

    /// An endpoint more or less.
    pub fn count_endpoint(&self, draft: &mut Draft<'w>, more: i64) {
        if let Some((_, change)) = draft.ledger::<network::State>(self.id()) {
            change.endpoints += more;
        }
        if let Some((_, change)) = self.group.and_then(|g| draft.ledger::<group::State>(&g.body.id)) {
            change.endpoints += more;
        }
    }

    fn count(&self, draft: &mut Draft<'w>, more: i64) {
        if let Some((_, change)) = draft.ledger::<network::State>(self.id()) {
            change.addresses += more;
        }
    }

    /// The subnet's own address, its broadcast address and the gateway.
    fn is_reserved(&self, host: usize) -> bool {
        let gateway = self.subnet.host(&self.network.body.gateway).ok();
        host == 0 || host + 1 == self.subnet.size() || gateway == Some(host)
    }

    fn is_gateway6(&self, subnet: &Subnet6, host: u128) -> bool {
        subnet.host(&self.network.body.ipv6_gateway, false).is_ok_and(|gateway| gateway == host)
    }

    /// The group on the network whose pool has `host`.
    fn pool_with(&self, draft: &Draft<'w>, host: usize) -> Option<String> {
        let has = |group: &Ledger<group::State>| {
            let pool = IpPool::read(&group.body.ip_pool, &self.subnet).ok().flatten();
            pool.is_some_and(|pool| pool.contains(host))
        };
        if let Some(group) = self.group.filter(|group| has(group)) {
            return Some(group.body.id.clone());
        }
        let body = &self.network.body;
        let network = draft.get::<api::Network>(&format!("{}:{}", body.tenant, body.network_name))?;
        let groups = network.link_sets.endpoint_groups.keys();
        groups.filter_map(|key| key.split_once(':')).find_map(|(tenant, group)| {
            let ledger = draft.ledger_before::<group::State>(&format!("{group}:{tenant}"))?;
            has(ledger).then(|| ledger.body.id.clone())
        })
    }
}

/// The subnet as the user wrote it.
fn subnet(draft: &Draft<'_>, body: &network::State) -> Result<Subnet, Problem> {
    let object = draft.get::<api::Network>(&format!("{}:{}", body.tenant, body.network_name));
    match object.and_then(|network| Subnet::parse(&network.subnet).ok()) {
        Some(subnet) => Ok(subnet),
        None => Subnet::of_state(body),
    }
}

/// None if the network has no such address.
pub fn is_taken(ledger: &Ledger<network::State>, address: &str) -> Option<bool> {
    if address.contains(':') {
        let host = Subnet6::of_state(&ledger.body)?.host(address, true).ok()?;
        return Some(HostsChange::default().is_taken(&ledger.hosts, host));
    }
    let host = Subnet::of_state(&ledger.body).ok()?.host(address).ok()?;
    Some(PoolChange::default().is_taken(&ledger.pool, host))
}
