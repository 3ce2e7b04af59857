use std::{
    collections::{BTreeMap, BTreeSet},
    vec,
    vec::Vec,
};

use super::*;
use crate::{TCP, UDP, mix};

const NOW: u32 = 100_000;
const WIRE: Segment = Segment::vlan(100);
const SEEDS: [u64; 3] = [0x0123_4567_89ab_cdef, 0xfeed_beef_0bad_cafe, 1];

/// A packet of a client to the service.
fn tuple(client: u32, port: u16) -> Tuple {
    Tuple {
        source: Address::v4(client.to_be_bytes()),
        destination: Address::v4([10, 1, 1, 247]),
        source_port: Be16::new(port),
        destination_port: Be16::new(80),
        protocol: TCP,
        zero: [0; 3],
    }
}

fn key(client: u32, port: u16) -> DsrKey {
    DsrKey::of(WIRE, &tuple(client, port))
}

fn state(seen: u32, version: u32) -> DsrState {
    DsrState { found: DsrEntry::found(0x0201_0a01_0202, 0x1_0007), seen, version, closing: sent::FIN }
}

fn read(entry: &DsrEntry, key: &DsrKey) -> Option<DsrState> {
    // SAFETY: a valid reference.
    unsafe { DsrEntry::read(entry, key) }
}

fn vacancy(entry: &DsrEntry, key: &DsrKey, now: u32) -> u64 {
    // SAFETY: a valid reference.
    unsafe { DsrEntry::vacancy(entry, key, now, &Timeouts::default()) }
}

#[test]
fn an_entry_is_read_by_its_connection_alone() {
    let (own, packet) = (key(1, 4000), tuple(1, 4000));
    let mut entry = DsrEntry::FREE;
    assert_eq!((read(&entry, &own), entry.is_used()), (None, false));
    // SAFETY: a valid reference, and no other one.
    unsafe { DsrEntry::insert(&raw mut entry, &own, state(NOW, 0)) };
    let expected = DsrEntry {
        client: packet.source,
        service: packet.destination,
        segment: WIRE,
        client_port: Be16::new(4000),
        service_port: Be16::new(80),
        protocol: TCP,
        closing: sent::FIN,
        zero: [0; 2],
        found: DsrEntry::found(0x0201_0a01_0202, 7),
        seen: NOW,
        version: 2,
    };
    assert_eq!((entry, entry.key()), (expected, own));
    assert_eq!((read(&entry, &own), entry.is_used()), (Some(state(NOW, 2)), true));
    let others = [
        packet.reversed(),
        Tuple { source: Address::v4([0, 0, 0, 2]), ..packet },
        Tuple { source: Address([0; 16]), ..packet },
        Tuple { destination: Address::v4([10, 1, 1, 248]), ..packet },
        Tuple { destination: Address([0xfd; 16]), ..packet },
        Tuple { source_port: Be16::new(4001), ..packet },
        Tuple { destination_port: Be16::new(81), ..packet },
        Tuple { protocol: UDP, ..packet },
    ];
    for other in others {
        assert_eq!(read(&entry, &DsrKey::of(WIRE, &other)), None, "{other:?}");
    }
    for network in [Segment::vlan(101), Segment::vxlan(100)] {
        assert_eq!(read(&entry, &DsrKey::of(network, &packet)), None);
    }
}

#[test]
fn an_entry_is_not_read_during_a_write() {
    let own = key(1, 4000);
    let mut entry = DsrEntry::FREE;
    // SAFETY: a valid reference, and no other one.
    unsafe { DsrEntry::insert(&raw mut entry, &own, state(NOW, 0)) };
    entry.version = 3;
    assert_eq!(read(&entry, &own), None);
    // One that was never completed.
    let closed = DsrState { closing: sent::FIN | sent::RST, found: 1, ..state(NOW + 1, 3) };
    // SAFETY: as above.
    unsafe { DsrEntry::update(&raw mut entry, closed) };
    assert_eq!(read(&entry, &own), Some(DsrState { version: 4, ..closed }));
    // SAFETY: as above.
    unsafe { DsrEntry::remove(&raw mut entry, DsrState { version: 4, ..closed }) };
    assert_eq!((read(&entry, &own), entry.is_used(), entry.version), (None, false, 6));
}

#[test]
fn an_address_is_found_in_its_revision() {
    for revision in [0, 7, 0xffff, 0x1_0000, u64::MAX] {
        let found = DsrEntry::found(0x0201_0a01_0202, revision);
        assert_eq!(found & DsrEntry::MAC, 0x0201_0a01_0202);
        assert!(DsrEntry::is_found_in(found, revision));
        assert!(!DsrEntry::is_found_in(found, revision.wrapping_add(1)));
    }
}

#[test]
fn free_entries_and_expired_connections_give_way_first() {
    let (timeouts, own) = (Timeouts::default(), key(1, 4000));
    let entry = |protocol, closing, seen| {
        let client = Address::v4([10, 1, 1, 9]);
        DsrEntry { client, protocol, closing, seen, version: 8, ..DsrEntry::FREE }
    };
    let mut itself = DsrEntry { version: 8, ..DsrEntry::FREE };
    // SAFETY: a valid reference, and no other one.
    unsafe { DsrEntry::insert(&raw mut itself, &own, state(NOW, 6)) };
    let ordered = [
        entry(TCP, 0, NOW - 1),
        entry(TCP, 0, NOW - 2),
        entry(UDP, 0, NOW - timeouts.udp),
        entry(TCP, 0, NOW - timeouts.tcp),
        entry(TCP, sent::RST, NOW - timeouts.tcp_closing - 1),
        entry(UDP, 0, NOW - timeouts.udp - 1),
        entry(TCP, 0, NOW - timeouts.tcp - 1),
        DsrEntry { version: 8, ..DsrEntry::FREE },
        itself,
    ];
    let vacancies = ordered.map(|entry| vacancy(&entry, &own, NOW));
    assert!(vacancies.iter().all(|vacancy| *vacancy as u32 == 8), "{vacancies:x?}");
    assert_eq!(vacancies[0] >> 32, 0, "it has had a packet in the last second");
    assert!(vacancies.is_sorted_by(|one, next| one < next), "{vacancies:x?}");
    // In this second, and by a CPU that is ahead.
    for seen in [NOW, NOW + 1] {
        assert_eq!(vacancy(&entry(TCP, 0, seen), &own, NOW) >> 32, 0);
    }
    let place = |of: [u64; DsrSet::LEN]| DsrSet::place(|way| of[way as usize]);
    assert_eq!(place([vacancies[1], vacancies[4], vacancies[3], vacancies[0]]), Some((1, 8)));
    assert_eq!(place([vacancies[7], vacancies[6], vacancies[7], vacancies[8]]), Some((3, 8)));
    assert_eq!(place([vacancies[0]; DsrSet::LEN]), None);
}

/// The table, used as the programs use it.
struct Table {
    sets: Vec<DsrSet>,
    seed: u64,
}

impl Table {
    fn new(seed: u64) -> Table {
        Table { sets: vec![DsrSet { ways: [DsrEntry::FREE; DsrSet::LEN] }; DSR_FLOWS_CAPACITY], seed }
    }

    fn set(&mut self, key: &DsrKey) -> &mut DsrSet {
        &mut self.sets[key.set(self.seed) as usize]
    }

    /// Time of the last packet of a connection, which has another one now.
    fn pass(&mut self, key: &DsrKey, now: u32) -> Option<u32> {
        let set = self.set(key);
        let (way, state) =
            set.ways.iter().enumerate().find_map(|(way, entry)| Some((way, read(entry, key)?)))?;
        // SAFETY: a valid reference, and no other one.
        unsafe { DsrEntry::update(&raw mut set.ways[way], DsrState { seen: now, ..state }) };
        Some(state.seen)
    }

    /// What the entry had that a new connection has taken; `None` without one.
    fn note(&mut self, key: &DsrKey, now: u32) -> Option<DsrEntry> {
        let set = self.set(key);
        let (way, version) = DsrSet::place(|way| vacancy(&set.ways[way as usize], key, now))?;
        let entry = &mut set.ways[way as usize];
        let before = *entry;
        // SAFETY: a valid reference, and no other one.
        unsafe { DsrEntry::insert(&raw mut *entry, key, state(now, version)) };
        Some(before)
    }
}

#[test]
fn a_noted_connection_is_found_until_it_is_evicted() {
    const CLIENTS: u64 = 50_000;
    let mut table = Table::new(SEEDS[0]);
    // Times of the last packets of the connections that the table has.
    let mut noted: BTreeMap<u32, u32> = BTreeMap::new();
    let (mut evicted, mut refused) = (0, 0);
    for step in 0..300_000_u32 {
        let (client, now) = ((mix(step.into()) % CLIENTS) as u32, NOW + step / 10_000);
        let key = key(client, 4000);
        let last = table.pass(&key, now);
        assert_eq!(last, noted.get(&client).copied(), "client {client}");
        if last.is_some() {
            noted.insert(client, now);
            continue;
        }
        let before = table.note(&key, now);
        let others = table.set(&key).ways;
        let Some(before) = before else {
            refused += 1;
            assert!(others.iter().all(|entry| entry.is_used() && entry.seen + QUIET > now));
            continue;
        };
        noted.insert(client, now);
        if before.is_used() {
            evicted += 1;
            noted.remove(&u32::from_be_bytes(before.client.low()));
            let is_oldest = others.iter().all(|entry| before.seen <= entry.seen);
            assert!(is_oldest && before.seen + QUIET <= now);
        }
    }
    assert!(evicted > 1000 && noted.len() > 20_000, "{evicted} {refused} {}", noted.len());
}

#[test]
fn a_connection_has_one_entry() {
    let mut table = Table::new(SEEDS[1]);
    let key = key(7, 4000);
    for now in [NOW, NOW, NOW + 100_000] {
        assert!(table.note(&key, now).is_some());
        assert_eq!(table.set(&key).ways.iter().filter(|entry| entry.is_used()).count(), 1);
    }
    assert_eq!(table.pass(&key, NOW + 100_000), Some(NOW + 100_000));
}

#[test]
fn hashes_depend_on_every_field_and_on_the_seed() {
    let (packet, [seed, other, _]) = (tuple(77, 4000), SEEDS);
    let mut hashes: Vec<u64> = vec![key(77, 4000).hash(seed), key(77, 4000).hash(other)];
    let mut add = |segment, tuple: Tuple| hashes.push(DsrKey::of(segment, &tuple).hash(seed));
    add(Segment::vlan(101), packet);
    add(Segment::vxlan(100), packet);
    add(WIRE, packet.reversed());
    add(WIRE, Tuple { protocol: UDP, ..packet });
    for bit in 0..16 {
        let flip = |port: Be16| Be16::new(port.get() ^ 1 << bit);
        add(WIRE, Tuple { source_port: flip(packet.source_port), ..packet });
        add(WIRE, Tuple { destination_port: flip(packet.destination_port), ..packet });
    }
    for bit in 0..128 {
        let flip = |address: Address| {
            let mut words = address.words();
            words[bit / 64] ^= 1 << (bit % 64);
            Address::from_words(words)
        };
        add(WIRE, Tuple { source: flip(packet.source), ..packet });
        add(WIRE, Tuple { destination: flip(packet.destination), ..packet });
    }
    let len = hashes.len();
    assert_eq!(hashes.into_iter().collect::<BTreeSet<u64>>().len(), len);
}

/// A sender that knew the difference of the secret numbers of two words could exchange what is multiplied.
#[test]
fn differences_of_secret_numbers_are_secret() {
    const NUMBERS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
    let difference = NUMBERS[1].wrapping_sub(NUMBERS[0]);
    let client = |words| DsrKey::of(WIRE, &Tuple { source: Address::from_words(words), ..tuple(77, 4000) });
    let [a, b] = [0xfd00_0000_0000_0001, 0x0123_4567_89ab_cdef_u64];
    let exchanged = client([b.wrapping_add(difference), u64::wrapping_sub(a, difference)]);
    for seed in &SEEDS[..2] {
        // With such a seed, its exclusive or with the numbers has the same difference.
        let seed = seed & !(NUMBERS[0] ^ NUMBERS[1]);
        assert_ne!(client([a, b]).hash(seed), exchanged.hash(seed), "{seed:x}");
        assert_ne!(client([a, b]).set(seed), exchanged.set(seed), "{seed:x}");
    }
}

/// Of 16,384 random keys, 610 find their set full.
#[test]
fn connections_are_spread_over_the_sets() {
    const CONNECTIONS: u32 = 16_384;
    let net = 10 << 24 | 1 << 16;
    let v6 = |number: u32| {
        let mut client = [0xfd; 16];
        client[12..].copy_from_slice(&number.to_be_bytes());
        let service = Address([0xfd; 16]);
        DsrKey::of(WIRE, &Tuple { source: Address(client), destination: service, ..tuple(0, 4000) })
    };
    let kinds: [&dyn Fn(u32) -> DsrKey; 5] = [
        &|number| key(net, number as u16 + 1024),
        &|number| key(net + number, 4000),
        &|number| key(net + (number << 8), 4000),
        &|number| key(net + number / 64, 30_000 + (number % 64) as u16),
        &v6,
    ];
    for seed in SEEDS {
        for (kind, key) in kinds.iter().enumerate() {
            let mut sets: BTreeMap<u32, usize> = BTreeMap::new();
            for number in 0..CONNECTIONS {
                *sets.entry(key(number).set(seed)).or_default() += 1;
            }
            assert!(sets.keys().all(|set| (*set as usize) < DSR_FLOWS_CAPACITY));
            let without: usize = sets.values().map(|len| len.saturating_sub(DsrSet::LEN)).sum();
            assert!(without < 1000, "{without} of kind {kind} with seed {seed:x}");
        }
    }
}
