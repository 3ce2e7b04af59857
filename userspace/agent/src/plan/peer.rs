use std::net::IpAddr;

use super::node::Node;
use crate::{
    datapath::Peer,
    state::{State, Vtep},
};

/// Returns the peer at `address` if an active node other than this one has its VTEP there. The peer has the networks of
/// all such nodes.
pub(super) fn peer(state: &State, node: &Node, address: IpAddr) -> Option<Peer> {
    if address == node.vtep {
        return None;
    }
    // A renamed node has two names while endpoints of the former name exist. The latest VTEP is that of its agent.
    let vteps: Vec<&Vtep> = state.vteps_at(address, &node.host).collect();
    let port = vteps.iter().max_by_key(|vtep| vtep.since)?.port;
    let networks = vteps.into_iter().flat_map(|vtep| state.networks_on(&vtep.host));
    let common = networks.filter(|id| state.is_network_here(id, &node.host));
    let active = common.filter_map(|id| state.active_network(id));
    let networks = active.map(|network| (network.id.clone(), network.encap)).collect();
    Some(Peer { networks, ..Peer::new(address, port) })
}
