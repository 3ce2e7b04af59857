//! Backend sets in the kernel.
//!
//! A small set is part of the entry of the service port. A large set has a sorted member list in `ctv_ring`. It also has
//! a ring if it has enough members and the map has space. A ring makes the lookup for new connections cheaper and does
//! not change the choice. Service ports with equal sets share both. IPv6 backends have a number in `ctv_backends`.
//!
//! Freed blocks and numbers are quarantined before reuse, because a running program may still read them.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

use aya::maps::MapData;
use contiv_abi::{
    Address, Backend, Member, RingBlock, ServiceEntry, ServiceKey,
    maps::{BACKENDS, RING},
};

use super::{buddy::BuddyAllocator, ring};
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, sizes, writes::Writes},
    },
};

/// Time before freed blocks and numbers are reused. A program runs for microseconds.
const QUARANTINE: Duration = Duration::from_millis(200);

/// Sets with more members have a ring. Up to this number, the walk over the list costs less than a microsecond for each new
/// connection, and a ring would be more than a hundred times as large as the list.
const RING_ABOVE: usize = 64;

/// Words per block, the unit of allocation in `ctv_ring`.
const BLOCK: u32 = RingBlock::LEN as u32;

/// Backends with their numbers in `ctv_backends`.
type Numbered = Vec<(Backend, u32)>;

/// A large set in the kernel.
#[derive(Debug)]
struct LargeSet {
    /// First block of the member list.
    list: u32,
    /// First block of the ring.
    ring: Option<u32>,
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
    ring: MmapArray<RingBlock>,
    backends: MmapArray<Backend>,
    large: HashMap<Vec<Backend>, LargeSet>,
    /// Digests of the rings of large sets, so that a ring that was read from the kernel is not computed again.
    digests: HashMap<Vec<Backend>, u64>,
    /// Number of each backend that has one, and how many sets use it.
    numbers: HashMap<Backend, (u32, u32)>,
    /// Numbers in use, one slot each.
    number_slots: BuddyAllocator,
    /// Blocks of `ctv_ring`.
    blocks: BuddyAllocator,
    quarantine: VecDeque<(Instant, Freed)>,
    capacity: u32,
    writes: Writes,
}

impl BackendSets {
    /// `capacity` is the number of blocks and of backends, a power of two.
    pub(crate) fn new(
        ring: MapData,
        backends: MapData,
        capacity: u32,
        writes: Writes,
    ) -> Result<Self, Error> {
        let map = |name, error| failed(format!("map {name} into memory"), error);
        Ok(BackendSets {
            ring: MmapArray::new(ring, capacity as usize).map_err(|error| map(RING, error))?,
            backends: MmapArray::new(backends, capacity as usize).map_err(|error| map(BACKENDS, error))?,
            large: HashMap::new(),
            digests: HashMap::new(),
            numbers: HashMap::new(),
            number_slots: BuddyAllocator::new(capacity),
            blocks: BuddyAllocator::new(capacity),
            capacity,
            quarantine: VecDeque::new(),
            writes,
        })
    }

    /// Clears all sets, before those in the kernel are adopted.
    pub(crate) fn clear(&mut self) {
        self.digests.retain(|set, _| self.large.contains_key(set));
        self.large.clear();
        self.numbers.clear();
        self.quarantine.clear();
        self.number_slots = BuddyAllocator::new(self.capacity);
        self.blocks = BuddyAllocator::new(self.capacity);
    }

    /// Number of blocks of `ctv_ring`, and of backend numbers.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Number of used blocks of `ctv_ring`, and of used backend numbers.
    pub(crate) fn usage(&self) -> [usize; 2] {
        [self.blocks.used() as usize, self.number_slots.used() as usize]
    }

    /// Reads a small set from the entry of a service port. `None` if the entry differs from the entry that this agent
    /// writes; the port must then be set again.
    pub(crate) fn adopt_small(&mut self, key: &ServiceKey, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        let (members, unused) = entry.members.split_at_checked(entry.backends as usize)?;
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
        if !as_written || !ordered || entry.ring != ServiceEntry::NO_RING || !unused_empty {
            return None;
        }
        if ip6 {
            self.adopt_numbers(set.iter().copied().zip(members.iter().map(|member| member.at)).collect())?;
        }
        Some(set)
    }

    /// Reads a large set. `None` if its list or ring differs from those that this agent writes; the service ports that use
    /// it must then be set again.
    pub(crate) fn adopt_large(&mut self, key: &ServiceKey, entry: &ServiceEntry) -> Option<Vec<Backend>> {
        let (list, len) = entry.members[0].as_list();
        if !list.is_multiple_of(BLOCK) || len != entry.backends {
            return None;
        }
        let list = list / BLOCK;
        let words = self.read_words(list, len.checked_mul(2)?)?;
        let (set, numbers) = self.read_list(&words, !key.ip.is_v4())?;
        let ring = match entry.ring {
            ServiceEntry::NO_RING => None,
            ring if !ring.is_multiple_of(BLOCK) => return None,
            ring => Some(ring / BLOCK),
        };
        if set.windows(2).any(|pair| pair[0] >= pair[1])
            || self.large.contains_key(&set)
            || !ring.is_none_or(|ring| self.is_ring(&set, &words, ring))
        {
            return None;
        }
        let mut reserved = vec![];
        for (first, count) in blocks(set.len(), list, ring) {
            if self.blocks.reserve(first, count) {
                reserved.push((first, count));
            }
        }
        if reserved.len() != blocks(set.len(), list, ring).count() || self.adopt_numbers(numbers).is_none() {
            reserved.into_iter().for_each(|(first, count)| self.blocks.free(first, count));
            return None;
        }
        self.large.insert(set.clone(), LargeSet { list, ring, users: 0 });
        Some(set)
    }

    /// The backends of a list, sorted, and the numbers of those that have one. `None` if the list is not one that this agent
    /// writes.
    fn read_list(&self, words: &[u32], ip6: bool) -> Option<(Vec<Backend>, Numbered)> {
        let mut members = vec![];
        for pair in words.chunks_exact(2) {
            let member = Member::from_word(u64::from(pair[1]) << 32 | u64::from(pair[0]));
            let backend = match ip6 {
                false => Backend::new(Address::v4(member.mark), u16::try_from(member.at).ok()?),
                true => self.backends.get(member.at)?,
            };
            members.push((backend, member.at));
        }
        members.sort_unstable();
        if member_list(&members) != words {
            return None;
        }
        let set = members.iter().map(|(backend, _)| *backend).collect();
        Some((set, if ip6 { members } else { vec![] }))
    }

    /// Reports whether the blocks starting at `first` contain the ring of a set with this list.
    fn is_ring(&mut self, set: &[Backend], list: &[u32], first: u32) -> bool {
        let Some(words) = self.read_words(first, RingBlock::RING * BLOCK) else { return false };
        let found = ring::digest(list, &words);
        if self.digests.get(set) == Some(&found) {
            return true;
        }
        let is_ring = ring::words(list, ip6(set)) == words;
        if is_ring {
            self.digests.insert(set.to_vec(), found);
        }
        is_ring
    }

    /// Records that one more service port uses an adopted set.
    pub(crate) fn add_user(&mut self, set: &[Backend]) {
        if let Some(large) = self.large.get_mut(set) {
            large.users += 1;
        }
    }

    /// Records the numbers of backends. Returns `None`, without a change, if a backend has another number or a number is
    /// taken.
    fn adopt_numbers(&mut self, numbered: Numbered) -> Option<()> {
        let conflicts = |(backend, number): &(Backend, u32)| {
            let known = self.numbers.get(backend).map(|(known, _)| known);
            known.map_or(!self.number_slots.is_free(*number), |known| known != number)
        };
        if numbered.iter().any(conflicts) {
            return None;
        }
        for (backend, number) in numbered {
            self.numbers.entry(backend).or_insert((number, 0)).1 += 1;
            // Free, or reserved for the same backend.
            self.number_slots.reserve(number, 1);
        }
        Some(())
    }

    /// Reads words starting at the first one of a block.
    fn read_words(&self, first: u32, len: u32) -> Option<Vec<u32>> {
        let blocks = (first..first.checked_add(len.div_ceil(BLOCK))?).map(|index| self.ring.get(index));
        let blocks: Vec<RingBlock> = blocks.collect::<Option<_>>()?;
        Some(blocks.iter().flat_map(|block| block.words).take(len as usize).collect())
    }

    /// Writes the set unless it is in the kernel, and returns an entry of a service port that refers to it, with number and
    /// affinity zero. [`release`](Self::release) reverts it.
    pub(crate) fn acquire(&mut self, set: &[Backend]) -> Result<ServiceEntry, Error> {
        let mut entry = ServiceEntry {
            number: 0,
            version: 0,
            affinity: 0,
            backends: set.len() as u32,
            ring: ServiceEntry::NO_RING,
            zero: 0,
            members: [Member::default(); ServiceEntry::FEW],
        };
        if set.len() > entry.members.len() {
            let large = self.ensure_large(set)?;
            large.users += 1;
            entry.members[0] = Member::list(large.list * BLOCK, entry.backends);
            entry.ring = large.ring.map_or(ServiceEntry::NO_RING, |ring| ring * BLOCK);
            return Ok(entry);
        }
        for ((backend, number), member) in set.iter().zip(self.acquire_numbers(set)?).zip(&mut entry.members)
        {
            *member = backend.member(number, ip6(set));
        }
        Ok(entry)
    }

    fn ensure_large(&mut self, set: &[Backend]) -> Result<&mut LargeSet, Error> {
        if !self.large.contains_key(set) {
            let large = self.write_large(set)?;
            self.large.insert(set.to_vec(), large);
        }
        self.large.get_mut(set).ok_or_else(|| failed("write a backend list", "it does not exist"))
    }

    fn write_large(&mut self, set: &[Backend]) -> Result<LargeSet, Error> {
        let list = self.blocks.allocate(list_blocks(set.len())).ok_or_else(|| full(RING, self.capacity()))?;
        let numbers = match self.acquire_numbers(set) {
            Ok(numbers) => numbers,
            Err(error) => {
                self.blocks.free(list, list_blocks(set.len()));
                return Err(error);
            }
        };
        let members: Vec<(Backend, u32)> = set.iter().copied().zip(numbers).collect();
        let words = member_list(&members);
        self.write_words(list, &words);
        let ring = if self.may_have_ring(set) { self.blocks.allocate(RingBlock::RING) } else { None };
        if let Some(ring) = ring {
            let slots = ring::words(&words, ip6(set));
            self.write_words(ring, &slots);
            self.digests.insert(set.to_vec(), ring::digest(&words, &slots));
        }
        self.writes.count();
        Ok(LargeSet { list, ring, users: 0 })
    }

    /// Reports whether a ring is worth its memory, and whether rings leave a quarter of the map for lists.
    fn may_have_ring(&self, set: &[Backend]) -> bool {
        let rings = self.large.values().filter(|large| large.ring.is_some()).count() as u32;
        (RING_ABOVE + 1..=ring::MAX_BACKENDS).contains(&set.len())
            && rings < self.capacity / 4 * 3 / RingBlock::RING
    }

    fn write_words(&mut self, first: u32, words: &[u32]) {
        for (index, words) in (first..).zip(words.chunks(RingBlock::LEN)) {
            let mut block = RingBlock { words: [0; RingBlock::LEN] };
            block.words[..words.len()].copy_from_slice(words);
            self.ring.set(index, block);
        }
    }

    /// Returns the numbers of a set's backends and counts one more use of each; zero for IPv4 backends.
    fn acquire_numbers(&mut self, set: &[Backend]) -> Result<Vec<u32>, Error> {
        let mut numbers = vec![];
        for (index, backend) in set.iter().enumerate() {
            let Some(number) = (if backend.ip.is_v4() { Some(0) } else { self.acquire_number(*backend) })
            else {
                self.release_numbers(&set[..index]);
                return Err(full(BACKENDS, self.capacity()));
            };
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// Returns the number of a backend and counts one more use. Writes the backend if it has no number; returns `None` if
    /// all numbers are taken.
    fn acquire_number(&mut self, backend: Backend) -> Option<u32> {
        if let Some((number, users)) = self.numbers.get_mut(&backend) {
            *users += 1;
            return Some(*number);
        }
        let number = self.number_slots.allocate(1)?;
        self.backends.set(number, backend);
        self.writes.count();
        self.numbers.insert(backend, (number, 1));
        Some(number)
    }

    /// Records that one service port fewer uses the set. Frees an unused set.
    pub(crate) fn release(&mut self, set: &[Backend]) {
        if set.len() <= ServiceEntry::FEW {
            return self.release_numbers(set);
        }
        let Some(large) = self.large.get_mut(set) else { return };
        large.users = large.users.saturating_sub(1);
        if large.users == 0
            && let Some(large) = self.large.remove(set)
        {
            let now = Instant::now();
            let blocks = blocks(set.len(), large.list, large.ring);
            self.quarantine.extend(blocks.map(|(first, count)| (now, Freed::Blocks { first, count })));
            self.digests.remove(set);
            self.release_numbers(set);
        }
    }

    /// Records that one set fewer uses these backends. Ignores backends without a number.
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
                Some((_, Freed::Number(number))) => self.number_slots.free(number, 1),
                None => {}
            }
        }
    }
}

/// Whether the backends of a set have IPv6 addresses. All have addresses of one family.
fn ip6(set: &[Backend]) -> bool {
    set.first().is_some_and(|backend| !backend.ip.is_v4())
}

/// The sorted member list, in which programs look up the backend of a client with session affinity: two words per member,
/// the lower half first.
fn member_list(set: &[(Backend, u32)]) -> Vec<u32> {
    let word = |(backend, number): &(Backend, u32)| backend.member(*number, !backend.ip.is_v4()).word();
    let mut words: Vec<u64> = set.iter().map(word).collect();
    words.sort_unstable();
    words.into_iter().flat_map(|word| [word as u32, (word >> 32) as u32]).collect()
}

/// Blocks of the member list and the ring of a set: first block and number.
fn blocks(backends: usize, list: u32, ring: Option<u32>) -> impl Iterator<Item = (u32, u32)> {
    [(list, list_blocks(backends))].into_iter().chain(ring.map(|ring| (ring, RingBlock::RING)))
}

/// Number of blocks of the member list.
fn list_blocks(backends: usize) -> u32 {
    ((2 * backends).div_ceil(RingBlock::LEN) as u32).next_power_of_two()
}

/// Error of a write to a full map.
pub(super) fn full(map: &str, capacity: usize) -> Error {
    failed(sizes::full(map, capacity), std::io::Error::from_raw_os_error(libc::E2BIG))
}
