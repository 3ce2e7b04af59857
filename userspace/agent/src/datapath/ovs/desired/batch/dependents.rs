//! Dependents of an object: the flows of other objects, and groups.

use std::collections::BTreeSet;

use contiv_model::name::ServiceId;

use super::Batch;
use crate::datapath::{
    Family, Object, ObjectId, SubnetId,
    ovs::{
        pipeline::{Routed, bridge_and_tag},
        tables::index::Installed,
    },
};

impl Batch<'_> {
    /// Calls [`routed`](Self::routed) for the network of a subnet.
    pub(super) fn routed_at(&self, id: &ObjectId) -> Option<Routed> {
        match id {
            ObjectId::Subnet(subnet) => Some(self.routed(&subnet.network)),
            _ => None,
        }
    }

    /// Updates the endpoints of a network if a change of its subnet changes how they are reached.
    pub(super) fn update_endpoints(&mut self, id: &ObjectId, before: Option<Routed>) {
        let ObjectId::Subnet(subnet) = id else { return };
        let (before, after) = (before.unwrap_or_default(), self.routed(&subnet.network));
        if before == after {
            return;
        }
        for endpoint in self.index.endpoints_on(&subnet.network) {
            self.update_flows(&endpoint);
        }
        // The domain of a VLAN network changes.
        if before.is_any() != after.is_any() {
            self.dirty_networks.insert(subnet.network.clone());
            for family in Family::ALL {
                self.update_flows(&ObjectId::Subnet(SubnetId { network: subnet.network.clone(), family }));
            }
            let services = self.index.services().filter(|service| {
                service.scope.network.as_ref().is_some_and(|network| network.id == subnet.network)
            });
            let services: Vec<ObjectId> =
                services.map(|service| ObjectId::Service(service.id.clone())).collect();
            services.iter().for_each(|service| self.update_flows(service));
        }
    }

    /// Updates the services for which this node starts or stops answering requests because an endpoint was added or
    /// removed.
    pub(super) fn update_spoken_for(&mut self, old: Option<&Object>, new: Option<&Object>) {
        let place = |object: Option<&Object>| match object {
            Some(Object::Local(local)) => Some((local.network.clone(), local.addresses.clone())),
            _ => None,
        };
        let (old, new) = (place(old), place(new));
        if old == new {
            return;
        }
        let addresses = old
            .iter()
            .chain(&new)
            .flat_map(|(network, addresses)| addresses.iter().map(move |ip| (network, ip)));
        let services: BTreeSet<ServiceId> =
            addresses.flat_map(|(network, ip)| self.index.spoken_for(network, ip)).cloned().collect();
        services.into_iter().for_each(|service| self.update_flows(&ObjectId::Service(service)));
    }

    /// Marks the dependents of a peer or a network.
    pub(super) fn mark_dirty(&mut self, id: &ObjectId) {
        match id {
            ObjectId::Peer(_) => self.dirty_peers = true,
            ObjectId::Network(network) => {
                self.dirty_networks.insert(network.clone());
            }
            _ => {}
        }
    }

    /// Marks the networks of a local endpoint before and after its change, and the VNI that a network no longer uses.
    pub(super) fn mark_group_members(&mut self, old: Option<&Installed>, new: Option<&Object>) {
        for object in old.map(|installed| &installed.object).into_iter().chain(new) {
            if let Object::Local(local) = object {
                self.dirty_networks.insert(local.network.clone());
            }
        }
        if let Some(Installed { object: Object::Network(old), .. }) = old {
            let unchanged = matches!(new, Some(Object::Network(new)) if new.encap == old.encap);
            if !unchanged {
                self.removed_tags.insert(bridge_and_tag(old.encap));
            }
        }
    }

    /// Updates the dependents of a group's rules: the flows of its local endpoints and their networks.
    pub(super) fn update_members(&mut self, id: &ObjectId) {
        let ObjectId::Group(identity) = id else { return };
        for member in self.index.members(*identity) {
            let member = ObjectId::Local(member);
            if let Some(Installed { object: Object::Local(local), .. }) = self.index.get(&member) {
                self.dirty_networks.insert(local.network.clone());
            }
            self.update_flows(&member);
        }
    }
}
