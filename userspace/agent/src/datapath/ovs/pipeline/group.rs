//! Groups that replicate BUM traffic.

use openflow_rs::{Action, Bucket, Group, GroupKind};

/// Id of a group that outputs to the tunnels of peers. Group `index` holds the peers from `index * MAX_BUCKETS` on.
pub(crate) fn peer_group(index: usize) -> u32 {
    (index as u32) << 25 | 1
}

/// Maximum number of buckets of one group. The group-mod then stays well below the 64 KiB of a message.
pub(crate) const MAX_BUCKETS: usize = 1000;

/// Id of the group that outputs to local pods of a network. Group `index` holds the pods from `index * MAX_BUCKETS` on.
pub(crate) fn endpoint_group(vni: u32, index: usize) -> u32 {
    (index as u32) << 25 | vni << 1
}

/// Returns a group that outputs a copy to each port.
pub(crate) fn all_group(id: u32, ports: impl IntoIterator<Item = u32>) -> Group {
    let buckets = ports.into_iter().map(|port| Bucket::new([Action::output(port)]));
    Group { id, kind: GroupKind::All, buckets: buckets.collect() }
}
