//! Ways to find entries other than by their keys.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::net::IpAddr;

use contiv_model::{endpoint, name::NetworkId, service};

/// The labels of a container, or what a service selects by.
pub type Labels = BTreeMap<String, String>;

/// Kept right by whoever changes endpoints or the states of services.
#[derive(Default)]
pub(super) struct Index {
    /// Endpoints by network and address: several only where the original gave an address twice.
    holders: HashMap<(NetworkId, IpAddr), Vec<String>>,
    /// Services by network and address.
    vips: HashMap<(NetworkId, IpAddr), String>,
    /// Endpoints by their containers.
    containers: HashMap<String, BTreeSet<String>>,
    /// Endpoints by network and label.
    labelled: HashMap<NetworkId, HashMap<(String, String), BTreeSet<String>>>,
    /// Services by tenant and the first of their selectors.
    selecting: HashMap<String, HashMap<(String, String), BTreeSet<String>>>,
    /// Services by the endpoints behind them.
    provided: HashMap<String, BTreeSet<String>>,
}

/// Who has an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    Endpoint(String),
    Service(String),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Endpoint(id) => write!(f, "endpoint {id}"),
            Holder::Service(id) => write!(f, "service {id}"),
        }
    }
}

impl Index {
    pub(super) fn holders(&self, network: &str, ip: IpAddr) -> &[String] {
        self.holders.get(&(network.into(), ip)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn vip(&self, network: &str, ip: IpAddr) -> Option<&str> {
        self.vips.get(&(network.into(), ip)).map(String::as_str)
    }

    pub(super) fn of_container(&self, container: &str) -> impl Iterator<Item = &str> {
        self.containers.get(container).into_iter().flatten().map(String::as_str)
    }

    /// Endpoints of `network` that have the label.
    pub(super) fn labelled(&self, network: &str, label: (&str, &str)) -> impl Iterator<Item = &str> {
        let of_network = self.labelled.get(&NetworkId::from(network));
        let found = of_network.and_then(|labels| labels.get(&owned(label)));
        found.into_iter().flatten().map(String::as_str)
    }

    /// Services of `tenant` the first of whose selectors is among the labels.
    pub(super) fn selecting<'i>(&'i self, tenant: &str, labels: &'i Labels) -> impl Iterator<Item = &'i str> {
        let of_tenant = self.selecting.get(tenant);
        let found =
            labels.iter().filter_map(move |(name, value)| of_tenant?.get(&(name.clone(), value.clone())));
        found.flatten().map(String::as_str)
    }

    pub(super) fn provided(&self, endpoint: &str) -> impl Iterator<Item = &str> {
        self.provided.get(endpoint).into_iter().flatten().map(String::as_str)
    }

    /// The endpoint was `old`, and is `new`.
    pub(super) fn endpoint(&mut self, old: Option<&endpoint::State>, new: Option<&endpoint::State>) {
        if let Some(old) = old {
            self.forget_endpoint(old);
        }
        let Some(new) = new else { return };
        let network = NetworkId::from(new.net_id.as_str());
        for ip in addresses(new) {
            self.holders.entry((network.clone(), ip)).or_default().push(new.id.clone());
        }
        if !new.container_id.is_empty() {
            self.containers.entry(new.container_id.clone()).or_default().insert(new.id.clone());
        }
        for label in new.labels.iter().flatten() {
            let labels = self.labelled.entry(network.clone()).or_default();
            labels.entry(owned(label)).or_default().insert(new.id.clone());
        }
    }

    fn forget_endpoint(&mut self, old: &endpoint::State) {
        let network = NetworkId::from(old.net_id.as_str());
        for ip in addresses(old) {
            let place = (network.clone(), ip);
            if let Some(holders) = self.holders.get_mut(&place) {
                holders.retain(|id| *id != old.id);
                if holders.is_empty() {
                    self.holders.remove(&place);
                }
            }
        }
        remove(&mut self.containers, &old.container_id, &old.id);
        if let Some(labels) = self.labelled.get_mut(&network) {
            old.labels.iter().flatten().for_each(|label| remove(labels, &owned(label), &old.id));
            if labels.is_empty() {
                self.labelled.remove(&network);
            }
        }
    }

    /// The state of the service was `old`, and is `new`.
    pub(super) fn service(&mut self, old: Option<&service::State>, new: Option<&service::State>) {
        if let Some(old) = old {
            self.forget_service(old);
        }
        let Some(new) = new else { return };
        if let Some(place) = vip(new) {
            self.vips.insert(place, new.id.clone());
        }
        if let Some(first) = new.selectors.iter().flatten().next() {
            let of_tenant = self.selecting.entry(new.tenant_name.clone()).or_default();
            of_tenant.entry(owned(first)).or_default().insert(new.id.clone());
        }
        for provider in new.providers.iter().flat_map(BTreeMap::values) {
            self.provided.entry(provider.endpoint.clone()).or_default().insert(new.id.clone());
        }
    }

    fn forget_service(&mut self, old: &service::State) {
        if let Some(place) = vip(old).filter(|place| self.vips.get(place) == Some(&old.id)) {
            self.vips.remove(&place);
        }
        if let (Some(first), Some(of_tenant)) =
            (old.selectors.iter().flatten().next(), self.selecting.get_mut(&old.tenant_name))
        {
            remove(of_tenant, &owned(first), &old.id);
            if of_tenant.is_empty() {
                self.selecting.remove(&old.tenant_name);
            }
        }
        for provider in old.providers.iter().flat_map(BTreeMap::values) {
            remove(&mut self.provided, &provider.endpoint, &old.id);
        }
    }
}

fn owned((name, value): (impl AsRef<str>, impl AsRef<str>)) -> (String, String) {
    (name.as_ref().to_owned(), value.as_ref().to_owned())
}

fn remove<K: std::hash::Hash + Eq>(map: &mut HashMap<K, BTreeSet<String>>, key: &K, id: &str) {
    if let Some(ids) = map.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            map.remove(key);
        }
    }
}

/// Each once.
pub(super) fn addresses(endpoint: &endpoint::State) -> impl Iterator<Item = IpAddr> {
    [&endpoint.ip_address, &endpoint.ipv6_address].into_iter().filter_map(|ip| ip.parse().ok())
}

fn vip(service: &service::State) -> Option<(NetworkId, IpAddr)> {
    let network = format!("{}.{}", service.network_name, service.tenant_name);
    Some((network.into(), service.ip_address.parse().ok()?))
}
