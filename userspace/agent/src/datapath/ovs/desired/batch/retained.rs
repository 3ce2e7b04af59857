//! What belongs to no installed object and stays.

use std::collections::BTreeSet;

use openflow_rs::{Bucket, Group, GroupKind};

use super::Batch;
use crate::datapath::ovs::{
    bridge::{BridgeKind, PerBridge},
    pipeline::{self, MAX_BUCKETS},
    tables::{cookie::Cookie, edit::Tables},
};

impl Batch<'_> {
    /// Whether flows, groups and ports of no installed object stay.
    pub(super) fn retains(&self) -> bool {
        self.base.retained.is_some()
    }

    /// Removes what an interrupted takeover from another datapath has left: no frame would enter. One that goes on ends later.
    pub(super) fn end_takeover(&mut self) {
        if self.base.holds {
            return;
        }
        for bridge in BridgeKind::ALL {
            self.edits.get_mut(bridge).set(Cookie::HOLD, []);
        }
    }

    /// Adds the buckets for ports of no object that the group has in the switch, if these stay. What is sent to all ports of a
    /// network reaches them as before.
    pub(super) fn with_retained(&self, bridge: BridgeKind, mut group: Group) -> Group {
        let room = MAX_BUCKETS.saturating_sub(group.buckets.len());
        let retained: Vec<Bucket> = self.retained_buckets(bridge, group.id).take(room).cloned().collect();
        group.buckets.extend(retained);
        group
    }

    /// Whether the group has a bucket for a port of no object that stays.
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

    /// Removes ports of no object, which do not stay: their numbers will be those of other ports.
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

/// Returns the groups that send to networks and peers, with their buckets for these ports only.
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

/// The port of a network or peer that a bucket sends to.
fn port_of(bucket: &Bucket) -> Option<u32> {
    pipeline::output_port(bucket).or_else(|| pipeline::receiver_port(bucket))
}
