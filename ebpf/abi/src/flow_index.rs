//! The index of flows: from the tuple of a packet to a record.
//!
//! The index is an array of buckets with eight slots. Buckets are grouped in pages; a tuple has two
//! buckets, both in the page that its hash selects. So a second bucket costs no further TLB miss, and
//! one lock per page covers both. Each flow has two slots: for the tuple of its original direction,
//! and for that of its replies, both as received.

use crate::Tuple;

/// A bucket of the index: one cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowBucket {
    /// [`slot`]s; zero is free.
    pub slots: [u64; FlowBucket::LEN],
}

impl FlowBucket {
    /// Number of slots.
    pub const LEN: usize = 8;
    /// Buckets of a page.
    pub const PER_PAGE: u32 = 64;

    /// Slots with this tag: the bitwise union of their entries, and their number. Branch-free: the
    /// CPU would often mispredict a comparison.
    #[inline(always)]
    pub const fn find(&self, tag: u32) -> (u32, u32) {
        let [a, b, c, d, e, f, g, h] = self.slots;
        let (a, b, c, d) = (matched(a, tag), matched(b, tag), matched(c, tag), matched(d, tag));
        let (e, f, g, h) = (matched(e, tag), matched(f, tag), matched(g, tag), matched(h, tag));
        let entries = a.0 | b.0 | c.0 | d.0 | e.0 | f.0 | g.0 | h.0;
        (entries, a.1 + b.1 + c.1 + d.1 + e.1 + f.1 + g.1 + h.1)
    }

    /// The entry of the first slot with this tag, or zero for none: entry zero is not found, so the caller must handle it
    /// otherwise. For programs in which the verifier may follow each outcome.
    #[inline(always)]
    pub const fn first(&self, tag: u32) -> u32 {
        let [a, b, c, d, e, f, g, h] = self.slots;
        if is_of(a, tag) {
            a as u32
        } else if is_of(b, tag) {
            b as u32
        } else if is_of(c, tag) {
            c as u32
        } else if is_of(d, tag) {
            d as u32
        } else if is_of(e, tag) {
            e as u32
        } else if is_of(f, tag) {
            f as u32
        } else if is_of(g, tag) {
            g as u32
        } else if is_of(h, tag) {
            h as u32
        } else {
            0
        }
    }

    /// Number of used slots. Branch-free.
    #[inline(always)]
    pub const fn used(&self) -> u32 {
        let [a, b, c, d, e, f, g, h] = self.slots;
        taken(a) + taken(b) + taken(c) + taken(d) + taken(e) + taken(f) + taken(g) + taken(h)
    }

    /// Whether a slot should be inserted into the first bucket of a hash and not into the second, by their numbers of used slots:
    /// usually it should, because a lookup starts there; but buckets that fill up share.
    #[inline(always)]
    pub const fn prefers_first([first, second]: [u32; 2]) -> bool {
        first < FlowBucket::LEN as u32 - 3 || first <= second
    }
}

/// 1 for a slot that is not free: the highest bit of every tag is set.
#[inline(always)]
const fn taken(slot: u64) -> u32 {
    (slot >> 63) as u32
}

/// The entry of a slot if it has the tag, else zero; and 1 or 0.
#[inline(always)]
const fn is_of(slot: u64, tag: u32) -> bool {
    (slot >> 32) as u32 == tag
}

#[inline(always)]
const fn matched(slot: u64, tag: u32) -> (u32, u32) {
    // The difference is below 2^32: only that of equal tags underflows.
    let equal = ((slot >> 32) ^ tag as u64).wrapping_sub(1) >> 63;
    (slot as u32 & 0_u32.wrapping_sub(equal as u32), equal as u32)
}

/// A slot: the tag in the upper half, and the entry.
#[inline(always)]
pub const fn slot(tag: u32, entry: u32) -> u64 {
    (tag as u64) << 32 | entry as u64
}

/// The entry for a direction of a record: 2 × number + 1 for replies.
#[inline(always)]
pub const fn entry(record: u32, reply: bool) -> u32 {
    record << 1 | reply as u32
}

/// A page of the index: its lock, and the number of insertions into it. Also the lock of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(C)]
pub struct FlowLock {
    /// Held while slots of the page or heads of records are written.
    pub lock: crate::policy::bpf_spin_lock,
    /// Number of insertions: a tuple that was not found is still missing while it is unchanged.
    pub insertions: u32,
}

/// Hash of a tuple in a domain.
///
/// The seed is secret: a sender that could compute hashes could fill the buckets of others. Each word that a sender can choose is
/// first added to a separate secret number, or multiplied by one, so that no tuples have the same hash for every seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowHash(pub u64);

impl FlowHash {
    /// The hash of a packet as received.
    #[inline(always)]
    pub const fn of(seed: u64, domain: u32, tuple: &Tuple) -> FlowHash {
        let ends = [tuple.source.words(), tuple.destination.words()];
        FlowHash::of_words(seed, domain, tuple.protocol, ends, tuple.ports())
    }

    /// The same of a tuple by its words, see [`Address::words`](crate::Address::words) and
    /// [`Tuple::ports`].
    #[inline(always)]
    pub const fn of_words(
        seed: u64,
        domain: u32,
        protocol: u8,
        [source, destination]: [[u64; 2]; 2],
        ports: u32,
    ) -> FlowHash {
        let (from, to) = (end(seed, source, ports & 0xffff), end(seed, destination, ports >> 16));
        let both = from.wrapping_add(to) ^ ((domain as u64) << 8 | protocol as u64);
        // One of the differences is negative, if the ends differ.
        let direction = from.wrapping_sub(to) >> 63;
        FlowHash(crate::mix(both) ^ (direction * FlowHash::DIRECTION))
    }

    /// Difference between the hashes of both directions of an untranslated flow: neighbouring buckets of the same page, and the
    /// tag.
    const DIRECTION: u64 = 1 << 32 | 1 << 38;

    /// Number of the record that is allocated for the flow if it is free.
    #[inline(always)]
    pub const fn record(self, flows: u32) -> u32 {
        ((((self.0 & !FlowHash::DIRECTION) >> 32) * flows as u64) >> 32) as u32
    }

    /// Number of the page.
    #[inline(always)]
    pub const fn page(self, pages: u32) -> u32 {
        (((self.0 & 0xffff_ffff) * pages as u64) >> 32) as u32
    }

    /// The two buckets in the page.
    #[inline(always)]
    pub const fn buckets(self) -> [u32; 2] {
        const MASK: u32 = FlowBucket::PER_PAGE - 1;
        let (first, second) = ((self.0 >> 32) as u32 & MASK, (self.0 >> 38) as u32 & MASK);
        // The distance is never zero.
        let second = if second == first { first ^ 1 } else { second };
        [first, second]
    }

    /// The tag in slots; never zero.
    #[inline(always)]
    pub const fn tag(self) -> u32 {
        (self.0 >> 32) as u32 | 1 << 31
    }
}

/// Hash of one endpoint of a flow: a sum of products that do not depend on each other, so that the CPU computes them in parallel;
/// and a product of its halves, so that the hashes of both endpoints may be added: a sender cannot compensate a change of one
/// endpoint by a change of the other, such as exchanged ports.
#[inline(always)]
const fn end(seed: u64, [a, b]: [u64; 2], port: u32) -> u64 {
    const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xd1b5_4a32_d192_ed03];
    // Multiples: the difference of two keys is as secret as a key.
    let address = product(a, seed.wrapping_mul(KEYS[0])).wrapping_add(product(b, seed.wrapping_mul(KEYS[1])));
    product(address, (port as u64).wrapping_mul(seed))
}

/// The product of both halves of a sum. A sender that does not know the key cannot find differences of the word that leave the
/// product unchanged.
#[inline(always)]
pub(crate) const fn product(word: u64, key: u64) -> u64 {
    let sum = word.wrapping_add(key);
    (sum & 0xffff_ffff) * (sum >> 32)
}

/// Dimensions of the tables for a number of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowTableSize {
    /// Records.
    pub flows: u32,
}

impl FlowTableSize {
    /// Pages of the index: two slots for each flow, half of the slots used when the table is full.
    #[inline(always)]
    pub const fn pages(self) -> u32 {
        self.flows.div_ceil(2 * FlowBucket::PER_PAGE)
    }

    /// Buckets of the index.
    #[inline(always)]
    pub const fn buckets(self) -> u32 {
        self.pages() * FlowBucket::PER_PAGE
    }

    /// Words of the bitmap of used records.
    #[inline(always)]
    pub const fn words(self) -> u32 {
        self.flows.div_ceil(64)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, vec::Vec};

    use super::*;
    use crate::{Address, Be16, TCP};

    fn tuple(number: u32) -> Tuple {
        Tuple {
            source: Address::v4([10, 1, (number >> 24) as u8, (number >> 16) as u8]),
            destination: Address::v4([10, 1, 1, 250]),
            source_port: Be16::new(number as u16),
            destination_port: Be16::new(80),
            protocol: TCP,
            zero: [0; 3],
        }
    }

    #[test]
    fn a_bucket_finds_its_slots() {
        let mut bucket = FlowBucket::default();
        assert_eq!(bucket.find(7 | 1 << 31), (0, 0));
        for at in 0..FlowBucket::LEN {
            bucket.slots[at] = slot(at as u32 | 1 << 31, entry(at as u32, at % 2 == 1));
        }
        for at in 0..FlowBucket::LEN as u32 {
            assert_eq!(bucket.find(at | 1 << 31), ((at << 1) | (at % 2), 1));
        }
        bucket.slots[3] = slot(5 | 1 << 31, entry(64, false));
        assert_eq!(bucket.find(5 | 1 << 31).1, 2);
    }

    /// A full table has hardly a tuple whose buckets are both full.
    #[test]
    fn the_index_has_room_for_every_record() {
        let size = FlowTableSize { flows: 1 << 16 };
        let (mut used, mut in_second): (BTreeMap<(u32, u32), u32>, u32) = (BTreeMap::new(), 0);
        for number in 0..2 * size.flows {
            let hash = FlowHash::of(0x1234, 9, &tuple(number));
            let page = hash.page(size.pages());
            assert!(page < size.pages());
            let [first, second] = hash.buckets();
            assert_ne!(first, second);
            let count = |bucket| used.get(&(page, bucket)).copied().unwrap_or(0);
            let bucket =
                if FlowBucket::prefers_first([count(first), count(second)]) { first } else { second };
            in_second += u32::from(bucket == second);
            *used.entry((page, bucket)).or_default() += 1;
        }
        assert!(used.values().all(|slots| *slots <= FlowBucket::LEN as u32), "{:?}", used.values().max());
        assert!(in_second < 2 * size.flows / 8, "{in_second}");
    }

    #[test]
    fn hashes_depend_on_every_field_and_on_the_seed() {
        let base = tuple(77);
        let mut tuples: Vec<(u64, u32, Tuple)> = std::vec![(1, 2, base), (3, 2, base), (1, 4, base)];
        tuples.push((1, 2, base.reversed()));
        tuples.push((1, 2, Tuple { protocol: 17, ..base }));
        for bit in 0..128 {
            let mut words = base.destination.words();
            words[bit / 64] ^= 1 << (bit % 64);
            tuples.push((1, 2, Tuple { destination: Address::from_words(words), ..base }));
        }
        let mut hashes: Vec<u64> =
            tuples.iter().map(|(seed, domain, tuple)| FlowHash::of(*seed, *domain, tuple).0).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), tuples.len());
    }

    const SEEDS: [u64; 4] = [3, 0x1234, 0x8000_0000_0000_0001, 0x0123_4567_89ab_cdef];

    fn tuple6() -> Tuple {
        let address = |last| Address([0x20, 1, 0xd, 0xb8, 0, 7, 0, 9, 0, 0, 0, 0, 0, 0, 1, last]);
        Tuple { source: address(1), destination: address(250), ..tuple(77) }
    }

    /// The tuple with these bits of the words of its source and of the port as stored inverted.
    fn inverted(base: &Tuple, [a, b]: [u64; 2], port: u16) -> Tuple {
        let [high, low] = base.source.words();
        Tuple {
            source: Address::from_words([high ^ a, low ^ b]),
            source_port: Be16::from_wire(base.source_port.wire() ^ port),
            ..*base
        }
    }

    /// The number of different hashes of the tuples, and of the replies to them.
    fn distinct(seed: u64, tuples: &[Tuple]) -> [usize; 2] {
        [false, true].map(|reply| {
            let of = |tuple: &Tuple| if reply { tuple.reversed() } else { *tuple };
            let mut hashes: Vec<u64> =
                tuples.iter().map(|tuple| FlowHash::of(seed, 9, &of(tuple)).0).collect();
            hashes.sort_unstable();
            hashes.dedup();
            hashes.len()
        })
    }

    /// The same difference in the port and in a part of the address, and one that only a top bit has.
    #[test]
    fn no_differences_of_an_end_cancel_each_other_whatever_the_seed() {
        const TOP: u64 = 1 << 63;
        const PARTS: [[u64; 2]; 3] = [[1, 0], [0, 1], [1, 1]];
        for seed in SEEDS {
            let base = tuple6();
            for shift in [0, 16, 32, 48] {
                for parts in PARTS {
                    let words = |port: u16| parts.map(|part| part * (u64::from(port) << shift));
                    let family: Vec<Tuple> =
                        (0..=u16::MAX).map(|port| inverted(&base, words(port), port)).collect();
                    assert_eq!(distinct(seed, &family), [family.len(); 2], "{seed:x}, {shift}");
                }
            }
            let mut pairs = Vec::new();
            for number in 0..16_u64 {
                let top = |bit: u64| number >> bit & 1;
                let words = [top(0) * TOP, (top(1) * TOP) | (top(2) << 31)];
                pairs.push(inverted(&base, words, (top(3) as u16) << 15));
            }
            assert_eq!(distinct(seed, &pairs), [pairs.len(); 2], "{seed:x}");
        }
    }

    /// Both ends are one sender's choice: what one has more, and the other less, or what they exchange.
    #[test]
    fn no_differences_of_both_ends_cancel_each_other_whatever_the_seed() {
        for seed in SEEDS {
            for base in [tuple(77), tuple6()] {
                let shifted = |by: u16| Tuple {
                    source_port: Be16::from_wire(by),
                    destination_port: Be16::from_wire(u16::MAX - by),
                    ..base
                };
                let family: Vec<Tuple> = (0..=u16::MAX).map(shifted).collect();
                assert_eq!(distinct(seed, &family), [family.len(); 2], "{seed:x}");
                let exchanged =
                    Tuple { source_port: base.destination_port, destination_port: base.source_port, ..base };
                assert_eq!(distinct(seed, &[base, exchanged]), [2; 2], "{seed:x}");
            }
        }
    }

    #[test]
    fn a_flow_takes_at_most_256_bytes() {
        for flows in [1 << 10, 1 << 16, 1 << 20, 1 << 24] {
            let size = FlowTableSize { flows };
            let index = u64::from(size.buckets()) * size_of::<FlowBucket>() as u64;
            let locks = u64::from(size.pages()) * size_of::<FlowLock>() as u64;
            let bitmap = u64::from(size.words()) * 8;
            let total = u64::from(flows) * size_of::<crate::Flow>() as u64 + index + locks + bitmap;
            assert!(total <= 256 * u64::from(flows), "{total}");
        }
    }
}
