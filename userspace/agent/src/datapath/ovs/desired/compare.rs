//! Differences between the desired and the actual table contents.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{batch::group_count, model::SwitchModel};
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
    /// Whether the base flows are incomplete.
    pub(crate) base_flows: bool,
}

/// Compares `actual` with the contents that `desired` requires.
pub(crate) fn compare(expected: &SwitchModel, actual: &PerBridge<Tables>, desired: &Desired) -> Differences {
    let owners: HashMap<Cookie, &ObjectId> = desired.iter().map(|(id, _)| (Cookie::of(id), id)).collect();
    let mut differences = Differences::default();
    for bridge in BridgeKind::ALL {
        let (expected, actual) = (expected.tables.get(bridge), actual.get(bridge));
        for flow in expected.difference(actual).chain(actual.difference(expected)) {
            match owners.get(&Cookie(flow.cookie)) {
                Some(id) => {
                    differences.out_of_sync.insert((*id).clone());
                }
                None if Cookie(flow.cookie) == Cookie::BASE => differences.base_flows = true,
                None => differences.orphans += 1,
            }
        }
    }
    compare_groups(expected, actual, &mut differences);
    differences
}

fn compare_groups(expected: &SwitchModel, actual: &PerBridge<Tables>, differences: &mut Differences) {
    let groups = actual.vxlan.groups();
    let required = expected.tables.vxlan.groups();
    let buckets =
        |id: u32| groups.get(&id).into_iter().flat_map(|group| &group.buckets).collect::<HashSet<_>>();
    let mut owners = BTreeMap::new();
    for network in expected.index.networks() {
        if let (BridgeKind::Vxlan, vni) = pipeline::bridge_and_tag(network.encap) {
            let count = group_count(expected.index.local_ports(&network.id).len());
            owners.extend((0..count).map(|group| (pipeline::endpoint_group(vni, group), network)));
        }
    }
    let peer_groups: Vec<u32> = (0..group_count(expected.index.peers().len())).map(peer_group).collect();
    for (id, group) in required.iter().filter(|(id, group)| groups.get(id) != Some(group)) {
        match owners.get(id) {
            Some(network) => {
                differences.out_of_sync.insert(ObjectId::Network(network.id.clone()));
            }
            None if !groups.contains_key(id) => differences.base_flows = true,
            None => {}
        }
        if let Some(index) = peer_groups.iter().position(|group| group == id) {
            let present = buckets(*id);
            for (vtep, port) in expected.index.peers().iter().skip(index * MAX_BUCKETS).take(MAX_BUCKETS) {
                let wanted = pipeline::all_group(*id, [*port]).buckets;
                if !wanted.iter().all(|bucket| present.contains(bucket)) {
                    differences.out_of_sync.insert(ObjectId::Peer(*vtep));
                }
            }
            let wanted: HashSet<_> = group.buckets.iter().collect();
            differences.orphans += present.difference(&wanted).count();
        }
    }
    let foreign = groups.keys().filter(|id| !required.contains_key(id)).count();
    differences.orphans += foreign + actual.vlan.groups().len();
}
