//! Clients of services outside the cluster, on the wire of a VLAN.
//!
//! One node answers for a service's address there (see `contiv_abi::Vip`), and gets what clients send to it. It chooses
//! the backend. One that is here is talked to as by a client here. To one on another node the frame is sent on as it is, but
//! for its Ethernet addresses: that node translates it, for the pod that the frame is addressed to, and has the answers
//! sent straight to the client. So the client keeps its address, rules are asked where the backend lives, and no answer
//! comes back here.

use aya_ebpf::{
    bindings::__sk_buff,
    btf_maps::{HashMap, LruHashMap, PerCpuArray},
    macros::btf_map,
    programs::TcContext,
};
use contiv_abi::{
    Address, Be16, Domain, DropCount, DropReason, DsrEntry, DsrHook, FdbKey, FlowKey, Mac, NeighEntry,
    NeighKey, Segment, TCP, Vip, VipKey,
    maps::{DSR_FLOWS_CAPACITY, DSR_STATS_SLOTS, VIPS_CAPACITY},
    service_mac,
    tcp::sent,
};

use crate::{
    flows,
    frame::{self, ETHERNET, Ethernet},
    maps::{self, NO_PREALLOC},
    packet::{self, AGAIN, GO_ON, Packet, RELAY, tcp},
    service::{self, Target},
    source,
};

#[btf_map(name = "ctv_vips")]
static VIPS: HashMap<VipKey, Vip, VIPS_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_relays")]
static DSR_FLOWS: LruHashMap<FlowKey, DsrEntry, DSR_FLOWS_CAPACITY> = LruHashMap::new();

#[btf_map(name = "ctv_relaycnt")]
static COUNTS: PerCpuArray<DropCount, DSR_STATS_SLOTS> = PerCpuArray::new();

/// The service with this address, if the wire can reach it.
#[inline(always)]
pub(crate) fn vip(segment: Segment, ip: &Address) -> Option<Vip> {
    // SAFETY: copied at once.
    unsafe { VIPS.get(VipKey { segment, ip: *ip }) }.copied()
}

/// Whether this node answers for the service with this address on the wire of the packet in hand. Not zero if so.
///
/// A function of its own for the verifier, and for the stack.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_speaks(ip: *const Address) -> u32 {
    let Some(packet) = packet::in_hand() else { return 0 };
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
    let Some(packet) = packet::in_hand() else { return 0 };
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
    let owner = maps::neighbour(&NeighKey::new(domain, ip));
    Ok(owner.is_some_and(|owner| owner.flags & NeighEntry::SERVICE != 0))
}

/// Chooses the backend for the packet in hand, which is for a service and has its key in `key`: `RELAY` if it goes to
/// another node, and then `destination_mac` says to whom; `GO_ON` if it is to be translated here; or a reason.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_relay() -> u32 {
    if ctv_known() == RELAY {
        return RELAY;
    }
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
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
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    if place.is_some_and(|place| place.ifindex != 0) {
        return GO_ON;
    }
    note(packet);
    RELAY
}

/// If the connection of the packet in hand is sent on, the result is `RELAY`, and the backend's address of Ethernet is in the
/// packet. Its key, or that of the connection which an ICMP error is about, is in `key`.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_known() -> u32 {
    let Some(packet) = packet::in_hand() else { return GO_ON };
    let Some(mac) = known(packet) else { return GO_ON };
    packet.set_destination_mac(mac);
    RELAY
}

/// The same without a call: the backend's Ethernet address, in a number with the first byte lowest.
#[inline(always)]
pub(crate) fn known(packet: &Packet) -> Option<u64> {
    // Not handed over: to Linux 6.1 what is handed over is no key.
    let key = &packet.key;
    let relay = DSR_FLOWS.get_ptr_mut(key)?;
    // SAFETY: an entry that was found.
    let relay = unsafe { &mut *relay };
    let opens = packet.tcp & (tcp::SYN | tcp::ACK) == tcp::SYN;
    let idle = contiv_abi::idle(packet.now, relay.seen);
    let reply = u32::from(sent::ANY) | relay.closing;
    if opens && relay.closing != 0
        || idle != 0 && idle > flows::ctv_timeout(key.protocol.into(), sent::ANY.into(), reply)
    {
        let _over = DSR_FLOWS.remove(key);
        return None;
    }
    // Read before the neighbour, so that what changes meanwhile is read again.
    let revision = maps::neighbour_revision();
    // SAFETY: read once: another CPU may write it.
    let mut found = unsafe { (&raw const relay.found).read_volatile() };
    if idle != 0 || !DsrEntry::is_found_in(found, revision) {
        // Gone, or moved to this node: chosen anew, and the client learns from its new backend that there is no connection.
        let backend = maps::neighbour(&NeighKey::new(relay.domain, relay.backend))?;
        if backend.ifindex != 0 {
            return None;
        }
        let [a, b, c, d, e, f] = backend.mac;
        found = DsrEntry::found(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]), revision);
        relay.found = found;
        relay.seen = packet.now;
    }
    let ended = u32::from(packet.tcp & (tcp::FIN | tcp::RST));
    // Written only when it changes.
    if relay.closing | ended != relay.closing {
        relay.closing |= ended;
    }
    Some(found & DsrEntry::MAC)
}

/// Notes where the connection of the packet in hand goes, so that it stays there when the set of backends changes. Not
/// with the packet that opens it, which its hash is enough for: a flood of those pushes nothing out.
#[inline(always)]
fn note(packet: &Packet) {
    if packet.tuple.protocol == TCP && packet.tcp & tcp::SYN != 0 {
        return;
    }
    let closing = u32::from(packet.tcp & (tcp::FIN | tcp::RST));
    let relay = DsrEntry {
        backend: packet.wanted.destination,
        seen: packet.now,
        closing,
        found: 0,
        domain: packet.domain,
        zero: 0,
    };
    // Without memory the hash alone decides, which says the same until the set changes.
    let _noted = DSR_FLOWS.insert(&packet.key, &relay, 0);
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
/// pod, and the packet is translated for it. The result is that of `packet::code`, or `AGAIN` when the entry changed
/// meanwhile.
///
/// A function of its own for the verifier.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_arrive() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    match service::target(packet) {
        Target::None => GO_ON,
        Target::Port(_, 0) => DropReason::NoBackend as u32,
        Target::Port(number, port) => packet::code(arrive(packet, number, port)),
        Target::Again => AGAIN,
    }
}

#[inline(always)]
fn arrive(packet: &mut Packet, number: u32, port: u16) -> Result<(), DropReason> {
    let place = maps::destination(&FdbKey::new(packet.segment, packet.destination_mac));
    let pod = place.and_then(|place| maps::port(&place.ifindex)).ok_or(DropReason::StrangeBackend)?;
    let ip = if packet.ip6 != 0 { pod.ip6 } else { Address::v4(pod.ip) };
    if ip.same(&Address([0; 16])) {
        return Err(DropReason::StrangeBackend);
    }
    packet.service = number;
    packet.translated = 1;
    packet.wanted.destination = ip;
    packet.wanted.destination_port = Be16::new(port);
    Ok(())
}

/// What a frame that is sent on has instead of its Ethernet addresses: from the service itself, which is where the wire
/// has learnt to send to.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Macs {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
}
