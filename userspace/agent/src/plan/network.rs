use std::net::IpAddr;

use contiv_model::name::NetworkId;
use ipnet::IpNet;

use super::node::Node;
use crate::{
    datapath::{Family, Gateway, Network, Subnet, SubnetId},
    state::State,
};

/// The network, if it is active and this node has endpoints on it.
pub(super) fn network(state: &State, node: &Node, id: &NetworkId) -> Option<Network> {
    let network = of_node(state, node, id)?;
    let vrf = state.vrf(network);
    Some(Network { id: network.id.clone(), vrf, encap: network.encap, arp: state.arp() })
}

/// The active network, if this node has endpoints on it.
pub(super) fn of_node<'a>(
    state: &'a State,
    node: &Node,
    id: &NetworkId,
) -> Option<&'a contiv_model::network::Network> {
    state.active_network(id).filter(|network| state.is_network_on(&network.id, &node.host))
}

/// The subnet, if its network is active and this node has endpoints on it. The gateway is a router on the network: the nodes do not route.
pub(super) fn subnet(state: &State, node: &Node, id: &SubnetId) -> Option<Subnet> {
    let network = of_node(state, node, &id.network)?;
    let (prefix, gateway) = match id.family {
        Family::V4 => (IpNet::V4(network.subnet), network.gateway.map(IpAddr::V4)),
        Family::V6 => (IpNet::V6(network.subnet_v6?), network.gateway_v6.map(IpAddr::V6)),
    };
    Some(Subnet {
        network: network.id.clone(),
        vrf: state.vrf(network),
        encap: network.encap,
        prefix,
        gateway: gateway.map(|ip| Gateway { ip, mac: None }),
    })
}
