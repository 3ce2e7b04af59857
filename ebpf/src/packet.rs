//! Metadata of the current packet: what the stages read from it and decide about it.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use contiv_abi::{Be16, Domain, DropReason, FdbEntry, Mac, Segment, SegmentEntry, Tuple, Vtep};
pub(crate) use contiv_abi::{ICMP, ICMPV6, SCTP};

use crate::{
    frame::{self, Ethernet},
    header::Tcp,
    skb::NO_CHECKSUM,
};

/// Metadata of the current packet.
///
/// In a map and not on the stack, for two reasons. Global functions share it. And the verifier does not track values in maps, so
/// that paths that differ only in these values are one path. A CPU finishes one packet before it begins the next: the programs
/// run on ingress with softirqs disabled.
#[repr(C)]
pub(crate) struct PacketMeta {
    /// The network that the packet is in.
    pub(crate) segment: Segment,
    /// The domain of the network.
    pub(crate) domain: Domain,
    /// Tuple of the packet as received.
    pub(crate) tuple: Tuple,
    /// ICMP error: tuple of the quoted packet, which has the opposite direction.
    pub(crate) inner: Tuple,
    /// Tuple of the packet as forwarded.
    pub(crate) wanted: Tuple,
    /// ICMP error: tuple of the quoted packet as the receiver of the error has sent it.
    pub(crate) inner_wanted: Tuple,
    /// Scratch space for a tuple.
    pub(crate) spare: Tuple,
    /// Verdict of a new flow.
    pub(crate) verdict: u64,
    /// Numbers of the rules that decided at the source and at the destination of a new flow.
    pub(crate) rules: [u32; 2],
    /// Groups of the source and of the destination of a new flow if they are on this node, else zero.
    pub(crate) groups: [u16; 2],
    /// Groups of the source and of the destination of a new flow on any node; `FlowHalf::UNKNOWN` for an address without a
    /// record.
    pub(crate) identities: [u16; 2],
    /// Port with the quota that the flow uses, as in `FlowHalf::owner`; zero for none.
    pub(crate) owner: u32,
    /// The flow that was found: `contiv_abi::entry` of its record and of the packet's direction.
    pub(crate) entry: u32,
    /// Generation of the record when the flow was found.
    pub(crate) generation: u32,
    /// Hash of the tuple by which the flow is looked up.
    pub(crate) hash: u64,
    /// `FlowLock::insertions` of the page of the hash before the lookup, see `searched`.
    pub(crate) insertions: u32,
    /// TCP: sequence number; for an ICMP error that of the quoted segment.
    pub(crate) sequence: u32,
    /// TCP: sequence number after the segment.
    pub(crate) end: u32,
    /// TCP: acknowledgement number.
    pub(crate) acknowledged: u32,
    /// Buffer for a refusal.
    pub(crate) answer: [u64; ANSWER_LEN / 8],
    /// TCP header of a reset.
    pub(crate) reset: Tcp,
    /// Seconds since boot.
    pub(crate) now: u32,
    /// Length of the frame in bytes.
    pub(crate) len: u32,
    /// Interface index of the sending pod's port; zero for a packet from outside.
    pub(crate) source_port: u32,
    /// Group of the sending pod.
    pub(crate) source_group: u32,
    /// Group of the sending endpoint on another node, by its IP address; `FlowHalf::UNKNOWN` without a record.
    pub(crate) source_identity: u32,
    /// Group of the receiver, if on this node, for which the flow was evaluated; [`NO_FLOW`] for a packet that is forwarded
    /// without a flow.
    pub(crate) receiver: u32,
    /// Group of the receiver on any node for which the flow was evaluated; `FlowHalf::UNKNOWN` without a record or a flow.
    pub(crate) receiver_identity: u32,
    /// Offset of the IP header.
    pub(crate) l3: u32,
    /// Offset of the transport header.
    pub(crate) l4: u32,
    /// ICMP error: offset of the quoted IP header.
    pub(crate) inner_l3: u32,
    /// ICMP error: offset of the quoted transport header.
    pub(crate) inner_l4: u32,
    /// Offset behind the IP headers that were parsed last.
    pub(crate) next: u32,
    /// Identification of a fragmented packet, in wire order.
    pub(crate) identification: u32,
    /// Offset of the end of the IP packet, which may be less than the length of the frame.
    pub(crate) limit: u32,
    /// Offset of the checksum that the kernel will write into a pod's frame, or [`NO_CHECKSUM`].
    pub(crate) checksum: u32,
    /// VTEP of the node that tunnelled the frame.
    pub(crate) vtep: Vtep,
    /// Number of the service's port that a new flow is to; zero for none.
    pub(crate) service: u32,
    /// Number of the rule that decided last; zero for none.
    pub(crate) ruled: u32,
    /// `SegmentEntry::out` of the network.
    pub(crate) out: u32,
    /// `SegmentEntry::ports` of the network.
    pub(crate) ports: u32,
    /// `SegmentEntry::members` of the network.
    pub(crate) members: u32,
    /// `SegmentEntry::flags` of the network.
    pub(crate) segment_flags: u32,
    /// IP protocol number of the packet itself; of a later fragment, that of the first one.
    pub(crate) protocol: u8,
    /// 1 for IPv6.
    pub(crate) ip6: u8,
    /// 1 for a frame from the wire to a service and not to a port.
    pub(crate) to_service: u8,
    /// Origin of the packet, see [`Ingress`].
    pub(crate) ingress: u8,
    /// 1 for valid neighbour discovery, to which policies do not apply.
    pub(crate) nd: u8,
    /// 1 for duplicate address detection by a pod for an address that is not its own.
    pub(crate) probe: u8,
    /// Which ports receive a copy if the frame is replicated, see [`Admission`].
    pub(crate) admission: u8,
    /// Protocol number that all fragments of a packet share, see `FragmentKey::protocol`.
    pub(crate) fragment_protocol: u8,
    /// How the packet is forwarded, see [`Route`].
    pub(crate) route: u8,
    /// Fragmentation of the packet, see [`Fragment`].
    pub(crate) fragment: u8,
    /// What an ICMP error quotes, see [`IcmpError`].
    pub(crate) icmp_error: u8,
    /// TCP flags.
    pub(crate) tcp: u8,
    /// `Flow::HAIRPIN` if client and backend are the same pod.
    pub(crate) hairpin: u8,
    /// 1 if `wanted` differs from `tuple`.
    pub(crate) translated: u8,
    /// How a new flow replaces the one that was found, see [`Replaces`].
    pub(crate) replaces: u8,
    /// 1 if the destination has been checked (`guard::ctv_guard_destination`).
    pub(crate) guarded: u8,
    /// 1 if the lookup of the flow has found nothing, at `insertions`.
    pub(crate) searched: u8,
    /// 1 if `destination_mac` and `segment` are those of `wanted.destination`.
    pub(crate) located: u8,
    /// 1 if `place` is the location of `destination_mac` in the network.
    pub(crate) placed: u8,
    /// Why the slow path continues with the packet: [`NEW`], [`REVALIDATE`] or [`ROUTER`].
    pub(crate) miss: u32,
    /// `Port::queue` of the sender.
    pub(crate) queue: u32,
    /// `Port::priority` of the sender.
    pub(crate) priority: u32,
    /// Location of the destination.
    pub(crate) place: FdbEntry,
    /// Private address of the sender, for [`Route::KERNEL`]. For a packet from the kernel, the own address of the receiver.
    pub(crate) private: [u8; 4],
    /// EtherType.
    pub(crate) kind: Be16,
    /// Destination Ethernet address.
    pub(crate) destination_mac: Mac,
    /// Source Ethernet address.
    pub(crate) source_mac: Mac,
}

impl PacketMeta {
    /// Sets the destination Ethernet address from a number with the first byte lowest.
    #[inline(always)]
    pub(crate) fn set_destination_mac(&mut self, mac: u64) {
        set(&raw mut self.destination_mac, mac);
    }

    /// Sets the source Ethernet address, likewise.
    #[inline(always)]
    pub(crate) fn set_source_mac(&mut self, mac: u64) {
        set(&raw mut self.source_mac, mac);
    }

    /// Sets the location of the destination, by words.
    #[inline(always)]
    pub(crate) fn set_place(&mut self, place: &FdbEntry) {
        self.place.vtep.set_words(place.vtep.words());
        self.place.ifindex = place.ifindex;
        self.place.group = place.group;
    }

    /// Whether the destination Ethernet address is a multicast or broadcast address.
    #[inline(always)]
    pub(crate) fn is_for_group(&self) -> bool {
        frame::is_group(&self.destination_mac)
    }
}

/// Writes 16 bits at a time: the compiler would emit a call for an assignment of bytes.
#[inline(always)]
fn set(place: *mut Mac, mac: u64) {
    let place = place.cast::<u16>();
    for part in 0..3 {
        // SAFETY: the address is as long as three numbers, and BPF stores need no alignment.
        unsafe { place.add(part).write_volatile(((mac >> (16 * part)) as u16).to_le()) };
    }
}

/// Copies an Ethernet address, 16 bits at a time.
#[inline(always)]
pub(crate) fn copy_mac(from: &Mac, to: &mut Mac) {
    let (from, to) = ((&raw const *from).cast::<u16>(), (&raw mut *to).cast::<u16>());
    for part in 0..3 {
        // SAFETY: as above.
        unsafe { to.add(part).write_volatile(from.add(part).read_volatile()) };
    }
}

/// Value of [`PacketMeta::receiver`] for a packet without a flow; no group has this number.
pub(crate) const NO_FLOW: u32 = u32::MAX;

/// Length of the longest refusal in bytes, rounded up.
pub(crate) const ANSWER_LEN: usize = 112;

/// How a new flow replaces the flow that was found; values of [`PacketMeta::replaces`].
pub(crate) struct Replaces;

impl Replaces {
    /// No flow was found.
    pub(crate) const NOTHING: u8 = 0;
    /// The flow has ended, or belongs to another endpoint, or its other end opens a connection.
    pub(crate) const ENDED: u8 = 1;
    /// The flow is unreplied, and the client has retransmitted its SYN.
    pub(crate) const UNREPLIED: u8 = 2;
    /// Another CPU is inserting the same flow with the same translation.
    pub(crate) const ARRIVING: u8 = 3;
}

/// Origin of a frame; values of [`PacketMeta::ingress`].
pub(crate) struct Ingress;

impl Ingress {
    /// A pod of this node.
    pub(crate) const POD: u8 = 0;
    /// A tunnel from another node.
    pub(crate) const TUNNEL: u8 = 1;
    /// The wire of a VLAN.
    pub(crate) const WIRE: u8 = 2;
    /// The node's kernel.
    pub(crate) const KERNEL: u8 = 3;
}

/// How a packet from a pod is forwarded; values of [`PacketMeta::route`].
pub(crate) struct Route;

impl Route {
    /// Bridged to an Ethernet address on its network.
    pub(crate) const BRIDGED: u8 = 0;
    /// Sent to the router; the next hop is unknown.
    pub(crate) const ROUTER: u8 = 1;
    /// Routed to the endpoint with `destination_mac` on the network `segment`.
    pub(crate) const HOP: u8 = 2;
    /// Routed by the node's kernel.
    pub(crate) const KERNEL: u8 = 3;
}

/// Which ports receive a copy of a replicated frame; values of [`PacketMeta::admission`].
pub(crate) struct Admission;

impl Admission {
    /// All ports: ARP and neighbour discovery.
    pub(crate) const ALL: u8 = 0;
    /// The rules of both endpoints decide.
    pub(crate) const RULES: u8 = 1;
    /// Ports without rules: EtherTypes that rules cannot evaluate.
    pub(crate) const WITHOUT_RULES: u8 = 2;
}

/// Fragmentation of a packet; values of [`PacketMeta::fragment`].
pub(crate) struct Fragment;

impl Fragment {
    /// The packet is not fragmented.
    pub(crate) const NONE: u8 = 0;
    /// The first fragment, which has the ports.
    pub(crate) const FIRST: u8 = 1;
    /// A later fragment, without ports.
    pub(crate) const LATER: u8 = 2;
}

/// What an ICMP error quotes; values of [`PacketMeta::icmp_error`].
pub(crate) struct IcmpError;

impl IcmpError {
    /// The packet is not an ICMP error.
    pub(crate) const NONE: u8 = 0;
    /// The quoted packet cannot be parsed, so its flow cannot be found.
    pub(crate) const UNREADABLE: u8 = 1;
    /// The tuple of the quoted packet is in [`PacketMeta::inner`].
    pub(crate) const FLOW: u8 = 2;
}

/// TCP flags.
pub(crate) mod tcp {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const ACK: u8 = 0x10;
}

#[btf_map(name = "ctv_packet")]
static PACKET: PerCpuArray<PacketMeta, 1> = PerCpuArray::new();

/// Metadata of the packet that this CPU processes.
#[inline(always)]
pub(crate) fn current<'a>() -> Option<&'a mut PacketMeta> {
    let packet = PACKET.get_ptr_mut(0)?;
    // SAFETY: the value of this CPU; `PacketMeta` explains why it has no concurrent user. The caller of a function that uses it
    // passes the reference on, or calls `current` again afterwards: the compiler assumes that nothing else changes the value.
    Some(unsafe { &mut *packet })
}

/// The packet metadata from the argument of a global function: another map lookup would cost more than many functions do. A field
/// of it cannot be a map key: Linux 6.1 does not accept memory that is a function argument.
#[inline(always)]
pub(crate) fn of<'a>(packet: *mut PacketMeta) -> Option<&'a mut PacketMeta> {
    // SAFETY: null, or a pointer from `current` in the caller; the verifier ensures that it refers to a whole value. The caller
    // does not use it during the call.
    unsafe { packet.as_mut() }
}

/// Initializes the packet metadata for a frame from outside. The VTEP of a tunnelled frame is already set.
#[inline(always)]
pub(crate) fn from_outside(ethernet: &Ethernet, segment: Segment, ingress: u8) -> Result<(), DropReason> {
    let packet = current().ok_or(DropReason::Malformed)?;
    packet.segment = segment;
    packet.ingress = ingress;
    packet.source_port = 0;
    packet.source_group = 0;
    packet.checksum = NO_CHECKSUM;
    packet.kind = ethernet.kind;
    packet.destination_mac = ethernet.destination;
    packet.source_mac = ethernet.source;
    packet.to_service = 0;
    Ok(())
}

/// Copies the properties of the network into the packet metadata.
#[inline(always)]
pub(crate) fn set_network(packet: &mut PacketMeta, entry: &SegmentEntry) {
    packet.out = entry.out;
    packet.ports = entry.ports;
    packet.members = entry.members;
    packet.segment_flags = entry.flags;
    packet.domain = entry.domain;
}

/// Result of a stage: continue. Other results below [`REFUSE`] are numbers of drop reasons.
pub(crate) const GO_ON: u32 = 0;
/// Result: the packet has no known flow.
pub(crate) const NEW: u32 = 0x200;
/// Result: an entry was changed concurrently; repeat the stage.
pub(crate) const AGAIN: u32 = 0x201;
/// Result: the rules have changed since the flow was evaluated.
pub(crate) const REVALIDATE: u32 = 0x203;
/// Result: forward the frame to another node (DSR). `PacketMeta::destination_mac` is the address of the backend.
pub(crate) const DSR: u32 = 0x205;
/// Result: the router itself answers the packet.
pub(crate) const ROUTER: u32 = 0x206;
/// Result: the packet was overwritten with the answer to its sender.
pub(crate) const ANSWERED: u32 = 0x207;
/// Result: answer the packet with a refusal; the bits below are the number of the drop reason to count.
pub(crate) const REFUSE: u32 = 0x100;

/// Converts a result to a number: [`GO_ON`], or that of the drop reason.
#[inline(always)]
pub(crate) fn code(result: Result<(), DropReason>) -> u32 {
    match result {
        Ok(()) => GO_ON,
        Err(reason) => reason as u32,
    }
}

/// The drop reason with this number, which a stage has returned.
#[inline(always)]
pub(crate) fn reason(code: u32) -> DropReason {
    if code == GO_ON || code as usize > DropReason::ALL.len() {
        return DropReason::Malformed;
    }
    // SAFETY: the numbers of the reasons are dense and begin with one.
    unsafe { core::mem::transmute::<u32, DropReason>(code) }
}

/// Converts the number that a stage has returned to a result.
#[inline(always)]
pub(crate) fn passes(code: u32) -> Result<(), DropReason> {
    if code == GO_ON { Ok(()) } else { Err(reason(code)) }
}
