//! Service ports in the kernel.
//!
//! A change is written in the reverse order of references: backends, list and ring, then the entry of the port, which is
//! replaced atomically, then its copy. A new connection uses either the old or the new backend set. The programs store
//! session affinity and check that the client's backend is still a member of the set.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroU32,
};

use contiv_abi::{
    Address, Backend, Be16, ServiceEntry, ServiceKey, TCP,
    maps::{BACKENDS, RING, SERVICE_COUNTS, SERVICE_SLOTS, SERVICES},
};
use contiv_model::{name::ServiceId, service::Protocol};

use super::{backends::BackendSets, counters::CounterMap, slots::ServiceSlots};
use crate::{
    datapath::{
        Error,
        ebpf::maps::{
            foreign::{self, Record},
            names::ServiceNames,
            pins::Pins,
            sizes::Sizes,
            table::Table,
            writes::Writes,
        },
        telemetry::{ServicePort, TableUsage},
    },
    error::one_line,
};

/// Destination of the connections to a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Backends that are ready, or terminating, according to the key. Sorted and without duplicates.
    pub(crate) backends: Vec<Backend>,
    /// Session affinity in seconds; zero for none.
    pub(crate) affinity: u32,
}

/// `ctv_svc`, and the copies, backend sets and counters of its entries.
pub(crate) struct ServicePorts {
    ports: Table<ServiceKey, ServiceEntry>,
    slots: ServiceSlots,
    backends: BackendSets,
    counters: CounterMap,
    names: ServiceNames,
    /// Backend set of each port that has one and whose entry is valid.
    sets: HashMap<ServiceKey, Vec<Backend>>,
    next_number: NonZeroU32,
    /// Numbers of ports in the maps of other ABI versions, which flows and counters refer to.
    inherited: HashMap<ServiceKey, NonZeroU32>,
    writes: Writes,
}

impl ServicePorts {
    pub(crate) fn open(
        pins: &Pins,
        sizes: &Sizes,
        names: ServiceNames,
        writes: &Writes,
    ) -> Result<Self, Error> {
        Ok(ServicePorts {
            ports: Table::new(SERVICES, sizes.of(SERVICES)?, pins.open_map(SERVICES)?, writes.clone()),
            slots: ServiceSlots::new(pins.open_data(SERVICE_SLOTS)?, sizes.service_slots(), writes.clone())?,
            backends: BackendSets::new(
                pins.open_data(RING)?,
                pins.open_data(BACKENDS)?,
                sizes.backends,
                writes.clone(),
            )?,
            counters: CounterMap::new(pins.open_data(SERVICE_COUNTS)?, sizes.service_counts()?)?,
            names,
            sets: HashMap::new(),
            next_number: NonZeroU32::MIN,
            inherited: inherited(pins)?,
            writes: writes.clone(),
        })
    }

    /// Reads the maps, and adopts the backend sets that are valid.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.sets.clear();
        self.backends.clear();
        let inherited = self.inherited.values().map(|number| next(number.get()));
        self.next_number = inherited.max().unwrap_or(NonZeroU32::MIN);
        let mut ports: Vec<(ServiceKey, ServiceEntry)> = self.ports.iter().map(|(k, e)| (*k, *e)).collect();
        ports.sort_unstable_by_key(|(key, _)| *key);
        let ready: Vec<_> = ports.iter().copied().filter(|(key, _)| key.terminating == 0).collect();
        self.slots.reset(&ready);
        // Keyed by list and ring.
        let mut large = HashMap::new();
        let mut numbers = BTreeSet::new();
        for (key, entry) in ports {
            self.next_number = self.next_number.max(next(entry.number));
            numbers.insert(entry.number);
            let set = if entry.backends as usize <= ServiceEntry::FEW {
                self.backends.adopt_small(&key, &entry)
            } else {
                let adopt = || self.backends.adopt_large(&key, &entry);
                large.entry((entry.members[0].as_list(), entry.ring)).or_insert_with(adopt).clone()
            };
            if let Some(set) = set.filter(|set| !set.is_empty()) {
                self.backends.add_user(&set);
                self.sets.insert(key, set);
            }
        }
        self.counters.retain(&numbers);
        Ok(())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.ports.iter().map(|(key, _)| key)
    }

    pub(crate) fn usage(&self) -> [TableUsage; 3] {
        let [blocks, backends] = self.backends.usage();
        [
            self.ports.usage(),
            TableUsage { table: RING, entries: blocks, capacity: self.backends.capacity() },
            TableUsage { table: BACKENDS, entries: backends, capacity: self.backends.capacity() },
        ]
    }

    /// The number of the port in flows.
    pub(crate) fn number(&self, key: &ServiceKey) -> Option<u32> {
        self.ports.get(key).map(|entry| entry.number)
    }

    /// Whether the port has this target.
    pub(crate) fn is_current(&self, key: &ServiceKey, target: &Target) -> bool {
        let set = self.sets.get(key).map_or(&[][..], Vec::as_slice);
        self.ports.get(key).is_some_and(|entry| {
            entry.affinity == target.affinity
                && entry.version == version(key)
                && (key.terminating == 0 || Some(entry.number) == self.number(&key.of_ready()))
                && set == target.backends
                && (entry.backends == 0) == target.backends.is_empty()
        })
    }

    /// Writes the port unless it has this target.
    pub(crate) fn set(&mut self, key: ServiceKey, target: &Target) -> Result<(), Error> {
        if self.is_current(&key, target) {
            return Ok(());
        }
        self.backends.end_quarantine();
        let number = match self.ports.get(&key.of_ready()) {
            Some(entry) => entry.number,
            // The entry has no number: no program looks up the number of terminating backends.
            None if key.terminating != 0 => 0,
            // After an error below, the number stays allocated until the next read.
            None => self.allocate_number(&key),
        };
        let entry = self.backends.acquire(&target.backends)?;
        let entry = ServiceEntry { number, version: version(&key), affinity: target.affinity, ..entry };
        if let Err(error) = self.ports.set(key, entry) {
            self.backends.release(&target.backends);
            return Err(error);
        }
        if key.terminating == 0 {
            self.slots.set(&key, &entry);
        }
        let previous = if target.backends.is_empty() {
            self.sets.remove(&key)
        } else {
            self.sets.insert(key, target.backends.clone())
        };
        if let Some(previous) = previous {
            self.backends.release(&previous);
        }
        Ok(())
    }

    /// Records the service that the port belongs to, for telemetry.
    pub(crate) fn set_name(&self, key: &ServiceKey, service: &ServiceId) {
        if key.terminating == 0
            && let Some(entry) = self.ports.get(key)
        {
            let protocol = if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
            let name = ServicePort { service: service.clone(), protocol, port: key.port.get() };
            self.names.insert([(&name, &entry.number)]);
        }
    }

    /// Allocates a number for a new port, with counters if any are free.
    fn allocate_number(&mut self, key: &ServiceKey) -> u32 {
        if let Some(number) = self.inherited.remove(key)
            && self.counters.reserve(number)
        {
            return number.get();
        }
        let number = self.counters.allocate(self.next_number).unwrap_or(self.next_number);
        self.next_number = next(number.get());
        number.get()
    }

    /// Removes the port and its counters.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Result<(), Error> {
        // The number belongs to the entry of the port's ready backends.
        let entry = self.ports.get(key).copied().filter(|_| key.terminating == 0);
        self.ports.remove(key)?;
        if key.terminating == 0
            && let Some(waiting) = self.slots.remove(key)
            && let Some(entry) = self.ports.get(&waiting)
        {
            self.slots.set(&waiting, entry);
        }
        if let Some(entry) = entry {
            self.names.remove(entry.number);
            self.writes.count();
            self.counters.free(entry.number);
        }
        if let Some(set) = self.sets.remove(key) {
            self.backends.release(&set);
        }
        Ok(())
    }
}

/// Numbers of ports in the maps of other ABI versions.
fn inherited(pins: &Pins) -> Result<HashMap<ServiceKey, NonZeroU32>, Error> {
    let mut numbers = HashMap::new();
    for other in pins.other_abi_versions() {
        if !other.map(SERVICES).exists() {
            continue;
        }
        match foreign::entries(&other, SERVICES) {
            Ok(entries) => numbers.extend(entries.iter().filter_map(|(key, entry)| numbered(key, entry))),
            Err(error) => tracing::warn!("the numbers of services are lost: {}", one_line(&error)),
        }
    }
    Ok(numbers)
}

/// Version of an entry in `ctv_svc`.
const fn version(key: &ServiceKey) -> u32 {
    if key.terminating == 0 { 0 } else { ServiceEntry::TERMINATING }
}

/// A port and its number. An entry with terminating backends has no number of its own.
fn numbered(key: &Record, entry: &Record) -> Option<(ServiceKey, NonZeroU32)> {
    if key.number("terminating").unwrap_or(0) != 0 {
        return None;
    }
    let port = Be16::from_wire(u16::from_ne_bytes(key.bytes("port")?));
    let protocol = u8::try_from(key.number("protocol")?).ok()?;
    let key = ServiceKey::new(key.domain()?, Address(key.bytes("ip")?), port, protocol);
    Some((key, NonZeroU32::new(entry.number("number")?)?))
}

/// The number after `number`; never zero.
fn next(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number.wrapping_add(1)).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use contiv_abi::{Domain, Segment};

    use super::*;

    /// The layout of version 6.
    #[test]
    fn ports_of_services_on_a_network_keep_their_numbers_in_its_domain() {
        let ip = Address::v4([10, 1, 1, 250]);
        let key = Record::of(&[
            ("segment.vni", &0_u32.to_ne_bytes()),
            ("segment.vlan", &100_u32.to_ne_bytes()),
            ("ip", &ip.0),
            ("port", &80_u16.to_be_bytes()),
            ("protocol", &[TCP]),
            ("zero", &[0; 5]),
        ]);
        let entry = Record::of(&[("number", &7_u32.to_ne_bytes())]);
        let domain = Domain::of_segment(Segment::vlan(100));
        let expected = (ServiceKey::new(domain, ip, Be16::new(80), TCP), NonZeroU32::new(7).unwrap());
        assert_eq!(numbered(&key, &entry), Some(expected));
        assert_eq!(numbered(&key, &Record::of(&[("number", &[0; 4])])), None);
        let terminating = Record::of(&[
            ("domain", &5_u32.to_ne_bytes()),
            ("ip", &ip.0),
            ("port", &80_u16.to_be_bytes()),
            ("protocol", &[TCP]),
            ("terminating", &[1]),
        ]);
        assert_eq!(numbered(&terminating, &entry), None);
    }
}
