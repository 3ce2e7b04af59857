//! What a node's datapath should hold, out of what is known. Pure.
//!
//! [`object`] is the whole definition: what stands under one id. The full plan asks it for every id there can be, the
//! incremental one for the ids that a change concerns.

use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{
    group::GroupNumber,
    name::{EndpointId, HostName, NetworkId, ServiceId},
    service::Readiness,
    tag::Encap,
};

use crate::{
    datapath::{Backend, Desired, Group, Local, Network, Object, ObjectId, Peer, Remote, Scope, Service},
    state::{State, Touched},
};

/// The node that is planned for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name, as its endpoints carry it.
    pub host: HostName,
    /// Where its tunnels end.
    pub vtep: IpAddr,
}

/// Everything, from scratch.
pub fn full(state: &State, node: &Node) -> Desired {
    let peers = state.vtep_addresses().map(ObjectId::Peer);
    let networks = state.networks().map(|network| ObjectId::Network(network.id.clone()));
    let groups = state.groups_on(&node.host).map(ObjectId::Group);
    let services = state.services().map(|service| ObjectId::Service(service.id.clone()));
    let endpoints = state.endpoints().flat_map(|endpoint| both(&endpoint.id));
    let all = peers.chain(networks).chain(groups).chain(services).chain(endpoints);
    all.filter_map(|id| object(state, node, &id)).collect()
}

/// Brings `desired` up to date with the changes that touched something; the ids that may have changed.
pub fn update(desired: &mut Desired, state: &State, node: &Node, touched: &Touched) -> BTreeSet<ObjectId> {
    let ids = concerned(state, touched);
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

/// The ids that have to be looked at again.
pub fn concerned(state: &State, touched: &Touched) -> BTreeSet<ObjectId> {
    let networks = touched.networks.iter().flat_map(|id| {
        let endpoints = state.on_network(id).flat_map(both);
        std::iter::once(ObjectId::Network(id.clone())).chain(endpoints)
    });
    let peers = touched.vteps.iter().copied().map(ObjectId::Peer);
    let groups = touched.groups.iter().copied().map(ObjectId::Group);
    let services = touched.services.iter().cloned().map(ObjectId::Service);
    let endpoints = touched.endpoints.iter().flat_map(both);
    peers.chain(networks).chain(groups).chain(services).chain(endpoints).collect()
}

/// An endpoint is here or elsewhere.
fn both(id: &EndpointId) -> [ObjectId; 2] {
    [ObjectId::Remote(id.clone()), ObjectId::Local(id.clone())]
}

/// What stands under `id`, if anything.
pub fn object(state: &State, node: &Node, id: &ObjectId) -> Option<Object> {
    match id {
        ObjectId::Peer(address) => peer(state, node, *address).map(Object::Peer),
        ObjectId::Network(id) => network(state, id).map(Object::Network),
        ObjectId::Group(number) => group(state, node, *number).map(Object::Group),
        ObjectId::Remote(id) => remote(state, node, id).map(Object::Remote),
        ObjectId::Service(id) => service(state, id).map(Object::Service),
        ObjectId::Local(id) => local(state, node, id).map(Object::Local),
    }
}

fn peer(state: &State, node: &Node, address: IpAddr) -> Option<Peer> {
    if address == node.vtep {
        return None;
    }
    // Two nodes with one address is a mistake that only the operator can mend; the first by name is believed.
    let vtep = state.vteps_at(address, &node.host).next()?;
    Some(Peer { vtep: address, port: vtep.port })
}

fn network(state: &State, id: &NetworkId) -> Option<Network> {
    let network = state.carried(id)?;
    Some(Network { id: network.id.clone(), encap: network.encap, arp: state.arp() })
}

/// Needed from when an endpoint of the group is planned here until it is gone, whether it has its interface or not: so
/// the policy is in force when the interface comes. A group of which not everything is known is planned in any case:
/// the reconciler leaves what the datapath has of it, and lets its endpoints wait.
fn group(state: &State, node: &Node, number: GroupNumber) -> Option<Group> {
    if !state.is_group_on(number, &node.host) {
        return None;
    }
    let profile = state.group(number);
    let (dscp, rate) = (profile.and_then(|group| group.dscp), profile.and_then(|group| group.rate));
    let rules = state.policies_on(number).flat_map(|policy| policy.rules.iter().cloned()).collect();
    let group = Group { number, dscp, rate, rules };
    let says_something = dscp.is_some() || rate.is_some() || !group.rules.is_empty();
    (says_something || state.has_unread_policy(number)).then_some(group)
}

/// Its backends are those whose address some network of the tenant has.
fn service(state: &State, id: &ServiceId) -> Option<Service> {
    let service = state.service(id)?;
    let scope = match &service.network {
        Some(network) => {
            let network = state.carried(network)?;
            Some(Scope { network: network.id.clone(), encap: network.encap })
        }
        None => None,
    };
    let backend = |ip| {
        let encap = state.encap_at(&service.tenant, service.network.as_ref(), ip)?;
        Some(Backend { ip, encap, readiness: Readiness::Ready })
    };
    Some(Service {
        id: id.clone(),
        scope,
        vip: service.vip,
        ports: service.ports.clone(),
        backends: state.providers(id).iter().filter_map(|ip| backend(*ip)).collect(),
        affinity: service.affinity,
    })
}

fn remote(state: &State, node: &Node, id: &EndpointId) -> Option<Remote> {
    let endpoint = state.endpoint(id).filter(|endpoint| endpoint.host != node.host)?;
    let network = state.carried(&endpoint.network)?;
    let vtep = match network.encap {
        Encap::Vlan(_) => None,
        Encap::Vxlan { .. } => {
            let address = state.vtep(&endpoint.host)?.address;
            // What the tunnel of this node would loop back.
            if address == node.vtep {
                return None;
            }
            Some(address)
        }
    };
    Some(Remote {
        id: id.clone(),
        network: network.id.clone(),
        encap: network.encap,
        vtep,
        mac: endpoint.mac,
        ip: endpoint.ip,
        ip6: endpoint.ip6,
        group: endpoint.group_number,
    })
}

/// An endpoint of this node without an interface, as after a reboot, is nothing until its pod is removed.
fn local(state: &State, node: &Node, id: &EndpointId) -> Option<Local> {
    let endpoint = state.endpoint(id).filter(|endpoint| endpoint.host == node.host)?;
    let attachment = state.attachment(id)?;
    let network = state.carried(&endpoint.network)?;
    Some(Local {
        id: id.clone(),
        network: network.id.clone(),
        encap: network.encap,
        port: attachment.port.clone(),
        owner: attachment.owner,
        mac: endpoint.mac,
        ip: endpoint.ip,
        ip6: endpoint.ip6,
        group: endpoint.group_number,
    })
}

#[cfg(test)]
pub(crate) mod tests;
