//! Services: an address and port that are translated to one of a set of backends.

use crate::{
    Address, Be16, Domain, Mac, Segment, idle,
    rendezvous::{BUCKETS, Contender, mix},
};

/// A port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceKey {
    /// Domain whose pods can use the service.
    pub domain: Domain,
    /// Port of the service.
    pub port: Be16,
    /// IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// 1 for the entry with the terminating backends of the port, else zero.
    pub terminating: u8,
    /// IP address of the service.
    pub ip: Address,
}

impl ServiceKey {
    /// The key of a port.
    #[inline(always)]
    pub const fn new(domain: Domain, ip: Address, port: Be16, protocol: u8) -> Self {
        ServiceKey { domain, port, protocol, terminating: 0, ip }
    }

    /// The key of the port's terminating backends. They are in a separate entry with the same number, so that the choice for new
    /// connections cannot select them. It exists if there are any and other nodes may forward packets to them, and has no copy in
    /// a [`ServiceSlot`].
    #[inline(always)]
    pub const fn of_terminating(self) -> Self {
        ServiceKey { terminating: 1, ..self }
    }

    /// The key of the port's ready backends.
    #[inline(always)]
    pub const fn of_ready(self) -> Self {
        ServiceKey { terminating: 0, ..self }
    }

    /// Index of the slot that the key prefers, in a table with this number of slots: a power of two.
    #[inline(always)]
    pub const fn slot(&self, slots: u32) -> u32 {
        let [high, low] = self.ip.words();
        let port = (self.port.wire() as u64) << 16 | self.protocol as u64;
        let port = (self.domain.number() as u64) << 32 | port;
        mix(port ^ high.rotate_left(23) ^ low.wrapping_mul(0x9e37_79b9_7f4a_7c15)) as u32
            & slots.wrapping_sub(1)
    }

    /// Compares by words.
    #[inline(always)]
    pub const fn same(&self, other: &ServiceKey) -> bool {
        let ([a, b], [c, d]) = (self.ip.words(), other.ip.words());
        let ports = (self.domain.number() ^ other.domain.number())
            | (self.port.wire() ^ other.port.wire()) as u32
            | (self.protocol ^ other.protocol) as u32
            | (self.terminating ^ other.terminating) as u32;
        (a ^ c) | (b ^ d) | ports as u64 == 0
    }
}

/// Backends of a service's port; see [`rendezvous`](crate::rendezvous) for the choice among them.
///
/// A small set is in the entry itself, so that a connection costs one lookup. A larger set has a list
/// in `ctv_ring`, and a ring with the choice of each bucket if the agent has room for one: without it,
/// the program computes the choice from the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceEntry {
    /// Number of this port of the service in flows and counters; never zero.
    pub number: u32,
    /// In `ctv_svc` zero, or [`ServiceEntry::TERMINATING`]. In a [`ServiceSlot`] a number that each write increments twice: odd during a
    /// write. Programs read it with `number`, as one word.
    pub version: u32,
    /// Time after its last connection for which a client keeps its backend, in seconds; zero for no
    /// affinity.
    pub affinity: u32,
    /// Number of backends; zero without a ready one. Up to [`ServiceEntry::FEW`] are in this entry.
    pub backends: u32,
    /// First word of the ring: index of the block in `ctv_ring` times [`RingBlock::LEN`]. The ring has
    /// the index in the list of the backend of each bucket, 16 bits each. [`ServiceEntry::NO_RING`]
    /// without one.
    pub ring: u32,
    /// Zero.
    pub zero: u32,
    /// Backends of a small set. For a larger one only the first is used: [`Member::list`].
    pub members: [Member; ServiceEntry::FEW],
}

impl ServiceEntry {
    /// Number of backends that fit into an entry.
    pub const FEW: usize = 8;

    /// Value of `ring` without a ring.
    pub const NO_RING: u32 = u32::MAX;

    /// Version of an entry with terminating backends: a program that reads the entry of the ready ones while the kernel gives
    /// its memory to this one notices. Even, as of an entry that is complete.
    pub const TERMINATING: u32 = 2;

    /// No number of a backend.
    pub const NO_NUMBER: u32 = u32::MAX;

    /// The highest score of a member in a bucket. The score modulo [`ServiceEntry::FEW`] is the
    /// member's index; the caller takes the remainder, so that the verifier sees the bound.
    #[inline(always)]
    pub fn highest(&self, bucket: u32, ip6: bool) -> u64 {
        let mut best = 0;
        for (place, member) in self.members.iter().enumerate() {
            if place as u32 >= self.count() {
                break;
            }
            // The score contains the index.
            let score = member.score(bucket, ip6) & !(Self::FEW as u64 - 1) | place as u64;
            if score > best {
                best = score;
            }
        }
        best
    }

    /// Returns true if a member of a small set is `wanted` ([`Member::word`]).
    #[inline(always)]
    pub fn has(&self, wanted: u64) -> bool {
        for (place, member) in self.members.iter().enumerate() {
            if place as u32 >= self.count() {
                break;
            }
            if member.word() == wanted {
                return true;
            }
        }
        false
    }

    /// Number in `ctv_backends` of the member of a small IPv6 set with this [`Backend::mark`];
    /// [`ServiceEntry::NO_NUMBER`] without one.
    #[inline(always)]
    pub fn marked(&self, mark: u32) -> u32 {
        for (place, member) in self.members.iter().enumerate() {
            if place as u32 >= self.count() {
                break;
            }
            if u32::from_ne_bytes(member.mark) == mark {
                return member.at;
            }
        }
        Self::NO_NUMBER
    }

    /// Number of members, read anew each time: the verifier would otherwise track the result of
    /// each comparison.
    #[inline(always)]
    fn count(&self) -> u32 {
        // SAFETY: a field of a valid reference.
        unsafe { (&raw const self.backends).read_volatile() }
    }
}

/// A copy of an entry of `ctv_svc`: two cache lines.
///
/// A key has its copy in the slot that it prefers ([`ServiceKey::slot`]) or, if another key is there, in the
/// alternate one ([`ServiceSlot::alternate`]). If both are taken, it has no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceSlot {
    /// Key of the entry; all zero in a free slot.
    pub key: ServiceKey,
    /// Number of keys that prefer this slot and are not in it.
    pub displaced: u32,
    /// Zero.
    pub zero: u32,
    /// The entry.
    pub entry: ServiceEntry,
    /// Zero.
    pub reserved: u64,
}

impl ServiceSlot {
    /// Index of the slot for a key whose preferred slot is taken: on the same memory page.
    #[inline(always)]
    pub const fn alternate(preferred: u32) -> u32 {
        preferred ^ 1
    }

    /// Number of slots of a table for this number of ports.
    pub const fn count(ports: u32) -> u32 {
        2 * ports.next_power_of_two()
    }
}

/// A backend as service entries and affinity entries store it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct Member {
    /// IPv4 address in network byte order; for IPv6 the hash [`Backend::mark`].
    pub mark: [u8; 4],
    /// Port; for IPv6 the index in `ctv_backends`.
    pub at: u32,
}

impl Member {
    /// An IPv4 backend.
    #[inline(always)]
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        Member { mark: ip, at: port as u32 }
    }

    /// For a large set: index of the first word in `ctv_ring` of the sorted list of its members, two
    /// words for each, and their number.
    pub const fn list(first: u32, len: u32) -> Self {
        Member { mark: first.to_ne_bytes(), at: len }
    }

    /// The arguments of [`Member::list`].
    #[inline(always)]
    pub const fn as_list(&self) -> (u32, u32) {
        (u32::from_ne_bytes(self.mark), self.at)
    }

    /// The member as one word, which is read and written atomically.
    #[inline(always)]
    pub const fn word(&self) -> u64 {
        (self.at as u64) << 32 | u32::from_ne_bytes(self.mark) as u64
    }

    /// The inverse of [`Member::word`].
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Member { mark: (word as u32).to_ne_bytes(), at: (word >> 32) as u32 }
    }

    /// Score of the backend in a bucket.
    #[inline(always)]
    pub const fn score(&self, bucket: u32, ip6: bool) -> u64 {
        self.contender(ip6).score(bucket)
    }

    /// The backend in the choice. Indexes are specific to the node and do not count.
    #[inline(always)]
    pub const fn contender(&self, ip6: bool) -> Contender {
        Contender::new(if ip6 { u32::from_ne_bytes(self.mark) as u64 } else { self.word() })
    }
}

/// A part of a ring, or of a list of backends. A block has several words because the kernel aligns
/// values of an array to 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RingBlock {
    /// Of a ring: two slots each, the first in the lower half. Of a list: half a [`Member::word`],
    /// the lower one first.
    pub words: [u32; RingBlock::LEN],
}

impl RingBlock {
    /// Words of a block.
    pub const LEN: usize = 16;
    /// Blocks of a ring.
    pub const RING: u32 = BUCKETS.div_ceil(2 * RingBlock::LEN as u32);
}

/// Address and port of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Backend {
    /// IP address; all zero in a free slot.
    pub ip: Address,
    /// Port, in host byte order.
    pub port: u16,
    /// Zero.
    pub zero: u16,
    /// Hash of address and port, the same on every node.
    pub mark: u32,
}

impl Backend {
    /// A backend at this address and port.
    #[inline(always)]
    pub const fn new(ip: Address, port: u16) -> Self {
        let [a, b] = ip.words();
        let mark = mix(a.rotate_left(16) ^ mix(b ^ port as u64)) as u32;
        Backend { ip, port, zero: 0, mark }
    }

    /// The backend as service entries and affinity entries store it. `number` is its index in
    /// `ctv_backends`, used for IPv6 only.
    #[inline(always)]
    pub const fn member(&self, number: u32, ip6: bool) -> Member {
        if ip6 {
            Member { mark: self.mark.to_ne_bytes(), at: number }
        } else {
            Member::v4(self.ip.low(), self.port)
        }
    }
}

/// Traffic of a service's port on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceCount {
    /// Number of the service's port; zero if the slot is free. Flows of a removed service continue,
    /// and find another number here, or none.
    pub number: u32,
    /// Zero.
    pub zero: u32,
    /// Number of new connections.
    pub connections: u64,
    /// Packets to the backends and from them.
    pub packets: [u64; 2],
    /// Bytes of these packets, including the Ethernet header.
    pub bytes: [u64; 2],
}

/// Arrangement of `ctv_svcnt`: a row for each CPU, and in each row a slot for each port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceCountRows {
    /// Slots of a row: a power of two.
    pub slots: u32,
    /// Possible CPUs of the node.
    pub rows: u32,
}

impl ServiceCountRows {
    /// Up to this number of CPUs, each port has a slot. On more CPUs a row has fewer slots, so that all
    /// rows take the same memory: the ports that find no slot are not counted.
    const FULL_ROWS: u32 = 8;
    /// On more CPUs than this, half of that memory: an idle node holds 40 MiB at the most.
    const MANY: u32 = 64;

    /// Rows for this number of ports and of possible CPUs.
    pub const fn new(ports: u32, processors: u32) -> Self {
        let mut slots = ports.next_power_of_two();
        let full_rows = if processors > Self::MANY { Self::FULL_ROWS / 2 } else { Self::FULL_ROWS };
        while slots > 1 && slots * processors > ports.next_power_of_two() * full_rows {
            slots /= 2;
        }
        ServiceCountRows { slots, rows: processors }
    }

    /// Number of entries of the map.
    pub const fn entries(self) -> u32 {
        self.slots * self.rows
    }

    /// Index of a CPU's counters for the service's port with this number. Ports with a slot have
    /// different indexes.
    #[inline(always)]
    pub const fn place(&self, processor: u32, number: u32) -> u32 {
        processor.wrapping_mul(self.slots) + (number & self.slots.wrapping_sub(1))
    }
}

/// A client of a service with affinity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Client {
    /// Hash that identifies client and service within the block; zero if the slot is free. Of two
    /// clients with one tag, the second uses the first one's backend if it is a backend of its
    /// service.
    pub tag: u32,
    /// Time of the last connection, in seconds since boot.
    pub seen: u32,
    /// Backend of the client's last connection, to any port of the service. The next one, to another port, goes to the backend
    /// of that port with the same address.
    pub with: Member,
}

/// The clients with one hash: a cache line.
///
/// Nothing is locked. Concurrent writes of two CPUs may mix two clients, which is no worse than two
/// clients with one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct AffinityBlock {
    /// The clients, in no order.
    pub clients: [Client; AffinityBlock::LEN],
}

impl AffinityBlock {
    /// Clients of a block.
    pub const LEN: usize = 4;

    /// Index of the block, and tag, of a client of a service. `hash` is of the client and the
    /// service's address, and `domain` the number of their domain. Ports do not count.
    #[inline(always)]
    pub const fn find(hash: u64, domain: u32) -> (u32, u32) {
        let id = mix(hash ^ domain as u64);
        (id as u32 & (crate::maps::AFFINITY_CAPACITY as u32 - 1), (id >> 32) as u32 | 1)
    }

    /// Rank of the client with this tag, or else of the one that was inactive for longest. The rank
    /// modulo [`AffinityBlock::LEN`] is the client's index.
    #[inline(always)]
    pub fn highest(&self, tag: u32, now: u32) -> u64 {
        let mut best = 0;
        for (place, client) in self.clients.iter().enumerate() {
            let away = if client.tag == tag { u32::MAX as u64 } else { idle(now, client.seen) as u64 };
            let rank = away * Self::LEN as u64 + place as u64;
            if rank > best {
                best = rank;
            }
        }
        best
    }
}

/// A service address on the wire of a VLAN. By the network, not by the domain: ARP and neighbour discovery are
/// answered on one wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct VipKey {
    /// The network.
    pub segment: Segment,
    /// The address.
    pub ip: Address,
}

/// A service address on a VLAN, with backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Vip {
    /// The backend whose node answers for the service on the wire and forwards each connection to
    /// its backend. All nodes compute the same one.
    pub speaker: Address,
    /// Domain of the network.
    pub domain: Domain,
    /// Zero.
    pub zero: u32,
}

/// Ethernet address of a service, as in the original: 02:02 and the last four bytes of the IP
/// address.
#[inline(always)]
pub const fn service_mac(ip: &Address) -> Mac {
    let [a, b, c, d] = ip.low();
    [2, 2, a, b, c, d]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(backends: &[[u8; 4]]) -> ServiceEntry {
        let mut members = [Member::default(); ServiceEntry::FEW];
        for (member, ip) in members.iter_mut().zip(backends) {
            *member = Member::v4(*ip, 8080);
        }
        ServiceEntry {
            number: 1,
            version: 0,
            affinity: 0,
            backends: backends.len() as u32,
            ring: ServiceEntry::NO_RING,
            zero: 0,
            members,
        }
    }

    fn chosen(set: &ServiceEntry, bucket: u32) -> usize {
        set.highest(bucket, false) as usize % ServiceEntry::FEW
    }

    #[test]
    fn a_removed_backend_moves_its_own_connections_only() {
        let all: [[u8; 4]; 8] = core::array::from_fn(|n| [10, 1, 1, n as u8 + 1]);
        let (before, after) = (entry(&all), entry(&all[1..]));
        for bucket in 0..BUCKETS {
            let was = chosen(&before, bucket);
            assert!(was == 0 || chosen(&after, bucket) + 1 == was);
        }
    }

    #[test]
    fn numbers_do_not_count() {
        let mut here = entry(&[[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]]);
        let mut there = here;
        for (place, (a, b)) in here.members.iter_mut().zip(&mut there.members).enumerate() {
            (a.at, b.at) = (place as u32, 100 - place as u32);
        }
        assert!((0..BUCKETS).all(|bucket| here.highest(bucket, true) == there.highest(bucket, true)));
    }

    #[test]
    fn an_ipv6_set_finds_its_own_by_the_mark() {
        let backends = [1, 2].map(|last| Backend::new(Address([last; 16]), 8080));
        let mut set = entry(&[[0; 4]; 2]);
        for ((member, backend), number) in set.members.iter_mut().zip(&backends).zip(40..) {
            *member = backend.member(number, true);
        }
        assert_eq!(backends.map(|backend| set.marked(backend.mark)), [40, 41]);
        let other_port = Backend::new(backends[0].ip, 8081);
        // What is beyond the members is none.
        assert_eq!([other_port.mark, 0].map(|mark| set.marked(mark)), [ServiceEntry::NO_NUMBER; 2]);
    }

    #[test]
    fn service_counters_take_no_more_memory_on_many_cpus() {
        let slots = |ports, processors| ServiceCountRows::new(ports, processors).slots;
        assert_eq!([slots(8192, 1), slots(8192, 8), slots(30_000, 2)], [8192, 8192, 32_768]);
        assert_eq!(
            [slots(8192, 9), slots(8192, 128), slots(30_000, 128), slots(64, 4096)],
            [4096, 256, 1024, 1]
        );
        let rows = ServiceCountRows::new(8192, 128);
        assert_eq!((rows.place(2, 513), rows.place(127, 511), rows.entries()), (513, 32_767, 32_768));
    }

    #[test]
    fn a_set_knows_its_own() {
        let set = entry(&[[1, 2, 3, 4], [5, 6, 7, 8]]);
        assert!(
            set.has(Member::v4([5, 6, 7, 8], 8080).word()) && !set.has(Member::v4([5, 6, 7, 8], 8081).word())
        );
        assert!(!set.has(0), "what is beyond the members is none");
        let member = Member { mark: [1, 2, 3, 4], at: 7 };
        assert_eq!(Member::from_word(member.word()), member);
        assert_eq!(Member::list(48, 9).as_list(), (48, 9));
    }

    #[test]
    fn the_one_away_for_longest_makes_room() {
        let client = |tag, seen| Client { tag, seen, with: Member::default() };
        let mut block =
            AffinityBlock { clients: [client(5, 90), client(7, 70), client(9, 80), client(11, 99)] };
        let place = |block: &AffinityBlock, tag| block.highest(tag, 100) as usize % AffinityBlock::LEN;
        assert_eq!((place(&block, 9), place(&block, 11), place(&block, 13)), (2, 3, 1));
        // Another CPU has read the clock later.
        block.clients[3] = client(11, 101);
        assert_eq!((place(&block, 5), place(&block, 7), place(&block, 13)), (0, 1, 1));
        block.clients[3] = Client::default();
        assert_eq!((place(&block, 13), place(&block, 5)), (3, 0));
    }
}
