//! Connections of clients outside the cluster that another ABI version forwards to backends on other nodes.
//!
//! Up to version 9 they are in a hash table keyed by their ends. The key does not distinguish the client from the
//! service, and the value has the IP address of the backend. Later they are in sets of an array, and have the Ethernet
//! address of the backend.

use std::{
    array,
    collections::HashMap,
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Array, MapData};
use contiv_abi::{
    Address, Be16, Domain, DsrEntry, DsrKey, DsrSet, NeighEntry, NeighKey, Node, Segment,
    maps::{DSR_FLOWS, NEIGH, NODE},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        forward::fdb,
        maps::{
            batch, btf,
            foreign::{self, Record},
            mmap::MmapArray,
            pins::Pins,
            usage,
        },
        programs::migration::MovedDomains,
    },
};

/// Copies the connections. An existing entry is kept.
pub(super) fn copy(own: &Pins, other: &Pins, domains: &MovedDomains) -> Result<(), Error> {
    let what = || format!("read the map {DSR_FLOWS}");
    let incomplete = || failed(what(), "it lacks a field");
    let mut table = Table::open(own)?;
    let [_, layout] = btf::layouts(&other.open_data(DSR_FLOWS)?).map_err(|error| failed(what(), error))?;
    if layout.field("ways[0].protocol").is_some() {
        for set in foreign::values(other, DSR_FLOWS)? {
            for entry in of_set(&set) {
                table.insert(entry.ok_or_else(incomplete)?);
            }
        }
        return Ok(());
    }
    let neighbours: HashMap<NeighKey, NeighEntry> =
        batch::entries(NEIGH, &own.open_data(NEIGH)?)?.into_iter().collect();
    for (key, value) in foreign::entries(other, DSR_FLOWS)? {
        let connection = Connection::read(&key, &value, domains).ok_or_else(incomplete)?;
        let owner = |domain, ip| neighbours.get(&NeighKey::new(domain, ip)).copied();
        if let Some(entry) = connection.entry(owner) {
            table.insert(entry);
        }
    }
    Ok(())
}

/// The connections of a set; `None` for one that lacks a field.
fn of_set(set: &Record) -> impl Iterator<Item = Option<DsrEntry>> {
    let ways = (0..).map(move |way| set.part(&format!("ways[{way}]")));
    let ways = ways.map_while(|way| way.number("protocol").map(|protocol| (protocol, way)));
    // An odd version belongs to a write that was never completed.
    let is_valid = |way: &Record| way.number("version").is_some_and(|version| version.is_multiple_of(2));
    ways.filter(move |(protocol, way)| *protocol != 0 && is_valid(way)).map(|(_, way)| of_way(&way))
}

fn of_way(way: &Record) -> Option<DsrEntry> {
    Some(DsrEntry {
        client: Address(way.bytes("client")?),
        service: Address(way.bytes("service")?),
        segment: way.segment()?,
        client_port: port(way, "client_port")?,
        service_port: port(way, "service_port")?,
        protocol: u8::try_from(way.number("protocol")?).ok()?,
        closing: u8::try_from(way.number("closing")?).ok()?,
        found: u64::from_ne_bytes(way.bytes("found")?),
        seen: way.number("seen")?,
        ..DsrEntry::FREE
    })
}

fn port(record: &Record, field: &str) -> Option<Be16> {
    record.bytes(field).map(|bytes| Be16::from_wire(u16::from_ne_bytes(bytes)))
}

/// A connection in a table of up to version 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Connection {
    segment: Segment,
    /// Client and service, or service and client.
    ends: [(Address, Be16); 2],
    protocol: u8,
    domain: Domain,
    backend: Address,
    seen: u32,
    closing: u8,
}

impl Connection {
    /// `None` if it lacks a field. Up to version 6 the domain was that of the network in the key.
    fn read(key: &Record, value: &Record, domains: &MovedDomains) -> Option<Connection> {
        let end = |address, at| Some((Address(key.bytes(address)?), port(key, at)?));
        let domain = value.domain().or_else(|| key.domain())?.number();
        Some(Connection {
            segment: key.segment()?,
            ends: [end("low", "low_port")?, end("high", "high_port")?],
            protocol: u8::try_from(key.number("protocol")?).ok()?,
            domain: Domain::from_number(domains.get(&domain).copied().unwrap_or(domain)),
            backend: Address(value.bytes("backend")?),
            seen: value.number("seen")?,
            closing: u8::try_from(value.number("closing")?).ok()?,
        })
    }

    /// Returns the connection in this version. `owner` returns the neighbour entry of an address. Returns `None` if not
    /// exactly one end is a service, or if the backend is no longer on another node.
    fn entry(&self, owner: impl Fn(Domain, Address) -> Option<NeighEntry>) -> Option<DsrEntry> {
        let owner = |ip| owner(self.domain, ip);
        let is_service = |owner: &NeighEntry| owner.flags & NeighEntry::SERVICE != 0;
        let [low, high] = self.ends;
        let (client, service) = match self.ends.map(|(ip, _)| owner(ip).is_some_and(|it| is_service(&it))) {
            [false, true] => (low, high),
            [true, false] => (high, low),
            _ => return None,
        };
        let backend = owner(self.backend).filter(|it| it.ifindex == 0 && !is_service(it))?;
        let [a, b, c, d, e, f] = backend.mac;
        Some(DsrEntry {
            client: client.0,
            service: service.0,
            segment: self.segment,
            client_port: client.1,
            service_port: service.1,
            protocol: self.protocol,
            closing: self.closing,
            found: u64::from_le_bytes([a, b, c, d, e, f, 0, 0]),
            seen: self.seen,
            ..DsrEntry::FREE
        })
    }
}

/// The table of this version, which its programs may write.
struct Table {
    entries: MmapArray<DsrEntry>,
    seed: u64,
    /// An outdated revision of the forwarding database, so that the programs look up a backend before they use it.
    revision: u64,
}

impl Table {
    fn open(own: &Pins) -> Result<Table, Error> {
        let node: Array<MapData, Node> = own.open_map(NODE)?;
        let node = node.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))?;
        let revision = fdb::revision(own)?.get(0).unwrap_or(0).wrapping_sub(1);
        Ok(Table { entries: usage::dsr_entries(own)?, seed: node.seed, revision })
    }

    /// Writes a connection to a free entry of its set. If the set already has it, or has no free entry, it is omitted, as
    /// if it had been evicted.
    fn insert(&mut self, connection: DsrEntry) {
        let key = connection.key();
        let first = key.set(self.seed) * DsrSet::LEN as u32;
        let of = |way: usize| self.entries.get(first + way as u32).unwrap_or(DsrEntry::FREE);
        let set: [DsrEntry; DsrSet::LEN] = array::from_fn(of);
        let Some(way) = free(&set, &key) else { return };
        // An agent that stopped during a write has left an odd version.
        let version = set[way].version | 1;
        let found = DsrEntry::found(connection.found, self.revision);
        let connection = DsrEntry { found, ..connection };
        for entry in [
            DsrEntry { version, ..DsrEntry::FREE },
            DsrEntry { version, ..connection },
            DsrEntry { version: version.wrapping_add(1), ..connection },
        ] {
            // The index is in range.
            let _stored = self.entries.set(first + way as u32, entry);
            fence(Ordering::SeqCst);
        }
    }
}

/// Index of a free entry of a set, unless the set has the connection.
fn free(set: &[DsrEntry], key: &DsrKey) -> Option<usize> {
    let has = set.iter().any(|entry| entry.is_used() && entry.key() == *key);
    if has { None } else { set.iter().position(|entry| !entry.is_used()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: Segment = Segment::vxlan(10_001);
    const BACKEND: Address = Address::v4([10, 1, 1, 9]);

    /// The ends of a connection: the lower one, and the higher one.
    fn ends() -> [(Address, Be16); 2] {
        [(1, 80), (2, 4000)].map(|(last, port)| (Address::v4([10, 1, 1, last]), Be16::new(port)))
    }

    fn connection(domain: u32) -> Connection {
        Connection {
            segment: SEGMENT,
            ends: ends(),
            protocol: 6,
            domain: Domain::from_number(domain),
            backend: BACKEND,
            seen: 9,
            closing: 1,
        }
    }

    /// The layout of version 6.
    #[test]
    fn connections_of_a_network_become_those_of_its_domain() {
        let [(low, _), (high, _)] = ends();
        let key = Record::of(&[
            ("segment.vni", &10_001_u32.to_ne_bytes()),
            ("segment.vlan", &0_u32.to_ne_bytes()),
            ("low", &low.0),
            ("high", &high.0),
            ("low_port", &80_u16.to_be_bytes()),
            ("high_port", &4000_u16.to_be_bytes()),
            ("protocol", &[6]),
        ]);
        let [seen, closing] = [9_u32, 1].map(u32::to_ne_bytes);
        let entry = Record::of(&[("backend", &BACKEND.0), ("seen", &seen), ("closing", &closing)]);
        let read = |entry: &Record, domains: &MovedDomains| Connection::read(&key, entry, domains);
        assert_eq!(read(&entry, &MovedDomains::new()), Some(connection(10_001)));
        assert_eq!(read(&entry, &MovedDomains::from([(10_001, 77)])), Some(connection(77)));
        assert_eq!(read(&Record::of(&[("backend", &BACKEND.0)]), &MovedDomains::new()), None);
        let later = Record::of(&[
            ("domain", &5_u32.to_ne_bytes()),
            ("backend", &BACKEND.0),
            ("seen", &seen),
            ("closing", &closing),
        ]);
        assert_eq!(read(&later, &MovedDomains::new()), Some(connection(5)));
    }

    #[test]
    fn the_service_is_the_end_with_its_neighbour_entry() {
        let [low, high] = ends();
        let service = NeighEntry { mac: [2; 6], flags: NeighEntry::SERVICE, ifindex: 0, group: 0 };
        let there = NeighEntry { mac: [1, 2, 3, 4, 5, 6], flags: 0, ifindex: 0, group: 3 };
        let of = |services: &[Address], backend: Option<NeighEntry>| {
            connection(7).entry(|domain, ip| {
                assert_eq!(domain, Domain::from_number(7));
                if ip == BACKEND { backend } else { services.contains(&ip).then_some(service) }
            })
        };
        for (client, vip) in [(low, high), (high, low)] {
            let expected = DsrEntry {
                client: client.0,
                service: vip.0,
                segment: SEGMENT,
                client_port: client.1,
                service_port: vip.1,
                protocol: 6,
                closing: 1,
                found: 0x0605_0403_0201,
                seen: 9,
                ..DsrEntry::FREE
            };
            assert_eq!(of(&[vip.0], Some(there)), Some(expected));
            // The backend is gone, or is on this node.
            assert_eq!(of(&[vip.0], None), None);
            assert_eq!(of(&[vip.0], Some(NeighEntry { ifindex: 7, ..there })), None);
        }
        assert_eq!((of(&[], Some(there)), of(&[low.0, high.0], Some(there))), (None, None));
    }

    #[test]
    fn connections_of_a_set_are_read_by_the_names_of_their_fields() {
        let [(service, service_port), (client, client_port)] = ends();
        let vlan = 100_u32.to_ne_bytes();
        let (found, seen) = (DsrEntry::found(0x0605_0403_0201, 7), 9);
        let set = |protocols: [u8; 2], version: u32, client_field: &str| {
            let mut fields: Vec<(String, Vec<u8>)> = vec![];
            for (way, protocol) in protocols.into_iter().enumerate() {
                let mut add = |field: &str, value: &[u8]| {
                    fields.push((format!("ways[{way}].{field}"), value.to_vec()));
                };
                add("version", &version.to_ne_bytes());
                add("seen", &u32::to_ne_bytes(seen));
                add("found", &found.to_ne_bytes());
                add("closing", &[1]);
                add("protocol", &[protocol]);
                add("service_port", &service_port.wire().to_ne_bytes());
                add("client_port", &client_port.wire().to_ne_bytes());
                add("segment.vlan", &vlan);
                add("segment.vni", &[0; 4]);
                add("service", &service.0);
                add(client_field, &client.0);
            }
            let fields: Vec<(&str, &[u8])> =
                fields.iter().map(|(path, value)| (path.as_str(), value.as_slice())).collect();
            Record::of(&fields)
        };
        let expected = |protocol| {
            Some(DsrEntry {
                client,
                service,
                segment: Segment::vlan(100),
                client_port,
                service_port,
                protocol,
                closing: 1,
                found,
                seen,
                ..DsrEntry::FREE
            })
        };
        let read = |set: &Record| of_set(set).collect::<Vec<_>>();
        assert_eq!(read(&set([6, 17], 8, "client")), [expected(6), expected(17)]);
        assert_eq!(read(&set([0, 17], 8, "client")), [expected(17)]);
        assert!(read(&set([6, 17], 7, "client")).is_empty());
        assert_eq!(read(&set([6, 0], 8, "other")), [None]);
    }

    #[test]
    fn a_connection_takes_a_free_entry_unless_there_is_one_of_it() {
        let entry =
            |last: u8| DsrEntry { client: Address::v4([10, 1, 1, last]), protocol: 6, ..DsrEntry::FREE };
        let set = |clients: [u8; DsrSet::LEN]| {
            clients.map(|client| if client == 0 { DsrEntry::FREE } else { entry(client) })
        };
        let key = entry(9).key();
        assert_eq!(free(&set([1, 0, 2, 0]), &key), Some(1));
        assert_eq!(free(&set([1, 0, 9, 0]), &key), None);
        assert_eq!(free(&set([1, 2, 3, 4]), &key), None);
    }
}
