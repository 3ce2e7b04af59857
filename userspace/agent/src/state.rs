//! What this node knows: the cluster's objects as the sources tell them, and the interfaces that are here.
//!
//! One [`Writer`] changes it, many [`Reader`]s look at it, and one [`Changes`] hears what was touched.
//! An event costs work in proportion to what it changes: the indices say what else it concerns.

mod groups;
mod rejected;
mod services;
mod shared;
mod tags;
mod touched;
mod vteps;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use contiv_model::{
    endpoint::Endpoint,
    global::{ArpMode, Config},
    group::{Group, GroupNumber},
    key::Key,
    name::{EndpointId, HostName, NetworkId, PolicyId, ServiceId, TenantName},
    network::{Kind, Network},
    policy::Policy,
    service::Service,
    tag::Encap,
};

pub use rejected::Rejected;
pub use shared::{Attacher, Changes, Reader, Update, Writer, new};
pub use touched::Touched;
pub use vteps::Vtep;

use crate::datapath::Owner;
use groups::Groups;
use services::Services;
use tags::Tags;
use vteps::Vteps;

/// One object of the cluster, valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// The cluster's settings.
    Config(Config),
    /// A network.
    Network(Network),
    /// An endpoint, here or elsewhere.
    Endpoint(Endpoint),
    /// A group.
    Group(Group),
    /// A policy on a group.
    Policy(Policy),
    /// A service, but for what serves it.
    Service(Service),
    /// The addresses of what serves a service, each once.
    Providers(Vec<IpAddr>),
    /// A node's VTEP as its living agent registered it.
    Registration(Vtep),
    /// A node's VTEP as its agent left it behind.
    Node(Vtep),
}

/// The object, if it is what its key says.
macro_rules! of_kind {
    ($object:expr, $kind:ident) => {
        match $object {
            Some(Object::$kind(value)) => Some(value),
            _ => None,
        }
    };
}

/// An interface on this node that belongs to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The name of the node's end of the veth pair.
    pub port: String,
    /// Whose the other end is.
    pub owner: Owner,
}

impl Attachment {
    /// The interface of a pod.
    pub fn of_pod(port: impl Into<String>) -> Attachment {
        Attachment { port: port.into(), owner: Owner::Pod }
    }
}

/// Everything known, with the indices that make changes cheap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    config: Option<Config>,
    networks: BTreeMap<NetworkId, Network>,
    of_tenant: BTreeMap<TenantName, BTreeSet<NetworkId>>,
    infra: BTreeSet<NetworkId>,
    tags: Tags,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    by_network: BTreeMap<NetworkId, BTreeSet<EndpointId>>,
    by_host: BTreeMap<HostName, BTreeSet<EndpointId>>,
    groups: Groups,
    services: Services,
    vteps: Vteps,
    attachments: BTreeMap<EndpointId, Attachment>,
}

impl State {
    /// The cluster's settings.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// How ARP and ND are treated.
    pub fn arp(&self) -> ArpMode {
        self.config.as_ref().map(Config::arp_mode).unwrap_or_default()
    }

    /// A network.
    pub fn network(&self, id: &NetworkId) -> Option<&Network> {
        self.networks.get(id)
    }

    /// Every network.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// The networks that nodes themselves are on, as far as they are carried.
    pub fn infra_networks(&self) -> impl Iterator<Item = &Network> {
        self.infra.iter().filter_map(|id| self.carried(id))
    }

    /// A network, unless another one has a tag of its own: the first by name keeps it.
    pub fn carried(&self, id: &NetworkId) -> Option<&Network> {
        self.networks.get(id).filter(|network| self.tags.are_of(network))
    }

    /// An endpoint.
    pub fn endpoint(&self, id: &EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id)
    }

    /// Every endpoint.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.values()
    }

    /// The endpoints of a network.
    pub fn on_network(&self, id: &NetworkId) -> impl Iterator<Item = &EndpointId> {
        self.by_network.get(id).into_iter().flatten()
    }

    /// The endpoints of a node.
    pub fn on_host(&self, host: &HostName) -> impl Iterator<Item = &EndpointId> {
        self.by_host.get(host).into_iter().flatten()
    }

    /// A group. Of two with one number the first by name.
    pub fn group(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(number)
    }

    /// The policies on a group, in the order of their ids.
    pub fn policies_on(&self, number: GroupNumber) -> impl Iterator<Item = &Policy> {
        self.groups.policies(number)
    }

    /// The groups with a policy that stands in the store and was never understood, and the first such policy: what
    /// holds for them is not known.
    pub fn unread_policies(&self) -> impl Iterator<Item = (GroupNumber, &PolicyId)> {
        self.groups.unread()
    }

    /// Whether the group is one of [`unread_policies`](Self::unread_policies).
    pub fn has_unread_policy(&self, number: GroupNumber) -> bool {
        self.groups.has_unread(number)
    }

    /// The groups that have endpoints on a node.
    pub fn groups_on(&self, host: &HostName) -> impl Iterator<Item = GroupNumber> {
        self.groups.on_host(host)
    }

    /// Whether the group has endpoints on a node.
    pub fn is_group_on(&self, number: GroupNumber, host: &HostName) -> bool {
        self.groups.is_on_host(number, host)
    }

    /// A service.
    pub fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    /// Every service.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter()
    }

    /// The addresses of what serves a service.
    pub fn providers(&self, id: &ServiceId) -> &[IpAddr] {
        self.services.providers(id)
    }

    /// The tag of the tenant's network that has `address` in its subnet: of `first` if that has it.
    pub fn encap_at(&self, tenant: &TenantName, first: Option<&NetworkId>, address: IpAddr) -> Option<Encap> {
        let others = self.of_tenant.get(tenant).into_iter().flatten();
        let mut networks = first.into_iter().chain(others).filter_map(|id| self.carried(id));
        networks.find(|network| network.contains(address)).map(|network| network.encap)
    }

    /// The VTEP of a node.
    pub fn vtep(&self, host: &HostName) -> Option<&Vtep> {
        self.vteps.of(host)
    }

    /// Every address that some node has, or had, its VTEP at.
    pub fn vtep_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.vteps.addresses()
    }

    /// The nodes other than `us` that have their VTEP at `address` now and count: their agents are registered, or
    /// they have endpoints that their switches serve without them.
    pub fn vteps_at(&self, address: IpAddr, us: &HostName) -> impl Iterator<Item = &Vtep> {
        let counts = move |vtep: &&Vtep| {
            vtep.address == address
                && vtep.host != *us
                && (self.vteps.is_registered(&vtep.host) || self.by_host.contains_key(&vtep.host))
        };
        self.vteps.hosts_at(address).filter_map(|host| self.vteps.of(host)).filter(counts)
    }

    /// The interface of an endpoint.
    pub fn attachment(&self, id: &EndpointId) -> Option<&Attachment> {
        self.attachments.get(id)
    }

    /// Every interface.
    pub fn attachments(&self) -> impl Iterator<Item = (&EndpointId, &Attachment)> {
        self.attachments.iter()
    }

    /// Makes `key` be `object`, or be gone; what that concerns.
    pub fn set(&mut self, key: &Key, object: Option<Object>) -> Touched {
        let mut touched = Touched::default();
        match key {
            Key::MasterConfig => {
                let before = self.arp();
                self.config = of_kind!(object, Config);
                if before != self.arp() {
                    touched.networks.extend(self.networks.keys().cloned());
                }
            }
            Key::Network(id) => self.set_network(id, of_kind!(object, Network), &mut touched),
            Key::Endpoint(id) => self.set_endpoint(id, of_kind!(object, Endpoint), &mut touched),
            Key::Group(key) => {
                touched.groups.extend(self.groups.set_group(key, of_kind!(object, Group)));
            }
            Key::Policy(id) => {
                touched.groups.extend(self.groups.set_policy(id, of_kind!(object, Policy)));
            }
            Key::ServiceLb(id) => {
                touched.services.extend(self.services.set(id, of_kind!(object, Service)).then(|| id.clone()));
            }
            Key::Providers(id) => {
                let providers = of_kind!(object, Providers);
                touched.services.extend(self.services.set_providers(id, providers).then(|| id.clone()));
            }
            Key::Service { address, .. } => {
                let hosts = self.vteps.register(address, of_kind!(object, Registration));
                self.touch_hosts(hosts, &mut touched);
            }
            Key::NodeStatus(host) => {
                let hosts = self.vteps.leave(host, of_kind!(object, Node));
                self.touch_hosts(hosts, &mut touched);
            }
            _ => {}
        }
        touched
    }

    /// What stands under `key` is not understood; what that concerns.
    pub fn reject(&mut self, key: &Key) -> Touched {
        let groups = match key {
            Key::Policy(id) => self.groups.reject_policy(id).into_iter().collect(),
            _ => BTreeSet::new(),
        };
        Touched { groups, ..Touched::default() }
    }

    fn set_network(&mut self, id: &NetworkId, network: Option<Network>, touched: &mut Touched) {
        let before = match network {
            Some(network) if self.networks.get(id) == Some(&network) => return,
            Some(network) => {
                touched.networks.extend(self.tags.claim(&network));
                self.networks.insert(id.clone(), network)
            }
            None => self.networks.remove(id),
        };
        if let Some(before) = &before {
            touched.networks.extend(self.tags.release(before, self.networks.get(id)));
            take_out(&mut self.of_tenant, &before.tenant, id);
            self.infra.remove(id);
        }
        if let Some(network) = self.networks.get(id) {
            self.of_tenant.entry(network.tenant.clone()).or_default().insert(id.clone());
            if network.kind == Kind::Infra {
                self.infra.insert(id.clone());
            }
        }
        touched.networks.insert(id.clone());
        let networks = touched.networks.iter().filter_map(|id| self.networks.get(id)).chain(&before);
        let services = networks.flat_map(|network| self.services.of(&network.tenant));
        touched.services.extend(services.cloned());
    }

    fn set_endpoint(&mut self, id: &EndpointId, endpoint: Option<Endpoint>, touched: &mut Touched) {
        if endpoint.as_ref() == self.endpoints.get(id) {
            return;
        }
        touched.endpoints.insert(id.clone());
        let mut hosts = BTreeSet::new();
        if let Some(before) = self.endpoints.remove(id) {
            take_out(&mut self.by_network, &before.network, id);
            take_out(&mut self.by_host, &before.host, id);
            let group = before.group_number.filter(|number| self.groups.part(*number, &before.host));
            touched.groups.extend(group);
            hosts.insert(before.host);
        }
        if let Some(endpoint) = endpoint {
            self.by_network.entry(endpoint.network.clone()).or_default().insert(id.clone());
            self.by_host.entry(endpoint.host.clone()).or_default().insert(id.clone());
            let group = endpoint.group_number.filter(|number| self.groups.join(*number, &endpoint.host));
            touched.groups.extend(group);
            hosts.insert(endpoint.host.clone());
            self.endpoints.insert(id.clone(), endpoint);
        }
        // A node whose agent is gone counts as a peer while it has endpoints.
        touched.vteps.extend(hosts.iter().filter_map(|host| self.vteps.of(host)).map(|vtep| vtep.address));
    }

    fn touch_hosts(&self, changes: vteps::Changes, touched: &mut Touched) {
        touched.vteps.extend(changes.addresses);
        for host in changes.moved {
            touched.endpoints.extend(self.on_host(&host).cloned());
        }
    }

    /// An interface is there, or gone.
    pub fn set_attachment(&mut self, id: &EndpointId, attachment: Option<Attachment>) -> Touched {
        match attachment {
            Some(attachment) => {
                self.attachments.insert(id.clone(), attachment);
            }
            None => {
                self.attachments.remove(id);
            }
        }
        // Even when nothing changed: whoever asked waits for the word that it is so.
        Touched { endpoints: [id.clone()].into(), ..Touched::default() }
    }
}

fn take_out<K: Ord, I: Ord>(index: &mut BTreeMap<K, BTreeSet<I>>, key: &K, id: &I) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
