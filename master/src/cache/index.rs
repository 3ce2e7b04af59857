//! Secondary indexes of the cache.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::IpAddr;

use contiv_model::{endpoint, name::NetworkId, service};

/// Labels of a container, or selectors of a service.
pub type Labels = BTreeMap<String, String>;

/// Updated with every change of an endpoint or of a service state.
#[derive(Default)]
pub(super) struct Index {
    /// Endpoint ids by network and address. More than one only if the original netmaster allocated
    /// an address twice.
    by_address: HashMap<(NetworkId, IpAddr), Vec<String>>,
    /// Service ids by network and address.
    vips: HashMap<(NetworkId, IpAddr), String>,
    /// Endpoint ids by network id.
    by_network: HashMap<String, BTreeSet<String>>,
    /// Endpoint ids by group key.
    by_group: HashMap<String, BTreeSet<String>>,
    /// Endpoint ids by container id.
    containers: HashMap<String, BTreeSet<String>>,
    /// Endpoints by label: the ids of their networks, and their own.
    by_label: HashMap<(String, String), BTreeSet<(NetworkId, String)>>,
    /// Service ids by tenant and first selector.
    by_selector: HashMap<String, HashMap<(String, String), BTreeSet<String>>>,
}

/// Object that an address is allocated to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressOwner {
    Endpoint(String),
    Service(String),
}

impl fmt::Display for AddressOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressOwner::Endpoint(id) => write!(f, "endpoint {id}"),
            AddressOwner::Service(id) => write!(f, "service {id}"),
        }
    }
}

impl Index {
    pub(super) fn address_owners(&self, network: &str, ip: IpAddr) -> &[String] {
        self.by_address.get(&(network.into(), ip)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn service_with_vip(&self, network: &str, ip: IpAddr) -> Option<&str> {
        self.vips.get(&(network.into(), ip)).map(String::as_str)
    }

    pub(super) fn endpoints_of_container(&self, container: &str) -> impl Iterator<Item = &str> {
        self.containers.get(container).into_iter().flatten().map(String::as_str)
    }

    pub(super) fn endpoints_of_network(&self, network: &str) -> impl Iterator<Item = &str> {
        self.by_network.get(network).into_iter().flatten().map(String::as_str)
    }

    pub(super) fn endpoints_of_group(&self, group: &str) -> impl Iterator<Item = &str> {
        self.by_group.get(group).into_iter().flatten().map(String::as_str)
    }

    /// Endpoints that have the label, sorted by network.
    pub(super) fn endpoints_with_label(&self, label: (&str, &str)) -> Option<&BTreeSet<(NetworkId, String)>> {
        self.by_label.get(&owned(label))
    }

    /// Services of `tenant` whose first selector is among the labels.
    pub(super) fn services_selecting<'i>(
        &'i self,
        tenant: &str,
        labels: &'i Labels,
    ) -> impl Iterator<Item = &'i str> {
        let of_tenant = self.by_selector.get(tenant);
        let found =
            labels.iter().filter_map(move |(name, value)| of_tenant?.get(&(name.clone(), value.clone())));
        found.flatten().map(String::as_str)
    }

    /// Replaces the index entries of endpoint `old` by those of `new`.
    pub(super) fn endpoint(&mut self, old: Option<&endpoint::State>, new: Option<&endpoint::State>) {
        if let Some(old) = old {
            self.remove_endpoint(old);
        }
        let Some(new) = new else { return };
        let network = NetworkId::from(new.net_id.as_str());
        for ip in addresses(new) {
            self.by_address.entry((network.clone(), ip)).or_default().push(new.id.clone());
        }
        self.by_network.entry(new.net_id.clone()).or_default().insert(new.id.clone());
        if !new.endpoint_group_key.is_empty() {
            self.by_group.entry(new.endpoint_group_key.clone()).or_default().insert(new.id.clone());
        }
        if !new.container_id.is_empty() {
            self.containers.entry(new.container_id.clone()).or_default().insert(new.id.clone());
        }
        for label in new.labels.iter().flatten() {
            self.by_label.entry(owned(label)).or_default().insert((network.clone(), new.id.clone()));
        }
    }

    fn remove_endpoint(&mut self, old: &endpoint::State) {
        let network = NetworkId::from(old.net_id.as_str());
        for ip in addresses(old) {
            let key = (network.clone(), ip);
            if let Some(holders) = self.by_address.get_mut(&key) {
                holders.retain(|id| *id != old.id);
                if holders.is_empty() {
                    self.by_address.remove(&key);
                }
            }
        }
        remove(&mut self.by_network, &old.net_id, old.id.as_str());
        remove(&mut self.by_group, &old.endpoint_group_key, old.id.as_str());
        remove(&mut self.containers, &old.container_id, old.id.as_str());
        let id = (network, old.id.clone());
        for label in old.labels.iter().flatten() {
            remove(&mut self.by_label, &owned(label), &id);
        }
    }

    /// Replaces the index entries of service state `old` by those of `new`.
    pub(super) fn service(&mut self, old: Option<&service::State>, new: Option<&service::State>) {
        if let Some(old) = old {
            self.remove_service(old);
        }
        let Some(new) = new else { return };
        if let Some(key) = vip(new) {
            self.vips.insert(key, new.id.clone());
        }
        if let Some(first) = new.selectors.iter().flatten().next() {
            let of_tenant = self.by_selector.entry(new.tenant_name.clone()).or_default();
            of_tenant.entry(owned(first)).or_default().insert(new.id.clone());
        }
    }

    fn remove_service(&mut self, old: &service::State) {
        if let Some(key) = vip(old).filter(|key| self.vips.get(key) == Some(&old.id)) {
            self.vips.remove(&key);
        }
        if let (Some(first), Some(of_tenant)) =
            (old.selectors.iter().flatten().next(), self.by_selector.get_mut(&old.tenant_name))
        {
            remove(of_tenant, &owned(first), old.id.as_str());
            if of_tenant.is_empty() {
                self.by_selector.remove(&old.tenant_name);
            }
        }
    }
}

fn owned((name, value): (impl AsRef<str>, impl AsRef<str>)) -> (String, String) {
    (name.as_ref().to_owned(), value.as_ref().to_owned())
}

fn remove<K: Hash + Eq, I: Ord + Borrow<Q>, Q: Ord + ?Sized>(
    map: &mut HashMap<K, BTreeSet<I>>,
    key: &K,
    id: &Q,
) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

/// IPv4 and IPv6 address, where set.
pub(super) fn addresses(endpoint: &endpoint::State) -> impl Iterator<Item = IpAddr> {
    [&endpoint.ip_address, &endpoint.ipv6_address].into_iter().filter_map(|ip| ip.parse().ok())
}

fn vip(service: &service::State) -> Option<(NetworkId, IpAddr)> {
    let network = format!("{}.{}", service.network_name, service.tenant_name);
    Some((network.into(), service.ip_address.parse().ok()?))
}
