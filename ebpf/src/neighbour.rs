//! Answers ARP requests and IPv6 neighbour solicitations for known endpoints (proxy).
//!
//! Other requests, and frames that only look like requests (other hardware types, extension headers), are forwarded as ordinary
//! frames: a host on the network may answer.

use aya_ebpf::{
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    helpers::generated::{bpf_csum_diff, bpf_skb_change_tail},
    programs::TcContext,
};
use contiv_abi::{
    Address, Be16, DropReason, LogResult, LogStage, Mac, NeighEntry, NeighKey, ROUTER_MAC, Segment,
    SegmentEntry,
};

use crate::{
    dsr,
    frame::{self, ETHERNET, Ethernet},
    header::Arp,
    log, maps,
    packet::{self, ICMPV6, PacketMeta},
    route,
};

/// Origin of a request.
#[derive(Clone, Copy)]
pub(crate) enum Requester {
    /// A pod on this port: answered for all endpoints except the pod itself.
    Port(u32),
    /// Another node: answered for the pods of this node.
    Outside,
    /// The wire of a VLAN: answered for the pods of this node, and for the services that this node answers for.
    Wire,
}

/// Whether a request for the address of `owner` is answered. For endpoints this depends on the ARP mode of the network. Requests
/// for services are always answered, because no endpoint answers them.
#[inline(always)]
fn is_answered(packet: &PacketMeta, owner: &NeighEntry) -> bool {
    let is_service = owner.flags & NeighEntry::SERVICE != 0;
    let is_proxied = packet.segment_flags & SegmentEntry::PROXY != 0;
    // Endpoints on other nodes are not on the link of a network that stays on the node.
    let is_on_link = packet.segment_flags & SegmentEntry::ON_NODE == 0 || owner.ifindex != 0;
    (is_service || is_proxied && is_on_link)
        && if packet.source_port != 0 { owner.ifindex != packet.source_port } else { owner.ifindex != 0 }
}

/// Answers a request. True if the frame was overwritten with the answer, which is to be sent back by the interface that the
/// request was received on.
#[inline(always)]
pub(crate) fn answer(
    ctx: &TcContext,
    ethernet: &Ethernet,
    segment: Segment,
    entry: &SegmentEntry,
    requester: Requester,
) -> Result<bool, DropReason> {
    let arp = ethernet.kind == frame::ARP;
    if !(arp || ethernet.kind == frame::IPV6) {
        return Ok(false);
    }
    let packet = packet::current().ok_or(DropReason::Malformed)?;
    packet.segment = segment;
    packet.segment_flags = entry.flags;
    packet.domain = entry.domain;
    packet.source_mac = ethernet.source;
    packet.source_port = match requester {
        Requester::Port(ifindex) => ifindex,
        Requester::Outside | Requester::Wire => 0,
    };
    // Separate functions for the wire, so that their code does not enlarge the other programs.
    let code = match (requester, arp) {
        (Requester::Wire, true) => ctv_arp_wire(ctx.skb.skb),
        (Requester::Wire, false) => ctv_nd_wire(ctx.skb.skb),
        (_, true) => ctv_answer_arp(ctx.skb.skb),
        (_, false) => ctv_answer_nd(ctx.skb.skb),
    };
    match code {
        packet::GO_ON => Ok(false),
        packet::AGAIN => {
            log::stage(LogStage::Neighbour, LogResult::Answered);
            Ok(true)
        }
        reason => Err(packet::reason(reason)),
    }
}

/// Answers ARP. The result is `AGAIN` if the frame was overwritten with the answer, else that of `packet::code`.
///
/// A global function: the verifier checks it once, and it saves stack.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_answer_arp(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    code(answer_arp::<false>(&TcContext::new(skb), packet))
}

/// Answers ARP from the wire, as [`ctv_answer_arp`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_arp_wire(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    code(answer_arp::<true>(&TcContext::new(skb), packet))
}

/// Answers neighbour solicitations, as [`ctv_answer_arp`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_answer_nd(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    code(answer_solicitation::<false>(&TcContext::new(skb), packet))
}

/// Answers neighbour solicitations from the wire, as [`ctv_answer_arp`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_nd_wire(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    code(answer_solicitation::<true>(&TcContext::new(skb), packet))
}

#[inline(always)]
fn code(result: Result<bool, DropReason>) -> u32 {
    match result {
        Ok(true) => packet::AGAIN,
        Ok(false) => packet::GO_ON,
        Err(reason) => reason as u32,
    }
}

#[inline(always)]
fn owner_of<const WIRE: bool>(packet: &PacketMeta, ip: Address) -> Option<NeighEntry> {
    let known = maps::neighbour(&NeighKey::new(packet.domain, ip));
    if !WIRE {
        let place = known.map_or(route::UNKNOWN, |owner| route::place(&owner));
        if route::ctv_router_has(&raw const ip, place) != 0 {
            return Some(NeighEntry { mac: ROUTER_MAC, flags: 0, ifindex: 0, group: 0 });
        }
    }
    let owner = known?;
    let spoken_for = || WIRE && owner.flags & NeighEntry::SERVICE != 0 && dsr::ctv_speaks(&ip) != 0;
    (is_answered(packet, &owner) || spoken_for()).then_some(owner)
}

#[repr(C)]
struct ArpFrame {
    ethernet: Ethernet,
    arp: Arp,
}
const _: () = assert!(size_of::<ArpFrame>() == 42);

#[inline(always)]
fn answer_arp<const WIRE: bool>(ctx: &TcContext, packet: &PacketMeta) -> Result<bool, DropReason> {
    let request = frame::load::<Arp>(ctx, ETHERNET)?;
    if request.form != Arp::ETHERNET_IPV4 || request.operation != Arp::REQUEST {
        return Ok(false);
    }
    let Some(owner) = owner_of::<WIRE>(packet, Address::v4(request.target_ip)) else {
        return Ok(false);
    };
    let reply = ArpFrame {
        ethernet: Ethernet { destination: packet.source_mac, source: owner.mac, kind: frame::ARP },
        arp: Arp {
            form: Arp::ETHERNET_IPV4,
            operation: Arp::REPLY,
            sender_mac: owner.mac,
            sender_ip: request.target_ip,
            target_mac: request.sender_mac,
            target_ip: request.sender_ip,
        },
    };
    write(ctx, 0, &reply)?;
    Ok(true)
}

/// Offsets of the fields of a solicitation.
mod at {
    use crate::frame::ETHERNET;

    pub(super) const NEXT_HEADER_AND_HOP_LIMIT: usize = ETHERNET + 6;
    pub(super) const SOURCE: usize = ETHERNET + 8;
    pub(super) const TYPE_AND_CODE: usize = ETHERNET + 40;
    pub(super) const TARGET: usize = ETHERNET + 40 + 8;
}

/// The headers of an advertisement, up to its addresses. Not in one struct with them, because they would not be aligned: the
/// compiler would copy them byte by byte.
#[repr(C)]
struct Front {
    ethernet: Ethernet,
    version_class_label: [u8; 4],
    payload_len: Be16,
    next_header_and_hop_limit: [u8; 2],
}

/// The part of an advertisement that the checksum covers, in addition to length and protocol.
#[repr(C)]
struct Summed {
    source: Address,
    destination: Address,
    type_and_code: [u8; 2],
    checksum: [u8; 2],
    flags: [u8; 4],
    target: Address,
    option: [u8; 2],
    mac: Mac,
}
const _: () = assert!(size_of::<Front>() == at::SOURCE && size_of::<Summed>() == 64);

/// Length of the message, from its type to the end of its one option.
const ADVERTISEMENT_LEN: u16 = 32;
/// Hop limit of neighbour discovery: no router has forwarded the packet.
const FROM_THE_LINK: u8 = 255;
const SOLICITATION: [u8; 2] = [135, 0];
const ADVERTISEMENT: [u8; 2] = [136, 0];
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
/// Type of the option, and its length in units of 8 bytes.
const TARGET_LINK_ADDRESS: [u8; 2] = [2, 1];
const ALL_NODES: Address = Address([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];

#[inline(always)]
fn answer_solicitation<const WIRE: bool>(ctx: &TcContext, packet: &PacketMeta) -> Result<bool, DropReason> {
    let [next_header, hop_limit] = frame::load::<[u8; 2]>(ctx, at::NEXT_HEADER_AND_HOP_LIMIT)?;
    if next_header != ICMPV6 || hop_limit != FROM_THE_LINK {
        return Ok(false);
    }
    if frame::load::<[u8; 2]>(ctx, at::TYPE_AND_CODE)? != SOLICITATION {
        return Ok(false);
    }
    let target = frame::load::<Address>(ctx, at::TARGET)?;
    let Some(owner) = owner_of::<WIRE>(packet, target) else {
        return Ok(false);
    };
    let source = frame::load::<Address>(ctx, at::SOURCE)?;
    // Duplicate address detection sends from the unspecified address; the answer is sent to all nodes.
    let [high, low] = source.words();
    let probe = high | low == 0;
    let front = Front {
        ethernet: Ethernet {
            destination: if probe { ALL_NODES_MAC } else { packet.source_mac },
            source: owner.mac,
            kind: frame::IPV6,
        },
        version_class_label: [0x60, 0, 0, 0],
        payload_len: Be16::new(ADVERTISEMENT_LEN),
        next_header_and_hop_limit: [ICMPV6, FROM_THE_LINK],
    };
    let mut summed = Summed {
        source: target,
        destination: if probe { ALL_NODES } else { source },
        type_and_code: ADVERTISEMENT,
        checksum: [0; 2],
        flags: [if probe { OVERRIDE } else { OVERRIDE | SOLICITED }, 0, 0, 0],
        target,
        option: TARGET_LINK_ADDRESS,
        mac: owner.mac,
    };
    summed.checksum = checksum(&mut summed);
    resize(ctx, (size_of::<Front>() + size_of::<Summed>()) as u32)?;
    write(ctx, 0, &front)?;
    write(ctx, size_of::<Front>(), &summed)?;
    Ok(true)
}

/// The ICMPv6 checksum of a message; its checksum field must be zero.
#[inline(always)]
fn checksum(summed: &mut Summed) -> [u8; 2] {
    // Length and protocol of the pseudo header, in 16-bit words in memory order, as the sum.
    let seed = u32::from(ADVERTISEMENT_LEN.to_be()) + u32::from(u16::from(ICMPV6).to_be());
    // SAFETY: the buffer has the given length.
    let sum = unsafe {
        bpf_csum_diff(
            core::ptr::null_mut(),
            0,
            core::ptr::from_mut(summed).cast(),
            size_of::<Summed>() as u32,
            seed,
        )
    } as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_ne_bytes()
}

#[inline(always)]
fn resize(ctx: &TcContext, len: u32) -> Result<(), DropReason> {
    // SAFETY: the context is the one that the kernel gave to this program.
    if unsafe { bpf_skb_change_tail(ctx.skb.skb, len, 0) } == 0 {
        Ok(())
    } else {
        Err(DropReason::RewriteFailed)
    }
}

/// Overwrites a part of the frame.
#[inline(always)]
fn write<T>(ctx: &TcContext, at: usize, headers: &T) -> Result<(), DropReason> {
    ctx.store(at, headers, u64::from(BPF_F_RECOMPUTE_CSUM)).map_err(|_| DropReason::RewriteFailed)
}
