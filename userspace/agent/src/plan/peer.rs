use std::net::IpAddr;

use super::node::Node;
use crate::{datapath::Peer, state::State};

/// The peer at `address`, if an active node other than this one has its VTEP there.
pub(super) fn peer(state: &State, node: &Node, address: IpAddr) -> Option<Peer> {
    if address == node.vtep {
        return None;
    }
    // Two nodes with one address are a configuration error; the first by name applies.
    let vtep = state.vteps_at(address, &node.host).next()?;
    let common = state.networks_on(&vtep.host).filter(|id| state.is_network_here(id, &node.host));
    let networks = common.filter_map(|id| state.active_network(id));
    let networks = networks.map(|network| (network.id.clone(), network.encap)).collect();
    Some(Peer { networks, ..Peer::new(address, vtep.port) })
}
