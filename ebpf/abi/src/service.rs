//! Services: an address and port that stand for any of a set of backends.

use crate::{Address, Be16, Mac, Segment};

/// A port of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceKey {
    /// The network whose pods see the service.
    pub segment: Segment,
    /// Its address.
    pub ip: Address,
    /// The port.
    pub port: Be16,
    /// TCP or UDP.
    pub protocol: u8,
    /// Zero.
    pub zero: [u8; 5],
}

impl ServiceKey {
    /// The key of a port.
    #[inline(always)]
    pub const fn new(segment: Segment, ip: Address, port: Be16, protocol: u8) -> Self {
        ServiceKey { segment, ip, port, protocol, zero: [0; 5] }
    }
}

/// Where a service's connections go.
///
/// A set of few backends is in the entry itself, so that a connection costs one look-up, however many services there
/// are: of each backend and the connection a score is made, and the highest wins (rendezvous, Thaler and Ravishankar,
/// 1998). A backend that goes takes only its own connections with it. A larger set has a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceEntry {
    /// The number by which flows, affinities and counters know this port of the service; never zero.
    pub number: u32,
    /// How long a client stays with its backend without a new connection, in seconds; zero for not at all.
    pub affinity: u32,
    /// Up to [`ServiceEntry::FEW`], how many members there are here, zero when there is no ready backend; else how many
    /// slots the ring has, a power of two.
    pub slots: u32,
    /// The first slot of the ring: the block of `ctv_ring` times [`RingBlock::LEN`].
    pub ring: u32,
    /// The backends if they are few. Of a ring the first alone counts: [`Member::list`].
    pub members: [Member; ServiceEntry::FEW],
}

impl ServiceEntry {
    /// Backends that an entry has room for.
    pub const FEW: usize = 8;

    /// The highest score that a member has with a hash of the connection. Its remainder by [`ServiceEntry::FEW`] is the
    /// member's place; taken by who asks, so that the verifier sees it.
    #[inline(always)]
    pub fn highest(&self, hash: u64, ip6: bool) -> u64 {
        let mut best = 0;
        for (place, member) in self.members.iter().enumerate() {
            if place as u32 >= self.count() {
                break;
            }
            // The place is in the score, so that the largest tells it.
            let score = member.score(hash, ip6) & !(Self::FEW as u64 - 1) | place as u64;
            if score > best {
                best = score;
            }
        }
        best
    }

    /// Whether one of those that are here is this.
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

    /// The number of members, read afresh each time: the verifier would otherwise follow what each comparison has said
    /// of it.
    #[inline(always)]
    fn count(&self) -> u32 {
        // SAFETY: a field of a value that is there.
        unsafe { (&raw const self.slots).read_volatile() }
    }
}

/// A backend as services and their clients name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct Member {
    /// The IPv4 address; of IPv6, [`Backend::mark`].
    pub mark: [u8; 4],
    /// The port; of IPv6, the number in `ctv_backends`.
    pub at: u32,
}

impl Member {
    /// A backend of IPv4.
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        Member { mark: ip, at: port as u32 }
    }

    /// Of a ring: where in `ctv_ring` the list of its members begins, two slots for each, in the order of their words, and
    /// how many they are.
    pub const fn list(first: u32, len: u32) -> Self {
        Member { mark: first.to_ne_bytes(), at: len }
    }

    /// What [`Member::list`] was made of.
    #[inline(always)]
    pub const fn as_list(&self) -> (u32, u32) {
        (u32::from_ne_bytes(self.mark), self.at)
    }

    /// All of it, to be read and written in one piece.
    #[inline(always)]
    pub const fn word(&self) -> u64 {
        (self.at as u64) << 32 | u32::from_ne_bytes(self.mark) as u64
    }

    /// The inverse of [`Member::word`].
    #[inline(always)]
    pub const fn from_word(word: u64) -> Self {
        Member { mark: (word as u32).to_ne_bytes(), at: (word >> 32) as u32 }
    }

    /// How much a connection is drawn to the backend. Numbers are the node's own and do not count.
    #[inline(always)]
    const fn score(&self, hash: u64, ip6: bool) -> u64 {
        let word = if ip6 { u32::from_ne_bytes(self.mark) as u64 } else { self.word() };
        mix(hash ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

/// The finalizer of MurmurHash3: what goes in is spread over all bits.
#[inline(always)]
pub const fn mix(mut h: u64) -> u64 {
    h ^= h >> 33;
    h = h.wrapping_mul(0xff51_afd7_ed55_8ccd);
    h ^= h >> 33;
    h = h.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    h ^ h >> 33
}

/// A piece of a ring, or of the list of its backends: numbers of backends. The kernel keeps the values of an array at
/// multiples of 8 bytes, so that a slot by itself would take twice its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct RingBlock {
    /// The slots.
    pub slots: [u32; RingBlock::LEN],
}

impl RingBlock {
    /// Slots of a block, and of the smallest ring.
    pub const LEN: usize = 16;
}

/// Where connections of services arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Backend {
    /// The address; all zero in a free slot.
    pub ip: Address,
    /// The port.
    pub port: u16,
    /// Zero.
    pub zero: u16,
    /// What tells it from others on every node alike, made of address and port.
    pub mark: u32,
}

impl Backend {
    /// At this address and port.
    pub const fn new(ip: Address, port: u16) -> Self {
        let [a, b] = ip.words();
        let mark = mix(a.rotate_left(16) ^ mix(b ^ port as u64)) as u32;
        Backend { ip, port, zero: 0, mark }
    }

    /// As an entry of a service and the clients of one name it. The number in `ctv_backends` is of those only that have
    /// no room for their address.
    #[inline(always)]
    pub const fn member(&self, number: u32, ip6: bool) -> Member {
        if ip6 {
            Member { mark: self.mark.to_ne_bytes(), at: number }
        } else {
            Member::v4(self.ip.low(), self.port)
        }
    }
}

/// What clients of a port of a service have sent and were answered, on one processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct ServiceCount {
    /// Whose it is; zero for nobody's. The flows of a service that is gone go on, and find another number here, or none.
    pub number: u32,
    /// Zero.
    pub zero: u32,
    /// Connections that began.
    pub connections: u64,
    /// Packets to the backends, and back.
    pub packets: [u64; 2],
    /// Their bytes, from the Ethernet header on.
    pub bytes: [u64; 2],
}

impl ServiceCount {
    /// Where a processor counts for the port of a service with this number. Of those that there are, no two are in one place.
    #[inline(always)]
    pub const fn place(processor: u32, number: u32) -> u32 {
        const PLACES: u32 = crate::maps::SERVICE_COUNTS_CAPACITY as u32;
        processor.wrapping_mul(PLACES) | number & (PLACES - 1)
    }
}

const _: () = assert!(crate::maps::SERVICE_COUNTS_CAPACITY.is_power_of_two());

/// A client of a service that keeps clients with their backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Client {
    /// What tells client and service from others in the block; zero for nobody. Should two be the same, the second stays
    /// where the first is, if that is a backend of its service at all.
    pub tag: u32,
    /// When the last connection was made, in seconds since boot.
    pub seen: u32,
    /// Whom it is with, as long as the service has it.
    pub with: Member,
}

/// The clients with one hash: a line of the processor's cache.
///
/// Nothing is locked. What two processors write at once may be half of either, which is no worse than two clients with
/// one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C, align(8))]
pub struct AffinityBlock {
    /// In no order.
    pub clients: [Client; AffinityBlock::LEN],
}

impl AffinityBlock {
    /// Clients of a block.
    pub const LEN: usize = 4;

    /// The block and the tag of a client of a service. `hash` is of the client and the service's address.
    #[inline(always)]
    pub const fn find(hash: u64, service: u32) -> (u32, u32) {
        let id = mix(hash ^ service as u64);
        (id as u32 & (crate::maps::AFFINITY_CAPACITY as u32 - 1), (id >> 32) as u32 | 1)
    }

    /// The rank of the client with this tag, or else of the one that was away for longest. Its remainder by
    /// [`AffinityBlock::LEN`] is the client's place.
    #[inline(always)]
    pub fn highest(&self, tag: u32, now: u32) -> u64 {
        let mut best = 0;
        for (place, client) in self.clients.iter().enumerate() {
            let away = if client.tag == tag { u32::MAX as u64 } else { now.wrapping_sub(client.seen) as u64 };
            let rank = away * Self::LEN as u64 + place as u64;
            if rank > best {
                best = rank;
            }
        }
        best
    }
}

/// The address of a service on a VLAN that has ready backends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct Vip {
    /// The lowest address among its ready backends: the node where that lives answers for the service on the wire, and
    /// sends each connection to its backend. All nodes know the same, so that it is one node.
    pub first: Address,
}

/// A connection from outside that this node sends on to a backend on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct DsrEntry {
    /// The backend.
    pub backend: Address,
    /// When the client's last packet passed, in seconds since boot.
    pub seen: u32,
    /// FIN and RST of TCP, as far as the client has sent them.
    pub closing: u32,
}

/// Which program sent a frame on to another node; the number is the index in `ctv_relaycnt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum DsrHook {
    /// The one on the ingress of the uplink.
    Tc = 0,
    /// The one of the driver.
    Xdp = 1,
}

impl DsrHook {
    /// Both, with their names.
    pub const ALL: [(DsrHook, &'static str); crate::maps::DSR_STATS_SLOTS] =
        [(DsrHook::Tc, "tc"), (DsrHook::Xdp, "xdp")];
}

/// The Ethernet address of a service, as the original gives it: 02:02 and the last four bytes of the address.
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
        ServiceEntry { number: 1, affinity: 0, slots: backends.len() as u32, ring: 0, members }
    }

    fn chosen(set: &ServiceEntry, hash: u64) -> usize {
        set.highest(hash, false) as usize % ServiceEntry::FEW
    }

    /// Hashes as the programs make them.
    fn hashes() -> impl Iterator<Item = u64> {
        (0..40_000).map(|n: u64| mix(n << 16 | 80))
    }

    #[test]
    fn few_backends_share_evenly_and_one_that_goes_takes_its_own() {
        let all: [[u8; 4]; 8] = core::array::from_fn(|n| [10, 1, 1, n as u8 + 1]);
        for count in 1..=8 {
            let set = entry(&all[..count]);
            let mut shares = [0_u32; 8];
            hashes().for_each(|hash| shares[chosen(&set, hash)] += 1);
            let fair = 40_000 / count as u32;
            // Six standard deviations of a fair choice.
            let off = |share: &u32| u64::from(share.abs_diff(fair)).pow(2) > 36 * u64::from(fair);
            assert!(
                !shares[..count].iter().any(off) && shares[count..].iter().all(|n| *n == 0),
                "{shares:?}"
            );
        }
        let (before, after) = (entry(&all), entry(&all[1..]));
        for hash in hashes() {
            let was = chosen(&before, hash);
            assert!(was == 0 || chosen(&after, hash) + 1 == was);
        }
    }

    #[test]
    fn numbers_do_not_count() {
        let mut here = entry(&[[1, 2, 3, 4], [5, 6, 7, 8], [9, 9, 9, 9]]);
        let mut there = here;
        for (place, (a, b)) in here.members.iter_mut().zip(&mut there.members).enumerate() {
            (a.at, b.at) = (place as u32, 100 - place as u32);
        }
        assert!(hashes().all(|hash| here.highest(hash, true) == there.highest(hash, true)));
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
        block.clients[3] = Client::default();
        assert_eq!((place(&block, 13), place(&block, 5)), (3, 0));
    }
}
