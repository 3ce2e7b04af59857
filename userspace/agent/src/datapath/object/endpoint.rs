use std::net::IpAddr;

use contiv_model::{
    addresses::Addresses,
    mac::Mac,
    name::{EndpointId, NetworkId},
    policy::Identity,
    route::NextHop,
    tag::Encap,
    vrf::Vrf,
};

use super::Network;

/// Owner of the other end of a port's veth pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// A pod; the other end is in the pod's network namespace.
    #[default]
    Pod,
    /// The node; both ends are in the node's network namespace.
    Node,
}

/// An endpoint whose interface is on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Endpoint's id.
    pub id: EndpointId,
    /// Network that the endpoint belongs to.
    pub network: NetworkId,
    /// VRF of the network.
    pub vrf: Vrf,
    /// Tag of the network.
    pub encap: Encap,
    /// Name of the host end of the veth pair, e.g. `vvport3`. The interface exists before the object is set, and is
    /// removed after the object is deleted.
    pub port: String,
    /// Owner of the other end of the veth pair.
    pub owner: Owner,
    /// Ethernet address.
    pub mac: Mac,
    /// IP addresses.
    pub addresses: Addresses,
    /// Identity that policies use for the endpoint, e.g. that of its group.
    pub identity: Option<Identity>,
}

impl Local {
    /// An endpoint of a pod without an identity.
    pub fn new(
        id: impl Into<EndpointId>,
        network: &Network,
        port: impl Into<String>,
        mac: Mac,
        addresses: impl Into<Addresses>,
    ) -> Self {
        Local {
            id: id.into(),
            network: network.id.clone(),
            vrf: network.vrf.clone(),
            encap: network.encap,
            port: port.into(),
            owner: Owner::Pod,
            mac,
            addresses: addresses.into(),
            identity: None,
        }
    }
}

/// An endpoint on another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Endpoint's id.
    pub id: EndpointId,
    /// Network that the endpoint belongs to.
    pub network: NetworkId,
    /// VRF of the network.
    pub vrf: Vrf,
    /// Tag of the network.
    pub encap: Encap,
    /// Next hop to the endpoint's node. On a VXLAN network it is the node's VTEP: an endpoint whose node is unknown is
    /// not planned. On a VLAN network it is the uplinks: the tag alone selects the destination. The uplinks of a VLAN
    /// network for which the nodes are the gateway carry no frames: there the node's kernel has the route to the
    /// endpoint.
    pub next_hop: NextHop,
    /// Ethernet address.
    pub mac: Mac,
    /// IP addresses.
    pub addresses: Addresses,
    /// Identity that policies use for the endpoint, e.g. that of its group.
    pub identity: Option<Identity>,
}

impl Remote {
    /// An endpoint without an identity.
    pub fn new(
        id: impl Into<EndpointId>,
        network: &Network,
        next_hop: NextHop,
        mac: Mac,
        addresses: impl Into<Addresses>,
    ) -> Self {
        Remote {
            id: id.into(),
            network: network.id.clone(),
            vrf: network.vrf.clone(),
            encap: network.encap,
            next_hop,
            mac,
            addresses: addresses.into(),
            identity: None,
        }
    }

    /// VTEP of the endpoint's node; `None` without a tunnel.
    pub fn vtep(&self) -> Option<IpAddr> {
        self.next_hop.vtep()
    }
}
