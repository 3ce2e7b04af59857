//! The maps that several stages use; `contiv_abi::maps` describes them.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, lpm_trie::Key},
    macros::btf_map,
};
use contiv_abi::{
    Address, Domain, DomainName, DropCount, FdbEntry, FdbKey, FloodKey, NeighEntry, NeighKey, Node, Phase,
    Port, PortSlot, RouteEntry, Segment, SegmentEntry, Subnet, Vtep,
    maps::{
        BUILD_LEN, DOMAINS_CAPACITY, DROP_REASONS, FDB_CAPACITY, FLOOD_CAPACITY, MEMBERS_CAPACITY,
        NEIGH_CAPACITY, PEERS_CAPACITY, PORT_NUMBERS_CAPACITY, PORT_SLOTS_CAPACITY, PORTS_CAPACITY,
        ROUTES_CAPACITY, SEGMENTS_CAPACITY, SUBNETS_CAPACITY,
    },
};

/// Memory is allocated with each entry, not with the map.
pub(crate) const NO_PREALLOC: usize = aya_ebpf::bindings::BPF_F_NO_PREALLOC as usize;

#[btf_map(name = "ctv_ports")]
static PORTS: HashMap<u32, Port, PORTS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_portslots")]
static PORT_SLOTS: Array<PortSlot, PORT_SLOTS_CAPACITY, { aya_ebpf::bindings::BPF_F_MMAPABLE as usize }> =
    Array::new();

#[btf_map(name = "ctv_segs")]
static SEGMENTS: HashMap<Segment, SegmentEntry, SEGMENTS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_flood")]
static FLOOD: HashMap<FloodKey, u32, FLOOD_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_fdb")]
static FDB: HashMap<FdbKey, FdbEntry, FDB_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_neigh")]
static NEIGH: HashMap<NeighKey, NeighEntry, NEIGH_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_subnets")]
static SUBNETS: LpmTrie<NeighKey, Subnet, SUBNETS_CAPACITY, NO_PREALLOC> = LpmTrie::new();

#[btf_map(name = "ctv_routes")]
static ROUTES: LpmTrie<NeighKey, RouteEntry, ROUTES_CAPACITY, NO_PREALLOC> = LpmTrie::new();

#[btf_map(name = "ctv_kernport")]
static KERNEL_PORT: Array<u32, 1> = Array::new();

#[btf_map(name = "ctv_portnums")]
static PORT_NUMBERS: HashMap<u32, u32, PORT_NUMBERS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_members")]
static MEMBERS: HashMap<FloodKey, Vtep, MEMBERS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_peers")]
static PEERS: HashMap<Vtep, u32, PEERS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_node")]
static NODE: Array<Node, 1> = Array::new();

#[btf_map(name = "ctv_uplink")]
static UPLINK: Array<u32, 1> = Array::new();

#[btf_map(name = "ctv_fdbrev")]
static FDB_REVISION: Array<u64, 1, { aya_ebpf::bindings::BPF_F_MMAPABLE as usize }> = Array::new();

#[btf_map(name = "ctv_drops")]
static DROPS: PerCpuArray<DropCount, DROP_REASONS> = PerCpuArray::new();

/// Only the agent uses it.
#[btf_map(name = "ctv_build")]
static BUILD: Array<[u8; BUILD_LEN], 1> = Array::new();

/// Only the agent uses it.
#[btf_map(name = "ctv_domains")]
static DOMAINS: HashMap<DomainName, u32, DOMAINS_CAPACITY, NO_PREALLOC> = HashMap::new();

/// Only the agent uses it.
#[btf_map(name = "ctv_revision")]
static REVISION: Array<u64, 1, { aya_ebpf::bindings::BPF_F_MMAPABLE as usize }> = Array::new();

macro_rules! copy_out {
    ($(#[$doc:meta])* $name:ident, $map:ident, $key:ty => $value:ty) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(key: &$key) -> Option<$value> {
            // SAFETY: the value is copied at once. Since Linux 6.1, the kernel may reuse the memory of an entry that is replaced
            // concurrently. The agent replaces an entry only with one that differs in few fields, and the next packet reads the
            // complete new entry.
            unsafe { $map.get(key) }.copied()
        }
    };
}

copy_out!(/// The port with this interface index.
    port, PORTS, u32 => Port);
copy_out!(/// The entry of a network as the agent has written it, see [`segment`].
    segment_entry, SEGMENTS, Segment => SegmentEntry);
copy_out!(/// The interface in a slot of a flood list.
    flood_slot, FLOOD, FloodKey => u32);
copy_out!(/// The peer in a slot of a network's list.
    member_slot, MEMBERS, FloodKey => Vtep);
copy_out!(/// The interface index of the port with this number.
    numbered_port, PORT_NUMBERS, u32 => u32);
copy_out!(/// The location of an Ethernet address.
    destination, FDB, FdbKey => FdbEntry);
copy_out!(/// The owner of an IP address.
    neighbour, NEIGH, NeighKey => NeighEntry);

/// True for the address of a service.
#[inline(always)]
pub(crate) fn is_service(domain: Domain, ip: Address) -> bool {
    neighbour(&NeighKey::new(domain, ip)).is_some_and(|owner| owner.flags & NeighEntry::SERVICE != 0)
}

/// The entry of a network, if this node has the network. `out` is the interface to other nodes, for VLAN networks too; zero if
/// frames of the network do not leave the node.
#[inline(always)]
pub(crate) fn segment(segment: &Segment) -> Option<SegmentEntry> {
    let entry = segment_entry(segment)?;
    let out = if segment.vni().is_some() {
        entry.out
    } else if entry.flags & SegmentEntry::ON_NODE == 0 {
        uplink()
    } else {
        0
    };
    Some(SegmentEntry { out, ..entry })
}

/// The active uplink of the VLAN networks; zero for none.
#[inline(always)]
pub(crate) fn uplink() -> u32 {
    UPLINK.get(0).copied().unwrap_or(0)
}

/// The interface to the node's kernel for VLAN networks that the node routes; zero for none.
#[inline(always)]
pub(crate) fn kernel_port() -> u32 {
    KERNEL_PORT.get(0).copied().unwrap_or(0)
}

/// Number of changes and removals of entries in the forwarding database, and of addresses that a service has lost.
#[inline(always)]
pub(crate) fn fdb_revision() -> u64 {
    // SAFETY: the agent writes the number in one store.
    FDB_REVISION.get_ptr(0).map_or(0, |revision| unsafe { revision.read_volatile() })
}

/// A reference to the port with this interface index: a copy would take 56 bytes of stack.
#[inline(always)]
pub(crate) fn port_in_place(ifindex: u32) -> Option<&'static Port> {
    // SAFETY: the entry may be replaced concurrently. A reader may then see fields of both versions, which are of the same port.
    PORTS.get_ptr(&ifindex).map(|port| unsafe { &*port })
}

/// A copy of a port's entry by the number of its slot.
#[inline(always)]
pub(crate) fn port_slot(number: u32) -> Option<&'static PortSlot> {
    PORT_SLOTS.get(number)
}

/// The subnet that contains an address of the domain. The agent replaces an entry only with one of the same prefix.
#[inline(always)]
pub(crate) fn subnet(domain: Domain, ip: &Address) -> Option<&'static Subnet> {
    SUBNETS.get(&Key::new(NeighKey::BITS, NeighKey::new(domain, *ip)))
}

/// The route of the domain for an address outside of all subnets. The agent replaces an entry only with one of the same prefix.
#[inline(always)]
pub(crate) fn route(domain: Domain, ip: &Address) -> Option<&'static RouteEntry> {
    ROUTES.get(&Key::new(NeighKey::BITS, NeighKey::new(domain, *ip)))
}

/// Whether tunnelled frames from this VTEP are accepted.
#[inline(always)]
pub(crate) fn is_peer(vtep: &Vtep) -> bool {
    PEERS.get_ptr(vtep).is_some()
}

/// Broadcast, unknown unicast and multicast frames per second that a port may send; zero for no limit.
#[inline(always)]
pub(crate) fn bum_rate() -> u32 {
    NODE.get(0).map_or(0, |node| node.bum_rate)
}

/// Settings of the node.
#[inline(always)]
pub(crate) fn node() -> Option<&'static Node> {
    NODE.get(0)
}

/// Whether the programs of another ABI version have taken over.
#[inline(always)]
pub(crate) fn is_retired() -> bool {
    phase() == Phase::RETIRED
}

/// The [`Phase`] of the replacement of the flow table.
#[inline(always)]
pub(crate) fn phase() -> u32 {
    node().map_or(Phase::RUNNING, phase_of)
}

/// The [`Phase`] in the settings of the node.
#[inline(always)]
pub(crate) fn phase_of(node: &Node) -> u32 {
    // SAFETY: a field of a valid reference. The agent may change it at any time.
    unsafe { (&raw const node.phase).read_volatile() }
}

/// Adds one frame of `len` bytes to the counter of a `DropReason` on this CPU.
#[inline(always)]
pub(crate) fn count_drop(reason: u32, len: u32) {
    if let Some(count) = DROPS.get_ptr_mut(reason) {
        // SAFETY: the slot of this CPU. Only a program in nested softirq processing may write it concurrently; then one count is
        // lost.
        unsafe {
            (*count).packets += 1;
            (*count).bytes += u64::from(len);
        }
    }
}
