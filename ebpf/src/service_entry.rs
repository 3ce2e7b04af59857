//! Entries of services: a hash map of all of them, and copies of the entries in an array, in which most connections find them by
//! one memory access.

use aya_ebpf::{
    bindings::BPF_F_MMAPABLE,
    btf_maps::{Array, HashMap},
    macros::btf_map,
};
use contiv_abi::{
    ServiceEntry, ServiceKey, ServiceSlot, TCP, UDP,
    maps::{SERVICE_SLOTS_CAPACITY, SERVICES_CAPACITY},
};

use crate::{
    maps::{self, NO_PREALLOC},
    packet::PacketMeta,
};

#[btf_map(name = "ctv_svc")]
static SERVICES: HashMap<ServiceKey, ServiceEntry, SERVICES_CAPACITY, NO_PREALLOC> = HashMap::new();

/// The agent loads the map with the size in `Node::service_slots`.
#[btf_map(name = "ctv_svcslots")]
static SLOTS: Array<ServiceSlot, SERVICE_SLOTS_CAPACITY, { BPF_F_MMAPABLE as usize }> = Array::new();

/// An entry that was found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) entry: *const ServiceEntry,
    /// Number and version, see [`stamp`].
    stamp: u64,
}

impl Found {
    /// Number of the service's port.
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.stamp as u32
    }

    /// Whether all fields that were read are of one entry with this number: the agent updates copies in place, and the kernel may
    /// reuse the memory of a replaced entry at once.
    #[inline(always)]
    pub(crate) fn is_same(&self) -> bool {
        stamp(self.entry) == self.stamp
    }
}

/// The entry of the service's port that the current packet is for.
#[inline(always)]
pub(crate) fn find(packet: &PacketMeta) -> Option<Found> {
    let tuple = &packet.tuple;
    if tuple.protocol != TCP && tuple.protocol != UDP {
        return None;
    }
    let key = key_of(packet);
    let preferred = key.slot(maps::node()?.service_slots);
    let (mut slot, mut found) = copy(preferred)?;
    if !is_of(slot, &key) {
        // SAFETY: a slot of the map.
        if unsafe { (&raw const (*slot).displaced).read_volatile() } == 0 {
            return None;
        }
        (slot, found) = copy(ServiceSlot::alternate(preferred))?;
        if !is_of(slot, &key) {
            return in_table(&key);
        }
    }
    // The agent is writing the slot: read the entry from the hash map.
    if found.stamp >> 32 & 1 != 0 { in_table(&key) } else { Some(found) }
}

/// The terminating backends of the service's port that the current packet is for; `None` without any.
#[inline(always)]
pub(crate) fn terminating(packet: &PacketMeta) -> Option<Found> {
    in_table(&key_of(packet).of_terminating())
}

#[inline(always)]
fn key_of(packet: &PacketMeta) -> ServiceKey {
    let tuple = &packet.tuple;
    ServiceKey::new(packet.domain, tuple.destination, tuple.destination_port, tuple.protocol)
}

#[inline(always)]
fn in_table(key: &ServiceKey) -> Option<Found> {
    let entry = SERVICES.get_ptr(key)?;
    Some(Found { entry, stamp: stamp(entry) })
}

/// A slot and its entry. The stamp is read before the key.
#[inline(always)]
fn copy(index: u32) -> Option<(*const ServiceSlot, Found)> {
    let slot = SLOTS.get_ptr(index)?;
    // SAFETY: a slot of the map.
    let entry = unsafe { &raw const (*slot).entry };
    Some((slot, Found { entry, stamp: stamp(entry) }))
}

#[inline(always)]
fn is_of(slot: *const ServiceSlot, key: &ServiceKey) -> bool {
    // SAFETY: a slot of the map. The stamp is odd while the key is written.
    let stored = unsafe { &(*slot).key };
    stored.same(key)
}

/// Number and version of an entry, read as one word. The number is in the lower half.
#[inline(always)]
fn stamp(entry: *const ServiceEntry) -> u64 {
    // SAFETY: an entry that was found. Both fields are one aligned word.
    unsafe { (&raw const (*entry).number).cast::<u64>().read_volatile() }
}

/// Prefetches what the choice of a backend for the current packet reads of the service: in a large table, none of it is in the
/// cache.
#[inline(always)]
pub(crate) fn read_ahead(packet: &PacketMeta) {
    if packet.source_port == 0 {
        return;
    }
    let Some(node) = maps::node() else { return };
    let Some(slot) = SLOTS.get_ptr(key_of(packet).slot(node.service_slots)) else { return };
    // SAFETY: a slot of the map.
    unsafe {
        (&raw const (*slot).displaced).read_volatile();
        (&raw const (*slot).entry.members[ServiceEntry::FEW - 1]).cast::<u32>().read_volatile();
    }
}
