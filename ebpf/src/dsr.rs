//! Clients of services outside the cluster, on the wire of a VLAN.
//!
//! One node answers for a service's address there (see `contiv_abi::Vip`), and gets what clients send to it. It chooses
//! the backend. One that is here is talked to as by a client here. To one on another node the frame is sent on as it is, but
//! for its Ethernet addresses: that node translates it, for the pod that the frame is addressed to, and has the answers
//! sent straight to the client. So the client keeps its address, rules are asked where the backend lives, and no answer
//! comes back here.

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

/// Whether this node answers for the service with this address on the wire of the current packet. Not zero if so.
///
/// A function of its own for the verifier, and for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_speaks(ip: *const Address) -> u32 {
    let Some(packet) = packet::current() else { return 0 };
    // SAFETY: the verifier sees to it that a pointer which is not null is to a whole address.
    let Some(ip) = (unsafe { ip.as_ref() }) else { return 0 };
    vip(packet.segment, ip).map_or(0, |vip| u32::from(is_here(vip.domain, vip.speaker)))
}

/// Whether an endpoint with this address is on this node.
#[inline(always)]
fn is_here(domain: Domain, ip: Address) -> bool {
    maps::neighbour(&NeighKey::new(domain, ip)).is_some_and(|owner| owner.ifindex != 0)
}

/// Whether a frame from the wire of the network in the packet metadata, which is for no port here, is for a service.
#[inline(always)]
pub(crate) fn is_for_service(ctx: &TcContext) -> bool {
    ctv_for_service(ctx.skb.skb) != 0
}

/// Not zero if so. A function of its own for the stack, which has 512 bytes for all on a path.
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
    // Most of what passes by on the wire is settled here.
    if !source::same(&ethernet.destination, &service_mac(&ip)) {
        return Ok(false);
    }
    Ok(maps::is_service(domain, ip))
}

/// Chooses the backend for the current packet, which is for a service and of no connection that is known: `DSR` if it goes to
/// another node, and then `destination_mac` says to whom; `GO_ON` if it is to be translated here; or a reason.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_dsr() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    // A frame that the wire had no place for comes to all nodes.
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
    // Read before the place, so that what changes meanwhile is read again.
    let revision = maps::fdb_revision();
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    if place.is_some_and(|place| place.ifindex != 0) {
        return GO_ON;
    }
    // A backend on another network is no place on this wire.
    if place.is_some() && is_stored(packet) {
        dsr_table::ctv_insert_dsr(packet, revision);
    }
    DSR
}

/// Whether the table keeps where the connection of the current packet goes, so that it stays there when the set of backends
/// changes. Not with the packet that opens it, which its hash is enough for: a flood of those pushes nothing out. Nor with an error,
/// which is no packet of the connection.
#[inline(always)]
fn is_stored(packet: &PacketMeta) -> bool {
    packet.icmp_error == IcmpError::NONE && (packet.tuple.protocol != TCP || packet.tcp & tcp::SYN == 0)
}

/// If the connection of the current packet is sent on, the result is `DSR`, and the backend's address of Ethernet is in the
/// packet. `tuple` is that of the client's packets: of the current packet, or of what an ICMP error is about.
///
/// A function of its own for the verifier.
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

/// Counts a frame that was sent on.
#[inline(always)]
pub(crate) fn count(by: DsrHook, len: u32) {
    if let Some(count) = COUNTS.get_ptr_mut(by as u32) {
        // SAFETY: this CPU's own slot, as that of `maps::count_drop`.
        unsafe {
            (*count).packets += 1;
            (*count).bytes += u64::from(len);
        }
    }
}

/// A new flow from the wire of a VLAN to a port here: if it is for a service, the node that answers for that has chosen this
/// pod, and the packet is translated for it if the pod is a backend: anybody on the wire may have sent the frame. What is for the
/// service's address, but for none of its ports, is for no pod. The result is that of `packet::code`, or `AGAIN` when the entry
/// changed meanwhile.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_arrive() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    if let Some(found) = service_entry::find(packet) {
        return arrive(packet, found);
    }
    // Rules about the pod's own address would not match, and its kernel might forward the packet.
    if maps::is_service(packet.domain, packet.tuple.destination) {
        DropReason::StrangeBackend as u32
    } else {
        GO_ON
    }
}

/// The same if the pod is none of the backends that get new connections: a terminating one gets what another node has chosen
/// it for, such as a segment of a connection, or a SYN that was on its way when the set changed.
///
/// A function of its own for the stack, and beside `ctv_arrive` because of the depth of calls.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_arrive_late() -> u32 {
    let Some(packet) = packet::current() else { return DropReason::Malformed as u32 };
    let Some(found) = service_entry::terminating(packet) else { return DropReason::StrangeBackend as u32 };
    arrive(packet, found)
}

/// Translates the current packet for the pod that its frame is addressed to, if that is one of the backends.
#[inline(always)]
fn arrive(packet: &mut PacketMeta, found: Found) -> u32 {
    // SAFETY: an entry that was found; whether it is another one's by now is asked below.
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

/// The address, in the family of the current packet, of the pod that its frame is addressed to; all zero without one.
#[inline(always)]
fn receiver(packet: &PacketMeta) -> Address {
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    let Some(pod) = place.and_then(|place| maps::port(&place.ifindex)) else {
        return Address::from_words([0, 0]);
    };
    if packet.ip6 != 0 { Address::from_words(pod.ip6.words()) } else { Address::v4(pod.ip) }
}

/// What a frame that is sent on has instead of its Ethernet addresses: from the service itself, which is where the wire
/// has learnt to send to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Macs {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}
