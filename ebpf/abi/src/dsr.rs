//! Connections of clients outside the cluster that this node forwards to backends on other nodes (direct server return).
//!
//! ```text
//! client, service, network -> hash -> set of ctv_relays -> four entries, a cache line each
//! ```
//!
//! The direction is always that of the client's packets: replies do not pass this node. Readers take no lock; the version of an
//! entry shows whether all fields are of one connection.

use core::sync::atomic::{Ordering, compiler_fence};

use crate::{
    Address, Be16, Segment, Timeouts, Tuple, flow_index::product, idle, maps::DSR_FLOWS_CAPACITY, tcp::sent,
};

/// The connection of a client to a service, as words of a [`DsrEntry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsrKey {
    /// Addresses of client and service, the network, and ports with protocol.
    words: [u64; 6],
}

impl DsrKey {
    /// The bits of ports and protocol in their word; TCP flags and zeros follow.
    const ENDS: u64 = (1 << 40) - 1;

    /// The key of a client's packet by words of its addresses, see [`Address::words`], and its ports, see
    /// [`Tuple::ports`].
    #[inline(always)]
    pub const fn new(segment: Segment, protocol: u8, ends: [[u64; 2]; 2], ports: u32) -> DsrKey {
        let [[a, b], [c, d]] = ends;
        DsrKey { words: [a, b, c, d, segment.word(), ports as u64 | (protocol as u64) << 32] }
    }

    /// The key of a client's packet by its tuple.
    #[inline(always)]
    pub const fn of(segment: Segment, tuple: &Tuple) -> DsrKey {
        let ends = [tuple.source.words(), tuple.destination.words()];
        DsrKey::new(segment, tuple.protocol, ends, tuple.ports())
    }

    /// Index of the set of the connection. The seed is that of [`FlowHash`](crate::FlowHash).
    #[inline(always)]
    pub const fn set(&self, seed: u64) -> u32 {
        (self.hash(seed) >> (64 - DsrSet::BITS)) as u32
    }

    /// A sum of products that do not depend on each other, so that the CPU computes them at once, as in
    /// [`FlowHash`](crate::FlowHash). The keys are multiples of the seed: the difference of two keys is as secret as a key, so
    /// a client cannot choose differences of two words that cancel each other. The exclusive or of the seed with two numbers
    /// would have differences that are those of the numbers for many seeds.
    #[inline(always)]
    const fn hash(&self, seed: u64) -> u64 {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        const KEYS: [u64; 5] = [
            0x243f_6a88_85a3_08d3,
            0x1319_8a2e_0370_7344,
            0xa409_3822_299f_31d0,
            0x082e_fa98_ec4e_6c89,
            0x4528_21e6_38d0_1377,
        ];
        let [a, b, c, d, network, ends] = self.words;
        let client =
            product(a, seed.wrapping_mul(KEYS[0])).wrapping_add(product(b, seed.wrapping_mul(KEYS[1])));
        let service =
            product(c, seed.wrapping_mul(KEYS[2])).wrapping_add(product(d, seed.wrapping_mul(KEYS[3])));
        let other = product(ends, seed.wrapping_mul(KEYS[4])).wrapping_add(network.wrapping_mul(ODD));
        let sum = client.wrapping_add(service).wrapping_add(other);
        (sum ^ sum >> 32).wrapping_mul(ODD)
    }
}

/// A connection from outside that this node forwards to a backend on another node: a cache line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DsrEntry {
    /// Address of the client.
    pub client: Address,
    /// Address of the service.
    pub service: Address,
    /// Network of the client, of the service on the wire, and of the backend.
    pub segment: Segment,
    /// Port of the client.
    pub client_port: Be16,
    /// Port of the service.
    pub service_port: Be16,
    /// IP protocol number; zero in a free entry.
    pub protocol: u8,
    /// FIN and RST flags that the client has sent.
    pub closing: u8,
    /// Zero.
    pub zero: [u8; 2],
    /// Ethernet address of the backend, the first byte lowest, and above it the lower bits of the revision of
    /// `ctv_fdb` that it was found in: [`DsrEntry::found`].
    pub found: u64,
    /// Time of the client's last packet, in seconds since boot. Accurate to a second, because it is written once in a
    /// second.
    pub seen: u32,
    /// A number that each write increments twice: odd during a write. Programs read it with `seen`, as one word.
    pub version: u32,
}

const _: () = assert!(size_of::<DsrEntry>() == 64);

/// The state of a connection: the fields of a [`DsrEntry`] that are not part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DsrState {
    /// As [`DsrEntry::found`].
    pub found: u64,
    /// As [`DsrEntry::seen`].
    pub seen: u32,
    /// The version when the entry was read; even.
    pub version: u32,
    /// As [`DsrEntry::closing`].
    pub closing: u8,
}

/// Indexes of the words of an entry that are not part of the key.
const FOUND: usize = 6;
const STAMP: usize = 7;

/// A stamp of an entry during a write.
const BUSY: u64 = 1 << 32;

/// Time and version of an entry in one word.
#[inline(always)]
const fn stamp(seen: u32, version: u32) -> u64 {
    seen as u64 | (version as u64) << 32
}

impl DsrState {
    /// Time and version in one word, as they are in the entry.
    #[inline(always)]
    pub const fn stamp(&self) -> u64 {
        stamp(self.seen, self.version)
    }

    /// The state by its [`stamp`](DsrState::stamp).
    #[inline(always)]
    pub const fn of(found: u64, stamp: u64, closing: u8) -> DsrState {
        DsrState { found, seen: stamp as u32, version: (stamp >> 32) as u32, closing }
    }
}

impl DsrEntry {
    /// A free entry.
    pub const FREE: DsrEntry = DsrEntry {
        client: Address([0; 16]),
        service: Address([0; 16]),
        segment: Segment::vxlan(0),
        client_port: Be16::new(0),
        service_port: Be16::new(0),
        protocol: 0,
        closing: 0,
        zero: [0; 2],
        found: 0,
        seen: 0,
        version: 0,
    };

    /// The bits of the address in `found`.
    pub const MAC: u64 = (1 << 48) - 1;

    /// A value for `found`, which is valid in this revision and, by chance, in one of 65,535 others.
    #[inline(always)]
    pub const fn found(mac: u64, revision: u64) -> u64 {
        mac & Self::MAC | revision << 48
    }

    /// True if the value is of this revision.
    #[inline(always)]
    pub const fn is_found_in(found: u64, revision: u64) -> bool {
        found >> 48 == revision & 0xffff
    }

    /// Returns true unless the entry is free.
    pub const fn is_used(&self) -> bool {
        self.protocol != 0
    }

    /// The key of the connection.
    pub const fn key(&self) -> DsrKey {
        let ends = [self.client.words(), self.service.words()];
        let ports = self.client_port.wire() as u32 | (self.service_port.wire() as u32) << 16;
        DsrKey::new(self.segment, self.protocol, ends, ports)
    }

    /// Reads the entry if it is that of the connection, and is not being written.
    ///
    /// # Safety
    ///
    /// `entry` must be valid for reads. Other CPUs may write it concurrently.
    #[inline(always)]
    pub unsafe fn read(entry: *const DsrEntry, key: &DsrKey) -> Option<DsrState> {
        let [a, b, c, d, network, ends] = key.words;
        // SAFETY: guaranteed by the caller.
        let (stamp, last, differences) = unsafe {
            let (stamp, last) = (word(entry, STAMP), word(entry, 5));
            let client = (word(entry, 0) ^ a) | (word(entry, 1) ^ b);
            let service = (word(entry, 2) ^ c) | (word(entry, 3) ^ d) | (word(entry, 4) ^ network);
            (stamp, last, client | service | ((last ^ ends) & DsrKey::ENDS))
        };
        // One comparison for all: most entries that are compared are those of the connection.
        if differences != 0 {
            return None;
        }
        // SAFETY: as above.
        let found = unsafe { word(entry, FOUND) };
        // All fields of the entry have been read before this point.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: as above.
        if stamp & BUSY != 0 || unsafe { word(entry, STAMP) } != stamp {
            return None;
        }
        Some(DsrState::of(found, stamp, (last >> 40) as u8))
    }

    /// How suitable the entry is for the connection, in the upper half: zero if the entry must stay. From low to high: entries by
    /// the time without a packet, expired ones, free ones, that of the connection itself. In the lower half its version before
    /// all else was read.
    ///
    /// A connection with a packet in this second or in the previous one stays: a flood of others does not evict a connection with
    /// a packet every second.
    ///
    /// # Safety
    ///
    /// As for [`DsrEntry::read`]. If the entry is written concurrently, the result is meaningless; its version shows this.
    #[inline(always)]
    pub unsafe fn vacancy(entry: *const DsrEntry, key: &DsrKey, now: u32, timeouts: &Timeouts) -> u64 {
        // SAFETY: guaranteed by the caller.
        let (stamp, last, same) =
            unsafe { (word(entry, STAMP), word(entry, 5), DsrEntry::read(entry, key).is_some()) };
        let (protocol, closing) = ((last >> 32) as u8, (last >> 40) as u8);
        let idle = idle(now, stamp as u32);
        let vacancy = if same {
            u32::MAX
        } else if protocol == 0 {
            u32::MAX - 1
        } else if idle != 0 && idle > timeouts.of(protocol, sent::ANY, sent::ANY | closing) {
            EXPIRED | idle
        } else if idle < QUIET {
            0
        } else {
            idle
        };
        (vacancy as u64) << 32 | stamp >> 32
    }

    /// Writes a connection; a previous one in the entry is overwritten.
    ///
    /// # Safety
    ///
    /// `entry` must be valid for writes, nothing else may write it concurrently, and `state.version` must be its version.
    #[inline(always)]
    pub unsafe fn insert(entry: *mut DsrEntry, key: &DsrKey, state: DsrState) {
        let words = entry.cast::<u64>();
        let [a, b, c, d, network, ends] = key.words;
        // SAFETY: guaranteed by the caller; an entry is eight aligned words.
        unsafe {
            begin(entry, state.version);
            words.write_volatile(a);
            words.add(1).write_volatile(b);
            words.add(2).write_volatile(c);
            words.add(3).write_volatile(d);
            words.add(4).write_volatile(network);
            words.add(5).write_volatile(ends | (state.closing as u64) << 40);
            words.add(FOUND).write_volatile(state.found);
            end(entry, state);
        }
    }

    /// Writes the state of the connection that the entry has.
    ///
    /// # Safety
    ///
    /// As of [`DsrEntry::insert`].
    #[inline(always)]
    pub unsafe fn update(entry: *mut DsrEntry, state: DsrState) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            begin(entry, state.version);
            (&raw mut (*entry).closing).write_volatile(state.closing);
            (&raw mut (*entry).found).write_volatile(state.found);
            end(entry, state);
        }
    }

    /// Frees the entry.
    ///
    /// # Safety
    ///
    /// As of [`DsrEntry::insert`].
    #[inline(always)]
    pub unsafe fn remove(entry: *mut DsrEntry, state: DsrState) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            begin(entry, state.version);
            (&raw mut (*entry).protocol).write_volatile(0);
            (&raw mut (*entry).found).write_volatile(0);
            end(entry, state);
        }
    }
}

/// In a vacancy: the connection has expired. Above the idle time of others.
const EXPIRED: u32 = 1 << 31;
/// Seconds without a packet after which another connection may take the entry.
const QUIET: u32 = 2;

/// A word of an entry.
///
/// # Safety
///
/// As of [`DsrEntry::read`].
#[inline(always)]
unsafe fn word(entry: *const DsrEntry, at: usize) -> u64 {
    // SAFETY: guaranteed by the caller; an entry is eight aligned words.
    unsafe { entry.cast::<u64>().add(at).read_volatile() }
}

/// Begins a write. An agent that ended during a write has left an odd version.
///
/// # Safety
///
/// As of [`DsrEntry::insert`].
#[inline(always)]
unsafe fn begin(entry: *mut DsrEntry, version: u32) {
    // SAFETY: guaranteed by the caller.
    unsafe { (&raw mut (*entry).version).write_volatile(version | 1) };
    compiler_fence(Ordering::SeqCst);
}

/// Ends a write.
///
/// # Safety
///
/// As of [`DsrEntry::insert`].
#[inline(always)]
unsafe fn end(entry: *mut DsrEntry, state: DsrState) {
    compiler_fence(Ordering::SeqCst);
    let version = (state.version | 1).wrapping_add(1);
    // SAFETY: guaranteed by the caller.
    unsafe { entry.cast::<u64>().add(STAMP).write_volatile(stamp(state.seen, version)) };
}

/// The connections with one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DsrSet {
    /// The entries, in no order.
    pub ways: [DsrEntry; DsrSet::LEN],
}

impl DsrSet {
    /// Entries of a set.
    pub const LEN: usize = 4;
    /// Bits of the index of a set.
    const BITS: u32 = DSR_FLOWS_CAPACITY.trailing_zeros();

    /// Index of the entry that a connection takes, and its version, by the [`DsrEntry::vacancy`] of each entry. `None`
    /// if all of them stay: the next packet of the connection tries again.
    #[inline(always)]
    pub fn place(vacancy: impl Fn(u32) -> u64) -> Option<(u32, u32)> {
        let (mut place, mut best) = (0, 0);
        for way in 0..Self::LEN as u32 {
            let vacancy = vacancy(way);
            if vacancy > best {
                (place, best) = (way, vacancy);
            }
        }
        if best >> 32 != 0 { Some((place, best as u32)) } else { None }
    }
}

const _: () = assert!(DSR_FLOWS_CAPACITY.is_power_of_two() && size_of::<DsrSet>() == 256);

/// Program that forwarded a frame to another node; the number is the index in `ctv_relaycnt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DsrHook {
    /// The TC program on the ingress of the uplink.
    Tc = 0,
    /// The XDP program of the uplink.
    Xdp = 1,
}

impl DsrHook {
    /// Both, with their names.
    pub const ALL: [(DsrHook, &'static str); crate::maps::DSR_STATS_SLOTS] =
        [(DsrHook::Tc, "tc"), (DsrHook::Xdp, "xdp")];
}

#[cfg(test)]
mod tests;
