use std::{collections::BTreeMap, fmt, net::IpAddr};

use contiv_model::{
    global::ArpMode,
    mac::Mac,
    name::NetworkId,
    route::{NextHop, NextHops},
    tag::Encap,
    vrf::Vrf,
};
use ipnet::{IpNet, Ipv4Net};

/// The VTEP of another node. The datapath accepts VXLAN frames from it, even if no network is known to be on that node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Address of the remote VTEP.
    pub vtep: IpAddr,
    /// UDP port of the remote VTEP.
    pub port: u16,
    /// Networks with endpoints on the peer and on this node, VLANs included, with their tags: frames to all stations of a
    /// network (BUM) must reach these peers. A datapath may also send them to peers without the network, which drop them.
    pub networks: BTreeMap<NetworkId, Encap>,
}

impl Peer {
    /// A peer without networks.
    pub fn new(vtep: impl Into<IpAddr>, port: u16) -> Self {
        Peer { vtep: vtep.into(), port, networks: BTreeMap::new() }
    }

    /// The peer with these networks.
    pub fn with_networks<'a>(self, networks: impl IntoIterator<Item = &'a Network>) -> Self {
        let networks = networks.into_iter().map(|network| (network.id.clone(), network.encap)).collect();
        Peer { networks, ..self }
    }
}

/// A network present on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Network's id.
    pub id: NetworkId,
    /// VRF of its subnets, endpoints and services.
    pub vrf: Vrf,
    /// Encapsulation tag. Unique within a [`Desired`](super::Desired) among tags of the same kind.
    pub encap: Encap,
    /// The datapath answers ARP and ND for known endpoints, or floods the requests.
    pub arp: ArpMode,
}

impl Network {
    /// Returns a network with its own VRF and ARP proxy.
    pub fn new(id: impl Into<NetworkId>, encap: Encap) -> Self {
        let id = id.into();
        Network { vrf: id.clone().into(), id, encap, arp: ArpMode::Proxy }
    }
}

/// Address family of a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both families.
    pub const ALL: [Family; 2] = [Family::V4, Family::V6];

    /// The family of a prefix.
    pub fn of(prefix: IpNet) -> Self {
        match prefix {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        })
    }
}

/// Identity of a [`Subnet`]: a network has one per family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubnetId {
    /// Network of the subnet.
    pub network: NetworkId,
    /// Address family.
    pub family: Family,
}

impl fmt::Display for SubnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.network, self.family)
    }
}

/// A subnet whose addresses belong to endpoints of a network. Prefixes of one VRF do not overlap.
///
/// If another router is the gateway, bridging needs no entries: endpoints reach each other, and the gateway, by their
/// Ethernet addresses. The prefix distinguishes outside addresses from addresses of unknown endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Network of the endpoints.
    pub network: NetworkId,
    /// VRF of the network.
    pub vrf: Vrf,
    /// Tag of the network.
    pub encap: Encap,
    /// Addresses, host bits cleared.
    pub prefix: IpNet,
    /// Gateway of the endpoints.
    pub gateway: Option<Gateway>,
}

impl Subnet {
    /// Identity of the subnet.
    pub fn id(&self) -> SubnetId {
        SubnetId { network: self.network.clone(), family: Family::of(self.prefix) }
    }

    /// Whether this node is the gateway of its endpoints.
    pub fn is_routed(&self) -> bool {
        self.gateway.is_some_and(|gateway| gateway.mac.is_some())
    }

    /// Whether this node is the gateway, with the Ethernet address that all nodes have.
    pub fn has_node_router(&self) -> bool {
        self.gateway.is_some_and(|gateway| gateway.mac == Some(Mac::ROUTER))
    }

    /// Whether this node is the gateway of a VLAN network: the frames of the network stay on the node, and the node's kernel
    /// forwards to other nodes by IP.
    pub fn is_routed_vlan(&self) -> bool {
        self.has_node_router() && matches!(self.encap, Encap::Vlan(_))
    }
}

/// Gateway of a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Address in the subnet.
    pub ip: IpAddr,
    /// Ethernet address with which every node answers for the gateway, if the nodes route. `None` if the gateway is a
    /// router on the network that the cluster does not manage.
    pub mac: Option<Mac>,
}

/// Identity of a [`Route`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId {
    /// VRF of the route.
    pub vrf: Vrf,
    /// Destinations of the route.
    pub prefix: IpNet,
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.prefix, self.vrf)
    }
}

/// A route to addresses that are in no subnet of the VRF. The longest matching prefix applies. The plan contains only the
/// route of host access, with [`NextHop::Host`](contiv_model::route::NextHop::Host).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// VRF and prefix, host bits cleared.
    pub id: RouteId,
    /// Next hops; flows are distributed over several.
    pub next_hops: NextHops,
}

impl Route {
    /// Private subnet of host access; `None` for another route.
    pub fn private_subnet(&self) -> Option<Ipv4Net> {
        let mut next_hops = self.next_hops.iter();
        match (next_hops.next(), next_hops.next()) {
            (Some(NextHop::Host { subnet }), None) if self.id.prefix.prefix_len() == 0 => Some(*subnet),
            _ => None,
        }
    }
}
