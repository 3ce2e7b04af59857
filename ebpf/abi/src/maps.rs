//! Names and capacities of the maps, and what happens when one is full.
//!
//! Nothing that an object stands for is in an LRU map: an evicted entry would be a pod that nobody can
//! reach. A write to a full map fails (`E2BIG`), the agent reports the object as failed, names the map, and
//! tries again later.

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

/// [`FlowKey`](crate::FlowKey) -> [`TimedFlow`](crate::TimedFlow): flows that have been answered, each with
/// the timer that removes it. Full: new flows stay in `ctv_new`, counted; nothing is ever pushed out of here.
pub const FLOWS: &str = "ctv_ct";
/// A translated flow takes two.
pub const FLOWS_CAPACITY: usize = 1 << 20;

/// [`FlowKey`](crate::FlowKey) -> [`Flow`](crate::Flow): flows that have not been answered. Full: the one that
/// was unused for longest makes room; a flood of connections hurts only others that are as new.
pub const NEW_FLOWS: &str = "ctv_new";
/// Small on purpose: a flow is here between its first packet and the first answer.
pub const NEW_FLOWS_CAPACITY: usize = 65_536;

/// [`FragmentKey`](crate::FragmentKey) -> [`FragmentPorts`](crate::FragmentPorts). Full: the oldest makes room;
/// its later fragments are dropped and the sender repeats the packet.
pub const FRAGMENTS: &str = "ctv_frags";
/// Packets in pieces that are on the way at a time.
pub const FRAGMENTS_CAPACITY: usize = 8192;

/// [`FlowEvent`](crate::FlowEvent) -> count per CPU. Indexed, never full.
pub const FLOW_STATS: &str = "ctv_ct_stats";
/// Room for events that later versions add.
pub const FLOW_STATS_SLOTS: usize = 16;

/// [`ServiceKey`](crate::ServiceKey) -> [`ServiceEntry`](crate::ServiceEntry). Full: the service fails.
pub const SERVICES: &str = "ctv_svc";
/// Ports of services.
pub const SERVICES_CAPACITY: usize = 65_536;

/// Number -> [`RingBlock`](crate::RingBlock): the rings of all large sets of backends, packed. Full: the service fails.
pub const RING: &str = "ctv_ring";
/// Blocks: 8 MiB.
pub const RING_CAPACITY: usize = 1 << 17;

/// Number -> [`Backend`](crate::Backend): those of large sets, and of IPv6. Full: the service fails.
pub const BACKENDS: &str = "ctv_backends";
/// 6 MiB.
pub const BACKENDS_CAPACITY: usize = 1 << 18;

/// Hash of client and service -> [`AffinityBlock`](crate::AffinityBlock). A block that is full: the client that was away
/// for longest makes room, and its next connection goes by the set alone.
pub const AFFINITY: &str = "ctv_affinity";
/// Blocks, 4 MiB: room for 262,144 clients, services that keep them counted each.
pub const AFFINITY_CAPACITY: usize = 1 << 16;

/// Processor, and number of a service's port -> [`ServiceCount`](crate::ServiceCount), as its `place` says: an array, because a
/// map of values for each processor takes ten microseconds of the connection that is its first, and three cold lines of
/// the processor's cache of every other. Indexed, never full; the agent has it in its memory.
pub const SERVICE_COUNTS: &str = "ctv_svcnt";
/// For each processor as many as ports of services: 3 MiB.
pub const SERVICE_COUNTS_CAPACITY: usize = SERVICES_CAPACITY;

/// [`NeighKey`](crate::NeighKey) -> [`Vip`](crate::Vip): the addresses of services that the wire of a VLAN can reach. Full: the
/// service fails.
pub const VIPS: &str = "ctv_vips";
/// Services; each has a port at least.
pub const VIPS_CAPACITY: usize = SERVICES_CAPACITY;

/// [`FlowKey`](crate::FlowKey) of what a client sends -> [`DsrEntry`](crate::DsrEntry): connections from outside to backends on other
/// nodes. Full: the one that was unused for longest makes room; as long as the set of backends is what it was, its packets
/// go the same way by the ring.
pub const DSR_FLOWS: &str = "ctv_relays";
/// Connections that pass by this node on their way to another.
pub const DSR_FLOWS_CAPACITY: usize = 65_536;

/// [`DsrHook`](crate::DsrHook) -> [`DropCount`](crate::DropCount) per CPU: frames that were sent on to another node.
pub const DSR_STATS: &str = "ctv_relaycnt";
/// By whom: TC or XDP.
pub const DSR_STATS_SLOTS: usize = 2;

/// A group's number -> [`Group`](crate::policy::Group). Indexed, never full; the agent has it in its memory.
pub const GROUPS: &str = "ctv_groups";

/// Number, as far as it fits -> [`RuleSet`](crate::policy::RuleSet). Full: the group fails, and endpoints that are new in it
/// wait; those that are there keep the rules that they have.
pub const RULE_SETS: &str = "ctv_rulesets";
/// Two for each group, and one for each address that rules of a group single out: 4.5 MiB.
pub const RULE_SETS_CAPACITY: usize = 65_536;

/// Place -> [`Branch`](crate::policy::Branch). Full: as `ctv_rulesets`.
pub const RULES: &str = "ctv_rules";
/// 32 MiB. A rule takes a third of a branch when many have their port in common, one to three when it is alone with it, so
/// there is room for 100,000, and for the largest group twice. More than half of it is never taken for trees that could be smaller.
pub const RULES_CAPACITY: usize = 262_144;

/// Number of a rule -> [`RuleCount`](crate::policy::RuleCount) per CPU. Made by what is counted. Full: further rules are not
/// counted.
pub const RULE_COUNTS: &str = "ctv_rulecnt";
/// As many rules as have decided anything.
pub const RULE_COUNTS_CAPACITY: usize = 131_072;

/// [`MeterKey`](crate::policy::MeterKey) -> [`Meter`](crate::policy::Meter). Made by the first packet; both directions of each
/// port have room.
pub const METERS: &str = "ctv_meters";
/// Two for each port.
pub const METERS_CAPACITY: usize = 2 * PORTS_CAPACITY;

/// Number -> [`FlowCacheEntry`](crate::FlowCacheEntry) per CPU. Two flows with the same number on a CPU: one has it for a second, the other
/// goes through the stages.
pub const FLOW_CACHE: &str = "ctv_fast";
/// A power of two; half a megabyte for each CPU.
pub const FLOW_CACHE_CAPACITY: usize = 2048;

/// One [`Epochs`](crate::Epochs); the agent has it in its memory.
pub const EPOCHS: &str = "ctv_epochs";

/// Ring of [`Event`](crate::Event). Full: further events are counted as lost.
pub const EVENTS: &str = "ctv_events";
/// Room for some 2,000 events, a power of two and whole pages.
pub const EVENTS_BYTES: usize = 256 * 1024;

/// One [`Watch`](crate::Watch): whether anybody wants to hear of drops and flows.
pub const WATCH: &str = "ctv_watch";

/// One [`EventState`](crate::EventState) for each CPU.
pub const EVENT_STATE: &str = "ctv_told";

/// The hash of the object that the pinned programs come from, so that a restart can tell an upgrade.
pub const BUILD: &str = "ctv_build";
/// Bytes of that hash.
pub const BUILD_LEN: usize = 16;

/// Every map, in the order in which `cleanup` names them.
pub const ALL: &[&str] = &[
    PORTS,
    SEGMENTS,
    FLOOD,
    FDB,
    NEIGH,
    VTEPS,
    PEERS,
    NODE,
    DROPS,
    FLOWS,
    NEW_FLOWS,
    FRAGMENTS,
    FLOW_STATS,
    SERVICES,
    RING,
    BACKENDS,
    AFFINITY,
    SERVICE_COUNTS,
    VIPS,
    DSR_FLOWS,
    DSR_STATS,
    GROUPS,
    RULE_SETS,
    RULES,
    RULE_COUNTS,
    METERS,
    FLOW_CACHE,
    EPOCHS,
    EVENTS,
    WATCH,
    EVENT_STATE,
    BUILD,
];

/// Program on the ingress of the host end of each pod's veth pair.
pub const FROM_POD: &str = "ctv_from_pod";
/// Program behind the queue of pods whose groups have a rate.
pub const FROM_QUEUE: &str = "ctv_from_queue";
/// Program on the ingress of the VXLAN device.
pub const FROM_OVERLAY: &str = "ctv_from_vxlan";
/// Program on the ingress of the VLAN uplink.
pub const FROM_UPLINK: &str = "ctv_from_uplink";
/// Program on the driver's side of the VLAN uplink.
pub const XDP: &str = "ctv_xdp";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_kernels_fifteen_characters() {
        for name in ALL.iter().chain(&[FROM_POD, FROM_QUEUE, FROM_OVERLAY, FROM_UPLINK, XDP]) {
            assert!(name.starts_with("ctv_") && name.len() <= 15, "{name}");
        }
    }
}
