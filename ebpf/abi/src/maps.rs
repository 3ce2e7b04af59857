//! Names and capacities of the maps, and what happens when one is full.
//!
//! Nothing here is an LRU map: an evicted entry would be a pod that nobody can reach. A write to a full
//! map fails (`E2BIG`), the agent reports the object as failed, names the map, and tries again later.

/// Interface index -> [`Port`](crate::Port). Full: the pod's attachment fails.
pub const PORTS: &str = "ctv_ports";
/// Pods on one node.
pub const PORTS_CAPACITY: usize = 4096;

/// [`Segment`](crate::Segment) -> [`SegmentEntry`](crate::SegmentEntry). Full: the network's pods fail to attach.
pub const SEGMENTS: &str = "ctv_segs";
/// Networks: all VLANs and as many VXLANs again.
pub const SEGMENTS_CAPACITY: usize = 8192;

/// [`FloodKey`](crate::FloodKey) -> interface index. One entry per port, so it is full when `ctv_ports` is.
pub const FLOOD: &str = "ctv_flood";
/// As many as ports.
pub const FLOOD_CAPACITY: usize = PORTS_CAPACITY;

/// [`FdbKey`](crate::FdbKey) -> [`FdbEntry`](crate::FdbEntry). Full: frames to the endpoint are flooded
/// (VXLAN) or sent to the uplink (VLAN) and still arrive.
pub const FDB: &str = "ctv_fdb";
/// Endpoints in the cluster.
pub const FDB_CAPACITY: usize = 262_144;

/// [`NeighKey`](crate::NeighKey) -> [`NeighEntry`](crate::NeighEntry). Full: requests for the address are
/// flooded and the owner answers.
pub const NEIGH: &str = "ctv_neigh";
/// Two addresses per endpoint.
pub const NEIGH_CAPACITY: usize = 2 * FDB_CAPACITY;

/// Slot -> [`Vtep`](crate::Vtep), the list that flooding walks.
pub const VTEPS: &str = "ctv_vteps";
/// [`Vtep`](crate::Vtep) -> slot, the nodes whose frames are accepted. Full: the peer fails to join.
pub const PEERS: &str = "ctv_peers";
/// Nodes in the cluster.
pub const PEERS_CAPACITY: usize = 8192;

/// One [`Node`](crate::Node).
pub const NODE: &str = "ctv_node";

/// [`DropReason`](crate::DropReason) -> [`DropCount`](crate::DropCount) per CPU. Indexed, never full.
pub const DROPS: &str = "ctv_drops";
/// Room for reasons that later versions add without a new layout.
pub const DROP_REASONS: usize = 64;

/// The hash of the object that the pinned programs come from, so that a restart can tell an upgrade.
pub const BUILD: &str = "ctv_build";
/// Bytes of that hash.
pub const BUILD_LEN: usize = 16;

/// Every map, in the order in which `cleanup` names them.
pub const ALL: &[&str] = &[PORTS, SEGMENTS, FLOOD, FDB, NEIGH, VTEPS, PEERS, NODE, DROPS, BUILD];

/// Program on the ingress of the host end of each pod's veth pair.
pub const FROM_POD: &str = "ctv_from_pod";
/// Program on the ingress of the VXLAN device.
pub const FROM_OVERLAY: &str = "ctv_from_vxlan";
/// Program on the ingress of the VLAN uplink.
pub const FROM_UPLINK: &str = "ctv_from_uplink";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_kernels_fifteen_characters() {
        for name in ALL.iter().chain(&[FROM_POD, FROM_OVERLAY, FROM_UPLINK]) {
            assert!(name.starts_with("ctv_") && name.len() <= 15, "{name}");
        }
    }
}
