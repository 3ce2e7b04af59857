//! Names and capacities of the maps, and what happens when a map is full.
//!
//! Entries of objects are never in an LRU map: an evicted entry would make a pod unreachable. A
//! write to a full map fails (`E2BIG`), the agent reports the object as failed, names the map, and
//! retries later.

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
/// Three addresses per endpoint: IPv4, IPv6, and the link-local address of IPv6.
pub const NEIGH_CAPACITY: usize = 3 * FDB_CAPACITY;

/// [`SubnetKey`](crate::SubnetKey) -> [`Subnet`](crate::Subnet). Full: the subnet fails.
pub const SUBNETS: &str = "ctv_subnets";
/// One of each family for each network.
pub const SUBNETS_CAPACITY: usize = 2 * SEGMENTS_CAPACITY;

/// Slot -> [`Vtep`](crate::Vtep), the list that flooding walks.
pub const VTEPS: &str = "ctv_vteps";
/// [`Vtep`](crate::Vtep) -> slot: the nodes whose frames are accepted. Full: the peer is not added.
pub const PEERS: &str = "ctv_peers";
/// Nodes in the cluster.
pub const PEERS_CAPACITY: usize = 8192;

/// One [`Node`](crate::Node).
pub const NODE: &str = "ctv_node";

/// [`DropReason`](crate::DropReason) -> [`DropCount`](crate::DropCount) per CPU. Indexed, never full.
pub const DROPS: &str = "ctv_drops";
/// Slots, including spare ones for reasons of later versions.
pub const DROP_REASONS: usize = 64;

/// Index -> [`Flow`](crate::Flow): one record for each tracked connection. Full: an unreplied or ended
/// flow is evicted for a new one; established flows are never evicted. If there is nothing to evict, the
/// new flow is counted and not tracked. Mapped into the agent's memory.
pub const FLOWS: &str = "ctv_flows";
/// Default: 12 MiB of records and 2 MiB of index.
pub const FLOWS_CAPACITY: usize = 1 << 16;

/// Index -> [`FlowBucket`](crate::FlowBucket): the index of flows, see
/// [`FlowTableSize::buckets`](crate::FlowTableSize::buckets). Full: as `ctv_flows`.
pub const FLOW_INDEX: &str = "ctv_flowidx";

/// Page of the index -> [`FlowLock`](crate::FlowLock). Indexed, never full.
pub const FLOW_LOCKS: &str = "ctv_flowlock";

/// Index -> 64 bits: which records are used. Full: as `ctv_flows`.
pub const FLOW_BITMAP: &str = "ctv_flowbits";

/// Interface index modulo the capacity -> number of flows of the endpoint. Indexed, never full. Two
/// ports share a number, and their quota, if their interface indexes differ by a multiple of the
/// capacity.
pub const FLOW_COUNTS: &str = "ctv_flowcnt";
/// 64 KiB.
pub const FLOW_COUNTS_CAPACITY: usize = 2 * PORTS_CAPACITY;

/// One [`FlowCollector`](crate::FlowCollector): the timer that removes expired flows.
pub const FLOW_COLLECTOR: &str = "ctv_flowgc";

/// One [`FlowBatch`](crate::FlowBatch): flows of another table for [`IMPORT`]. Not pinned: it exists
/// while an agent imports flows.
pub const FLOW_IMPORTS: &str = "ctv_imports";

/// [`FragmentKey`](crate::FragmentKey) -> [`FragmentPorts`](crate::FragmentPorts) (LRU). Full: the
/// oldest entry is evicted; its later fragments are dropped and the sender retransmits the packet.
pub const FRAGMENTS: &str = "ctv_frags";
/// Fragmented packets in transit at a time.
pub const FRAGMENTS_CAPACITY: usize = 8192;

/// [`FlowEvent`](crate::FlowEvent) -> count per CPU. Indexed, never full.
pub const FLOW_STATS: &str = "ctv_ct_stats";
/// Slots, including spare ones for events of later versions.
pub const FLOW_STATS_SLOTS: usize = 16;

/// [`ServiceKey`](crate::ServiceKey) -> [`ServiceEntry`](crate::ServiceEntry). Full: the service fails.
pub const SERVICES: &str = "ctv_svc";
/// Ports of services.
pub const SERVICES_CAPACITY: usize = 65_536;

/// Index -> [`RingBlock`](crate::RingBlock): the rings of all large sets of backends, packed. Full:
/// the service fails.
pub const RING: &str = "ctv_ring";
/// Blocks: 8 MiB.
pub const RING_CAPACITY: usize = 1 << 17;

/// Index -> [`Backend`](crate::Backend): backends of large sets, and all IPv6 backends. Full: the
/// service fails.
pub const BACKENDS: &str = "ctv_backends";
/// Backends: 6 MiB.
pub const BACKENDS_CAPACITY: usize = 1 << 18;

/// Hash of client and service -> [`AffinityBlock`](crate::AffinityBlock). A full block: the client
/// that was inactive for longest is evicted, and its next connection may go to another backend.
pub const AFFINITY: &str = "ctv_affinity";
/// Blocks, 4 MiB: 262,144 pairs of client and service.
pub const AFFINITY_CAPACITY: usize = 1 << 16;

/// CPU and number of a service's port -> [`ServiceCount`](crate::ServiceCount), see its `place`: a
/// plain array, because a per-CPU hash map costs ten microseconds for the first connection and
/// three cold cache lines for every other. Indexed, never full; mapped into the agent's memory.
pub const SERVICE_COUNTS: &str = "ctv_svcnt";
/// Slots for each CPU, as many as ports of services: 3 MiB.
pub const SERVICE_COUNTS_CAPACITY: usize = SERVICES_CAPACITY;

/// [`NeighKey`](crate::NeighKey) -> [`Vip`](crate::Vip): service addresses that are reachable on
/// the wire of a VLAN. Full: the service fails.
pub const VIPS: &str = "ctv_vips";
/// Services; each has at least one port.
pub const VIPS_CAPACITY: usize = SERVICES_CAPACITY;

/// [`FlowKey`](crate::FlowKey) of the client's packets -> [`DsrEntry`](crate::DsrEntry):
/// connections from outside that are forwarded to backends on other nodes (LRU). Full: the least
/// recently used entry is evicted; while the set of backends is unchanged, its packets take the
/// same path by the ring.
pub const DSR_FLOWS: &str = "ctv_relays";
/// Connections that this node forwards to another.
pub const DSR_FLOWS_CAPACITY: usize = 65_536;

/// [`DsrHook`](crate::DsrHook) -> [`DropCount`](crate::DropCount) per CPU: frames forwarded to
/// another node.
pub const DSR_STATS: &str = "ctv_relaycnt";
/// One for each hook: TC and XDP.
pub const DSR_STATS_SLOTS: usize = 2;

/// Number of a group -> [`Group`](crate::policy::Group). Indexed, never full; mapped into the
/// agent's memory.
pub const GROUPS: &str = "ctv_groups";

/// Number modulo the capacity -> [`RuleSet`](crate::policy::RuleSet). Full: the group fails, and
/// new endpoints of the group are not attached; existing ones keep their rules.
pub const RULE_SETS: &str = "ctv_rulesets";
/// Two for each group, and one for each address that rules of a group select: 4.5 MiB.
pub const RULE_SETS_CAPACITY: usize = 65_536;

/// One number: the next number of a rule set. Numbers are policy revisions and are never reused.
/// Mapped into the agent's memory.
pub const REVISION: &str = "ctv_revision";
/// Numbers of rule sets are below this.
pub const REVISIONS: u32 = 1 << 31;

/// Index -> [`Branch`](crate::policy::Branch). Full: as `ctv_rulesets`.
pub const RULES: &str = "ctv_rules";
/// 32 MiB. A rule takes a third of a node if many rules have the same port, one to three if it is
/// alone with its port. This is enough for 100,000 rules, and for the largest group twice. At most
/// half of it is used for trees that could be smaller.
pub const RULES_CAPACITY: usize = 262_144;

/// Number of a rule -> [`RuleCount`](crate::policy::RuleCount) per CPU. Entries are created by the
/// first packet. Full: further rules are not counted.
pub const RULE_COUNTS: &str = "ctv_rulecnt";
/// Rules that have decided a packet.
pub const RULE_COUNTS_CAPACITY: usize = 131_072;

/// [`MeterKey`](crate::policy::MeterKey) -> [`Meter`](crate::policy::Meter). Created by the first
/// packet; sized for both directions and the storm control of each port.
pub const METERS: &str = "ctv_meters";
/// Three for each port.
pub const METERS_CAPACITY: usize = 3 * PORTS_CAPACITY;

/// Ring of [`Event`](crate::Event). Full: further events are counted as lost.
pub const EVENTS: &str = "ctv_events";
/// Size in bytes: some 2,000 events, a power of two and whole pages.
pub const EVENTS_BYTES: usize = 256 * 1024;

/// One [`Watch`](crate::Watch): whether events are requested.
pub const WATCH: &str = "ctv_watch";

/// One [`EventState`](crate::EventState) for each CPU.
pub const EVENT_STATE: &str = "ctv_told";

/// Hash of the object file of the pinned programs, by which a restart detects an upgrade.
pub const BUILD: &str = "ctv_build";
/// Length of the hash in bytes.
pub const BUILD_LEN: usize = 16;

/// Every map, in the order in which `cleanup` lists them.
pub const ALL: &[&str] = &[
    PORTS,
    SEGMENTS,
    FLOOD,
    FDB,
    NEIGH,
    SUBNETS,
    VTEPS,
    PEERS,
    NODE,
    DROPS,
    FLOWS,
    FLOW_INDEX,
    FLOW_LOCKS,
    FLOW_BITMAP,
    FLOW_COUNTS,
    FLOW_COLLECTOR,
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
    REVISION,
    RULES,
    RULE_COUNTS,
    METERS,
    EVENTS,
    WATCH,
    EVENT_STATE,
    BUILD,
];

/// Program on the ingress of the host end of each pod's veth pair.
pub const FROM_POD: &str = "ctv_from_pod";
/// Program behind the queue of pods whose groups have a rate limit.
pub const FROM_QUEUE: &str = "ctv_from_queue";
/// Program on the ingress of the VXLAN device.
pub const FROM_OVERLAY: &str = "ctv_from_vxlan";
/// Program on the ingress of the VLAN uplink.
pub const FROM_UPLINK: &str = "ctv_from_uplink";
/// XDP program on the VLAN uplink.
pub const XDP: &str = "ctv_xdp";
/// Program that inserts flows of another table, which the agent runs itself.
pub const IMPORT: &str = "ctv_import";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_kernels_fifteen_characters() {
        for name in
            ALL.iter().chain(&[FROM_POD, FROM_QUEUE, FROM_OVERLAY, FROM_UPLINK, XDP, IMPORT, FLOW_IMPORTS])
        {
            assert!(name.starts_with("ctv_") && name.len() <= 15, "{name}");
        }
    }
}
