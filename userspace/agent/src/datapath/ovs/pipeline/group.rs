//! Groups that replicate BUM traffic.

use openflow_rs::{Action, Bucket, Group, GroupKind};

/// Id of a group that outputs to the tunnels of peers. Group `index` holds the peers from index `index * MAX_BUCKETS`.
pub(crate) fn peer_group(index: usize) -> u32 {
    (index as u32) << 25 | 1
}

/// Maximum number of buckets of one group. It keeps the group-mod below the 64 KiB limit of a message: the bucket of a
/// receiver has 120 bytes.
pub(crate) const MAX_BUCKETS: usize = 500;

/// Maximum number of ready backends of a service. A bucket has 56 bytes.
pub(crate) const MAX_BACKENDS: usize = 1000;

/// Id of a group that outputs to local pods of a network. Group `index` holds the pods from index `index * MAX_BUCKETS`.
pub(crate) fn endpoint_group(vni: u32, index: usize) -> u32 {
    (index as u32) << 25 | vni << 1
}

/// Id of a group that evaluates the rules of local pods of a network. `tag` is a VLAN id or a VNI.
pub(crate) fn receiver_group(tag: u32, index: usize) -> u32 {
    1 << 31 | endpoint_group(tag, index)
}

/// Id of the group that selects a backend of a service.
pub(crate) fn backend_group(service: u32) -> u32 {
    service << 1 | 1
}

/// Id of the group that outputs to the first uplink with a link. It sends the copies of frames that rules were evaluated
/// for. `NORMAL` would flood them to pods again.
pub(crate) const UPLINK_GROUP: u32 = 1;

/// Returns the group of the uplinks, in this order.
pub(crate) fn uplink_group(ports: &[u32]) -> Group {
    let bucket = |port: u32| Bucket { watch_port: port.into(), ..Bucket::new([Action::output(port)]) };
    let buckets = ports.iter().map(|port| bucket(*port)).collect();
    Group { id: UPLINK_GROUP, kind: GroupKind::FastFailover, buckets }
}

/// Returns a group that outputs a copy to each port.
pub(crate) fn all_group(id: u32, ports: impl IntoIterator<Item = u32>) -> Group {
    let buckets = ports.into_iter().map(|port| Bucket::new([Action::output(port)]));
    Group { id, kind: GroupKind::All, buckets: buckets.collect() }
}

/// Returns the port that a bucket of [`all_group`] outputs to; `None` for a bucket of another group.
pub(crate) fn output_port(bucket: &Bucket) -> Option<u32> {
    match &bucket.actions[..] {
        [Action::Output { port, .. }] => Some(port.0),
        _ => None,
    }
}
