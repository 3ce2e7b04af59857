//! Differences between the desired and the actual table contents.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{
    batch::{group_count, network_groups, service_groups},
    model::SwitchModel,
};
use crate::datapath::{
    Desired, ObjectId,
    ovs::{
        bridge::{BridgeKind, PerBridge},
        pipeline::{self, MAX_BUCKETS, peer_group},
        tables::{cookie::Cookie, edit::Tables},
    },
};

/// Differences between two sets of tables.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Desired objects with missing or different flows or groups.
    pub(crate) out_of_sync: BTreeSet<ObjectId>,
    /// Number of flows, groups and buckets that belong to no desired object.
    pub(crate) orphans: usize,
    /// The base flows are incomplete.
    pub(crate) base_flows: bool,
}

/// Compares `actual` with the contents that `desired` requires.
pub(crate) fn compare(expected: &SwitchModel, actual: &PerBridge<Tables>, desired: &Desired) -> Differences {
    // If another object has an object's cookie, the switch has none of its flows.
    let own = desired.iter().map(|(id, _)| id).filter(|id| expected.index.other_owner(id).is_none());
    let owners: HashMap<Cookie, &ObjectId> = own.map(|id| (Cookie::of(id), id)).collect();
    let mut differences = Differences::default();
    for bridge in BridgeKind::ALL {
        let (expected, actual) = (expected.tables.get(bridge), actual.get(bridge));
        for flow in expected.difference(actual).chain(actual.difference(expected)) {
            match owners.get(&Cookie(flow.cookie())) {
                Some(id) => {
                    differences.out_of_sync.insert((*id).clone());
                }
                None if Cookie(flow.cookie()) == Cookie::BASE => differences.base_flows = true,
                None => differences.orphans += 1,
            }
        }
    }
    compare_groups(expected, actual, &mut differences);
    differences
}

fn compare_groups(expected: &SwitchModel, actual: &PerBridge<Tables>, differences: &mut Differences) {
    let mut owners = BTreeMap::new();
    for network in expected.index.networks() {
        let id = ObjectId::Network(network.id.clone());
        owners.extend(
            network_groups(&expected.index, &expected.numbers, network)
                .into_iter()
                .map(|group| (group, id.clone())),
        );
    }
    owners.extend(service_groups(&expected.index, &expected.numbers));
    for bridge in BridgeKind::ALL {
        let (required, present) = (expected.tables.get(bridge).groups(), actual.get(bridge).groups());
        for (id, _) in required.iter().filter(|(id, group)| present.get(id) != Some(group)) {
            match owners.get(&(bridge, *id)) {
                Some(id) => drop(differences.out_of_sync.insert(id.clone())),
                // The group of the uplinks belongs to no object.
                None if bridge == BridgeKind::Vlan || !present.contains_key(id) => {
                    differences.base_flows = true;
                }
                None => {}
            }
        }
        let is_foreign = |id: u32| actual.get(bridge).is_foreign_group(id);
        let orphans = present.keys().filter(|id| !required.contains_key(id) && !is_foreign(**id));
        differences.orphans += orphans.count();
    }
    compare_peers(expected, actual, differences);
}

/// Compares the buckets of the groups of peers.
fn compare_peers(expected: &SwitchModel, actual: &PerBridge<Tables>, differences: &mut Differences) {
    let (required, present) = (expected.tables.vxlan.groups(), actual.vxlan.groups());
    for index in 0..group_count(expected.index.peers().len()) {
        let id = peer_group(index);
        let Some(group) = required.get(&id).filter(|group| present.get(&id) != Some(group)) else { continue };
        let buckets: HashSet<_> = present.get(&id).into_iter().flat_map(|group| &group.buckets).collect();
        for (vtep, port) in expected.index.peers().iter().skip(index * MAX_BUCKETS).take(MAX_BUCKETS) {
            let wanted = pipeline::all_group(id, [*port]).buckets;
            if !wanted.iter().all(|bucket| buckets.contains(bucket)) {
                differences.out_of_sync.insert(ObjectId::Peer(*vtep));
            }
        }
        let wanted: HashSet<_> = group.buckets.iter().collect();
        differences.orphans += buckets.difference(&wanted).count();
    }
}
