//! Index of installed objects.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use contiv_model::{
    name::{EndpointId, NetworkId, ServiceId},
    policy::Identity,
    tag::Encap,
    vrf::Vrf,
};

use ipnet::Ipv4Net;

use super::cookie::Cookie;
use crate::datapath::{Family, Group, Local, Network, Object, ObjectId, Service, SubnetId};

/// A port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BridgePort {
    pub(crate) name: String,
    /// OpenFlow port number.
    pub(crate) number: u32,
}

/// An installed object. A peer has a port. A local endpoint has a port unless only its record is installed.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) object: Object,
    pub(crate) port: Option<BridgePort>,
}

impl Installed {
    /// Reports whether this is a local endpoint with only its record installed.
    pub(crate) fn is_unattached(&self) -> bool {
        matches!(self.object, Object::Local(_)) && self.port.is_none()
    }
}

/// Installed objects by id, with secondary indexes so that a change does not scan all objects.
#[derive(Debug, Default)]
pub(crate) struct FlowIndex {
    installed: BTreeMap<ObjectId, Installed>,
    /// Installed objects by the cookie of their flows.
    cookies: HashMap<Cookie, ObjectId>,
    /// Local endpoints of each network.
    locals_on: BTreeMap<NetworkId, BTreeSet<EndpointId>>,
    /// Port numbers of tunnels, by the address of the peer.
    peers: BTreeMap<IpAddr, u32>,
    /// Remote endpoints by the VTEP of their node.
    remotes: BTreeMap<IpAddr, BTreeSet<EndpointId>>,
    /// Remote endpoints of each network.
    remotes_on: BTreeMap<NetworkId, BTreeSet<EndpointId>>,
    /// Objects by their VRF.
    vrfs: BTreeMap<Vrf, BTreeSet<ObjectId>>,
    /// Local endpoints by identity.
    members: BTreeMap<Identity, BTreeSet<EndpointId>>,
    /// Subnets of VLAN networks for which the node is the gateway.
    routed_vlans: BTreeSet<SubnetId>,
    /// Local endpoints with a port by their addresses.
    local_addresses: BTreeMap<(NetworkId, IpAddr), BTreeSet<EndpointId>>,
    /// Services of a VLAN network by the address of their speaker.
    spoken_for: BTreeMap<(NetworkId, IpAddr), BTreeSet<ServiceId>>,
    /// Private subnets of the VRFs with host access.
    host_routes: BTreeMap<Vrf, Ipv4Net>,
    /// Owners of ports, by port name.
    port_owners: HashMap<String, ObjectId>,
}

impl FlowIndex {
    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Installed> {
        self.installed.get(id)
    }

    /// Returns the other installed object with the cookie of this one. The switch cannot distinguish their flows.
    pub(crate) fn other_owner(&self, id: &ObjectId) -> Option<&ObjectId> {
        self.cookies.get(&Cookie::of(id)).filter(|owner| *owner != id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.installed.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.installed.len()
    }

    pub(crate) fn networks(&self) -> impl Iterator<Item = &Network> {
        self.installed.values().filter_map(|installed| match &installed.object {
            Object::Network(network) => Some(network),
            _ => None,
        })
    }

    /// Local endpoints of a network that have a port, with its number.
    pub(crate) fn locals(&self, network: &NetworkId) -> impl Iterator<Item = (&Local, u32)> {
        let ids = self.locals_on.get(network).into_iter().flatten();
        ids.filter_map(|id| match self.get(&ObjectId::Local(id.clone()))? {
            Installed { object: Object::Local(local), port: Some(port) } => Some((local, port.number)),
            _ => None,
        })
    }

    /// Returns those [`locals`](Self::locals) that have the tag of the network. When the network gets another tag, the
    /// others remain where they were, perhaps on the other bridge, until they are set.
    pub(crate) fn locals_in(&self, network: &Network) -> impl Iterator<Item = (&Local, u32)> {
        let encap = network.encap;
        self.locals(&network.id).filter(move |(local, _)| local.encap == encap)
    }

    /// Local endpoints of which only the record is installed.
    pub(crate) fn unattached(&self) -> impl Iterator<Item = &ObjectId> {
        let unattached = self.installed.iter().filter(|(_, installed)| installed.is_unattached());
        unattached.map(|(id, _)| id)
    }

    /// Local endpoints with this identity.
    pub(crate) fn members(&self, identity: Identity) -> Vec<EndpointId> {
        self.members.get(&identity).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn group(&self, identity: Identity) -> Option<&Group> {
        match &self.get(&ObjectId::Group(identity))?.object {
            Object::Group(group) => Some(group),
            _ => None,
        }
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.installed.values().filter_map(|installed| match &installed.object {
            Object::Group(group) => Some(group),
            _ => None,
        })
    }

    pub(crate) fn services(&self) -> impl Iterator<Item = &Service> {
        self.installed.values().filter_map(|installed| match &installed.object {
            Object::Service(service) => Some(service),
            _ => None,
        })
    }

    /// Returns the services of a VLAN network whose speaker has this address.
    pub(crate) fn spoken_for(
        &self,
        network: &NetworkId,
        speaker: IpAddr,
    ) -> impl Iterator<Item = &ServiceId> {
        self.spoken_for.get(&(network.clone(), speaker)).into_iter().flatten()
    }

    /// Reports whether this node answers ARP and ND for a service on the VLAN: its speaker is on this node.
    pub(crate) fn is_answered(&self, service: &Service) -> bool {
        let Some(speaker) = speaker(service) else { return false };
        self.local_addresses.contains_key(&speaker) && !self.is_routed_vlan(&speaker.0)
    }

    /// Whether a local endpoint [in the network](Self::locals_in) has rules.
    pub(crate) fn has_rules(&self, network: &Network) -> bool {
        let groups = self.locals_in(network).filter_map(|(local, _)| self.group(local.identity?));
        groups.into_iter().any(|group| !group.rules.is_empty())
    }

    /// Port numbers of tunnels, by the address of the peer.
    pub(crate) fn peers(&self) -> &BTreeMap<IpAddr, u32> {
        &self.peers
    }

    /// Remote endpoints on the node with this VTEP.
    pub(crate) fn remotes_at(&self, vtep: IpAddr) -> Vec<EndpointId> {
        self.remotes.get(&vtep).into_iter().flatten().cloned().collect()
    }

    /// Endpoints of a network.
    pub(crate) fn endpoints_on(&self, network: &NetworkId) -> Vec<ObjectId> {
        let remotes = self.remotes_on.get(network).into_iter().flatten().cloned().map(ObjectId::Remote);
        let locals = self.locals_on.get(network).into_iter().flatten().cloned().map(ObjectId::Local);
        remotes.chain(locals).collect()
    }

    /// Whether an object is in the VRF.
    pub(crate) fn has_vrf(&self, vrf: &Vrf) -> bool {
        self.vrfs.contains_key(vrf)
    }

    /// Whether a network is in the VRF.
    pub(crate) fn has_network_in(&self, vrf: &Vrf) -> bool {
        // Networks precede the other objects of a VRF in the order of ids.
        let first = self.vrfs.get(vrf).and_then(BTreeSet::first);
        matches!(first, Some(ObjectId::Network(_)))
    }

    /// Whether the node is the gateway of a VLAN network.
    pub(crate) fn has_routed_vlan(&self) -> bool {
        !self.routed_vlans.is_empty()
    }

    /// Whether the node is the gateway of this VLAN network.
    pub(crate) fn is_routed_vlan(&self, network: &NetworkId) -> bool {
        let subnet = |family| SubnetId { network: network.clone(), family };
        Family::ALL.into_iter().any(|family| self.routed_vlans.contains(&subnet(family)))
    }

    /// Whether a VRF has host access.
    pub(crate) fn has_host_route(&self) -> bool {
        !self.host_routes.is_empty()
    }

    /// Private subnet of a VRF with host access.
    pub(crate) fn private_subnet(&self, vrf: &Vrf) -> Option<Ipv4Net> {
        self.host_routes.get(vrf).copied()
    }

    /// Objects in the VRF.
    pub(crate) fn objects_in(&self, vrf: &Vrf) -> impl Iterator<Item = &ObjectId> {
        self.vrfs.get(vrf).into_iter().flatten()
    }

    pub(crate) fn port_owner(&self, name: &str) -> Option<&ObjectId> {
        self.port_owners.get(name)
    }

    /// Adds or replaces an object; returns the replaced one.
    pub(crate) fn insert(&mut self, installed: Installed) -> Option<Installed> {
        let id = installed.object.id();
        let old = self.remove(&id);
        if let Some(port) = &installed.port {
            self.port_owners.insert(port.name.clone(), id.clone());
            match &installed.object {
                Object::Peer(peer) => {
                    self.peers.insert(peer.vtep, port.number);
                }
                Object::Local(local) => {
                    for ip in local.addresses.iter() {
                        let owners = self.local_addresses.entry((local.network.clone(), ip)).or_default();
                        owners.insert(local.id.clone());
                    }
                }
                _ => {}
            }
        }
        if let Object::Local(local) = &installed.object {
            self.locals_on.entry(local.network.clone()).or_default().insert(local.id.clone());
            if let Some(identity) = local.identity {
                self.members.entry(identity).or_default().insert(local.id.clone());
            }
        }
        if let Object::Remote(remote) = &installed.object
            && let Some(vtep) = remote.vtep()
        {
            self.remotes.entry(vtep).or_default().insert(remote.id.clone());
        }
        if let Object::Remote(remote) = &installed.object {
            self.remotes_on.entry(remote.network.clone()).or_default().insert(remote.id.clone());
        }
        if let Object::Subnet(subnet) = &installed.object
            && subnet.is_routed_vlan()
        {
            self.routed_vlans.insert(subnet.id());
        }
        if let Object::Route(route) = &installed.object
            && let Some(subnet) = route.private_subnet()
        {
            self.host_routes.insert(route.id.vrf.clone(), subnet);
        }
        if let Object::Service(service) = &installed.object
            && let Some(key) = speaker(service)
        {
            self.spoken_for.entry(key).or_default().insert(service.id.clone());
        }
        if let Some(vrf) = vrf_of(&installed.object) {
            self.vrfs.entry(vrf.clone()).or_default().insert(id.clone());
        }
        self.cookies.insert(Cookie::of(&id), id.clone());
        self.installed.insert(id, installed);
        old
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<Installed> {
        let installed = self.installed.remove(id)?;
        self.cookies.remove(&Cookie::of(id));
        if let Some(port) = &installed.port
            && self.port_owners.get(&port.name) == Some(id)
        {
            self.port_owners.remove(&port.name);
        }
        match &installed.object {
            Object::Peer(peer) => {
                self.peers.remove(&peer.vtep);
            }
            Object::Local(local) => {
                remove_if_empty(&mut self.locals_on, &local.network, |locals| {
                    locals.remove(&local.id);
                    locals.is_empty()
                });
                for ip in local.addresses.iter() {
                    remove_if_empty(&mut self.local_addresses, &(local.network.clone(), ip), |owners| {
                        owners.remove(&local.id);
                        owners.is_empty()
                    });
                }
                if let Some(identity) = local.identity {
                    remove_if_empty(&mut self.members, &identity, |members| {
                        members.remove(&local.id);
                        members.is_empty()
                    });
                }
            }
            Object::Remote(remote) => {
                remove_if_empty(&mut self.remotes_on, &remote.network, |remotes| {
                    remotes.remove(&remote.id);
                    remotes.is_empty()
                });
                if let Some(vtep) = remote.vtep() {
                    remove_if_empty(&mut self.remotes, &vtep, |remotes| {
                        remotes.remove(&remote.id);
                        remotes.is_empty()
                    });
                }
            }
            Object::Subnet(subnet) => {
                self.routed_vlans.remove(&subnet.id());
            }
            Object::Service(service) => {
                if let Some(key) = speaker(service) {
                    remove_if_empty(&mut self.spoken_for, &key, |services| {
                        services.remove(&service.id);
                        services.is_empty()
                    });
                }
            }
            Object::Route(route) => {
                self.host_routes.remove(&route.id.vrf);
            }
            _ => {}
        }
        if let Some(vrf) = vrf_of(&installed.object) {
            remove_if_empty(&mut self.vrfs, vrf, |objects| {
                objects.remove(id);
                objects.is_empty()
            });
        }
        Some(installed)
    }
}

/// Returns the network and address of the speaker of a service on a VLAN network.
fn speaker(service: &Service) -> Option<(NetworkId, IpAddr)> {
    let network = service.scope.network.as_ref()?;
    let is_on_wire = matches!(network.encap, Encap::Vlan(_));
    Some((network.id.clone(), service.speaker().filter(|_| is_on_wire)?))
}

/// VRF of an object.
pub(crate) fn vrf_of(object: &Object) -> Option<&Vrf> {
    match object {
        Object::Network(network) => Some(&network.vrf),
        Object::Subnet(subnet) => Some(&subnet.vrf),
        Object::Remote(remote) => Some(&remote.vrf),
        Object::Local(local) => Some(&local.vrf),
        Object::Service(service) => Some(&service.scope.vrf),
        Object::Route(route) => Some(&route.id.vrf),
        Object::Peer(_) | Object::Group(_) => None,
    }
}

/// Changes the value of a key with `change`, and removes the entry if `change` returns true (the value is empty).
fn remove_if_empty<K: Ord, V>(map: &mut BTreeMap<K, V>, key: &K, change: impl FnOnce(&mut V) -> bool) {
    if map.get_mut(key).is_some_and(change) {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests;
