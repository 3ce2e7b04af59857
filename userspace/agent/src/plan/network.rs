use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{mac::Mac, name::NetworkId};
use ipnet::IpNet;

use super::node::Node;
use crate::{
    datapath::{Family, Gateway, Network, Subnet, SubnetId},
    state::{DirtySet, State},
};

/// The network, if it is one of the node.
pub(super) fn network(state: &State, node: &Node, id: &NetworkId) -> Option<Network> {
    let network = of_node(state, node, id)?;
    let vrf = state.vrf(network);
    Some(Network { id: network.id.clone(), vrf, encap: network.encap, arp: state.arp() })
}

/// The active network, if this node has endpoints on it or on a network that is routed to it.
pub(super) fn of_node<'a>(
    state: &'a State,
    node: &Node,
    id: &NetworkId,
) -> Option<&'a contiv_model::network::Network> {
    let is_reached = |network: &contiv_model::network::Network| {
        let is_routed_to = |own: &contiv_model::network::Network| {
            state.is_routed(own) && own.tenant == network.tenant && state.vrf(own) == state.vrf(network)
        };
        let mut own = state.networks_on(&node.host).filter_map(|id| state.active_network(id));
        state.is_routed(network) && own.any(is_routed_to)
    };
    state
        .active_network(id)
        .filter(|network| state.is_network_on(&network.id, &node.host) || is_reached(network))
}

/// Networks that may be those of the node: those with endpoints on it, and the other networks of their tenants if the nodes
/// route.
pub(super) fn candidates<'a>(state: &'a State, node: &Node) -> BTreeSet<&'a NetworkId> {
    let own: BTreeSet<_> = state.networks_on(&node.host).collect();
    let routed = own.iter().filter_map(|id| state.network(id)).filter(|network| state.is_routed(network));
    let tenants: BTreeSet<_> = routed.map(|network| &network.tenant).collect();
    let others = tenants.into_iter().flat_map(|tenant| state.networks_of(tenant));
    others.chain(own.iter().copied()).collect()
}

/// Networks that may be reached or not since a change of networks on this node.
pub(super) fn routed_with<'a>(state: &'a State, node: &Node, dirty: &DirtySet) -> BTreeSet<&'a NetworkId> {
    if !state.is_routing() {
        // A change of the mode concerns all networks.
        return BTreeSet::new();
    }
    let first_or_last = |id: &NetworkId| dirty.first_or_last.contains(&(node.host.clone(), id.clone()));
    let is_here = |id: &NetworkId| state.is_network_on(id, &node.host) || first_or_last(id);
    let changed = dirty.networks.iter().chain(dirty.first_or_last.iter().map(|(_, id)| id));
    let current = changed.filter_map(|id| state.network(id)).map(|network| (&network.id, &network.tenant));
    let removed = dirty.previous_networks.iter().map(|(id, tenant)| (id, tenant));
    let tenants = current.chain(removed).filter(|(id, _)| is_here(id)).map(|(_, tenant)| tenant);
    let tenants: BTreeSet<_> = tenants.collect();
    tenants.into_iter().flat_map(|tenant| state.networks_of(tenant)).collect()
}

/// The subnet, if its network is one of the node. The gateway is this node, if the network is routed, else a router on the network.
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
        gateway: gateway.map(|ip| Gateway { ip, mac: state.is_routed(network).then_some(Mac::ROUTER) }),
    })
}
