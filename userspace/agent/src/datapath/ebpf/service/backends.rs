//! Backend sets in the kernel.
//!
//! A small set is part of the entry of the service port. A large set has a Maglev table and a sorted member list, both in
//! `ctv_ring`; service ports with equal sets share them. Both refer to IPv6 backends, and the table to all backends, by
//! their number in `ctv_backends`.
//!
//! Freed slots and numbers are quarantined before reuse, because a running program may still read them.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    time::{Duration, Instant},
};

use aya::maps::MapData;
use contiv_abi::{
    Address, Backend, Member, RingBlock, ServiceEntry, ServiceKey,
    maps::{BACKENDS, BACKENDS_CAPACITY, RING, RING_CAPACITY},
};

use super::{buddy::BuddyAllocator, maglev};
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, writes::Writes},
    },
};

/// Time before freed slots and numbers are reused. A program runs for microseconds.
const QUARANTINE: Duration = Duration::from_millis(200);

/// Slots per block, the unit of allocation in `ctv_ring`.
const BLOCK: u32 = RingBlock::LEN as u32;

/// A large set in the kernel.
#[derive(Debug)]
struct LargeSet {
    /// First slot of the Maglev table.
    table: u32,
    /// First slot of the member list.
    list: u32,
    /// Number of service ports that use the set.
    users: u32,
}

/// A freed resource in quarantine.
#[derive(Debug)]
enum Freed {
    /// Blocks of `ctv_ring`.
    Blocks { first: u32, count: u32 },
    /// Number of a backend.
    Number(u32),
}

/// `ctv_ring` and `ctv_backends`, and the sets in them.
pub(crate) struct BackendSets {
    slots: MmapArray<RingBlock>,
    backends: MmapArray<Backend>,
    large: HashMap<Vec<Backend>, LargeSet>,
    /// Number of each backend that has one, and how many sets use it.
    numbers: HashMap<Backend, (u32, u32)>,
    free_numbers: BTreeSet<u32>,
    blocks: BuddyAllocator,
    quarantine: VecDeque<(Instant, Freed)>,
    writes: Writes,
}

impl BackendSets {
    pub(crate) fn new(slots: MapData, backends: MapData, writes: Writes) -> Result<Self, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(BackendSets {
            slots: MmapArray::new(slots, RING_CAPACITY).map_err(|error| map(RING, error))?,
            backends: MmapArray::new(backends, BACKENDS_CAPACITY).map_err(|error| map(BACKENDS, error))?,
            large: HashMap::new(),
            numbers: HashMap::new(),
            free_numbers: (0..BACKENDS_CAPACITY as u32).collect(),
            blocks: BuddyAllocator::new(RING_CAPACITY as u32),
            quarantine: VecDeque::new(),
            writes,
        })
    }

    /// Forgets all sets, before those in the kernel are adopted.
    pub(crate) fn clear(&mut self) {
        self.large.clear();
        self.numbers.clear();
        self.quarantine.clear();
        self.free_numbers = (0..BACKENDS_CAPACITY as u32).collect();
        self.blocks = BuddyAllocator::new(RING_CAPACITY as u32);
    }

    /// Number of used blocks of `ctv_ring`, and of used backend numbers.
    pub(crate) fn usage(&self) -> [usize; 2] {
        [self.blocks.used() as usize, BACKENDS_CAPACITY - self.free_numbers.len()]
    }

    /// Reads a small set from the entry of a service port. `None` if the entry differs from the entry that this agent
    /// writes; the port must then be set again.
    pub(crate) fn adopt_small(&mut self, key: &ServiceKey, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        let (members, unused) = entry.members.split_at_checked(entry.slots as usize)?;
        let ip6 = !key.ip.is_v4();
        let read = |member: &Member| match ip6 {
            false => Some(Backend::new(Address::v4(member.mark), u16::try_from(member.at).ok()?)),
            true => self.backends.get(member.at),
        };
        let set: Vec<Backend> = members.iter().map(read).collect::<Option<_>>()?;
        let as_written =
            members.iter().zip(&set).all(|(member, backend)| *member == backend.member(member.at, ip6));
        let ordered = set.windows(2).all(|pair| pair[0] < pair[1]);
        let unused_empty = unused.iter().all(|member| *member == Member::default());
        if !as_written || !ordered || entry.ring != 0 || !unused_empty {
            return None;
        }
        if ip6 {
            self.adopt_numbers(set.iter().copied().zip(members.iter().map(|member| member.at)).collect())?;
        }
        Some(set)
    }

    /// Reads a large set. `None` if its table or list differs from those that this agent writes; the service ports that use
    /// it must then be set again.
    pub(crate) fn adopt_large(&mut self, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        if !entry.slots.is_power_of_two() || !entry.ring.is_multiple_of(BLOCK) {
            return None;
        }
        let slots = self.read_slots(entry.ring, entry.slots)?;
        let distinct: BTreeSet<u32> = slots.iter().copied().collect();
        let mut set: Vec<(Backend, u32)> = distinct
            .iter()
            .map(|number| Some((self.backends.get(*number)?, *number)))
            .collect::<Option<_>>()?;
        set.sort_unstable();
        let (list, len) = entry.members[0].as_list();
        let list_matches = list.is_multiple_of(BLOCK) && len as usize == set.len();
        if !list_matches || self.read_slots(list, 2 * len)? != member_list(&set) {
            return None;
        }
        let (set, numbers): (Vec<Backend>, Vec<u32>) = set.into_iter().unzip();
        let as_written =
            maglev::populate(&as_bytes(&set)).iter().map(|index| numbers[*index as usize]).eq(slots);
        if !as_written
            || set.windows(2).any(|pair| pair[0] == pair[1])
            || self.large.contains_key(&set)
            || !self.blocks.reserve(entry.ring / BLOCK, entry.slots / BLOCK)
        {
            return None;
        }
        let numbered = set.iter().copied().zip(numbers.iter().copied()).collect();
        if !self.blocks.reserve(list / BLOCK, list_blocks(set.len()))
            || self.adopt_numbers(numbered).is_none()
        {
            // The reserved blocks leak until the next start reads the map again.
            return None;
        }
        self.large.insert(set.clone(), LargeSet { table: entry.ring, list, users: 0 });
        Some(set)
    }

    /// Records that one more service port uses an adopted set.
    pub(crate) fn add_user(&mut self, set: &[Backend]) {
        if let Some(large) = self.large.get_mut(set) {
            large.users += 1;
        }
    }

    /// Records the numbers of backends. `None`, without a change, if a backend has another number or a number is taken.
    fn adopt_numbers(&mut self, numbered: Vec<(Backend, u32)>) -> Option<()> {
        let conflicts = |(backend, number): &(Backend, u32)| {
            let known = self.numbers.get(backend).map(|(known, _)| known);
            known.map_or(!self.free_numbers.contains(number), |known| known != number)
        };
        if numbered.iter().any(conflicts) {
            return None;
        }
        for (backend, number) in numbered {
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

    /// Writes the set unless it is in the kernel, and returns an entry of a service port that refers to it, with number and
    /// affinity zero. [`release`](Self::release) reverts it.
    pub(crate) fn acquire(&mut self, set: &[Backend]) -> Result<ServiceEntry, Error> {
        let mut members = [Member::default(); ServiceEntry::FEW];
        if set.len() > members.len() {
            let large = self.ensure_large(set)?;
            large.users += 1;
            let (table, list) = (large.table, large.list);
            members[0] = Member::list(list, set.len() as u32);
            return Ok(ServiceEntry {
                number: 0,
                affinity: 0,
                slots: maglev::slots(set.len()),
                ring: table,
                members,
            });
        }
        for (index, backend) in set.iter().enumerate() {
            let ip6 = !backend.ip.is_v4();
            let Some(number) = (if ip6 { self.acquire_number(*backend) } else { Some(0) }) else {
                self.release(&set[..index]);
                return Err(full(BACKENDS, BACKENDS_CAPACITY));
            };
            members[index] = backend.member(number, ip6);
        }
        Ok(ServiceEntry { number: 0, affinity: 0, slots: set.len() as u32, ring: 0, members })
    }

    fn ensure_large(&mut self, set: &[Backend]) -> Result<&mut LargeSet, Error> {
        if !self.large.contains_key(set) {
            let large = self.write_large(set)?;
            self.large.insert(set.to_vec(), large);
        }
        self.large.get_mut(set).ok_or_else(|| failed("create a Maglev table", "it does not exist"))
    }

    fn write_large(&mut self, set: &[Backend]) -> Result<LargeSet, Error> {
        let (table_size, list_size) = (maglev::slots(set.len()) / BLOCK, list_blocks(set.len()));
        let table = self.blocks.allocate(table_size).ok_or_else(|| full(RING, RING_CAPACITY))?;
        let Some(list) = self.blocks.allocate(list_size) else {
            self.blocks.free(table, table_size);
            return Err(full(RING, RING_CAPACITY));
        };
        let mut numbers = vec![];
        for backend in set {
            match self.acquire_number(*backend) {
                Some(number) => numbers.push(number),
                None => {
                    self.release_numbers(&set[..numbers.len()]);
                    self.blocks.free(table, table_size);
                    self.blocks.free(list, list_size);
                    return Err(full(BACKENDS, BACKENDS_CAPACITY));
                }
            }
        }
        let numbered: Vec<(Backend, u32)> = set.iter().copied().zip(numbers.iter().copied()).collect();
        self.write_slots(list, &member_list(&numbered));
        let slots: Vec<u32> =
            maglev::populate(&as_bytes(set)).iter().map(|index| numbers[*index as usize]).collect();
        self.write_slots(table, &slots);
        self.writes.count();
        Ok(LargeSet { table: table * BLOCK, list: list * BLOCK, users: 0 })
    }

    fn write_slots(&mut self, first: u32, slots: &[u32]) {
        for (index, slots) in (first..).zip(slots.chunks(RingBlock::LEN)) {
            let mut block = RingBlock { slots: [0; RingBlock::LEN] };
            block.slots[..slots.len()].copy_from_slice(slots);
            self.slots.set(index, block);
        }
    }

    /// Number of a backend, for one more set. Writes the backend if it has no number; `None` if all numbers are taken.
    fn acquire_number(&mut self, backend: Backend) -> Option<u32> {
        if let Some((number, users)) = self.numbers.get_mut(&backend) {
            *users += 1;
            return Some(*number);
        }
        let number = self.free_numbers.pop_first()?;
        self.backends.set(number, backend);
        self.writes.count();
        self.numbers.insert(backend, (number, 1));
        Some(number)
    }

    /// Records that one service port less uses the set. Frees an unused set.
    pub(crate) fn release(&mut self, set: &[Backend]) {
        if set.len() <= ServiceEntry::FEW {
            return self.release_numbers(set);
        }
        let Some(large) = self.large.get_mut(set) else { return };
        large.users = large.users.saturating_sub(1);
        if large.users == 0
            && let Some(large) = self.large.remove(set)
        {
            let blocks =
                [(large.table, maglev::slots(set.len()) / BLOCK), (large.list, list_blocks(set.len()))];
            let now = Instant::now();
            let freed = blocks.map(|(slot, count)| (now, Freed::Blocks { first: slot / BLOCK, count }));
            self.quarantine.extend(freed);
            self.release_numbers(set);
        }
    }

    /// Records that one set less uses these backends. Ignores backends without a number.
    fn release_numbers(&mut self, set: &[Backend]) {
        for backend in set {
            let Some((number, users)) = self.numbers.get_mut(backend) else { continue };
            *users -= 1;
            if *users == 0 {
                self.quarantine.push_back((Instant::now(), Freed::Number(*number)));
                self.numbers.remove(backend);
            }
        }
    }

    /// Frees resources whose quarantine has ended.
    pub(crate) fn end_quarantine(&mut self) {
        while self.quarantine.front().is_some_and(|(since, _)| since.elapsed() >= QUARANTINE) {
            match self.quarantine.pop_front() {
                Some((_, Freed::Blocks { first, count })) => self.blocks.free(first, count),
                Some((_, Freed::Number(number))) => drop(self.free_numbers.insert(number)),
                None => {}
            }
        }
    }
}

/// The backends as bytes, which are the same on every node.
fn as_bytes(set: &[Backend]) -> Vec<&[u8]> {
    set.iter().map(bytemuck::bytes_of).collect()
}

/// The sorted member list, in which programs look up the backend of a client with session affinity: two slots per member.
fn member_list(set: &[(Backend, u32)]) -> Vec<u32> {
    let word = |(backend, number): &(Backend, u32)| backend.member(*number, !backend.ip.is_v4()).word();
    let mut words: Vec<u64> = set.iter().map(word).collect();
    words.sort_unstable();
    words.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
}

/// Number of blocks of the member list.
fn list_blocks(backends: usize) -> u32 {
    ((2 * backends).div_ceil(RingBlock::LEN) as u32).next_power_of_two()
}

/// Error of a write to a full map.
pub(super) fn full(map: &str, capacity: usize) -> Error {
    let what = format!("write to the map {map}, which is full ({capacity} entries)");
    failed(what, std::io::Error::from_raw_os_error(libc::E2BIG))
}
