//! What the stages know of the current packet, and what they make of it.

use aya_ebpf::{btf_maps::PerCpuArray, macros::btf_map};
use contiv_abi::{Be16, Domain, DropReason, FdbEntry, Mac, Segment, SegmentEntry, Tuple, Vtep};
pub(crate) use contiv_abi::{ICMP, ICMPV6, SCTP};

use crate::{
    frame::{self, Ethernet},
    header::Tcp,
    skb::NO_CHECKSUM,
};

/// The current packet.
///
/// It lies in a map and not on the stack, so that it is shared by the stages that are functions of their
/// own, which the verifier walks once instead of once for each way that leads to them; and because what
/// lies in a map is unknown to the verifier, ways that meet are one way from there on. A packet is done
/// with before the next one begins on a CPU: the programs run on ingress, with softirqs held off.
#[repr(C)]
pub(crate) struct PacketMeta {
    /// The network that the packet is in.
    pub(crate) segment: Segment,
    /// The domain of the network.
    pub(crate) domain: Domain,
    /// Its ends as it was received.
    pub(crate) tuple: Tuple,
    /// Of an ICMP error: the ends of the packet that it is about, which went the other way.
    pub(crate) inner: Tuple,
    /// Its ends as it goes on.
    pub(crate) wanted: Tuple,
    /// Of an ICMP error: the ends of the packet that it is about, as the receiver knows it.
    pub(crate) inner_wanted: Tuple,
    /// Room for another.
    pub(crate) spare: Tuple,
    /// Verdict of a new flow,
    pub(crate) verdict: u64,
    /// and the numbers of the rules that decided at the source and at the destination.
    pub(crate) rules: [u32; 2],
    /// Groups of the source and of the destination of a new flow, as far as they are here.
    pub(crate) groups: [u16; 2],
    /// The same wherever they are, `FlowHalf::UNKNOWN` for an address without a record.
    pub(crate) identities: [u16; 2],
    /// Port whose quota a new flow uses, or the flow that was found, as in `FlowHalf::owner`; zero for none.
    pub(crate) owner: u32,
    /// The flow that was found: `contiv_abi::entry` of its record and the packet's direction,
    pub(crate) entry: u32,
    /// and the generation of the record.
    pub(crate) generation: u32,
    /// The hash of the tuple that its flow is searched by.
    pub(crate) hash: u64,
    /// `FlowLock::insertions` of the page of the hash before the search, see `searched`.
    pub(crate) insertions: u32,
    /// TCP: sequence number; of an ICMP error, that of the segment that it quotes,
    pub(crate) sequence: u32,
    /// the sequence number after the segment,
    pub(crate) end: u32,
    /// and acknowledgement number.
    pub(crate) acknowledged: u32,
    /// Room for a refusal.
    pub(crate) answer: [u64; ANSWER_LEN / 8],
    /// The header of a reset.
    pub(crate) reset: Tcp,
    /// Seconds since boot.
    pub(crate) now: u32,
    /// Bytes of the frame.
    pub(crate) len: u32,
    /// The sending pod's port; zero for a packet from outside.
    pub(crate) source_port: u32,
    /// Its group.
    pub(crate) source_group: u32,
    /// Group of the endpoint elsewhere that sent the packet, by its IP address; `FlowHalf::UNKNOWN` without a record.
    pub(crate) source_identity: u32,
    /// The group that the receiver had when the packet's flow was evaluated; [`NO_FLOW`] when the packet passes by no flow.
    pub(crate) receiver: u32,
    /// The same of a receiver wherever it is; `FlowHalf::UNKNOWN` without a record or a flow.
    pub(crate) receiver_identity: u32,
    /// The place of the fixed header of IP.
    pub(crate) l3: u32,
    /// The place of what follows the headers of IP.
    pub(crate) l4: u32,
    /// Of an ICMP error: the place of the header of IP inside.
    pub(crate) inner_l3: u32,
    /// And what follows that.
    pub(crate) inner_l4: u32,
    /// The place of what follows the headers that were read last.
    pub(crate) next: u32,
    /// Identification of a fragmented packet.
    pub(crate) identification: u32,
    /// Offset of the end of the IP packet, which may be before that of the frame.
    pub(crate) limit: u32,
    /// Offset of the checksum that the kernel is still to write into a pod's frame, or [`NO_CHECKSUM`].
    pub(crate) checksum: u32,
    /// VTEP of the node that sent the frame by a tunnel.
    pub(crate) vtep: Vtep,
    /// Number of the service that a new flow is to.
    pub(crate) service: u32,
    /// The rule that decided last, by its number; zero for none.
    pub(crate) ruled: u32,
    /// `SegmentEntry` of the network: the way out,
    pub(crate) out: u32,
    /// how many ports,
    pub(crate) ports: u32,
    /// how many peers,
    pub(crate) members: u32,
    /// and the flags.
    pub(crate) segment_flags: u32,
    /// The protocol of the packet itself, also of an ICMP error.
    pub(crate) protocol: u8,
    /// 1 for IPv6.
    pub(crate) ip6: u8,
    /// From the wire: 1 when the frame is for a service, and not for a port.
    pub(crate) to_service: u8,
    /// [`Ingress`].
    pub(crate) ingress: u8,
    /// 1 for valid neighbour discovery, which policies do not apply to.
    pub(crate) nd: u8,
    /// 1 for duplicate address detection of a pod for an address that is not its own.
    pub(crate) probe: u8,
    /// [`Admission`].
    pub(crate) admission: u8,
    /// Protocol by which all fragments of a packet are found.
    pub(crate) fragment_protocol: u8,
    /// [`Route`].
    pub(crate) route: u8,
    /// [`Fragment`].
    pub(crate) fragment: u8,
    /// [`IcmpError`].
    pub(crate) icmp_error: u8,
    /// TCP flags.
    pub(crate) tcp: u8,
    /// `Flow::HAIRPIN` when the pod reaches itself.
    pub(crate) hairpin: u8,
    /// 1 when the tuple was changed by the stages.
    pub(crate) translated: u8,
    /// [`Replaces`].
    pub(crate) replaces: u8,
    /// 1 when the destination has passed its guard (`guard::ctv_guard_destination`).
    pub(crate) guarded: u8,
    /// 1 when the search for the packet's flow has found nothing since there were `insertions`.
    pub(crate) searched: u8,
    /// 1 when the Ethernet address and the network are those of `wanted.destination`.
    pub(crate) located: u8,
    /// 1 when `place` is that of the destination Ethernet address in the network, and there is one.
    pub(crate) placed: u8,
    /// Why the slow path continues with the packet: [`NEW`], [`REVALIDATE`] or [`ROUTER`].
    pub(crate) miss: u32,
    /// `Port::queue` of the sender,
    pub(crate) queue: u32,
    /// and `Port::priority` in it.
    pub(crate) priority: u32,
    /// The port here that it goes to.
    pub(crate) place: FdbEntry,
    /// Private address of the sender, for [`Route::KERNEL`]. Of a packet from the kernel, the receiver's own address.
    pub(crate) private: [u8; 4],
    /// What the frame carries.
    pub(crate) kind: Be16,
    /// Destination in the frame.
    pub(crate) destination_mac: Mac,
    /// Source in the frame.
    pub(crate) source_mac: Mac,
}

impl PacketMeta {
    /// Assigns the destination in Ethernet, from a number with the first byte lowest.
    #[inline(always)]
    pub(crate) fn set_destination_mac(&mut self, mac: u64) {
        set(&raw mut self.destination_mac, mac);
    }

    /// The same of the source.
    #[inline(always)]
    pub(crate) fn set_source_mac(&mut self, mac: u64) {
        set(&raw mut self.source_mac, mac);
    }

    /// Assigns the place where the packet goes, by words.
    #[inline(always)]
    pub(crate) fn set_place(&mut self, place: &FdbEntry) {
        self.place.vtep.set_words(place.vtep.words());
        self.place.ifindex = place.ifindex;
        self.place.group = place.group;
    }

    /// Whether the frame goes to a multicast or broadcast address.
    #[inline(always)]
    pub(crate) fn is_for_group(&self) -> bool {
        frame::is_group(&self.destination_mac)
    }
}

/// By halves: an assignment of bytes would be a call.
#[inline(always)]
fn set(place: *mut Mac, mac: u64) {
    let place = place.cast::<u16>();
    for part in 0..3 {
        // SAFETY: three numbers are as large as the address, and a program's stores need no alignment.
        unsafe { place.add(part).write_volatile(((mac >> (16 * part)) as u16).to_le()) };
    }
}

/// Copies an Ethernet address, likewise.
#[inline(always)]
pub(crate) fn copy_mac(from: &Mac, to: &mut Mac) {
    let (from, to) = ((&raw const *from).cast::<u16>(), (&raw mut *to).cast::<u16>());
    for part in 0..3 {
        // SAFETY: as above.
        unsafe { to.add(part).write_volatile(from.add(part).read_volatile()) };
    }
}

/// [`PacketMeta::receiver`]; no group has this number.
pub(crate) const NO_FLOW: u32 = u32::MAX;

/// Bytes of the longest refusal, rounded up.
pub(crate) const ANSWER_LEN: usize = 112;

/// What a new flow does to the one that was found, as [`PacketMeta::replaces`] has it.
pub(crate) struct Replaces;

impl Replaces {
    /// None was found.
    pub(crate) const NOTHING: u8 = 0;
    /// It has ended, its endpoint was another one, or its other end begins one.
    pub(crate) const ENDED: u8 = 1;
    /// It is unreplied, and the client has sent its SYN again.
    pub(crate) const UNREPLIED: u8 = 2;
    /// Another CPU is about to insert it, and it is the same flow with the same translation.
    pub(crate) const ARRIVING: u8 = 3;
}

/// Where a frame comes from, as [`PacketMeta::ingress`] has it.
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

/// Whether a packet of a pod is routed, as [`PacketMeta::route`] has it.
pub(crate) struct Route;

impl Route {
    /// It goes to an Ethernet address on its network.
    pub(crate) const BRIDGED: u8 = 0;
    /// It is for the router, and its next hop is not known.
    pub(crate) const ROUTER: u8 = 1;
    /// It goes to the endpoint in `destination_mac` on the network in `segment`.
    pub(crate) const HOP: u8 = 2;
    /// It leaves the cluster by the node's kernel.
    pub(crate) const KERNEL: u8 = 3;
}

/// What decides whether a port receives a copy of a replicated frame, as [`PacketMeta::admission`] has it.
pub(crate) struct Admission;

impl Admission {
    /// Every port receives it: ARP and neighbour discovery.
    pub(crate) const ALL: u8 = 0;
    /// The rules of both endpoints.
    pub(crate) const RULES: u8 = 1;
    /// Ports without rules receive it: EtherTypes that rules cannot evaluate.
    pub(crate) const WITHOUT_RULES: u8 = 2;
}

/// What of a packet this is, as [`PacketMeta::fragment`] has it.
pub(crate) struct Fragment;

impl Fragment {
    /// All of it.
    pub(crate) const NONE: u8 = 0;
    /// The first fragment, with the ports.
    pub(crate) const FIRST: u8 = 1;
    /// Another fragment.
    pub(crate) const LATER: u8 = 2;
}

/// What an ICMP error tells of the packet that it is about.
pub(crate) struct IcmpError;

impl IcmpError {
    /// It is no error.
    pub(crate) const NONE: u8 = 0;
    /// Not so much that its flow can be found.
    pub(crate) const UNREADABLE: u8 = 1;
    /// The ends.
    pub(crate) const FLOW: u8 = 2;
}

/// FIN, SYN, RST, ACK.
pub(crate) mod tcp {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const ACK: u8 = 0x10;
}

#[btf_map(name = "ctv_packet")]
static PACKET: PerCpuArray<PacketMeta, 1> = PerCpuArray::new();

/// The packet that this CPU has in hand.
#[inline(always)]
pub(crate) fn current<'a>() -> Option<&'a mut PacketMeta> {
    let packet = PACKET.get_ptr_mut(0)?;
    // SAFETY: this CPU's own; see `PacketMeta` for why nobody else has it meanwhile. Whoever calls a function that
    // takes it hands it over, or takes it afresh afterwards: the compiler believes that nothing else changes what it has.
    Some(unsafe { &mut *packet })
}

/// The packet that a function of its own was handed over: to look it up once more would cost more than many functions do. Nothing
/// in it is a key of a map then: to Linux 6.1 what is handed over is no key.
#[inline(always)]
pub(crate) fn of<'a>(packet: *mut PacketMeta) -> Option<&'a mut PacketMeta> {
    // SAFETY: null, or what the caller has from `current`; the verifier ensures that it is a whole one. The caller
    // does not use it meanwhile.
    unsafe { packet.as_mut() }
}

/// Puts a frame from outside into the packet metadata, which has the VTEP already if it came by a tunnel.
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

/// Sets the network's properties in the packet metadata.
#[inline(always)]
pub(crate) fn set_network(packet: &mut PacketMeta, entry: &SegmentEntry) {
    packet.out = entry.out;
    packet.ports = entry.ports;
    packet.members = entry.members;
    packet.segment_flags = entry.flags;
    packet.domain = entry.domain;
}

/// What a stage that is a function of its own returns: zero to go on, or the number of the reason to drop.
pub(crate) const GO_ON: u32 = 0;
/// No flow that is known.
pub(crate) const NEW: u32 = 0x200;
/// The entry changed meanwhile: to be done once more.
pub(crate) const AGAIN: u32 = 0x201;
/// The rules have changed since the flow was evaluated.
pub(crate) const REVALIDATE: u32 = 0x203;
/// To be sent on to another node, whose pod's Ethernet address is in the current packet.
pub(crate) const DSR: u32 = 0x205;
/// The router has to answer it.
pub(crate) const ROUTER: u32 = 0x206;
/// It has become the answer, which goes back to its sender.
pub(crate) const ANSWERED: u32 = 0x207;
/// To be answered with a refusal; then the number below is counted.
pub(crate) const REFUSE: u32 = 0x100;

/// The number for a result.
#[inline(always)]
pub(crate) fn code(result: Result<(), DropReason>) -> u32 {
    match result {
        Ok(()) => GO_ON,
        Err(reason) => reason as u32,
    }
}

/// The reason that a stage returned.
#[inline(always)]
pub(crate) fn reason(code: u32) -> DropReason {
    if code == GO_ON || code as usize > DropReason::ALL.len() {
        return DropReason::Malformed;
    }
    // SAFETY: the numbers are dense from one to as many as there are.
    unsafe { core::mem::transmute::<u32, DropReason>(code) }
}

/// The result of a stage that is a function of its own.
#[inline(always)]
pub(crate) fn passes(code: u32) -> Result<(), DropReason> {
    if code == GO_ON { Ok(()) } else { Err(reason(code)) }
}
