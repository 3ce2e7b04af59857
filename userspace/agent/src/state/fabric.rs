//! Additions of gateway nodes to the routing of their kernels.

use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{
    endpoint::Endpoint,
    name::{EndpointId, HostName},
    network::Network,
    tag::Encap,
};
use ipnet::{IpNet, Ipv4Net};

use super::{object::Attachment, snapshot::State};

impl State {
    /// Reports whether the nodes forward between two networks.
    pub fn is_routed_between(&self, one: &Network, other: &Network) -> bool {
        self.is_routed(one)
            && self.is_routed(other)
            && is_vlan(one) == is_vlan(other)
            && one.tenant == other.tenant
            && self.vrf(one) == self.vrf(other)
    }

    /// Returns the private subnet through which the pods of this node, `host`, reach addresses outside of the cluster's
    /// networks. Returns `None` if no pod is on a routed VXLAN network.
    pub fn host_access(&self, host: &HostName) -> Option<Ipv4Net> {
        self.private_subnet().filter(|_| self.routed_vxlans(host).next().is_some())
    }

    /// Routed VXLAN networks on this node, `host`.
    pub fn routed_vxlans(&self, host: &HostName) -> impl Iterator<Item = &Network> {
        let own = self.networks_here(host).filter_map(|id| self.active_network(id));
        own.filter(|network| !is_vlan(network) && self.is_routed(network))
    }

    /// Interfaces of this node's endpoints on routed VXLAN networks.
    pub fn host_access_ports(&self) -> impl Iterator<Item = &str> {
        let is_on_one = move |id: &EndpointId| {
            let endpoint = self.endpoint(id);
            let network = endpoint.and_then(|endpoint| self.active_network(&endpoint.network));
            network.is_some_and(|network| !is_vlan(network) && self.is_routed(network))
        };
        let attached = self.attachments().filter(move |(id, _)| is_on_one(id));
        attached.map(|(_, attachment)| attachment.port.as_str())
    }

    /// Returns the addresses of the endpoints that have an interface on a node and whose network is a routed VLAN
    /// network. After a reboot an endpoint's record exists without an interface until its pod is deleted.
    ///
    /// The routes to them take precedence: a pod with the address of a node or leaf switch, or of a network of this node,
    /// would receive packets that the nodes send there. So such addresses are excluded.
    pub fn routed_vlan_addresses(&self, host: &HostName) -> BTreeSet<IpAddr> {
        self.vlan_addresses(host).filter(|ip| !self.is_taken(*ip)).collect()
    }

    /// Returns the addresses that [`routed_vlan_addresses`](Self::routed_vlan_addresses) excludes.
    pub fn refused_vlan_addresses(&self, host: &HostName) -> BTreeSet<IpAddr> {
        self.vlan_addresses(host).filter(|ip| self.is_taken(*ip)).collect()
    }

    /// Reports whether the fabric or this node may need the address for a host outside of the cluster's networks.
    fn is_taken(&self, ip: IpAddr) -> bool {
        let is_infra = |name: &str| self.infra_networks().any(|network| network.name.as_str() == name);
        self.is_of_fabric(ip)
            || self.is_around(ip)
            || self.networks_around().any(|(name, network)| network.contains(&ip) && !is_infra(name))
    }

    /// Networks of this node's interfaces, with the names of the interfaces.
    pub fn networks_around(&self) -> impl Iterator<Item = (&str, IpNet)> {
        self.surroundings.networks.iter().map(|(name, network)| (name.as_str(), *network))
    }

    /// Whether netmaster or a default gateway of this node has the address.
    pub fn is_around(&self, ip: IpAddr) -> bool {
        self.surroundings.addresses.contains(&ip)
    }

    /// Returns the subnets of the VLAN networks that nodes route: this node, or nodes with a BGP speaker. The physical
    /// network routes to these subnets, also from nodes that do not route them.
    pub fn routed_vlan_subnets(&self) -> impl Iterator<Item = IpNet> {
        let are_routed =
            self.is_routing_vlans() || self.is_routing() && self.bgp_addresses().next().is_some();
        self.vlan_subnets().filter(move |_| are_routed)
    }

    /// Interfaces of this node's endpoints on routed VLAN networks.
    pub fn routed_vlan_ports(&self, host: &HostName) -> impl Iterator<Item = &str> {
        self.vlan_endpoints(host).map(|(_, attachment)| attachment.port.as_str())
    }

    fn vlan_addresses(&self, host: &HostName) -> impl Iterator<Item = IpAddr> {
        self.vlan_endpoints(host).flat_map(|(endpoint, _)| endpoint.addresses().iter().collect::<Vec<_>>())
    }

    /// Endpoints with an interface on a node, if their network is a routed VLAN network.
    fn vlan_endpoints(&self, host: &HostName) -> impl Iterator<Item = (&Endpoint, &Attachment)> {
        let is_routed = move |network: &Network| is_vlan(network) && self.is_routed(network);
        let endpoints =
            self.on_host(host).filter_map(move |id| Some((self.endpoint(id)?, self.attachment(id)?)));
        endpoints.filter(move |(endpoint, _)| self.active_network(&endpoint.network).is_some_and(is_routed))
    }
}

fn is_vlan(network: &Network) -> bool {
    matches!(network.encap, Encap::Vlan(_))
}
