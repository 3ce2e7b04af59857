use std::net::Ipv4Addr;

use contiv_model::{
    name::NetworkId,
    route::{NextHop, NextHops},
    vrf::Vrf,
};
use ipnet::{IpNet, Ipv4Net};

use super::node::Node;
use crate::{
    datapath::{ObjectId, Route, RouteId},
    state::{DirtySet, State},
};

/// Destinations of host access: all addresses that are in no subnet.
const OUTSIDE: IpNet = IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0));

/// Returns the route of a VRF to addresses outside of its subnets, through the node itself, if this node has endpoints in
/// the VRF.
pub(super) fn route(state: &State, node: &Node, id: &RouteId) -> Option<Route> {
    let subnet = state.private_subnet().filter(|_| id.prefix == OUTSIDE)?;
    let is_here = state.routed_vxlans(&node.host).any(|network| state.vrf(network) == id.vrf);
    is_here.then(|| Route { id: id.clone(), next_hops: NextHops::from(NextHop::Host { subnet }) })
}

/// Returns the routes of the VRFs that a network can be in.
pub(super) fn of_network(state: &State, id: &NetworkId) -> Vec<ObjectId> {
    let tenant = state.network(id).map(|network| Vrf::from(network.tenant.clone()));
    [Some(Vrf::from(id.clone())), tenant].into_iter().flatten().map(outside).collect()
}

/// Returns the routes of the VRFs that changed networks were in.
pub(super) fn of_previous(dirty: &DirtySet) -> impl Iterator<Item = ObjectId> {
    dirty.previous_networks.iter().map(|(_, tenant)| outside(tenant.clone().into()))
}

fn outside(vrf: Vrf) -> ObjectId {
    ObjectId::Route(RouteId { vrf, prefix: OUTSIDE })
}
