//! Copies of the entries of service ports, which the programs find with one memory access.

use std::{
    collections::{BTreeSet, HashMap},
    sync::atomic::{Ordering, fence},
};

use aya::maps::MapData;
use bytemuck::Zeroable as _;
use contiv_abi::{ServiceEntry, ServiceKey, ServiceSlot, maps::SERVICE_SLOTS};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, writes::Writes},
    },
};

/// `ctv_svcslots`. A key has its copy in its preferred or its alternate slot. If other keys occupy both, it has no copy,
/// and the programs read `ctv_svc`. A write of a copy is part of the write of the entry and is not counted.
pub(crate) struct ServiceSlots {
    slots: MmapArray<ServiceSlot>,
    count: u32,
    /// Keys without a copy, by the lower one of their slots.
    without_copy: BTreeSet<(u32, ServiceKey)>,
    writes: Writes,
}

impl ServiceSlots {
    /// `count` is a power of two.
    pub(crate) fn new(map: MapData, count: u32, writes: Writes) -> Result<Self, Error> {
        let slots = MmapArray::new(map, count as usize)
            .map_err(|error| failed(format!("map {SERVICE_SLOTS} into memory"), error))?;
        Ok(ServiceSlots { slots, count, without_copy: BTreeSet::new(), writes })
    }

    /// Replaces the copies with those of these entries. Valid copies are kept.
    pub(crate) fn reset(&mut self, entries: &[(ServiceKey, ServiceEntry)]) {
        let mut missing: HashMap<&ServiceKey, &ServiceEntry> =
            entries.iter().map(|(key, entry)| (key, entry)).collect();
        for index in self.slots.occupied() {
            let slot = self.slot(index);
            if slot == free(&slot) && slot.entry.version.is_multiple_of(2) {
                continue;
            }
            let entry = missing.get(&slot.key).filter(|entry| is_copy(&slot, entry));
            if entry.is_some() && self.indexes(&slot.key).contains(&index) {
                missing.remove(&slot.key);
            } else {
                self.write(index, free(&slot));
                self.writes.count();
            }
        }
        self.without_copy.clear();
        // In the order of the entries, so that a restart does the same.
        for (key, entry) in entries.iter().filter(|(key, _)| missing.contains_key(key)) {
            self.set(key, entry);
            if self.index_of(key).is_some() {
                self.writes.count();
            }
        }
        let mut displaced: HashMap<u32, u32> = HashMap::new();
        for (key, _) in entries {
            let [preferred, _] = self.indexes(key);
            if self.slot(preferred).key != *key {
                *displaced.entry(preferred).or_default() += 1;
            }
        }
        let occupied: BTreeSet<u32> =
            self.slots.occupied().into_iter().chain(displaced.keys().copied()).collect();
        for index in occupied {
            self.set_displaced(index, displaced.get(&index).copied().unwrap_or(0));
        }
    }

    /// Writes the copy of an entry. Must follow the write of the entry.
    pub(crate) fn set(&mut self, key: &ServiceKey, entry: &ServiceEntry) {
        if let Some(index) = self.index_of(key) {
            let slot = self.slot(index);
            if !is_copy(&slot, entry) {
                self.write(index, ServiceSlot { entry: *entry, ..slot });
            }
            return;
        }
        let [preferred, alternate] = self.indexes(key);
        let slot = self.slot(preferred);
        let waiting = (preferred.min(alternate), *key);
        let was_displaced = self.without_copy.remove(&waiting);
        if is_free(&slot) {
            self.write(preferred, ServiceSlot { key: *key, entry: *entry, ..slot });
            if was_displaced {
                self.set_displaced(preferred, slot.displaced.saturating_sub(1));
            }
            return;
        }
        if !was_displaced {
            // This comes first: the programs use the alternate slot only if the count is not zero.
            self.set_displaced(preferred, slot.displaced + 1);
        }
        let slot = self.slot(alternate);
        if is_free(&slot) {
            self.write(alternate, ServiceSlot { key: *key, entry: *entry, ..slot });
        } else {
            self.without_copy.insert(waiting);
        }
    }

    /// Frees the slot of an entry. Must follow the removal of the entry. Returns a key without a copy for which a slot is
    /// now free.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Option<ServiceKey> {
        let [preferred, alternate] = self.indexes(key);
        let lower = preferred.min(alternate);
        let current = self.index_of(key);
        if let Some(index) = current {
            self.write(index, free(&self.slot(index)));
        }
        let exists = current.is_some() || self.without_copy.remove(&(lower, *key));
        if exists && current != Some(preferred) {
            self.set_displaced(preferred, self.slot(preferred).displaced.saturating_sub(1));
        }
        current?;
        let waiting = self.without_copy.range((lower, ServiceKey::zeroed())..).next();
        waiting.filter(|(slot, _)| *slot == lower).map(|(_, key)| *key)
    }

    /// Index of the key's slot; `None` without a copy.
    fn index_of(&self, key: &ServiceKey) -> Option<u32> {
        self.indexes(key).into_iter().find(|index| self.slot(*index).key == *key)
    }

    /// The preferred and the alternate slot of a key.
    fn indexes(&self, key: &ServiceKey) -> [u32; 2] {
        let preferred = key.slot(self.count);
        [preferred, ServiceSlot::alternate(preferred)]
    }

    fn slot(&self, index: u32) -> ServiceSlot {
        self.slots.get(index).unwrap_or_else(ServiceSlot::zeroed)
    }

    fn set_displaced(&mut self, index: u32, displaced: u32) {
        let slot = self.slot(index);
        if slot.displaced != displaced {
            self.store(index, ServiceSlot { displaced, ..slot });
        }
    }

    /// Writes key and entry of a slot. The version is odd meanwhile, for which programs read `ctv_svc`.
    fn write(&mut self, index: u32, desired: ServiceSlot) {
        let mut current = self.slot(index);
        // An agent that stopped during a write has left an odd version.
        let version = current.entry.version | 1;
        current.entry.version = version;
        self.store(index, current);
        self.store(index, with_version(desired, version));
        self.store(index, with_version(desired, version.wrapping_add(1)));
    }

    /// Stores a slot after all previous stores.
    fn store(&mut self, index: u32, slot: ServiceSlot) {
        fence(Ordering::SeqCst);
        // The index is in range.
        let _stored = self.slots.set(index, slot);
        fence(Ordering::SeqCst);
    }
}

fn with_version(slot: ServiceSlot, version: u32) -> ServiceSlot {
    ServiceSlot { entry: ServiceEntry { version, ..slot.entry }, ..slot }
}

/// Returns the slot without a key.
fn free(slot: &ServiceSlot) -> ServiceSlot {
    let entry = ServiceEntry { version: slot.entry.version, ..ServiceEntry::zeroed() };
    ServiceSlot { displaced: slot.displaced, entry, ..ServiceSlot::zeroed() }
}

fn is_free(slot: &ServiceSlot) -> bool {
    slot.key == ServiceKey::zeroed()
}

/// Whether the slot has a complete copy of the entry.
fn is_copy(slot: &ServiceSlot, entry: &ServiceEntry) -> bool {
    let version = slot.entry.version;
    version.is_multiple_of(2) && slot.entry == ServiceEntry { version, ..*entry }
}
