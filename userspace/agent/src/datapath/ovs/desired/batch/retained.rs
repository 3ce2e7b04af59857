//! Flows, groups and ports that belong to no installed object and are retained.

use std::collections::BTreeSet;

use openflow_rs::{Bucket, Group, GroupKind};

use super::Batch;
use crate::datapath::ovs::{
    bridge::{BridgeKind, PerBridge},
    pipeline::{self, MAX_BUCKETS},
    tables::{cookie::Cookie, edit::Tables},
};

impl Batch<'_> {
    /// Reports whether flows, groups and ports without an installed object are retained.
    pub(super) fn retains(&self) -> bool {
        self.base.retained.is_some()
    }

    /// Removes the flows that an interrupted takeover from another datapath has left, because they drop all frames. A
    /// takeover that is still in progress removes them later.
    pub(super) fn end_takeover(&mut self) {
        if self.base.holds {
            return;
        }
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).set(Cookie::HOLD, []);
        }
    }

    /// Adds the group's buckets for ports without an object, as they are in the switch, if these ports are retained. So
    /// frames to all ports of a network still reach them.
    pub(super) fn with_retained(&self, bridge: BridgeKind, mut group: Group) -> Group {
        let room = MAX_BUCKETS.saturating_sub(group.buckets.len());
        let retained: Vec<Bucket> = self.retained_buckets(bridge, group.id).take(room).cloned().collect();
        group.buckets.extend(retained);
        group
    }

    /// Reports whether the group has a bucket for a retained port without an object.
    pub(super) fn has_retained(&self, bridge: BridgeKind, group: u32) -> bool {
        self.retained_buckets(bridge, group).next().is_some()
    }

    fn retained_buckets(&self, bridge: BridgeKind, group: u32) -> impl Iterator<Item = &Bucket> {
        let ports = self.base.retained.as_ref().map(|retained| retained.get(bridge));
        let group = self.edits.get(bridge).groups().get(&group);
        let both = ports.zip(group).into_iter();
        both.flat_map(|(ports, group)| {
            let buckets = group.buckets.iter();
            buckets.filter(move |bucket| port_of(bucket).is_some_and(|port| ports.contains(&port)))
        })
    }

    /// Removes ports without an object that are not retained, because the switch will reuse their numbers.
    pub(crate) fn forget_ports(&mut self, ports: &PerBridge<BTreeSet<u32>>) {
        for bridge in BridgeKind::ALL {
            let gone = ports.get(bridge);
            if let Some(retained) = &mut self.base.retained {
                retained.get_mut(bridge).retain(|port| !gone.contains(port));
            }
            let is_gone = |bucket: &Bucket| port_of(bucket).is_some_and(|port| gone.contains(&port));
            let affected = |group: &&Group| group.buckets.iter().any(is_gone);
            let affected: Vec<Group> =
                self.edits.get(bridge).groups().values().filter(affected).cloned().collect();
            for mut group in affected {
                group.buckets.retain(|bucket| !is_gone(bucket));
                self.edits.get_mut(bridge).set_group(group);
            }
        }
    }
}

/// Returns the groups that output to networks and peers, with only their buckets for these ports.
pub(crate) fn groups_of(tables: &PerBridge<Tables>, ports: &PerBridge<BTreeSet<u32>>) -> PerBridge<Tables> {
    let of = |bridge: BridgeKind| {
        let is_of = |bucket: &Bucket| port_of(bucket).is_some_and(|port| ports.get(bridge).contains(&port));
        let groups = tables.get(bridge).groups().values().filter(|group| group.kind == GroupKind::All);
        let groups = groups.map(|group| {
            let buckets = group.buckets.iter().filter(|bucket| is_of(bucket)).cloned().collect();
            Group { id: group.id, kind: group.kind, buckets }
        });
        Tables::new([], groups.filter(|group| !group.buckets.is_empty()))
    };
    PerBridge { vlan: of(BridgeKind::Vlan), vxlan: of(BridgeKind::Vxlan) }
}

/// Returns the port of a network or peer to which a bucket outputs.
fn port_of(bucket: &Bucket) -> Option<u32> {
    pipeline::output_port(bucket).or_else(|| pipeline::receiver_port(bucket))
}
