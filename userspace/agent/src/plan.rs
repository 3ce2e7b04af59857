//! Computes the desired state of a node's datapath from the cluster's state. Pure: no I/O, no clock.
//!
//! A node needs the networks on which it has endpoints, the networks that are routed to them, and the objects of these
//! networks: subnets, remote endpoints, services.
//!
//! [`object`] is the complete definition: it computes the object with one id. The full plan evaluates it for every
//! possible id, the incremental plan for the ids that a change affects.

mod endpoint;
mod group;
mod network;
mod node;
mod peer;
mod route;
mod service;

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::{
    group::GroupNumber,
    name::{EndpointId, NetworkId},
};

pub use group::Unknown;
pub use node::Node;

use crate::{
    datapath::{Desired, Family, Object, ObjectId, SubnetId},
    state::{DirtySet, State},
};

/// Computes the plan from scratch.
pub fn full(state: &State, node: &Node) -> Desired {
    let peers = state.vtep_addresses().map(ObjectId::Peer);
    let candidates = network::candidates(state, node);
    let networks = candidates.iter().copied().flat_map(of_network);
    let routes = candidates.iter().flat_map(|id| route::of_network(state, id));
    let networks = networks.chain(network::separated(state, node).into_iter().flat_map(of_network));
    let groups = state.groups_on(&node.host).into_iter().map(|number| ObjectId::Group(number.into()));
    let services = state.services().map(|service| ObjectId::Service(service.id.clone()));
    let endpoints = candidates.iter().flat_map(|id| state.on_network(id)).flat_map(both);
    let all = peers.chain(networks).chain(routes).chain(groups).chain(services).chain(endpoints);
    all.filter_map(|id| object(state, node, &id)).collect()
}

/// Updates the objects in `desired` that `dirty` affects and returns their ids.
pub fn update(desired: &mut Desired, state: &State, node: &Node, dirty: &DirtySet) -> BTreeSet<ObjectId> {
    let ids = affected(state, node, dirty);
    for id in &ids {
        match object(state, node, id) {
            Some(object) if desired.get(id) == Some(&object) => {}
            Some(object) => {
                desired.insert(object);
            }
            None => {
                desired.remove(id);
            }
        }
    }
    ids
}

/// Returns the ids of all objects that may differ from the previous plan.
pub fn affected(state: &State, node: &Node, dirty: &DirtySet) -> BTreeSet<ObjectId> {
    let here = dirty.first_or_last.iter().filter(|(host, _)| *host == node.host).map(|(_, network)| network);
    let here: BTreeSet<&NetworkId> = here.chain(network::routed_with(state, node, dirty)).collect();
    let is_here = |service: &&contiv_model::service::Service| {
        service.network.as_ref().is_some_and(|network| here.contains(network))
    };
    let services_here: Vec<ObjectId> = match here.is_empty() {
        true => vec![],
        false => {
            state.services().filter(is_here).map(|service| ObjectId::Service(service.id.clone())).collect()
        }
    };
    let networks = dirty.networks.iter().chain(here).flat_map(|id| {
        let endpoints = state.on_network(id).flat_map(both);
        let peers = state.vteps_on(id).into_iter().map(ObjectId::Peer);
        of_network(id).chain(route::of_network(state, id)).chain(endpoints).chain(peers)
    });
    let networks = networks.chain(route::of_previous(dirty));
    let separated = network::newly_separated(state, node, dirty);
    let networks = networks.chain(separated.into_iter().flat_map(of_network));
    let peers = dirty.vteps.iter().copied().map(ObjectId::Peer);
    let groups = dirty.groups.iter().map(|number| ObjectId::Group((*number).into()));
    let services = dirty.services.iter().cloned().map(ObjectId::Service);
    let endpoints = dirty.endpoints.iter().flat_map(both);
    peers.chain(networks).chain(groups).chain(services).chain(services_here).chain(endpoints).collect()
}

/// Returns the ids of a network and its subnets.
fn of_network(id: &NetworkId) -> impl Iterator<Item = ObjectId> + use<> {
    let id = id.clone();
    let subnet = {
        let network = id.clone();
        move |family| ObjectId::Subnet(SubnetId { network: network.clone(), family })
    };
    std::iter::once(ObjectId::Network(id)).chain(Family::ALL.into_iter().map(subnet))
}

/// Returns both possible ids of an endpoint: it is local or remote.
fn both(id: &EndpointId) -> [ObjectId; 2] {
    [ObjectId::Remote(id.clone()), ObjectId::Local(id.clone())]
}

/// Computes the object with this id; `None` if there is none.
pub fn object(state: &State, node: &Node, id: &ObjectId) -> Option<Object> {
    match id {
        ObjectId::Peer(address) => peer::peer(state, node, *address).map(Object::Peer),
        ObjectId::Network(id) => network::network(state, node, id).map(Object::Network),
        ObjectId::Subnet(id) => network::subnet(state, node, id).map(Object::Subnet),
        ObjectId::Route(id) => route::route(state, node, id).map(Object::Route),
        ObjectId::Group(identity) => group::group(state, node, *identity).map(Object::Group),
        ObjectId::Remote(id) => endpoint::remote(state, node, id).map(Object::Remote),
        ObjectId::Service(id) => service::service(state, node, id).map(Object::Service),
        ObjectId::Local(id) => endpoint::local(state, node, id).map(Object::Local),
    }
}

/// Returns the groups whose settings are unknown. The datapath keeps its settings of these groups.
pub fn blocked_groups(state: &State, node: &Node) -> BTreeMap<GroupNumber, Unknown> {
    let invalid = state.blocked_groups(&node.host).into_iter();
    let awaited = state.groups_without_policies(&node.host).map(|number| (number, Unknown::Awaited));
    awaited.chain(invalid.map(|(number, key)| (number, Unknown::Invalid(key)))).collect()
}

/// Returns the services whose plan is incomplete because a record has never been valid.
pub fn incomplete_services(state: &State) -> impl Iterator<Item = ObjectId> {
    service::incomplete(state).cloned().map(ObjectId::Service)
}

#[cfg(test)]
pub(crate) mod tests;
