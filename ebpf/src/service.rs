//! Services: which backend a new connection goes to.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LruHashMap},
    macros::btf_map,
};
use contiv_abi::{
    AffinityEntry, AffinityKey, Backend, DropReason, Flow, NeighEntry, NeighKey, RingBlock, ServiceEntry,
    ServiceKey, TCP, UDP,
    maps::{AFFINITY_CAPACITY, BACKENDS_CAPACITY, RING_CAPACITY, SERVICES_CAPACITY},
};

use crate::{
    maps::{self, NO_PREALLOC},
    packet::{self, Packet},
};

/// The agent writes rings and backends through a mapping, not a call for each slot.
const MMAPABLE: usize = aya_ebpf::bindings::BPF_F_MMAPABLE as usize;

#[btf_map(name = "ctv_svc")]
static SERVICES: HashMap<ServiceKey, ServiceEntry, SERVICES_CAPACITY, NO_PREALLOC> = HashMap::new();

#[btf_map(name = "ctv_ring")]
static RING: Array<RingBlock, RING_CAPACITY, MMAPABLE> = Array::new();

#[btf_map(name = "ctv_backends")]
static BACKENDS: Array<Backend, BACKENDS_CAPACITY, MMAPABLE> = Array::new();

#[btf_map(name = "ctv_affinity")]
static AFFINITY: LruHashMap<AffinityKey, AffinityEntry, AFFINITY_CAPACITY> = LruHashMap::new();

/// If the packet in hand begins a connection to a service, chooses the backend; what the client has to be
/// told is an error.
///
/// A function of its own for the verifier; its result is that of `packet::code`.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ctv_choose() -> u32 {
    let Some(packet) = packet::in_hand() else { return DropReason::Malformed as u32 };
    packet::code(choose(packet))
}

#[inline(always)]
fn choose(packet: &mut Packet) -> Result<(), DropReason> {
    let tuple = &packet.tuple;
    let key =
        ServiceKey::new(packet.segment, tuple.destination, tuple.destination_port, packet.tuple.protocol);
    let found = if tuple.protocol == TCP || tuple.protocol == UDP {
        // SAFETY: copied at once.
        unsafe { SERVICES.get(key) }.copied()
    } else {
        None
    };
    let Some(entry) = found else {
        let owner = maps::neighbour(&NeighKey { segment: packet.segment, ip: packet.tuple.destination });
        let is_service = owner.is_some_and(|owner| owner.flags & NeighEntry::SERVICE != 0);
        return if is_service { Err(DropReason::NoService) } else { Ok(()) };
    };
    if entry.slots == 0 {
        return Err(DropReason::NoBackend);
    }
    let number = if entry.affinity == 0 { by_connection(packet, &entry) } else { by_client(packet, &entry) };
    let backend = number.and_then(|number| BACKENDS.get(number)).ok_or(DropReason::NoBackend)?;
    packet.service = entry.number;
    packet.translated = 1;
    packet.aside = 0;
    packet.wanted.destination = backend.ip;
    packet.wanted.destination_port = contiv_abi::Be16::new(backend.port);
    if backend.ip.same(&packet.tuple.source) {
        // The pod would not know its own answer from a packet of its own; it gets to see the service.
        packet.hairpin = Flow::HAIRPIN;
        packet.wanted.source = packet.tuple.destination;
        packet.destination_mac = packet.source_mac;
        return Ok(());
    }
    let owner = maps::neighbour(&NeighKey { segment: packet.segment, ip: backend.ip });
    packet.destination_mac = owner.ok_or(DropReason::StrangeBackend)?.mac;
    Ok(())
}

#[inline(always)]
fn by_connection(packet: &Packet, entry: &ServiceEntry) -> Option<u32> {
    let ports =
        u64::from(packet.tuple.source_port.wire()) << 16 | u64::from(packet.tuple.destination_port.wire());
    slot(entry, hash(packet, ports))
}

/// Of all connections of a client within the time: to the same.
#[inline(always)]
fn by_client(packet: &Packet, entry: &ServiceEntry) -> Option<u32> {
    let key =
        AffinityKey { client: packet.tuple.source, segment: packet.segment, service: entry.number, zero: 0 };
    if let Some(with) = AFFINITY.get_ptr_mut(key) {
        // SAFETY: an entry that was found.
        let with = unsafe { &mut *with };
        if packet.now.wrapping_sub(with.seen) <= entry.affinity {
            with.seen = packet.now;
            return Some(with.backend);
        }
    }
    let backend = slot(entry, hash(packet, 0))?;
    // Without memory the ring alone decides, which mostly says the same again.
    let _noted = AFFINITY.insert(key, AffinityEntry { backend, seen: packet.now }, 0);
    Some(backend)
}

#[inline(always)]
fn slot(entry: &ServiceEntry, hash: u32) -> Option<u32> {
    let slot = entry.ring + (hash & (entry.slots - 1));
    let block = RING.get(slot / RingBlock::LEN as u32)?;
    block.slots.get(slot as usize % RingBlock::LEN).copied()
}

/// The finalizer of MurmurHash3 over what tells connections apart.
#[inline(always)]
fn hash(packet: &Packet, ports: u64) -> u32 {
    let ([a, b], [c, d]) = (packet.tuple.source.words(), packet.tuple.destination.words());
    let mut h = mix(a ^ b.rotate_left(32) ^ mix(c ^ d ^ ports));
    h ^= h >> 32;
    h as u32
}

#[inline(always)]
const fn mix(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}
