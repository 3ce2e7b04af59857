//! Changes of the model that are sent to the switch together.

mod dependents;
mod flows;
mod groups;
mod kernel;
mod retained;

use std::collections::{BTreeSet, HashSet};

use contiv_model::{
    name::{NetworkId, ServiceId},
    vrf::Vrf,
};
use openflow_rs::Change;

pub(crate) use groups::{group_count, network_groups, service_groups};
pub(crate) use retained::groups_of;

use super::model::{BaseConfig, SwitchModel};
use crate::datapath::{
    Object, ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{self, peer_group},
        tables::{
            cookie::Cookie,
            edit::Edit,
            ids::ObjectNumbers,
            index::{BridgePort, FlowIndex, Installed, vrf_of},
        },
    },
};

/// UDP port of the node's own tunnels (RFC 7348 section 5).
const VXLAN_PORT: u16 = 4789;

/// Why an object cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotSet {
    /// All numbers of services are in use.
    #[error("the switch has {0} services, and no number for another one")]
    ServiceNumber(u32),
    /// All numbers of VRFs are in use.
    #[error("the switch has {0} VRFs, and no number for another one")]
    VrfNumber(u32),
    /// The service has the scope of a whole VRF, which has no network on this node.
    #[error(
        "the service has no network, and no network that is routed in the {0} is on this node; give the service a network"
    )]
    Network(Vrf),
    /// Another object has the same cookie.
    #[error("its flows would have the cookie of those of {0}; give one of the two objects another name")]
    Cookie(ObjectId),
}

/// Uncommitted changes of a [`SwitchModel`].
///
/// The flows of an object are updated at once. Groups, and the flows of networks that use them, are updated in
/// [`changes`](Batch::changes) and [`commit`](Batch::commit), once for all objects that affect them.
pub(crate) struct Batch<'a> {
    index: &'a mut FlowIndex,
    base: &'a mut BaseConfig,
    edits: PerBridge<Edit<'a>>,
    numbers: &'a mut ObjectNumbers,
    /// Previous entries of the index, in the order of the changes.
    previous: Vec<(ObjectId, Option<Installed>)>,
    /// Networks whose groups and flows need an update.
    dirty_networks: BTreeSet<NetworkId>,
    /// The group of all peers needs an update.
    dirty_peers: bool,
    /// Tags of removed networks, whose groups are removed.
    removed_tags: BTreeSet<(BridgeKind, u32)>,
    /// Removed services, whose numbers are released.
    removed_services: BTreeSet<ServiceId>,
    /// VRFs that objects have left. Their numbers are released if no object remains.
    left_vrfs: BTreeSet<Vrf>,
    /// Port numbers of the node's kernel before the changes.
    previous_kernel: PerBridge<Option<u32>>,
    /// The node was the gateway of a VLAN network before the changes.
    had_routed_vlan: bool,
    /// Groups and services whose flows were set or removed.
    counted: BTreeSet<ObjectId>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(model: &'a mut SwitchModel) -> Batch<'a> {
        let edits =
            PerBridge { vlan: Edit::new(&mut model.tables.vlan), vxlan: Edit::new(&mut model.tables.vxlan) };
        let (previous_kernel, had_routed_vlan) = (model.base.kernel, model.index.has_routed_vlan());
        Batch {
            index: &mut model.index,
            base: &mut model.base,
            edits,
            numbers: &mut model.numbers,
            previous: vec![],
            dirty_networks: BTreeSet::new(),
            dirty_peers: false,
            removed_tags: BTreeSet::new(),
            removed_services: BTreeSet::new(),
            left_vrfs: BTreeSet::new(),
            previous_kernel,
            had_routed_vlan,
            counted: BTreeSet::new(),
        }
    }

    /// Sets the flows and the group that exist for any desired state.
    pub(crate) fn set_base_flows(&mut self) {
        let BaseConfig { uplinks, vtep, kernel, .. } = &*self.base;
        for bridge in BridgeKind::ALL {
            let own = vtep.iter().flat_map(|address| pipeline::vtep(*address, VXLAN_PORT));
            let arrivals = uplinks.iter().filter(|_| bridge == BridgeKind::Vlan);
            let arrivals = arrivals.map(|port| pipeline::outside(*port));
            // Several uplinks are a bond.
            let bond = uplinks.len() > 1 && bridge == BridgeKind::Vlan;
            let replies = bond.then(pipeline::replies_by_bond).into_iter().flatten();
            let host = match bridge {
                BridgeKind::Vlan => kernel.vlan.map(pipeline::from_network).unwrap_or_default(),
                BridgeKind::Vxlan => kernel.vxlan.map(pipeline::from_kernel).into_iter().collect(),
            };
            let flows = pipeline::base_flows(bridge)
                .into_iter()
                .chain(own)
                .chain(arrivals)
                .chain(replies)
                .chain(host);
            self.edits.get_mut(bridge).set(Cookie::BASE, flows);
        }
        if let [_, _, ..] = &uplinks[..] {
            self.edits.vlan.set_group(pipeline::uplink_group(uplinks));
        }
        if !self.edits.vxlan.has_group(peer_group(0)) {
            self.edits.vxlan.set_group(pipeline::all_group(peer_group(0), []));
        }
    }

    /// Adds or replaces an object. Fails without a change if another object has its cookie, if a service has no network,
    /// or if no number is free for the object. A remote endpoint without a tunnel gets a record that drops frames with
    /// its addresses until the peer is set. A local endpoint without a port gets such a record, too.
    pub(crate) fn set(&mut self, object: Object, port: Option<BridgePort>) -> Result<(), NotSet> {
        let id = object.id();
        if let Some(owner) = self.index.other_owner(&id) {
            return Err(NotSet::Cookie(owner.clone()));
        }
        if let Object::Service(service) = &object
            && service.scope.network.is_none()
            && !self.index.has_network_in(&service.scope.vrf)
        {
            return Err(NotSet::Network(service.scope.vrf.clone()));
        }
        if let Some(vrf) = vrf_of(&object)
            && matches!(vrf, Vrf::Tenant(_))
        {
            self.left_vrfs.insert(vrf.clone());
            let assigned = self.numbers.vrfs.assign(vrf.clone());
            assigned.ok_or(NotSet::VrfNumber(pipeline::MAX_VRF))?;
        }
        if let ObjectId::Service(service) = &id {
            self.removed_services.remove(service);
            let assigned = self.numbers.services.assign(Cookie::of(&id));
            assigned.ok_or(NotSet::ServiceNumber(pipeline::MAX_SERVICE))?;
        }
        self.mark_dirty(&id);
        let routed = self.routed_at(&id);
        let has_port = port.is_some();
        let old = self.index.insert(Installed { object: object.clone(), port });
        self.mark_group_members(old.as_ref(), Some(&object));
        // An endpoint without a port is not the speaker of a service.
        let before = old.as_ref().filter(|installed| installed.port.is_some());
        let before = before.map(|installed| installed.object.clone());
        let old_port = old.as_ref().and_then(|installed| installed.port.as_ref()).map(|port| port.number);
        self.record(&id, old);
        self.update_flows(&id);
        self.update_members(&id);
        self.update_endpoints(&id, routed);
        self.update_spoken_for(before.as_ref(), Some(&object).filter(|_| has_port));
        self.update_host_access(&id);
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
        // The object has not been set: the flows with its cookie, and the number, belong to the other object.
        if self.index.other_owner(id).is_some() {
            return;
        }
        self.mark_dirty(id);
        let routed = self.routed_at(id);
        let old = self.index.remove(id);
        self.mark_group_members(old.as_ref(), None);
        let before = old.as_ref().map(|installed| installed.object.clone());
        self.record(id, old);
        if let ObjectId::Service(service) = id {
            if let Some(number) = self.numbers.services.get(&Cookie::of(id)) {
                let group = pipeline::backend_group(number);
                for bridge in BridgeKind::ALL {
                    self.edits.get_mut(bridge).remove_group(group);
                }
            }
            self.removed_services.insert(service.clone());
        }
        if matches!(id, ObjectId::Group(_) | ObjectId::Service(_)) {
            self.counted.insert(id.clone());
        }
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).set(Cookie::of(id), []);
        }
        self.update_members(id);
        self.update_endpoints(id, routed);
        self.update_spoken_for(before.as_ref(), None);
        self.update_host_access(id);
        // The port number of a removed tunnel can be assigned to another port.
        if let ObjectId::Peer(vtep) = id {
            for remote in self.index.remotes_at(*vtep) {
                self.update_flows(&ObjectId::Remote(remote));
            }
        }
    }

    /// Removes every flow and group that belongs neither to an installed object nor to another program, unless orphans
    /// are retained. A local endpoint without a port keeps its record, so that no other sender can use its addresses.
    pub(crate) fn collect_garbage(&mut self) {
        if self.retains() {
            self.end_takeover();
            return;
        }
        self.set_base_flows();
        let hold = self.base.holds.then_some(Cookie::HOLD);
        let owners: HashSet<_> = self.index.ids().map(Cookie::of).chain([Cookie::BASE]).chain(hold).collect();
        for bridge in BridgeKind::ALL {
            let retains_groups = self.base.retains_groups;
            let stays = |owner: Cookie| owners.contains(&owner) || retains_groups && owner.is_of_group();
            self.edits.get_mut(bridge).retain_owners(stays);
        }
        // Their other flows match a port number that may now belong to another port.
        let unattached: Vec<ObjectId> = self.index.unattached().cloned().collect();
        unattached.iter().for_each(|id| self.update_flows(id));
        self.dirty_networks.extend(self.index.networks().map(|network| network.id.clone()));
        self.dirty_peers = true;
        self.update_groups();
        let groups = self.expected_groups();
        for bridge in BridgeKind::ALL {
            let own = self.edits.get(bridge).own_group_ids();
            let orphans: Vec<_> = own.filter(|id| !groups.contains(&(bridge, *id))).collect();
            for id in orphans {
                self.edits.get_mut(bridge).remove_group(id);
            }
        }
    }

    /// Returns the modifications for each bridge.
    pub(crate) fn changes(&mut self) -> PerBridge<Vec<Change>> {
        self.update_groups();
        PerBridge { vlan: self.edits.vlan.changes(), vxlan: self.edits.vxlan.changes() }
    }

    /// Keeps the changes, which the switch has accepted. Returns the groups and services whose flows have changed.
    pub(crate) fn commit(mut self) -> BTreeSet<ObjectId> {
        self.update_groups();
        for service in std::mem::take(&mut self.removed_services) {
            self.numbers.services.remove(&Cookie::of(&ObjectId::Service(service)));
        }
        self.free_vrfs();
        self.counted
    }

    /// Reverts the changes after a rejection. The tables of the bridges in `applied` keep the changes.
    pub(crate) fn rollback(mut self, applied: &[BridgeKind]) {
        for (id, old) in std::mem::take(&mut self.previous).into_iter().rev() {
            match old {
                Some(installed) => drop(self.index.insert(installed)),
                None => drop(self.index.remove(&id)),
            }
        }
        self.free_vrfs();
        self.base.kernel = self.previous_kernel;
        let PerBridge { vlan, vxlan } = self.edits;
        for (bridge, edit) in [(BridgeKind::Vlan, vlan), (BridgeKind::Vxlan, vxlan)] {
            if !applied.contains(&bridge) {
                edit.rollback();
            }
        }
    }

    /// Keeps the previous entry of the index for a rollback.
    fn record(&mut self, id: &ObjectId, old: Option<Installed>) {
        self.left_vrfs.extend(old.as_ref().and_then(|installed| vrf_of(&installed.object)).cloned());
        self.previous.push((id.clone(), old));
    }

    fn free_vrfs(&mut self) {
        for vrf in std::mem::take(&mut self.left_vrfs) {
            if !self.index.has_vrf(&vrf) {
                self.numbers.vrfs.remove(&vrf);
            }
        }
    }
}
