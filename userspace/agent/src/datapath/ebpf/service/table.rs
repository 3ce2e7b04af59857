//! What the kernel holds for services: their ports, and the backends that these lead to.
//!
//! A small set of backends is in the entry of the port itself. Ports with the same large set share a ring. What is
//! written is written from the end: backends, the ring, then the port that leads there, in one step; so a connection
//! finds the old set or the new one. What nobody leads to any more is used again only after a while, when no packet is
//! on its way through it. Clients that stay with a backend are the programs' affair: they look whether the set has it.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use aya::maps::MapData;
use contiv_abi::{
    Address, Backend, Member, RingBlock, ServiceEntry, ServiceKey, TCP,
    maps::{BACKENDS, BACKENDS_CAPACITY, RING, RING_CAPACITY, SERVICE_COUNTS, SERVICE_COUNTS_CAPACITY},
};
use contiv_model::{name::ServiceId, service::Protocol};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::Mapping, names::ServiceNames, table::Table, writes::Writes},
        service::{buddy::Arena, counts::Counts, ring},
    },
    telemetry::ServicePort,
};

/// Where the connections to one port of a service go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Ready backends, sorted, each once.
    pub(crate) backends: Vec<Backend>,
    /// Seconds that a client stays with its backend; zero for not at all.
    pub(crate) affinity: u32,
}

/// How long what was freed is left alone. A packet is through in microseconds.
const AT_REST: Duration = Duration::from_millis(200);

/// A large set in the kernel.
#[derive(Debug)]
struct Ring {
    /// The first slot of the ring.
    at: u32,
    /// The first slot of the list of its members.
    list: u32,
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
pub(crate) struct Services {
    ports: Table<ServiceKey, ServiceEntry>,
    slots: Mapping<RingBlock>,
    backends: Mapping<Backend>,
    counts: Counts,
    names: ServiceNames,
    /// Of large sets.
    rings: HashMap<Vec<Backend>, Ring>,
    /// The set of each port that has one and whose entry is whole.
    sets: HashMap<ServiceKey, Vec<Backend>>,
    /// The number of each backend that has one, and how many rings and entries name it.
    numbers: HashMap<Backend, (u32, u32)>,
    free_numbers: BTreeSet<u32>,
    room: Arena,
    resting: VecDeque<(Instant, Freed)>,
    next_number: NonZeroU32,
    writes: Writes,
}

impl Services {
    pub(crate) fn new(
        ports: Table<ServiceKey, ServiceEntry>,
        slots: MapData,
        backends: MapData,
        counts: Counts,
        names: ServiceNames,
        writes: Writes,
    ) -> Result<Self, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(Services {
            ports,
            slots: Mapping::new(slots, RING_CAPACITY).map_err(|error| map(RING, error))?,
            backends: Mapping::new(backends, BACKENDS_CAPACITY).map_err(|error| map(BACKENDS, error))?,
            counts,
            names,
            rings: HashMap::new(),
            sets: HashMap::new(),
            numbers: HashMap::new(),
            free_numbers: (0..BACKENDS_CAPACITY as u32).collect(),
            room: room(),
            resting: VecDeque::new(),
            next_number: NonZeroU32::MIN,
            writes,
        })
    }

    /// Learns what is there, with the rings that are as we make them.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.rings.clear();
        self.sets.clear();
        self.numbers.clear();
        self.resting.clear();
        self.free_numbers = (0..BACKENDS_CAPACITY as u32).collect();
        self.room = room();
        self.next_number = NonZeroU32::MIN;
        let mut ports: Vec<(ServiceKey, ServiceEntry)> = self.ports.iter().map(|(k, e)| (*k, *e)).collect();
        ports.sort_unstable_by_key(|(key, _)| *key);
        let mut seen: HashMap<(u32, u32), Option<Vec<Backend>>> = HashMap::new();
        let mut live = BTreeSet::new();
        for (key, entry) in ports {
            self.next_number = self.next_number.max(after(entry.number));
            live.insert(entry.number);
            let set = if entry.slots as usize <= ServiceEntry::FEW {
                self.adopt_few(&key, &entry)
            } else if let Some(known) = seen.get(&(entry.ring, entry.slots)) {
                known.clone()
            } else {
                let found = self.adopt_ring(&entry);
                seen.insert((entry.ring, entry.slots), found.clone());
                found
            };
            if let Some(set) = set.filter(|set| !set.is_empty()) {
                if let Some(ring) = self.rings.get_mut(&set) {
                    ring.users += 1;
                }
                self.sets.insert(key, set);
            }
        }
        self.counts.keep(&live);
        Ok(())
    }

    /// Reads a small set back. None for one that is not as we make them: its port is set anew.
    fn adopt_few(&mut self, key: &ServiceKey, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        let (members, rest) = entry.members.split_at_checked(entry.slots as usize)?;
        let ip6 = !key.ip.is_v4();
        let read = |member: &Member| match ip6 {
            false => Some(Backend::new(Address::v4(member.mark), u16::try_from(member.at).ok()?)),
            true => self.backends.get(member.at),
        };
        let set: Vec<Backend> = members.iter().map(read).collect::<Option<_>>()?;
        let as_made =
            members.iter().zip(&set).all(|(member, backend)| *member == backend.member(member.at, ip6));
        let ordered = set.windows(2).all(|pair| pair[0] < pair[1]);
        if !as_made || !ordered || entry.ring != 0 || rest.iter().any(|member| *member != Member::default()) {
            return None;
        }
        if ip6 {
            self.adopt_numbers(set.iter().copied().zip(members.iter().map(|member| member.at)).collect())?;
        }
        Some(set)
    }

    /// Reads a ring back. None for one that is not as we make them: whoever leads there is set anew.
    fn adopt_ring(&mut self, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        if !entry.slots.is_power_of_two() || !entry.ring.is_multiple_of(BLOCK) {
            return None;
        }
        let slots = self.read_slots(entry.ring, entry.slots)?;
        let named: BTreeSet<u32> = slots.iter().copied().collect();
        let mut set: Vec<(Backend, u32)> =
            named.iter().map(|number| Some((self.backends.get(*number)?, *number))).collect::<Option<_>>()?;
        set.sort_unstable();
        let (list, len) = entry.members[0].as_list();
        let listed = list.is_multiple_of(BLOCK) && len as usize == set.len();
        if !listed || self.read_slots(list, 2 * len)? != list_of(&set) {
            return None;
        }
        let (set, numbers): (Vec<Backend>, Vec<u32>) = set.into_iter().unzip();
        let as_made = ring::fill(&names(&set)).iter().map(|place| numbers[*place as usize]).eq(slots);
        if !as_made
            || set.windows(2).any(|pair| pair[0] == pair[1])
            || self.rings.contains_key(&set)
            || !self.room.reserve(entry.ring / BLOCK, entry.slots / BLOCK)
        {
            return None;
        }
        let named = set.iter().copied().zip(numbers.iter().copied()).collect();
        if !self.room.reserve(list / BLOCK, list_blocks(set.len())) || self.adopt_numbers(named).is_none() {
            // What cannot be is left alone until the next start reads it again.
            return None;
        }
        self.rings.insert(set.clone(), Ring { at: entry.ring, list, users: 0 });
        Some(set)
    }

    /// Notes that backends have these numbers. None, and nothing is noted, if one is known by another.
    fn adopt_numbers(&mut self, named: Vec<(Backend, u32)>) -> Option<()> {
        let otherwise = |(backend, number): &(Backend, u32)| {
            let known = self.numbers.get(backend).map(|(known, _)| known);
            known.map_or(!self.free_numbers.contains(number), |known| known != number)
        };
        if named.iter().any(otherwise) {
            return None;
        }
        for (backend, number) in named {
            self.numbers.entry(backend).or_insert((number, 0)).1 += 1;
            self.free_numbers.remove(&number);
        }
        Some(())
    }

    fn read_slots(&self, from: u32, len: u32) -> Option<Vec<u32>> {
        let slot = |slot: u32| {
            let block = self.slots.get(slot / BLOCK)?;
            block.slots.get((slot % BLOCK) as usize).copied()
        };
        (from..from.checked_add(len)?).map(slot).collect()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.ports.iter().map(|(key, _)| key)
    }

    /// Ports of services, blocks of rings, and numbers of backends in use.
    pub(crate) fn fill(&self) -> [usize; 3] {
        [self.ports.len(), self.room.used() as usize, BACKENDS_CAPACITY - self.free_numbers.len()]
    }

    /// Whether connections to the port go where they should.
    pub(crate) fn holds(&self, key: &ServiceKey, target: &Target) -> bool {
        let set = self.sets.get(key).map_or(&[][..], Vec::as_slice);
        self.ports.get(key).is_some_and(|entry| {
            entry.affinity == target.affinity
                && set == target.backends
                && (entry.slots == 0) == target.backends.is_empty()
        })
    }

    /// Makes connections to the port go there.
    pub(crate) fn set(&mut self, key: ServiceKey, target: &Target) -> Result<(), Error> {
        if self.holds(&key, target) {
            return Ok(());
        }
        self.wake();
        let before = self.ports.get(&key).copied();
        let number = match before {
            Some(entry) => entry.number,
            // If this goes no further, the number is free again when the maps are read next.
            None => self.number_port()?,
        };
        let place = self.place(&target.backends)?;
        let entry = ServiceEntry { number, affinity: target.affinity, ..place };
        if let Err(error) = self.ports.set(key, entry) {
            self.leave(&target.backends);
            return Err(error);
        }
        let left = if target.backends.is_empty() {
            self.sets.remove(&key)
        } else {
            self.sets.insert(key, target.backends.clone())
        };
        if let Some(left) = left {
            self.leave(&left);
        }
        Ok(())
    }

    /// Notes which service the port is of, for those who read its counts.
    pub(crate) fn name(&self, key: &ServiceKey, service: &ServiceId) {
        if let Some(entry) = self.ports.get(key) {
            let protocol = if key.protocol == TCP { Protocol::Tcp } else { Protocol::Udp };
            let name = ServicePort { service: service.clone(), protocol, port: key.port.get() };
            self.names.learn([(&name, &entry.number)]);
        }
    }

    /// A number for a port that has none; from now on it is counted for it.
    fn number_port(&mut self) -> Result<u32, Error> {
        let number = self.counts.begin(self.next_number);
        let number = number.ok_or_else(|| full(SERVICE_COUNTS, SERVICE_COUNTS_CAPACITY))?;
        self.next_number = after(number.get());
        Ok(number.get())
    }

    /// What the programs have counted for the port goes with it.
    fn forget_counts(&mut self, number: u32) {
        self.names.forget(number);
        self.writes.count();
        self.counts.end(number);
    }

    /// Makes the port be gone.
    pub(crate) fn remove(&mut self, key: &ServiceKey) -> Result<(), Error> {
        let before = self.ports.get(key).copied();
        self.ports.remove(key)?;
        if let Some(entry) = before {
            self.forget_counts(entry.number);
        }
        if let Some(set) = self.sets.remove(key) {
            self.leave(&set);
        }
        Ok(())
    }

    /// An entry that leads to the set, for one more port; all that it leads to is there. `leave` undoes it.
    fn place(&mut self, set: &[Backend]) -> Result<ServiceEntry, Error> {
        let mut members = [Member::default(); ServiceEntry::FEW];
        if set.len() > members.len() {
            let ring = self.ensure_ring(set)?;
            ring.users += 1;
            let (at, list) = (ring.at, ring.list);
            members[0] = Member::list(list, set.len() as u32);
            return Ok(ServiceEntry {
                number: 0,
                affinity: 0,
                slots: ring::slots(set.len()),
                ring: at,
                members,
            });
        }
        for (place, backend) in set.iter().enumerate() {
            let ip6 = !backend.ip.is_v4();
            let Some(number) = (if ip6 { self.number(*backend) } else { Some(0) }) else {
                self.leave(&set[..place]);
                return Err(full(BACKENDS, BACKENDS_CAPACITY));
            };
            members[place] = backend.member(number, ip6);
        }
        Ok(ServiceEntry { number: 0, affinity: 0, slots: set.len() as u32, ring: 0, members })
    }

    /// The ring of a large set, which is made if there is none.
    fn ensure_ring(&mut self, set: &[Backend]) -> Result<&mut Ring, Error> {
        if !self.rings.contains_key(set) {
            let ring = self.make_ring(set)?;
            self.rings.insert(set.to_vec(), ring);
        }
        self.rings.get_mut(set).ok_or_else(|| failed("make a ring", "it is gone"))
    }

    fn make_ring(&mut self, set: &[Backend]) -> Result<Ring, Error> {
        let (size, list_size) = (ring::slots(set.len()) / BLOCK, list_blocks(set.len()));
        let block = self.room.take(size).ok_or_else(|| full(RING, RING_CAPACITY))?;
        let Some(list) = self.room.take(list_size) else {
            self.room.give(block, size);
            return Err(full(RING, RING_CAPACITY));
        };
        let mut numbers = vec![];
        for backend in set {
            match self.number(*backend) {
                Some(number) => numbers.push(number),
                None => {
                    self.unname(&set[..numbers.len()]);
                    self.room.give(block, size);
                    self.room.give(list, list_size);
                    return Err(full(BACKENDS, BACKENDS_CAPACITY));
                }
            }
        }
        let named: Vec<(Backend, u32)> = set.iter().copied().zip(numbers.iter().copied()).collect();
        self.write_slots(list, &list_of(&named));
        let filled: Vec<u32> = ring::fill(&names(set)).iter().map(|place| numbers[*place as usize]).collect();
        self.write_slots(block, &filled);
        self.writes.count();
        Ok(Ring { at: block * BLOCK, list: list * BLOCK, users: 0 })
    }

    fn write_slots(&mut self, first: u32, slots: &[u32]) {
        for (block, slots) in (first..).zip(slots.chunks(RingBlock::LEN)) {
            let mut piece = RingBlock { slots: [0; RingBlock::LEN] };
            piece.slots[..slots.len()].copy_from_slice(slots);
            self.slots.set(block, piece);
        }
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

    /// One port less leads to the set.
    fn leave(&mut self, set: &[Backend]) {
        if set.len() <= ServiceEntry::FEW {
            return self.unname(set);
        }
        let Some(ring) = self.rings.get_mut(set) else { return };
        ring.users = ring.users.saturating_sub(1);
        if ring.users == 0
            && let Some(ring) = self.rings.remove(set)
        {
            let sizes = [(ring.at, ring::slots(set.len()) / BLOCK), (ring.list, list_blocks(set.len()))];
            let now = Instant::now();
            self.resting.extend(sizes.map(|(at, size)| (now, Freed::Slots { at: at / BLOCK, size })));
            self.unname(set);
        }
    }

    /// One ring or entry less names each of these; those that have no number are none of its business.
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

/// The list by which the programs know who belongs to a large set.
fn list_of(set: &[(Backend, u32)]) -> Vec<u32> {
    let word = |(backend, number): &(Backend, u32)| backend.member(*number, !backend.ip.is_v4()).word();
    let mut words: Vec<u64> = set.iter().map(word).collect();
    words.sort_unstable();
    words.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
}

/// Blocks of that list.
fn list_blocks(backends: usize) -> u32 {
    ((2 * backends).div_ceil(RingBlock::LEN) as u32).next_power_of_two()
}

/// The next number.
fn after(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number.wrapping_add(1)).unwrap_or(NonZeroU32::MIN)
}

fn full(map: &str, capacity: usize) -> Error {
    let what = format!("write to the map {map}, which is full ({capacity} entries)");
    failed(what, std::io::Error::from_raw_os_error(libc::E2BIG))
}
