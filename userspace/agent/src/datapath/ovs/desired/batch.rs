//! Changes of the model that reach the switch together.

use std::{
    collections::{BTreeSet, HashSet},
    net::IpAddr,
};

use contiv_model::name::NetworkId;
use openflow_rs::{Change, Flow};

use super::model::{BaseConfig, SwitchModel};
use crate::datapath::{
    Object, ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{self, MAX_BUCKETS, peer_group},
        tables::{
            cookie::Cookie,
            edit::Edit,
            index::{BridgePort, FlowIndex, Installed},
        },
    },
};

/// UDP port of the node's own tunnels (RFC 7348 section 5).
const VXLAN_PORT: u16 = 4789;

/// A remote endpoint whose node has no tunnel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no tunnel to {0}")]
pub(crate) struct NoTunnel(pub(crate) IpAddr);

/// Uncommitted changes of a [`SwitchModel`].
///
/// The flows of an object are updated at once. Groups, and the flows of networks that use them, are updated in
/// [`changes`](Batch::changes) and [`commit`](Batch::commit), once for all objects that affect them.
pub(crate) struct Batch<'a> {
    index: &'a mut FlowIndex,
    base: &'a BaseConfig,
    edits: PerBridge<Edit<'a>>,
    /// Previous entries of the index, in the order of the changes.
    previous: Vec<(ObjectId, Option<Installed>)>,
    /// Networks whose groups and flows need an update.
    dirty_networks: BTreeSet<NetworkId>,
    /// Whether the group of all peers needs an update.
    dirty_peers: bool,
    /// VNIs of removed networks, whose groups are removed.
    removed_vnis: BTreeSet<u32>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(model: &'a mut SwitchModel) -> Batch<'a> {
        let edits =
            PerBridge { vlan: Edit::new(&mut model.tables.vlan), vxlan: Edit::new(&mut model.tables.vxlan) };
        Batch {
            index: &mut model.index,
            base: &model.base,
            edits,
            previous: vec![],
            dirty_networks: BTreeSet::new(),
            dirty_peers: false,
            removed_vnis: BTreeSet::new(),
        }
    }

    /// Sets the flows and the group that exist for any desired state.
    pub(crate) fn set_base_flows(&mut self) {
        let BaseConfig { uplinks, nd_mode, vtep } = self.base;
        for bridge in BridgeKind::ALL {
            let own = vtep.into_iter().flat_map(|address| pipeline::vtep(*address, VXLAN_PORT));
            let uplinks = uplinks.iter().filter(|_| bridge == BridgeKind::Vlan);
            let uplinks = uplinks.map(|port| pipeline::outside(*port));
            let flows = pipeline::base_flows(bridge, *nd_mode).into_iter().chain(own).chain(uplinks);
            self.edits.get_mut(bridge).set(Cookie::BASE, flows);
        }
        if !self.edits.vxlan.group_ids().any(|id| id == peer_group(0)) {
            self.edits.vxlan.set_group(pipeline::all_group(peer_group(0), []));
        }
    }

    /// Adds or replaces an object. Fails without a change if a remote endpoint has no tunnel.
    pub(crate) fn set(&mut self, object: Object, port: Option<BridgePort>) -> Result<(), NoTunnel> {
        if let Object::Remote(remote) = &object
            && let Some(vtep) = remote.vtep()
            && !self.index.peers().contains_key(&vtep)
        {
            return Err(NoTunnel(vtep));
        }
        let id = object.id();
        self.mark_dirty(&id);
        let old = self.index.insert(Installed { object: object.clone(), port });
        self.mark_group_members(old.as_ref(), Some(&object));
        let old_port = old.as_ref().and_then(|installed| installed.port.as_ref()).map(|port| port.number);
        self.previous.push((id.clone(), old));
        self.update_flows(&id);
        if let Object::Peer(peer) = &object
            && self.index.peers().get(&peer.vtep).copied() != old_port
        {
            for remote in self.index.remotes_at(peer.vtep) {
                self.update_flows(&ObjectId::Remote(remote));
            }
        }
        Ok(())
    }

    pub(crate) fn delete(&mut self, id: &ObjectId) {
        self.mark_dirty(id);
        let old = self.index.remove(id);
        self.mark_group_members(old.as_ref(), None);
        self.previous.push((id.clone(), old));
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).set(Cookie::of(id), []);
        }
        // The port number of a removed tunnel can be assigned to another port.
        if let ObjectId::Peer(vtep) = id {
            for remote in self.index.remotes_at(*vtep) {
                self.update_flows(&ObjectId::Remote(remote));
            }
        }
    }

    /// Removes every flow and group that belongs to no installed object.
    pub(crate) fn collect_garbage(&mut self) {
        self.set_base_flows();
        let owners: HashSet<_> = self.index.ids().map(Cookie::of).chain([Cookie::BASE]).collect();
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).retain_owners(|owner| owners.contains(&owner));
        }
        self.dirty_networks.extend(self.index.networks().map(|network| network.id.clone()));
        self.dirty_peers = true;
        self.update_groups();
        let groups = self.expected_groups();
        for bridge in BridgeKind::ALL {
            let orphans: Vec<_> = self
                .edits
                .get(bridge)
                .group_ids()
                .filter(|id| bridge == BridgeKind::Vlan || !groups.contains(id))
                .collect();
            orphans.into_iter().for_each(|id| self.edits.get_mut(bridge).remove_group(id));
        }
    }

    /// Returns the modifications for each bridge.
    pub(crate) fn changes(&mut self) -> PerBridge<Vec<Change>> {
        self.update_groups();
        PerBridge { vlan: self.edits.vlan.changes(), vxlan: self.edits.vxlan.changes() }
    }

    /// Keeps the changes: the switch has accepted them.
    pub(crate) fn commit(mut self) {
        self.update_groups();
    }

    /// Reverts the changes after a rejection. The tables of the bridges in `applied` keep theirs.
    pub(crate) fn rollback(self, applied: &[BridgeKind]) {
        let PerBridge { vlan, vxlan } = self.edits;
        for (bridge, edit) in [(BridgeKind::Vlan, vlan), (BridgeKind::Vxlan, vxlan)] {
            if !applied.contains(&bridge) {
                edit.rollback();
            }
        }
        for (id, old) in self.previous.into_iter().rev() {
            match old {
                Some(installed) => drop(self.index.insert(installed)),
                None => drop(self.index.remove(&id)),
            }
        }
    }

    /// Marks what depends on a peer or a network.
    fn mark_dirty(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Peer(_) => self.dirty_peers = true,
            ObjectId::Network(network) => {
                self.dirty_networks.insert(network.clone());
            }
            _ => {}
        }
    }

    /// Marks the networks of a local endpoint before and after its change, and the VNI that a network no longer uses.
    fn mark_group_members(&mut self, old: Option<&Installed>, new: Option<&Object>) {
        for object in old.map(|installed| &installed.object).into_iter().chain(new) {
            if let Object::Local(local) = object {
                self.dirty_networks.insert(local.network.clone());
            }
        }
        if let Some(Installed { object: Object::Network(old), .. }) = old {
            let unchanged = matches!(new, Some(Object::Network(new)) if new.encap == old.encap);
            if let (BridgeKind::Vxlan, vni) = pipeline::bridge_and_tag(old.encap)
                && !unchanged
            {
                self.removed_vnis.insert(vni);
            }
        }
    }

    /// Sets the flows of an object on the bridge of its network, and removes them from the other bridge.
    fn update_flows(&mut self, id: &ObjectId) {
        let Some(installed) = self.index.get(id) else { return };
        let number = installed.port.as_ref().map(|port| port.number);
        if let (Object::Peer(peer), Some(port)) = (&installed.object, number) {
            let to_vtep = pipeline::vtep(peer.vtep, peer.port);
            self.edits.vlan.set(Cookie::of(id), to_vtep.clone());
            self.edits.vxlan.set(Cookie::of(id), to_vtep.into_iter().chain([pipeline::outside(port)]));
            return;
        }
        let (bridge, flows) = match (&installed.object, number) {
            (Object::Local(local), Some(port)) => {
                (pipeline::bridge_and_tag(local.encap).0, pipeline::local(local, port))
            }
            (Object::Remote(remote), _) => {
                let port = remote.vtep().and_then(|vtep| self.index.peers().get(&vtep).copied());
                (pipeline::bridge_and_tag(remote.encap).0, pipeline::remote(remote, port))
            }
            (Object::Subnet(subnet), _) => {
                (pipeline::bridge_and_tag(subnet.encap).0, pipeline::subnet(subnet))
            }
            // The flows of a network depend on its number of groups: see `update_network`.
            (Object::Network(_) | Object::Peer(_) | Object::Local(_), _)
            | (Object::Route(_) | Object::Group(_) | Object::Service(_), _) => return,
        };
        self.set_flows(id, bridge, flows);
    }

    fn set_flows(&mut self, id: &ObjectId, bridge: BridgeKind, flows: Vec<Flow>) {
        let other = if bridge == BridgeKind::Vlan { BridgeKind::Vxlan } else { BridgeKind::Vlan };
        self.edits.get_mut(bridge).set(Cookie::of(id), flows);
        self.edits.get_mut(other).set(Cookie::of(id), []);
    }

    /// Updates the groups, and the flows of networks that use them.
    fn update_groups(&mut self) {
        for vni in std::mem::take(&mut self.removed_vnis) {
            self.remove_endpoint_groups(vni, 0);
        }
        // Before the networks, whose flows name the groups of peers.
        if std::mem::take(&mut self.dirty_peers) {
            self.update_peer_groups();
        }
        for network in std::mem::take(&mut self.dirty_networks) {
            self.update_network(&network);
        }
    }

    fn update_peer_groups(&mut self) {
        let ports: Vec<u32> = self.index.peers().values().copied().collect();
        let groups = group_count(ports.len());
        let present: BTreeSet<_> = self.edits.vxlan.group_ids().collect();
        for group in 0..groups {
            let members = ports.iter().copied().skip(group * MAX_BUCKETS).take(MAX_BUCKETS);
            self.edits.vxlan.set_group(pipeline::all_group(peer_group(group), members));
        }
        let excess: Vec<_> = (groups..).map(peer_group).take_while(|id| present.contains(id)).collect();
        if !excess.is_empty() || !present.contains(&peer_group(groups - 1)) {
            self.dirty_networks.extend(self.index.networks().map(|network| network.id.clone()));
        }
        excess.into_iter().for_each(|id| self.edits.vxlan.remove_group(id));
    }

    fn update_network(&mut self, id: &NetworkId) {
        let id = ObjectId::Network(id.clone());
        let Some(Installed { object: Object::Network(network), .. }) = self.index.get(&id) else { return };
        let (bridge, tag) = pipeline::bridge_and_tag(network.encap);
        let ports: Vec<_> = self.index.local_ports(&network.id).collect();
        let groups = group_count(ports.len());
        let flows = pipeline::network(network, groups, group_count(self.index.peers().len()));
        if bridge == BridgeKind::Vxlan {
            for group in 0..groups {
                let members = ports.iter().copied().skip(group * MAX_BUCKETS).take(MAX_BUCKETS);
                let id = pipeline::endpoint_group(tag, group);
                self.edits.vxlan.set_group(pipeline::all_group(id, members));
            }
            self.remove_endpoint_groups(tag, groups);
        }
        self.set_flows(&id, bridge, flows);
    }

    /// Removes the groups of a network from index `first` on.
    fn remove_endpoint_groups(&mut self, vni: u32, first: usize) {
        let ids: BTreeSet<_> = self.edits.vxlan.group_ids().collect();
        let excess =
            (first..).map(|group| pipeline::endpoint_group(vni, group)).take_while(|id| ids.contains(id));
        excess.for_each(|id| self.edits.vxlan.remove_group(id));
    }

    /// Ids of the groups of the VXLAN bridge.
    fn expected_groups(&self) -> BTreeSet<u32> {
        let networks =
            self.index.networks().filter_map(|network| match pipeline::bridge_and_tag(network.encap) {
                (BridgeKind::Vxlan, vni) => {
                    Some((vni, group_count(self.index.local_ports(&network.id).len())))
                }
                (BridgeKind::Vlan, _) => None,
            });
        let endpoints = networks
            .flat_map(|(vni, groups)| (0..groups).map(move |group| pipeline::endpoint_group(vni, group)));
        let peers = (0..group_count(self.index.peers().len())).map(peer_group);
        endpoints.chain(peers).collect()
    }
}

/// Number of groups for the local endpoints of a network, or for all peers: at least one.
pub(crate) fn group_count(members: usize) -> usize {
    members.div_ceil(MAX_BUCKETS).max(1)
}
