//! Which objects are in place, and the indexes that a change needs so as not to look at all of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use contiv_model::name::{EndpointId, NetworkId};

use crate::datapath::{
    Object, ObjectId,
    ovs::pipeline::{Side, place},
};

/// A port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// Its OpenFlow number.
    pub(crate) number: u32,
}

/// An object in place; a local endpoint and a peer have a port.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) object: Object,
    pub(crate) port: Option<Port>,
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    held: BTreeMap<ObjectId, Held>,
    /// Where the pods of each VXLAN network are.
    pods: BTreeMap<NetworkId, BTreeMap<EndpointId, u32>>,
    peers: BTreeMap<IpAddr, u32>,
    /// The remote endpoints of each node.
    behind: BTreeMap<IpAddr, BTreeSet<EndpointId>>,
    /// Whose each port is.
    ports: HashMap<String, ObjectId>,
}

impl Books {
    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Held> {
        self.held.get(id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &ObjectId> {
        self.held.keys()
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn networks(&self) -> impl Iterator<Item = &crate::datapath::Network> {
        self.held.values().filter_map(|held| match &held.object {
            Object::Network(network) => Some(network),
            _ => None,
        })
    }

    pub(crate) fn pods(&self, network: &NetworkId) -> impl ExactSizeIterator<Item = u32> + use<'_> {
        static NONE: BTreeMap<EndpointId, u32> = BTreeMap::new();
        self.pods.get(network).unwrap_or(&NONE).values().copied()
    }

    /// The ports that lead to other nodes, by their addresses.
    pub(crate) fn peers(&self) -> &BTreeMap<IpAddr, u32> {
        &self.peers
    }

    pub(crate) fn behind(&self, vtep: IpAddr) -> Vec<EndpointId> {
        self.behind.get(&vtep).into_iter().flatten().cloned().collect()
    }

    pub(crate) fn owner_of_port(&self, name: &str) -> Option<&ObjectId> {
        self.ports.get(name)
    }

    pub(crate) fn put(&mut self, held: Held) -> Option<Held> {
        let id = held.object.id();
        let old = self.take(&id);
        if let Some(port) = &held.port {
            self.ports.insert(port.name.clone(), id.clone());
            match &held.object {
                Object::Peer(peer) => {
                    self.peers.insert(peer.vtep, port.number);
                }
                Object::Local(local) if place(local.encap).0 == Side::Vxlan => {
                    self.pods.entry(local.network.clone()).or_default().insert(local.id.clone(), port.number);
                }
                Object::Local(_)
                | Object::Network(_)
                | Object::Group(_)
                | Object::Remote(_)
                | Object::Service(_) => {}
            }
        }
        if let Object::Remote(remote) = &held.object
            && let Some(vtep) = remote.vtep
        {
            self.behind.entry(vtep).or_default().insert(remote.id.clone());
        }
        self.held.insert(id, held);
        old
    }

    pub(crate) fn take(&mut self, id: &ObjectId) -> Option<Held> {
        let held = self.held.remove(id)?;
        if let Some(port) = &held.port
            && self.ports.get(&port.name) == Some(id)
        {
            self.ports.remove(&port.name);
        }
        match &held.object {
            Object::Peer(peer) => {
                self.peers.remove(&peer.vtep);
            }
            Object::Local(local) => forget(&mut self.pods, &local.network, |pods| {
                pods.remove(&local.id);
                pods.is_empty()
            }),
            Object::Remote(remote) => {
                if let Some(vtep) = remote.vtep {
                    forget(&mut self.behind, &vtep, |remotes| {
                        remotes.remove(&remote.id);
                        remotes.is_empty()
                    });
                }
            }
            Object::Network(_) | Object::Group(_) | Object::Service(_) => {}
        }
        Some(held)
    }
}

/// Takes something out of an entry, and the entry when it is empty then.
fn forget<K: Ord, V>(map: &mut BTreeMap<K, V>, key: &K, take: impl FnOnce(&mut V) -> bool) {
    if map.get_mut(key).is_some_and(take) {
        map.remove(key);
    }
}
