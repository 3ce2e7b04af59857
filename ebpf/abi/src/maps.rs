//! Names and capacities of the maps, and the effect of a full map.
//!
//! Entries of objects are never in an LRU map: an evicted entry would make a pod unreachable. A
//! write to a full map fails (`E2BIG`), the agent reports the object as failed, names the map, and
//! retries later.

/// Interface index -> [`Port`](crate::Port). Full: the pod's attachment fails.
pub const PORTS: &str = "ctv_ports";
/// Pods on one node.
pub const PORTS_CAPACITY: usize = 4096;

/// [`PortSlot::number`](crate::PortSlot::number) -> [`PortSlot`](crate::PortSlot): copies of the entries of
/// `ctv_ports` for the fast path. A port whose slot is taken has none, and its packets take the stages.
/// Mapped into the agent's memory.
pub const PORT_SLOTS: &str = "ctv_portslots";
/// 256 KiB.
pub const PORT_SLOTS_CAPACITY: usize = PORTS_CAPACITY;

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
/// Default number of endpoints on the networks of the node (`--bpf-endpoints`).
pub const FDB_CAPACITY: usize = 32_768;

/// [`NeighKey`](crate::NeighKey) -> [`NeighEntry`](crate::NeighEntry). Full: requests for the address are
/// flooded and the owner answers.
pub const NEIGH: &str = "ctv_neigh";
/// Three addresses per endpoint: IPv4, IPv6, and the link-local address of IPv6.
pub const NEIGH_CAPACITY: usize = 3 * FDB_CAPACITY;

/// Longest prefix of a [`NeighKey`](crate::NeighKey) -> [`Subnet`](crate::Subnet). Full: the subnet fails.
pub const SUBNETS: &str = "ctv_subnets";
/// One of each family for each network, and for VLAN networks that the node routes one more.
pub const SUBNETS_CAPACITY: usize = 4 * SEGMENTS_CAPACITY;

/// Longest prefix of a [`NeighKey`](crate::NeighKey) -> [`RouteEntry`](crate::RouteEntry), for addresses in no subnet.
/// Full: the route fails, and its pods do not reach these addresses.
pub const ROUTES: &str = "ctv_routes";
/// Seven for each VRF with host access: the route, and its exceptions.
pub const ROUTES_CAPACITY: usize = SEGMENTS_CAPACITY;

/// One interface index: the datapath's end of the interface to the node's kernel for VLAN networks that the node routes,
/// zero for none.
pub const KERNEL_PORT: &str = "ctv_kernport";

/// [`Port::number`](crate::Port::number) -> interface index. One entry per port, so it is full when `ctv_ports` is.
pub const PORT_NUMBERS: &str = "ctv_portnums";
/// As many as ports.
pub const PORT_NUMBERS_CAPACITY: usize = PORTS_CAPACITY;

/// [`DomainName`](crate::DomainName) -> number of the VRF ([`Domain::of_vrf`](crate::Domain::of_vrf)). Written and read by
/// the agent only. Full: entries of VRFs without networks make room.
pub const DOMAINS: &str = "ctv_domains";
/// As many as networks.
pub const DOMAINS_CAPACITY: usize = SEGMENTS_CAPACITY;

/// [`FloodKey`](crate::FloodKey) -> [`Vtep`](crate::Vtep): the peers that have the network, to which
/// broadcasts, multicasts and unknown unicasts go. Full: the peer fails; such frames do not reach it.
pub const MEMBERS: &str = "ctv_members";
/// Networks of the node times their peers.
pub const MEMBERS_CAPACITY: usize = 32_768;

/// [`Vtep`](crate::Vtep) -> 1: the nodes whose frames are accepted. Full: the peer is not added.
pub const PEERS: &str = "ctv_peers";
/// Nodes in the cluster.
pub const PEERS_CAPACITY: usize = 8192;

/// One [`Node`](crate::Node).
pub const NODE: &str = "ctv_node";

/// One [`u64`]: number of changes and removals of entries in `ctv_fdb`, and of addresses that a service has lost. A forwarded
/// connection keeps the Ethernet address that it found there while this number is unchanged. Mapped into the agent's memory.
pub const FDB_REVISION: &str = "ctv_fdbrev";

/// One interface index: the active uplink of the VLAN networks, zero for none. An array of its own, because
/// the agent changes it when an uplink loses its carrier, whatever else it is writing.
pub const UPLINK: &str = "ctv_uplink";

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

/// Page of the index -> [`FlowLock`](crate::FlowLock). Indexed, never full. Writers of `ctv_relays` hold
/// these locks, too.
pub const FLOW_LOCKS: &str = "ctv_flowlock";

/// Index -> 64 bits: which records are used. Full: as `ctv_flows`.
pub const FLOW_BITMAP: &str = "ctv_flowbits";

/// Interface index modulo the capacity -> number of flows that the endpoint has opened; half the capacity further on, of those
/// that it [has received](crate::FlowHalf::RECEIVED). Indexed, never full. Two ports share a number, and their quota, if their
/// interface indexes differ by a multiple of the capacity, or of half of it for flows of different kinds.
pub const FLOW_COUNTS: &str = "ctv_flowcnt";
/// 64 KiB.
pub const FLOW_COUNTS_CAPACITY: usize = 2 * PORTS_CAPACITY;

/// One [`FlowCollector`](crate::FlowCollector): the timer that removes expired flows.
pub const FLOW_COLLECTOR: &str = "ctv_flowgc";

/// One [`FlowBatch`](crate::FlowBatch): flows of another table for [`IMPORT`]. Not pinned: it exists
/// while an agent imports flows.
pub const FLOW_IMPORTS: &str = "ctv_imports";

/// One word: ticks of the kernel's clock, and the seconds since boot that were read at the last one. Written
/// by the programs.
pub const CLOCK: &str = "ctv_clock";

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
/// Default number of ports of services on the networks of the node (`--bpf-services`): a power of two.
pub const SERVICES_CAPACITY: usize = 8192;

/// [`ServiceKey::slot`](crate::ServiceKey::slot) -> [`ServiceSlot`](crate::ServiceSlot): copies of the
/// entries of `ctv_svc`, which a new connection finds by one access to memory. An entry that finds its
/// slots taken has no copy, and its connections read `ctv_svc`. Mapped into the agent's memory.
pub const SERVICE_SLOTS: &str = "ctv_svcslots";
/// Two for each port: 2 MiB.
pub const SERVICE_SLOTS_CAPACITY: usize = 2 * SERVICES_CAPACITY;

/// Index -> [`RingBlock`](crate::RingBlock): lists of backends with more than 8 members, and rings of
/// sets with more than 64, packed. Without room for a ring, each new connection costs a walk over the
/// list. Full: the service fails.
pub const RING: &str = "ctv_ring";
/// Default number of blocks (`--bpf-backends`): 2 MiB. A ring takes 128 KiB, a list 8 bytes for each
/// backend. A power of two.
pub const RING_CAPACITY: usize = 1 << 15;

/// Index -> [`Backend`](crate::Backend): IPv6 backends. Full: the service fails.
pub const BACKENDS: &str = "ctv_backends";
/// Default number of IPv6 backends (`--bpf-backends`).
pub const BACKENDS_CAPACITY: usize = 1 << 15;

/// Hash of client and service -> [`AffinityBlock`](crate::AffinityBlock). A full block: the client
/// that was inactive for longest is evicted, and its next connection may go to another backend.
pub const AFFINITY: &str = "ctv_affinity";
/// Blocks, 2 MiB: 131,072 pairs of client and service.
pub const AFFINITY_CAPACITY: usize = 1 << 15;

/// CPU and number of a service's port -> [`ServiceCount`](crate::ServiceCount), see
/// [`ServiceCountRows`](crate::ServiceCountRows): a plain array, because a per-CPU hash map costs ten
/// microseconds for the first connection and three cold cache lines for every other. Full: further
/// ports are not counted. Mapped into the agent's memory.
pub const SERVICE_COUNTS: &str = "ctv_svcnt";

/// [`VipKey`](crate::VipKey) -> [`Vip`](crate::Vip): service addresses that are reachable on
/// the wire of a VLAN. Full: the service fails.
pub const VIPS: &str = "ctv_vips";
/// Services; each has at least one port.
pub const VIPS_CAPACITY: usize = SERVICES_CAPACITY;

/// Hash of a client's connection ([`DsrKey::set`](crate::DsrKey::set)) -> [`DsrSet`](crate::DsrSet):
/// connections from outside that are forwarded to backends on other nodes. A full set: an expired
/// connection gives way, or else the one that was inactive for longest; one that had a packet in this
/// second or in the one before stays. The packets of a connection without an entry take the same path as
/// long as the service has the backend that the hash chooses. Mapped into the agent's memory, which
/// aligns the entries to cache lines.
pub const DSR_FLOWS: &str = "ctv_relays";
/// Sets, a power of two: 2 MiB, allocated at start, for 32,768 connections. Of 16,384 connections, 3.7 %
/// are in sets that are full.
pub const DSR_FLOWS_CAPACITY: usize = 8192;

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
/// A group has two, and one for each address that its rules select: enough for 16,384 groups. 2.3 MiB.
pub const RULE_SETS_CAPACITY: usize = 32_768;

/// One number: the next number of a rule set. Numbers are policy revisions and are never reused.
/// Mapped into the agent's memory.
pub const REVISION: &str = "ctv_revision";
/// Numbers of rule sets are below this.
pub const REVISIONS: u32 = 1 << 31;

/// Index -> [`Branch`](crate::policy::Branch). Full: as `ctv_rulesets`.
pub const RULES: &str = "ctv_rules";
/// Default number of nodes (`--bpf-rules`): 4 MiB. A rule takes a third of a node if many rules have
/// the same port, one to three if it is alone with its port; the largest group needs its place twice
/// for a change. 262,144 nodes are enough for 100,000 rules. At most half of the nodes are used for
/// trees that could be smaller.
pub const RULES_CAPACITY: usize = 32_768;

/// Number of a rule -> [`RuleCount`](crate::policy::RuleCount) per CPU. Entries are created by the
/// first packet. Full: further rules are not counted.
pub const RULE_COUNTS: &str = "ctv_rulecnt";
/// Default number of rules that have decided a packet (`--bpf-rules`).
pub const RULE_COUNTS_CAPACITY: usize = RULES_CAPACITY;

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
pub const EVENT_STATE: &str = "ctv_event_state";

/// One [`LoggedEndpoint`](crate::LoggedEndpoint), in programs that are built with the feature `log`.
/// Not pinned.
pub const LOGGED: &str = "ctv_logged";

/// One [`Traced`](crate::Traced), in programs that are built with the feature `log`. Not pinned.
pub const TRACED: &str = "ctv_traced";

/// Packet metadata of each CPU. Not pinned; its layout is that in its BTF.
pub const PACKET: &str = "ctv_packet";

/// Hash of the object file of the pinned programs, by which a restart detects an upgrade.
pub const BUILD: &str = "ctv_build";
/// Length of the hash in bytes.
pub const BUILD_LEN: usize = 16;

/// [`Stage`] -> program: the programs that others tail-call. Indexed, never full.
///
/// Each load of the programs creates its own array, so that a program never continues in one of another build. The pin's name is
/// this one, a hyphen and a number; the highest number is the current array.
pub const STAGES: &str = "ctv_stages";
/// One for each [`Stage`].
pub const STAGES_CAPACITY: usize = Stage::ALL.len();

/// A program that others tail-call; the number is the index in [`STAGES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Stage {
    /// Packets without a known flow, and the first packet after a change of the rules.
    SlowPath = 0,
    /// Broadcast, unknown unicast and multicast frames.
    Replicate = 1,
}

impl Stage {
    /// All stages, ordered by number.
    pub const ALL: &'static [Stage] = &[Stage::SlowPath, Stage::Replicate];

    /// Name of the program.
    pub const fn program(self) -> &'static str {
        match self {
            Stage::SlowPath => "ctv_slow_path",
            Stage::Replicate => "ctv_replicate",
        }
    }
}

/// Every map except [`STAGES`], in the order in which `cleanup` lists them.
pub const ALL: &[&str] = &[
    PORTS,
    PORT_SLOTS,
    SEGMENTS,
    FLOOD,
    FDB,
    NEIGH,
    SUBNETS,
    ROUTES,
    KERNEL_PORT,
    PORT_NUMBERS,
    DOMAINS,
    MEMBERS,
    PEERS,
    NODE,
    FDB_REVISION,
    UPLINK,
    DROPS,
    FLOWS,
    FLOW_INDEX,
    FLOW_LOCKS,
    FLOW_BITMAP,
    FLOW_COUNTS,
    FLOW_COLLECTOR,
    CLOCK,
    FRAGMENTS,
    FLOW_STATS,
    SERVICES,
    SERVICE_SLOTS,
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
/// Program behind the queue of pods in groups with a rate limit.
pub const FROM_QUEUE: &str = "ctv_from_queue";
/// Program on the ingress of the VXLAN device.
pub const FROM_OVERLAY: &str = "ctv_from_vxlan";
/// Program on the ingress of the VLAN uplink.
pub const FROM_UPLINK: &str = "ctv_from_uplink";
/// Program on the ingress of the datapath's ends of the interfaces to the node's kernel.
pub const FROM_HOST: &str = "ctv_from_host";
/// XDP program on the VLAN uplink.
pub const XDP: &str = "ctv_xdp";
/// Program that inserts flows of another table; the agent runs it itself.
pub const IMPORT: &str = "ctv_import";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_kernels_fifteen_characters() {
        let programs =
            [FROM_POD, FROM_QUEUE, FROM_OVERLAY, FROM_UPLINK, FROM_HOST, XDP, STAGES, IMPORT, FLOW_IMPORTS];
        let stages = Stage::ALL.iter().map(|stage| stage.program());
        for name in ALL.iter().copied().chain(programs).chain(stages) {
            assert!(name.starts_with("ctv_") && name.len() <= 15, "{name}");
        }
    }

    #[test]
    fn stages_are_numbered_from_zero() {
        for (index, stage) in Stage::ALL.iter().enumerate() {
            assert_eq!(*stage as usize, index);
        }
    }
}
