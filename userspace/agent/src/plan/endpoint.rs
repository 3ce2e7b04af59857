use contiv_model::{name::EndpointId, route::NextHop};

use super::{network::of_node, node::Node};
use crate::{
    datapath::{Local, Remote},
    state::State,
};

/// Returns the endpoint if it is on another node, and its network is active and has endpoints on this node.
pub(super) fn remote(state: &State, node: &Node, id: &EndpointId) -> Option<Remote> {
    let endpoint = state.endpoint(id).filter(|endpoint| endpoint.host != node.host)?;
    let network = of_node(state, node, &endpoint.network)?;
    let next_hop = NextHop::on(network.encap, state.vtep(&endpoint.host).map(|vtep| vtep.address))?;
    // A tunnel to this node itself would loop the frames back.
    if next_hop.vtep() == Some(node.vtep) {
        return None;
    }
    Some(Remote {
        id: id.clone(),
        network: network.id.clone(),
        vrf: state.vrf(network),
        encap: network.encap,
        next_hop,
        mac: endpoint.mac,
        addresses: endpoint.addresses(),
        identity: endpoint.identity(),
    })
}

/// Returns the endpoint if it has an interface on this node and its network is active. After a reboot an endpoint's
/// record exists without an interface until its pod is deleted.
pub(super) fn local(state: &State, node: &Node, id: &EndpointId) -> Option<Local> {
    let endpoint = state.endpoint(id).filter(|endpoint| endpoint.host == node.host)?;
    let attachment = state.attachment(id)?;
    let network = state.active_network(&endpoint.network)?;
    Some(Local {
        id: id.clone(),
        network: network.id.clone(),
        vrf: state.vrf(network),
        encap: network.encap,
        port: attachment.port.clone(),
        owner: attachment.owner,
        mac: endpoint.mac,
        addresses: endpoint.addresses(),
        identity: endpoint.identity(),
    })
}
