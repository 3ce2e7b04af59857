mod unreadable;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use contiv_model::{
    endpoint::Endpoint,
    global::{ArpMode, Config},
    group::{Group, GroupNumber},
    key::Key,
    name::{EndpointId, GroupKey, HostName, NetworkId, ServiceId, TenantName},
    network::{Kind, Network},
    policy::Policy,
    service::Service,
    tag::Encap,
    vrf::Vrf,
};
use ipnet::{IpNet, Ipv4Net};

use unreadable::Unreadable;

use super::{
    dirty::DirtySet,
    groups::Groups,
    index::remove_from,
    members::Members,
    object::{Attachment, BgpSpeaker, ClusterObject},
    overlaps::Overlaps,
    services::Services,
    surroundings::Surroundings,
    tags::Tags,
    vrfs::Vrfs,
    vteps::{self, Vtep, Vteps},
};

/// The value of an object of the given kind; `None` if the object is of another kind.
macro_rules! of_kind {
    ($object:expr, $kind:ident) => {
        match $object {
            Some(ClusterObject::$kind(value)) => Some(value),
            _ => None,
        }
    };
}

/// Group membership in an endpoint's record: the number, and the key if it is known.
pub(super) type Membership = (GroupNumber, Option<GroupKey>);

/// Snapshot of the node's state, with indices that make changes cheap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    config: Option<Config>,
    networks: BTreeMap<NetworkId, Network>,
    by_tenant: BTreeMap<TenantName, BTreeSet<NetworkId>>,
    infra: BTreeSet<NetworkId>,
    tags: Tags,
    vrfs: Vrfs,
    /// If they route, the nodes are the gateways of VLAN networks, too.
    routes_vlans: bool,
    /// Pods reach addresses outside of the cluster's networks through the node.
    has_host_access: bool,
    /// VLAN networks that the nodes can route. Their addresses must be unique in the fabric.
    fabric: Overlaps<()>,
    endpoints: BTreeMap<EndpointId, Endpoint>,
    by_network: BTreeMap<NetworkId, BTreeSet<EndpointId>>,
    by_host: BTreeMap<HostName, BTreeSet<EndpointId>>,
    networks_on: Members<NetworkId>,
    pub(super) groups: Groups,
    pub(super) groups_on: Members<Membership>,
    services: Services,
    vteps: Vteps,
    unreadable: Unreadable,
    attachments: BTreeMap<EndpointId, Attachment>,
    bgp_speakers: BTreeMap<HostName, BgpSpeaker>,
    /// Nodes whose BGP speaker settings are invalid and have never been valid in this process.
    invalid_speakers: BTreeSet<HostName>,
    /// Addresses that endpoints must not use, in addition to those of nodes and leaf switches.
    reserved: BTreeSet<IpAddr>,
    pub(super) surroundings: Surroundings,
}

impl State {
    /// Global settings.
    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref()
    }

    /// How the datapath handles ARP and ND.
    pub fn arp(&self) -> ArpMode {
        self.config.as_ref().map(Config::arp_mode).unwrap_or_default()
    }

    /// Looks up a network.
    pub fn network(&self, id: &NetworkId) -> Option<&Network> {
        self.networks.get(id)
    }

    /// Iterates over all networks.
    pub fn networks(&self) -> impl Iterator<Item = &Network> {
        self.networks.values()
    }

    /// Iterates over the active networks of type infra, which the nodes themselves join.
    pub fn infra_networks(&self) -> impl Iterator<Item = &Network> {
        self.infra.iter().filter_map(|id| self.active_network(id))
    }

    /// Looks up an active network: one that shares no tag with another network and, if it is a routed VLAN network, no
    /// address. Of networks that share a tag or an address, only the first by name is active.
    pub fn active_network(&self, id: &NetworkId) -> Option<&Network> {
        let is_active = |network: &&Network| self.tags.is_active(network) && !self.is_ambiguous(network);
        self.networks.get(id).filter(is_active)
    }

    /// In forward mode `routing`, lets pods reach addresses outside of the cluster's networks through their node.
    pub fn allow_host_access(&mut self) {
        self.has_host_access = true;
    }

    /// Returns the subnet in which the pods of a node have addresses towards the node's kernel, which they use to reach
    /// addresses outside of the cluster's networks. Returns `None` without host access.
    pub fn private_subnet(&self) -> Option<Ipv4Net> {
        let config = self.config.as_ref().filter(|config| self.has_host_access && config.is_routing())?;
        config.private_subnet()
    }

    /// In forward mode `routing`, makes the nodes the gateways of VLAN networks, too.
    pub fn route_vlans(&mut self) {
        self.routes_vlans = true;
    }

    /// Whether the nodes are the gateways of VLAN networks, too.
    pub fn is_routing_vlans(&self) -> bool {
        self.routes_vlans && self.is_routing()
    }

    /// Reports whether a routed VLAN network shares addresses with a network of any tenant that has a lower id: the
    /// physical network has only one route for an address.
    fn is_ambiguous(&self, network: &Network) -> bool {
        self.is_routing_vlans() && self.fabric.is_later(&network.id)
    }

    /// Returns the VLAN networks that are not routed because they share addresses with another one, each with the first
    /// such network.
    pub fn ambiguous_networks(&self) -> impl Iterator<Item = (&NetworkId, &NetworkId)> {
        let later = self.fabric.later().filter(|_| self.is_routing_vlans());
        later.filter_map(|id| Some((id, self.fabric.first(self.networks.get(id)?, &())?)))
    }

    /// Subnets of the VLAN networks that nodes [can route](in_fabric).
    pub(super) fn vlan_subnets(&self) -> impl Iterator<Item = IpNet> {
        self.fabric.subnets(&())
    }

    /// Returns the VRF of a network that [`network`](Self::network) returns. A bridged network has its own VRF. Routed
    /// networks are in the VRF of their tenant, except those whose subnets overlap the subnets of a network of the tenant
    /// with a lower id.
    pub fn vrf(&self, network: &Network) -> Vrf {
        if self.is_routed(network) { self.vrfs.of(network) } else { network.id.clone().into() }
    }

    /// Reports whether the nodes are the gateway of a network, and forward between it and the other such networks of its
    /// VRF with the same kind of encapsulation. The gateway of a VLAN network is a router on the wire, unless the nodes
    /// [route](Self::route_vlans) VLAN networks.
    pub fn is_routed(&self, network: &Network) -> bool {
        match network.encap {
            Encap::Vxlan { .. } => self.is_routing(),
            Encap::Vlan(_) => self.is_routing_vlans() && in_fabric(network).is_some(),
        }
    }

    /// Networks of a tenant.
    pub fn networks_of(&self, tenant: &TenantName) -> impl Iterator<Item = &NetworkId> {
        self.by_tenant.get(tenant).into_iter().flatten()
    }

    /// Whether the nodes route between the networks of a tenant.
    pub fn is_routing(&self) -> bool {
        self.config.as_ref().is_some_and(Config::is_routing)
    }

    /// Returns the VRF of a service: that of its network, or of its tenant.
    pub fn vrf_of_service(&self, service: &Service) -> Vrf {
        let network = service.network.as_ref().and_then(|id| self.networks.get(id));
        network.map_or_else(|| service.tenant.clone().into(), |network| self.vrf(network))
    }

    /// Looks up an endpoint.
    pub fn endpoint(&self, id: &EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(id)
    }

    /// Iterates over all endpoints.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.values()
    }

    /// Ids of the endpoints on a network.
    pub fn on_network(&self, id: &NetworkId) -> impl Iterator<Item = &EndpointId> {
        self.by_network.get(id).into_iter().flatten()
    }

    /// Ids of the endpoints on a node.
    pub fn on_host(&self, host: &HostName) -> impl Iterator<Item = &EndpointId> {
        self.by_host.get(host).into_iter().flatten()
    }

    /// Looks up a group. Of two groups with one number, the first by name applies.
    pub fn group(&self, number: GroupNumber) -> Option<&Group> {
        self.groups.get(number)
    }

    /// Policies attached to a group, ordered by id.
    pub fn policies_on(&self, number: GroupNumber) -> impl Iterator<Item = &Policy> {
        self.groups.policies(number)
    }

    /// Networks with endpoints on a node.
    pub fn networks_on(&self, host: &HostName) -> impl Iterator<Item = &NetworkId> {
        self.networks_on.on_host(host)
    }

    /// Whether the node has endpoints on the network.
    pub fn is_network_on(&self, id: &NetworkId, host: &HostName) -> bool {
        self.networks_on.is_on_host(id, host)
    }

    /// VTEP addresses of the nodes with endpoints on the network.
    pub fn vteps_on(&self, id: &NetworkId) -> BTreeSet<IpAddr> {
        let hosts: BTreeSet<&HostName> =
            self.on_network(id).filter_map(|id| self.endpoint(id)).map(|endpoint| &endpoint.host).collect();
        hosts.into_iter().filter_map(|host| self.vtep(host)).map(|vtep| vtep.address).collect()
    }

    /// Groups with endpoints on a node.
    pub fn groups_on(&self, host: &HostName) -> BTreeSet<GroupNumber> {
        self.memberships_on(host).map(|(number, _)| *number).collect()
    }

    /// Groups with endpoints on a node, as in the endpoints' records.
    pub(super) fn memberships_on(&self, host: &HostName) -> impl Iterator<Item = &Membership> {
        self.groups_on.on_host(host)
    }

    /// Whether the group has endpoints on a node.
    pub fn is_group_on(&self, number: GroupNumber, host: &HostName) -> bool {
        self.memberships_in(number, host).next().is_some()
    }

    /// The endpoints' records on a node that have a group's number.
    pub(super) fn memberships_in(
        &self,
        number: GroupNumber,
        host: &HostName,
    ) -> impl Iterator<Item = &Membership> {
        self.groups_on.on_host_from(host, (number, None)).take_while(move |(other, _)| *other == number)
    }

    /// Looks up a service.
    pub fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    /// Iterates over all services.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.iter()
    }

    /// Addresses of a service's providers.
    pub fn providers(&self, id: &ServiceId) -> &[IpAddr] {
        self.services.providers(id)
    }

    /// The tenant's network whose subnet contains `address`; `first` takes precedence.
    pub fn network_at(
        &self,
        tenant: &TenantName,
        first: Option<&NetworkId>,
        address: IpAddr,
    ) -> Option<&Network> {
        let others = self.by_tenant.get(tenant).into_iter().flatten();
        let mut networks = first.into_iter().chain(others).filter_map(|id| self.active_network(id));
        networks.find(|network| network.contains(address))
    }

    /// Looks up the VTEP of a node.
    pub fn vtep(&self, host: &HostName) -> Option<&Vtep> {
        self.vteps.of(host)
    }

    /// Iterates over the VTEP addresses in all registrations and node statuses.
    pub fn vtep_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.vteps.addresses()
    }

    /// VTEPs at `address` of the active nodes other than `us`. A node is active while its agent is registered or while it
    /// has endpoints, which its switch serves without the agent.
    pub fn vteps_at(&self, address: IpAddr, us: &HostName) -> impl Iterator<Item = &Vtep> {
        let is_active = move |vtep: &&Vtep| {
            vtep.address == address
                && vtep.host != *us
                && (self.vteps.is_registered(&vtep.host) || self.by_host.contains_key(&vtep.host))
        };
        self.vteps.hosts_at(address).filter_map(|host| self.vteps.of(host)).filter(is_active)
    }

    /// Reports whether an agent is registered as `host` with a VTEP address other than this one.
    pub fn is_registered_elsewhere(&self, host: &HostName, address: IpAddr) -> bool {
        self.vteps.is_registered(host) && self.vtep(host).is_some_and(|vtep| vtep.address != address)
    }

    /// Looks up the interface of an endpoint.
    pub fn attachment(&self, id: &EndpointId) -> Option<&Attachment> {
        self.attachments.get(id)
    }

    /// Iterates over all interfaces.
    pub fn attachments(&self) -> impl Iterator<Item = (&EndpointId, &Attachment)> {
        self.attachments.iter()
    }

    /// Settings of a node's BGP speaker.
    pub fn bgp_speaker(&self, host: &HostName) -> Option<&BgpSpeaker> {
        self.bgp_speakers.get(host)
    }

    /// Reports whether the node's BGP speaker has invalid settings, and no valid settings have been read in this process.
    pub fn has_invalid_speaker(&self, host: &HostName) -> bool {
        self.invalid_speakers.contains(host)
    }

    /// Addresses of all BGP speakers: those of nodes and of leaf switches.
    pub fn bgp_addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.bgp_speakers.values().flat_map(|speaker| [speaker.router.addr(), speaker.neighbor])
    }

    /// Reserves addresses of the store, or of other hosts that the nodes must reach.
    pub fn reserve(&mut self, addresses: impl IntoIterator<Item = IpAddr>) {
        self.reserved.extend(addresses);
    }

    /// Sets the node's surroundings outside of the cluster's networks.
    pub fn surround(&mut self, surroundings: Surroundings) {
        self.surroundings = surroundings;
    }

    /// Addresses of nodes, leaf switches, the store and other [`Surroundings`], as far as the state contains them.
    pub fn fabric_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let speakers = self.bgp_addresses().map(IpAddr::V4);
        let around = self.surroundings.addresses.iter();
        self.reserved.iter().chain(around).copied().chain(self.vtep_addresses()).chain(speakers)
    }

    /// Reports whether a node, a leaf switch or the store has this address, as far as the state contains it.
    pub fn is_of_fabric(&self, ip: IpAddr) -> bool {
        self.reserved.contains(&ip)
            || self.vteps.hosts_at(ip).next().is_some()
            || self.bgp_addresses().any(|address| ip == address)
    }

    /// Sets or deletes the object at `key` and returns the affected objects.
    pub fn set(&mut self, key: &Key, object: Option<ClusterObject>) -> DirtySet {
        let mut dirty = self.end_rejection(key);
        match key {
            Key::MasterConfig => {
                let before = (self.arp(), self.is_routing());
                let private = self.private_subnet();
                self.config = of_kind!(object, Config);
                if before != (self.arp(), self.is_routing()) || private != self.private_subnet() {
                    dirty.networks.extend(self.networks.keys().cloned());
                }
                if before.1 != self.is_routing() {
                    let services = self.by_tenant.keys().flat_map(|tenant| self.services.of_tenant(tenant));
                    dirty.services.extend(services.cloned());
                }
            }
            Key::Network(id) => self.set_network(id, of_kind!(object, Network), &mut dirty),
            Key::Endpoint(id) => self.set_endpoint(id, of_kind!(object, Endpoint), &mut dirty),
            Key::Group(key) => {
                dirty.groups.extend(self.groups.set_group(key, of_kind!(object, Group)));
            }
            Key::Policy(id) => {
                dirty.groups.extend(self.groups.set_policy(id, of_kind!(object, Policy)));
            }
            Key::ServiceLb(id) => {
                dirty.services.extend(self.services.set(id, of_kind!(object, Service)).then(|| id.clone()));
            }
            Key::Providers(id) => {
                let providers = of_kind!(object, Providers);
                dirty.services.extend(self.services.set_providers(id.as_str(), providers));
            }
            Key::Service { address, .. } => {
                let hosts = self.vteps.register(address, of_kind!(object, Registration));
                self.mark_hosts(hosts, &mut dirty);
            }
            // No object of the datapath depends on it.
            Key::Bgp(host) => match of_kind!(object, Bgp) {
                Some(speaker) => drop(self.bgp_speakers.insert(host.clone(), speaker)),
                None => drop(self.bgp_speakers.remove(host)),
            },
            Key::NodeVtep(host) => {
                let hosts = self.vteps.set_record(host, of_kind!(object, Node));
                self.mark_hosts(hosts, &mut dirty);
            }
            _ => {}
        }
        dirty
    }

    fn set_network(&mut self, id: &NetworkId, network: Option<Network>, dirty: &mut DirtySet) {
        let before = match network {
            Some(network) if self.networks.get(id) == Some(&network) => return,
            Some(network) => {
                dirty.networks.extend(self.tags.claim(&network));
                self.networks.insert(id.clone(), network)
            }
            None => self.networks.remove(id),
        };
        if let Some(before) = &before {
            dirty.previous_networks.insert((id.clone(), before.tenant.clone()));
            dirty.networks.extend(self.tags.release(before, self.networks.get(id)));
            remove_from(&mut self.by_tenant, &before.tenant, id);
            self.infra.remove(id);
        }
        if let Some(network) = self.networks.get(id) {
            self.by_tenant.entry(network.tenant.clone()).or_default().insert(id.clone());
            if network.kind == Kind::Infra {
                self.infra.insert(id.clone());
            }
        }
        dirty.networks.extend(self.vrfs.update(&self.networks, id, before.as_ref()));
        let ambiguous = self.fabric.update(&self.networks, id, before.as_ref(), in_fabric);
        dirty.networks.extend(ambiguous.into_iter().filter(|_| self.routes_vlans));
        dirty.networks.insert(id.clone());
        let networks = dirty.networks.iter().filter_map(|id| self.networks.get(id)).chain(&before);
        let services = networks.flat_map(|network| self.services.of_tenant(&network.tenant));
        dirty.services.extend(services.cloned());
    }

    fn set_endpoint(&mut self, id: &EndpointId, endpoint: Option<Endpoint>, dirty: &mut DirtySet) {
        if endpoint.as_ref() == self.endpoints.get(id) {
            return;
        }
        dirty.endpoints.insert(id.clone());
        if let Some(before) = self.endpoints.remove(id) {
            remove_from(&mut self.by_network, &before.network, id);
            remove_from(&mut self.by_host, &before.host, id);
            let left = membership(&before).filter(|group| self.groups_on.remove(group, &before.host));
            dirty.groups.extend(left.map(|(number, _)| number));
            if self.networks_on.remove(&before.network, &before.host) {
                dirty.first_or_last.insert((before.host, before.network));
            }
        }
        if let Some(endpoint) = endpoint {
            self.by_network.entry(endpoint.network.clone()).or_default().insert(id.clone());
            self.by_host.entry(endpoint.host.clone()).or_default().insert(id.clone());
            let joined = membership(&endpoint).filter(|group| self.groups_on.add(group, &endpoint.host));
            dirty.groups.extend(joined.map(|(number, _)| number));
            if self.networks_on.add(&endpoint.network, &endpoint.host) {
                dirty.first_or_last.insert((endpoint.host.clone(), endpoint.network.clone()));
            }
            self.endpoints.insert(id.clone(), endpoint);
        }
        // A node without an agent remains a peer while it has endpoints.
        let hosts = dirty.first_or_last.iter().map(|(host, _)| host);
        dirty.vteps.extend(hosts.filter_map(|host| self.vteps.of(host)).map(|vtep| vtep.address));
    }

    fn mark_hosts(&self, changes: vteps::Changes, dirty: &mut DirtySet) {
        dirty.vteps.extend(changes.addresses);
        for host in changes.moved {
            dirty.endpoints.extend(self.on_host(&host).cloned());
        }
    }

    /// Sets or deletes an endpoint's interface and returns the affected objects.
    pub fn set_attachment(&mut self, id: &EndpointId, attachment: Option<Attachment>) -> DirtySet {
        match attachment {
            Some(attachment) => {
                self.attachments.insert(id.clone(), attachment);
            }
            None => {
                self.attachments.remove(id);
            }
        }
        let unreadable = self.is_unreadable(&Key::Endpoint(id.clone()));
        if unreadable {
            self.find_unreadable_interfaces();
        }
        // Reported even without a change: the caller waits for the datapath's confirmation.
        DirtySet { endpoints: [id.clone()].into(), unreadable, ..DirtySet::default() }
    }
}

fn membership(endpoint: &Endpoint) -> Option<Membership> {
    Some((endpoint.group_number?, endpoint.group.clone()))
}

/// Returns `Some` for a VLAN network that nodes can route: a network of pods with a gateway.
fn in_fabric(network: &Network) -> Option<()> {
    let is_vlan = matches!(network.encap, Encap::Vlan(_));
    (is_vlan && network.kind == Kind::Data && network.gateway.is_some()).then_some(())
}
