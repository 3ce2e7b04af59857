//! What the kernel holds for services: their ports, and the rings and backends that these lead to.
//!
//! Ports of services with the same set of backends share a ring. What is written is written from the end: backends,
//! the ring, then the port that leads there, in one step; so a connection finds the old set or the new one. What
//! nobody leads to any more is used again only after a while, when no packet is on its way through it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use aya::maps::{self, MapData, PerCpuHashMap};
use contiv_abi::{
    AffinityEntry, AffinityKey, Backend, RingBlock, ServiceCount, ServiceEntry, ServiceKey, TCP,
    maps::{AFFINITY, BACKENDS, BACKENDS_CAPACITY, RING, RING_CAPACITY, SERVICE_COUNTS},
};
use contiv_model::{name::ServiceId, service::Protocol};

use super::{
    arena::Arena,
    failure::{errno, failed},
    mapping::Mapping,
    names::ServiceNames,
    ring,
    table::{Table, Writes},
};
use crate::datapath::{Error, sight::ServicePort};

/// Where the connections to one port of a service go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Ready backends, sorted, each once.
    pub(super) backends: Vec<Backend>,
    /// Seconds that a client stays with its backend; zero for not at all.
    pub(super) affinity: u32,
}

/// How long what was freed is left alone. A packet is through in microseconds.
const AT_REST: Duration = Duration::from_millis(200);

/// A ring in the kernel.
#[derive(Clone, Debug)]
struct Ring {
    /// The first slot.
    at: u32,
    /// The numbers of the backends, in their order.
    numbers: Vec<u32>,
    /// Ports of services that lead here.
    users: u32,
}

/// Something that waits to be used again.
#[derive(Debug)]
enum Freed {
    Slots { at: u32, size: u32 },
    Backend(u32),
}

/// The maps, and what we know to be in them.
pub(super) struct Services {
    ports: Table<ServiceKey, ServiceEntry>,
    slots: Mapping<RingBlock>,
    backends: Mapping<Backend>,
    affinity: maps::HashMap<MapData, AffinityKey, AffinityEntry>,
    counts: PerCpuHashMap<MapData, u32, ServiceCount>,
    names: ServiceNames,
    /// By set.
    rings: HashMap<Vec<Backend>, Ring>,
    /// The set of each port that has one and whose ring is whole.
    sets: HashMap<ServiceKey, Vec<Backend>>,
    /// The number of each backend, and how many rings name it.
    numbers: HashMap<Backend, (u32, u32)>,
    free_numbers: BTreeSet<u32>,
    room: Arena,
    resting: VecDeque<(Instant, Freed)>,
    next_number: u32,
    writes: Writes,
}

impl Services {
    pub(super) fn new(
        ports: Table<ServiceKey, ServiceEntry>,
        slots: MapData,
        backends: MapData,
        affinity: maps::HashMap<MapData, AffinityKey, AffinityEntry>,
        counts: PerCpuHashMap<MapData, u32, ServiceCount>,
        names: ServiceNames,
        writes: Writes,
    ) -> Result<Self, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(Services {
            ports,
            slots: Mapping::new(slots, RING_CAPACITY).map_err(|error| map(RING, error))?,
            backends: Mapping::new(backends, BACKENDS_CAPACITY).map_err(|error| map(BACKENDS, error))?,
            affinity,
            counts,
            names,
            rings: HashMap::new(),
            sets: HashMap::new(),
            numbers: HashMap::new(),
            free_numbers: (0..BACKENDS_CAPACITY as u32).collect(),
            room: room(),
            resting: VecDeque::new(),
            next_number: 1,
            writes,
        })
    }

    /// Learns what is there, with the rings that are as we make them.
    pub(super) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.rings.clear();
        self.sets.clear();
        self.numbers.clear();
        self.resting.clear();
        self.free_numbers = (0..BACKENDS_CAPACITY as u32).collect();
        self.room = room();
        self.next_number = 1;
        let mut ports: Vec<(ServiceKey, ServiceEntry)> = self.ports.iter().map(|(k, e)| (*k, *e)).collect();
        ports.sort_unstable_by_key(|(key, _)| *key);
        let mut seen: HashMap<(u32, u32), Option<Vec<Backend>>> = HashMap::new();
        for (key, entry) in ports {
            self.next_number = self.next_number.max(entry.number.saturating_add(1));
            if entry.slots == 0 {
                continue;
            }
            let set = match seen.get(&(entry.ring, entry.slots)) {
                Some(known) => known.clone(),
                None => {
                    let found = self.adopt(entry);
                    seen.insert((entry.ring, entry.slots), found.clone());
                    found
                }
            };
            if let Some(set) = set {
                if let Some(ring) = self.rings.get_mut(&set) {
                    ring.users += 1;
                }
                self.sets.insert(key, set);
            }
        }
        Ok(())
    }

    /// Reads a ring back. None for one that is not as we make them: whoever leads there is set anew.
    fn adopt(&mut self, entry: ServiceEntry) -> Option<Vec<Backend>> {
        if !entry.slots.is_power_of_two() || entry.slots < RingBlock::LEN as u32 {
            return None;
        }
        let end = entry.ring.checked_add(entry.slots)?;
        let slots: Vec<u32> = (entry.ring..end).map(|slot| self.slot(slot)).collect::<Option<_>>()?;
        let named: BTreeSet<u32> = slots.iter().copied().collect();
        let mut set: Vec<(Backend, u32)> =
            named.iter().map(|number| Some((self.backends.get(*number)?, *number))).collect::<Option<_>>()?;
        set.sort_unstable();
        let (set, numbers): (Vec<Backend>, Vec<u32>) = set.into_iter().unzip();
        let as_made = ring::fill(&names(&set)).iter().map(|place| numbers[*place as usize]).eq(slots);
        let known_otherwise = |(backend, number): (&Backend, &u32)| {
            self.numbers.get(backend).is_some_and(|(known, _)| known != number)
        };
        if !as_made
            || set.windows(2).any(|pair| pair[0] == pair[1])
            || self.rings.contains_key(&set)
            || set.iter().zip(&numbers).any(known_otherwise)
            || !self.room.reserve(entry.ring / BLOCK, entry.slots / BLOCK)
        {
            return None;
        }
        for (backend, number) in set.iter().zip(&numbers) {
            self.numbers.entry(*backend).or_insert((*number, 0)).1 += 1;
            self.free_numbers.remove(number);
        }
        self.rings.insert(set.clone(), Ring { at: entry.ring, numbers, users: 0 });
        Some(set)
    }

    fn slot(&self, slot: u32) -> Option<u32> {
        let block = self.slots.get(slot / BLOCK)?;
        block.slots.get((slot % BLOCK) as usize).copied()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.ports.iter().map(|(key, _)| key)
    }

    /// Ports of services, blocks of rings, and backends in use.
    pub(super) fn fill(&self) -> [usize; 3] {
        [self.ports.len(), self.room.used() as usize, BACKENDS_CAPACITY - self.free_numbers.len()]
    }

    /// Whether connections to the port go where they should.
    pub(super) fn holds(&self, key: &ServiceKey, target: &Target) -> bool {
        let set = self.sets.get(key).map_or(&[][..], Vec::as_slice);
        self.ports.get(key).is_some_and(|entry| {
            entry.affinity == target.affinity
                && set == target.backends
                && (entry.slots == 0) == target.backends.is_empty()
        })
    }

    /// Makes connections to the port go there.
    pub(super) fn set(&mut self, key: ServiceKey, target: &Target) -> Result<(), Error> {
        if self.holds(&key, target) {
            return Ok(());
        }
        self.wake();
        let ring = self.ensure_ring(&target.backends)?;
        let before = self.ports.get(&key).copied();
        let number = before.map_or(self.next_number, |entry| entry.number);
        let slots = ring::slots(target.backends.len());
        let entry = ServiceEntry { ring, slots, number, affinity: target.affinity };
        if let Err(error) = self.ports.set(key, entry) {
            self.drop_if_unused(&target.backends);
            return Err(error);
        }
        self.next_number = self.next_number.max(number.saturating_add(1));
        if let Some(ring) = self.rings.get_mut(&target.backends) {
            ring.users += 1;
        }
        let left = if target.backends.is_empty() {
            self.sets.remove(&key)
        } else {
            self.sets.insert(key, target.backends.clone())
        };
        // Those that no new connection may go to.
        if before.is_some_and(|entry| entry.affinity != 0) {
            let stay: BTreeSet<u32> =
                target.backends.iter().filter_map(|backend| Some(self.numbers.get(backend)?.0)).collect();
            self.forget_clients(number, &stay)?;
        }
        if let Some(left) = left {
            self.leave(&left);
        }
        Ok(())
    }

    /// Notes which service the port is of, for those who read its counts.
    pub(super) fn name(&self, key: &ServiceKey, service: &ServiceId) {
        if let Some(entry) = self.ports.get(key) {
            let protocol = if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
            let name = ServicePort { service: service.clone(), protocol, port: key.port.get() };
            self.names.learn([(&name, &entry.number)]);
        }
    }

    /// What the programs have counted for the port goes with it.
    fn forget_counts(&mut self, number: u32) -> Result<(), Error> {
        self.names.forget(number);
        self.writes.count();
        match self.counts.remove(&number) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                Err(failed(format!("remove from the map {SERVICE_COUNTS}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Makes the port be gone.
    pub(super) fn remove(&mut self, key: &ServiceKey) -> Result<(), Error> {
        let before = self.ports.get(key).copied();
        self.ports.remove(key)?;
        if let Some(entry) = before {
            self.forget_counts(entry.number)?;
        }
        if let Some(entry) = before.filter(|entry| entry.affinity != 0) {
            self.forget_clients(entry.number, &BTreeSet::new())?;
        }
        if let Some(set) = self.sets.remove(key) {
            self.leave(&set);
        }
        Ok(())
    }

    /// The first slot of the set's ring, which is made if there is none.
    fn ensure_ring(&mut self, set: &[Backend]) -> Result<u32, Error> {
        if set.is_empty() {
            return Ok(0);
        }
        if let Some(ring) = self.rings.get(set) {
            return Ok(ring.at);
        }
        let size = ring::slots(set.len()) / BLOCK;
        let full = |map, capacity| {
            let what = format!("write to the map {map}, which is full ({capacity} entries)");
            failed(what, std::io::Error::from_raw_os_error(libc::E2BIG))
        };
        let block = self.room.take(size).ok_or_else(|| full(RING, RING_CAPACITY))?;
        let mut numbers = vec![];
        for backend in set {
            match self.number(*backend) {
                Some(number) => numbers.push(number),
                None => {
                    self.unname(&set[..numbers.len()]);
                    self.room.give(block, size);
                    return Err(full(BACKENDS, BACKENDS_CAPACITY));
                }
            }
        }
        let filled = ring::fill(&names(set));
        for (place, slots) in filled.chunks_exact(RingBlock::LEN).enumerate() {
            let mut piece = RingBlock { slots: [0; RingBlock::LEN] };
            for (slot, backend) in piece.slots.iter_mut().zip(slots) {
                *slot = numbers[*backend as usize];
            }
            self.slots.set(block + place as u32, piece);
        }
        self.writes.count();
        self.rings.insert(set.to_vec(), Ring { at: block * BLOCK, numbers, users: 0 });
        Ok(block * BLOCK)
    }

    /// The number of a backend, which is written if it has none; named once more.
    fn number(&mut self, backend: Backend) -> Option<u32> {
        if let Some((number, names)) = self.numbers.get_mut(&backend) {
            *names += 1;
            return Some(*number);
        }
        let number = self.free_numbers.pop_first()?;
        self.backends.set(number, backend);
        self.writes.count();
        self.numbers.insert(backend, (number, 1));
        Some(number)
    }

    /// One port less leads to the set's ring.
    fn leave(&mut self, set: &[Backend]) {
        if let Some(ring) = self.rings.get_mut(set) {
            ring.users = ring.users.saturating_sub(1);
        }
        self.drop_if_unused(set);
    }

    fn drop_if_unused(&mut self, set: &[Backend]) {
        if self.rings.get(set).is_none_or(|ring| ring.users > 0) {
            return;
        }
        if let Some(ring) = self.rings.remove(set) {
            let size = ring::slots(ring.numbers.len()) / BLOCK;
            self.resting.push_back((Instant::now(), Freed::Slots { at: ring.at / BLOCK, size }));
            self.unname(set);
        }
    }

    /// One ring less names each of these.
    fn unname(&mut self, set: &[Backend]) {
        for backend in set {
            let Some((number, names)) = self.numbers.get_mut(backend) else { continue };
            *names -= 1;
            if *names == 0 {
                self.resting.push_back((Instant::now(), Freed::Backend(*number)));
                self.numbers.remove(backend);
            }
        }
    }

    /// What has rested is used again.
    fn wake(&mut self) {
        while self.resting.front().is_some_and(|(since, _)| since.elapsed() >= AT_REST) {
            match self.resting.pop_front() {
                Some((_, Freed::Slots { at, size })) => self.room.give(at, size),
                Some((_, Freed::Backend(number))) => drop(self.free_numbers.insert(number)),
                None => {}
            }
        }
    }

    /// Clients of a service's port are with nobody but these any more.
    fn forget_clients(&mut self, service: u32, stay: &BTreeSet<u32>) -> Result<(), Error> {
        let read = |error| failed(format!("read the map {AFFINITY}"), error);
        let mut gone = vec![];
        for entry in self.affinity.iter() {
            match entry {
                Ok((key, with)) if key.service == service && !stay.contains(&with.backend) => gone.push(key),
                Ok(_) => {}
                // The programs write there all the time; one that was pushed out meanwhile is gone as well.
                Err(maps::MapError::KeyNotFound) => {}
                Err(error) => return Err(read(error)),
            }
        }
        for key in gone {
            self.writes.count();
            match self.affinity.remove(&key) {
                Ok(()) | Err(maps::MapError::KeyNotFound) => {}
                Err(error) => match errno(&error) {
                    Some(libc::ENOENT) => {}
                    _ => return Err(failed(format!("remove from the map {AFFINITY}"), error)),
                },
            }
        }
        Ok(())
    }
}

/// Slots of a block.
const BLOCK: u32 = RingBlock::LEN as u32;

fn room() -> Arena {
    Arena::new(RING_CAPACITY as u32)
}

/// What tells backends apart on every node alike.
fn names(set: &[Backend]) -> Vec<&[u8]> {
    set.iter().map(bytemuck::bytes_of).collect()
}
