use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{global::ArpMode, mac::Mac, name::NetworkId, tag::Encap};
use ipnet::IpNet;

use super::node::Node;
use crate::{
    datapath::{Family, Gateway, Network, Subnet, SubnetId},
    state::{DirtySet, State},
};

/// Returns the network if the node needs it.
pub(super) fn network(state: &State, node: &Node, id: &NetworkId) -> Option<Network> {
    let network = of_node(state, node, id)?;
    let vrf = state.vrf(network);
    // Frames of a routed VLAN stay on the node, which answers for the endpoints of other nodes.
    let arp = if is_routed_vlan(state, network) { ArpMode::Proxy } else { state.arp() };
    Some(Network { id: network.id.clone(), vrf, encap: network.encap, arp })
}

/// Returns the active network if this node has endpoints or interfaces on it, or on a network that is routed to it.
pub(super) fn of_node<'a>(
    state: &'a State,
    node: &Node,
    id: &NetworkId,
) -> Option<&'a contiv_model::network::Network> {
    let is_reached = |network: &contiv_model::network::Network| {
        let mut own = state.networks_here(&node.host).filter_map(|id| state.active_network(id));
        own.any(|own| state.is_routed_between(own, network))
    };
    state
        .active_network(id)
        .filter(|network| state.is_network_here(&network.id, &node.host) || is_reached(network))
}

/// Returns the networks that the node may need: those with endpoints or interfaces on it and, if the nodes route, the
/// other networks of their tenants.
pub(super) fn candidates<'a>(state: &'a State, node: &Node) -> BTreeSet<&'a NetworkId> {
    let own: BTreeSet<_> = state.networks_here(&node.host).collect();
    let routed = own.iter().filter_map(|id| state.network(id)).filter(|network| state.is_routed(network));
    let tenants: BTreeSet<_> = routed.map(|network| &network.tenant).collect();
    let others = tenants.into_iter().flat_map(|tenant| state.networks_of(tenant));
    others.chain(own.iter().copied()).collect()
}

/// Returns the networks whose reachability may have changed because of a change of networks on this node.
pub(super) fn routed_with<'a>(state: &'a State, node: &Node, dirty: &DirtySet) -> BTreeSet<&'a NetworkId> {
    if !state.is_routing() {
        // A change of the mode affects all networks.
        return BTreeSet::new();
    }
    let first_or_last = |id: &NetworkId| dirty.first_or_last.contains(&(node.host.clone(), id.clone()));
    let is_here = |id: &NetworkId| state.is_network_here(id, &node.host) || first_or_last(id);
    let changed = dirty.networks.iter().chain(dirty.first_or_last.iter().map(|(_, id)| id));
    let current = changed.filter_map(|id| state.network(id)).map(|network| (&network.id, &network.tenant));
    let removed = dirty.previous_networks.iter().map(|(id, tenant)| (id, tenant));
    let tenants = current.chain(removed).filter(|(id, _)| is_here(id)).map(|(_, tenant)| tenant);
    let tenants: BTreeSet<_> = tenants.collect();
    tenants.into_iter().flat_map(|tenant| state.networks_of(tenant)).collect()
}

/// Returns the networks whose subnets the node needs even without endpoints on them, because it drops packets between
/// them and its own networks. If the node routes VLAN networks, these are VLAN networks of other tenants, and VXLAN
/// networks of the same VRF.
pub(super) fn separated<'a>(state: &'a State, node: &Node) -> Vec<&'a NetworkId> {
    let own: Vec<_> = routed_vlans(state, node).collect();
    let all = state.networks().filter(|other| own.iter().any(|own| are_separated(state, own, other)));
    all.map(|network| &network.id).collect()
}

/// Like `separated`, for networks that a change of networks on this node may affect. Networks of the same tenant are in
/// [`routed_with`].
pub(super) fn newly_separated<'a>(
    state: &'a State,
    node: &Node,
    dirty: &DirtySet,
) -> BTreeSet<&'a NetworkId> {
    let is_here = |id: &NetworkId| state.is_network_here(id, &node.host);
    let is_changed =
        dirty.first_or_last.iter().any(|(host, _)| *host == node.host) || dirty.networks.iter().any(is_here);
    let all = state.networks().filter(|_| is_changed && state.is_routing_vlans());
    all.filter(|network| matches!(network.encap, Encap::Vlan(_))).map(|network| &network.id).collect()
}

/// Returns the VLAN networks of the node that it routes.
fn routed_vlans<'a>(
    state: &'a State,
    node: &Node,
) -> impl Iterator<Item = &'a contiv_model::network::Network> {
    let own = state.networks_here(&node.host).filter_map(|id| state.active_network(id));
    own.filter(|network| is_routed_vlan(state, network))
}

/// Reports whether the node drops packets between its routed VLAN network `own` and another network, unless the node
/// needs that network, too.
fn are_separated(
    state: &State,
    own: &contiv_model::network::Network,
    other: &contiv_model::network::Network,
) -> bool {
    match other.encap {
        Encap::Vlan(_) => state.is_routed(other),
        Encap::Vxlan { .. } => own.tenant == other.tenant && state.vrf(own) == state.vrf(other),
    }
}

fn is_routed_vlan(state: &State, network: &contiv_model::network::Network) -> bool {
    matches!(network.encap, Encap::Vlan(_)) && state.is_routed(network)
}

/// Returns the subnet if the node needs its network or is separated from it. The gateway is this node if the network is
/// routed, otherwise a router on the network.
pub(super) fn subnet(state: &State, node: &Node, id: &SubnetId) -> Option<Subnet> {
    let network = of_node(state, node, &id.network).or_else(|| {
        let other = state.active_network(&id.network)?;
        routed_vlans(state, node).any(|own| are_separated(state, own, other)).then_some(other)
    })?;
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
