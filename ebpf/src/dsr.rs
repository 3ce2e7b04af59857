//! Direct server return (DSR): services for clients outside the cluster, on the wire of a VLAN.
//!
//! One node answers for the address of a service on the wire (`contiv_abi::Vip`), and receives the packets of its clients. It
//! chooses the backend. A packet to a backend on this node is translated as that of a client on this node. A frame to a backend
//! on another node is forwarded unchanged except for its Ethernet addresses. That node translates it for the pod with the
//! destination Ethernet address, and sends the replies directly to the client. So the client's address is preserved, rules are
//! evaluated on the node of the backend, and replies do not pass this node.

use aya_ebpf::{
    bindings::__sk_buff,
    btf_maps::{HashMap, PerCpuArray},
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{
    Address, Be16, Domain, DropCount, DropReason, DsrHook, DsrKey, FdbKey, Mac, NeighKey, Segment, TCP,
    Tuple, Vip, VipKey,
    maps::{DSR_STATS_SLOTS, VIPS_CAPACITY},
    service_mac,
};

use crate::{
    dsr_table,
    frame::{self, ETHERNET, Ethernet},
    maps::{self, NO_PREALLOC},
    packet::{self, AGAIN, DSR, GO_ON, IcmpError, PacketMeta, tcp},
    service,
    service_entry::{self, Found},
    source,
};

#[btf_map(name = "ctv_vips")]
static VIPS: HashMap<VipKey, Vip, VIPS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_relaycnt")]
static COUNTS: PerCpuArray<DropCount, DSR_STATS_SLOTS> = PerCpuArray::new();

/// The service with this address, if the wire can reach it.
#[inline(always)]
pub(crate) fn vip(segment: Segment, ip: &Address) -> Option<Vip> {
    // SAFETY: copied at once.
    unsafe { VIPS.get(VipKey { segment, ip: *ip }) }.copied()
}

/// Whether this node answers for the service with this address on the wire of the current packet; non-zero if so.
///
/// A global function: the verifier checks it once, and it saves stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_speaks(ip: *const Address) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole address.
    let Some(ip) = (unsafe { ip.as_ref() }) else { return 0 };
    vip(packet.segment, ip).map_or(0, |vip| u32::from(is_here(vip.domain, vip.speaker)))
}

/// Whether an endpoint with this address is on this node.
#[inline(always)]
fn is_here(domain: Domain, ip: Address) -> bool {
    maps::neighbour(&NeighKey::new(domain, ip)).is_some_and(|owner| owner.ifindex != 0)
}

/// Whether a frame from the wire, which is for no port on this node, is for a service of the network in the packet metadata.
#[inline(always)]
pub(crate) fn is_for_service(ctx: &TcContext) -> bool {
    ctv_for_service(ctx.skb.skb) != 0
}

/// Non-zero for a frame to a service.
///
/// Not inlined, to save stack: a call chain shares 512 bytes.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn ctv_for_service(skb: *mut __sk_buff) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    u32::from(for_service(&TcContext::new(skb), packet.domain).unwrap_or(false))
}

#[inline(always)]
fn for_service(ctx: &TcContext, domain: Domain) -> Result<bool, DropReason> {
    const DESTINATION: usize = ETHERNET + 16;
    const DESTINATION6: usize = ETHERNET + 24;
    let ethernet = frame::load::<Ethernet>(ctx, 0)?;
    let ip = match ethernet.kind {
        frame::IPV4 => Address::v4(frame::load(ctx, DESTINATION)?),
        frame::IPV6 => frame::load(ctx, DESTINATION6)?,
        _ => return Ok(false),
    };
    // The Ethernet address excludes most other frames on the wire without a map lookup.
    if !source::same(&ethernet.destination, &service_mac(&ip)) {
        return Ok(false);
    }
    Ok(maps::is_service(domain, ip))
}

/// Chooses the backend for the current packet, which is for a service and of no known connection. The result is `DSR` if the
/// backend is on another node, with its Ethernet address in `destination_mac`; `GO_ON` if the packet is to be translated on this
/// node; or the number of a drop reason.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_dsr() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    // The switches flood a frame to an unknown address, so all nodes receive it.
    if ctv_speaks(&raw const packet.tuple.destination) == 0 {
        return DropReason::NotLocal as u32;
    }
    let mut code = service::ctv_choose(packet);
    if code == AGAIN {
        code = service::ctv_choose(packet);
    }
    if code != GO_ON {
        return code;
    }
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    // Read before the location, so that a concurrent change is detected later by the revision.
    let revision = maps::fdb_revision();
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    if place.is_some_and(|place| place.ifindex != 0) {
        return GO_ON;
    }
    // The location of a backend on another network is not on this wire, so the connection is not stored.
    if place.is_some() && is_stored(packet) {
        dsr_table::ctv_insert_dsr(packet, revision);
    }
    DSR
}

/// Whether the table stores the backend of the current packet's connection, so that the connection keeps its backend when the set
/// of backends changes. It does not store the packet that opens a connection, for which the hash suffices, so that a flood of
/// them evicts nothing; nor an ICMP error, which is no packet of the connection.
#[inline(always)]
fn is_stored(packet: &PacketMeta) -> bool {
    packet.icmp_error == IcmpError::NONE && (packet.tuple.protocol != TCP || packet.tcp & tcp::SYN == 0)
}

/// Looks up the current packet's connection in the table. If it is forwarded to another node, the result is `DSR`, and
/// `destination_mac` is the Ethernet address of the backend. `tuple` is that of the client's packets: the current packet's own,
/// or that of the packet which an ICMP error quotes.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_lookup_dsr(tuple: *const Tuple) -> u32 {
    let (Some(packet), Some(node)) = (packet::current(), maps::node()) else { return GO_ON };
    // SAFETY: the verifier ensures that a pointer that is not null refers to a whole tuple.
    let Some(tuple) = (unsafe { tuple.as_ref() }) else { return GO_ON };
    let key = DsrKey::of(packet.segment, tuple);
    let Some(mac) = dsr_table::lookup(node, &key, packet.now, packet.tcp) else { return GO_ON };
    packet.set_destination_mac(mac);
    DSR
}

/// Counts a forwarded frame.
#[inline(always)]
pub(crate) fn count(by: DsrHook, len: u32) {
    if let Some(count) = COUNTS.get_ptr_mut(by as u32) {
        // SAFETY: the slot of this CPU, as in `maps::count_drop`.
        unsafe {
            (*count).packets += 1;
            (*count).bytes += u64::from(len);
        }
    }
}

/// Translates the first packet of a new flow from the wire of a VLAN to a port on this node. For a packet to a service, the node
/// that answers for the service has chosen this pod. The packet is translated only if the pod is a backend, because any station
/// on the wire may have sent the frame. A packet to the address of a service, but to none of its ports, is for no pod. The result
/// is that of `packet::code`, or `AGAIN` if the entry was changed concurrently.
///
/// A global function: the verifier checks it once.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_arrive() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    if let Some(found) = service_entry::find(packet) {
        return arrive(packet, found);
    }
    // Rules for the pod's own address would not match, and the pod's kernel might forward the packet.
    if maps::is_service(packet.domain, packet.tuple.destination) {
        DropReason::StrangeBackend as u32
    } else {
        GO_ON
    }
}

/// As [`ctv_arrive`], for a terminating backend, which gets no new connections. Another node has chosen it earlier: the packet is
/// a segment of a connection, or a SYN that was in transit when the set changed.
///
/// Not inlined, to save stack, and not called by `ctv_arrive`, to limit the depth of calls.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_arrive_late() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    let Some(found) = service_entry::terminating(packet) else { return DropReason::StrangeBackend as u32 };
    arrive(packet, found)
}

/// Translates the current packet for the pod with its destination Ethernet address, if the pod is one of the backends.
#[inline(always)]
fn arrive(packet: &mut PacketMeta, found: Found) -> u32 {
    // SAFETY: an entry that was found. Whether it has been replaced is checked below.
    let entry = unsafe { &*found.entry };
    let (ip, port) = (receiver(packet), service::port_of_backends(packet, entry));
    let is_backend = port != 0 && service::has(packet, entry, &ip, port);
    if !found.is_same() {
        return AGAIN;
    }
    if port == 0 {
        return DropReason::NoBackend as u32;
    }
    if !is_backend {
        return DropReason::StrangeBackend as u32;
    }
    packet.service = found.number();
    packet.translated = 1;
    packet.wanted.destination.set_words(ip.words());
    packet.wanted.destination_port = Be16::new(port);
    GO_ON
}

/// Address, in the family of the current packet, of the pod with its destination Ethernet address; all zero without such a pod.
#[inline(always)]
fn receiver(packet: &PacketMeta) -> Address {
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    let Some(pod) = place.and_then(|place| maps::port(&place.ifindex)) else {
        return Address::from_words([0, 0]);
    };
    if packet.ip6 != 0 { Address::from_words(pod.ip6.words()) } else { Address::v4(pod.ip) }
}

/// Ethernet addresses of a forwarded frame. The source is that of the service, for which the switches have learned the port of
/// this node.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Macs {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}
