//! Backends of clients with session affinity, and nodes of connections from outside, of another ABI version.

use std::collections::HashMap;

use aya::maps::{HashMap as BpfHashMap, MapData, MapError};
use contiv_abi::{
    Address, AffinityBlock, Backend, Be16, Client, Domain, DsrEntry, FlowKey, Member,
    maps::{AFFINITY, AFFINITY_CAPACITY, BACKENDS, BACKENDS_CAPACITY, DSR_FLOWS},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{
            btf,
            foreign::{self, Record},
            mmap::MmapArray,
            pins::Pins,
        },
        programs::migration::MovedDomains,
    },
};

/// Copies the nodes of connections from outside. An entry that exists stays.
pub(super) fn copy_relays(own: &Pins, other: &Pins, domains: &MovedDomains) -> Result<(), Error> {
    const BPF_NOEXIST: u64 = 1;
    let mut to: BpfHashMap<MapData, FlowKey, DsrEntry> = own.open_map(DSR_FLOWS)?;
    for (key, value) in foreign::entries(other, DSR_FLOWS)? {
        let (Some(key), Some(entry)) = (flow_key(&key), dsr_entry(&key, &value, domains)) else {
            return Err(failed(format!("read the map {DSR_FLOWS}"), "it lacks a field"));
        };
        match to.insert(key, entry, BPF_NOEXIST) {
            Err(error) if errno(&error) != Some(libc::EEXIST) => return Err(unwritable(error)),
            _ => {}
        }
    }
    Ok(())
}

fn flow_key(record: &Record) -> Option<FlowKey> {
    let address = |field| record.bytes(field).map(Address);
    let port = |field| record.bytes(field).map(|bytes| Be16::from_wire(u16::from_ne_bytes(bytes)));
    Some(FlowKey {
        segment: record.segment()?,
        low: address("low")?,
        high: address("high")?,
        low_port: port("low_port")?,
        high_port: port("high_port")?,
        protocol: u8::try_from(record.number("protocol")?).ok()?,
        zero: [0; 3],
    })
}

/// Up to version 6 the domain was that of the network in the key. Neighbours of this version have revisions of their own.
fn dsr_entry(key: &Record, record: &Record, domains: &MovedDomains) -> Option<DsrEntry> {
    let domain = record.domain().or_else(|| key.domain())?.number();
    Some(DsrEntry {
        backend: Address(record.bytes("backend")?),
        seen: record.number("seen")?,
        closing: record.number("closing")?,
        found: 0,
        domain: Domain::from_number(domains.get(&domain).copied().unwrap_or(domain)),
        zero: 0,
    })
}

fn unwritable(error: MapError) -> Error {
    failed(format!("write to the map {DSR_FLOWS}"), error)
}

/// Copies the backends of clients with session affinity. Ports of services have the same numbers in both versions, by which
/// the clients are found.
pub(super) fn copy_affinity(own: &Pins, other: &Pins) -> Result<(), Error> {
    for name in [AFFINITY, BACKENDS] {
        if !btf::are_alike(&own.open_data(name)?, &other.open_data(name)?) {
            return Err(failed(format!("read the map {name}"), "it has another layout"));
        }
    }
    let blocks = |pins| mapped::<AffinityBlock>(pins, AFFINITY, AFFINITY_CAPACITY);
    let (from, mut to) = (blocks(other)?, blocks(own)?);
    let numbers = BackendNumbers::read(own, other)?;
    for index in 0..AFFINITY_CAPACITY as u32 {
        let Some(block) = from.get(index).filter(|block| *block != AffinityBlock::default()) else {
            continue;
        };
        let Some(current) = to.get(index) else { continue };
        let merged = merge(current, block, |member| numbers.translate(member));
        if merged != current {
            to.set(index, merged);
        }
    }
    Ok(())
}

/// The clients of both blocks: those of `current`, and of `other` as many as there is room for.
fn merge(
    current: AffinityBlock,
    other: AffinityBlock,
    translate: impl Fn(Member) -> Option<Member>,
) -> AffinityBlock {
    let mut merged = current;
    for client in other.clients.iter().filter(|client| client.tag != 0) {
        let known = merged.clients.iter().any(|known| known.tag == client.tag);
        let free = merged.clients.iter_mut().find(|place| place.tag == 0);
        if let (false, Some(free), Some(with)) = (known, free, translate(client.with)) {
            *free = Client { with, ..*client };
        }
    }
    merged
}

/// Numbers of IPv6 backends, which differ between versions.
struct BackendNumbers {
    from: MmapArray<Backend>,
    to: HashMap<Backend, u32>,
}

impl BackendNumbers {
    fn read(own: &Pins, other: &Pins) -> Result<BackendNumbers, Error> {
        let backends = |pins| mapped::<Backend>(pins, BACKENDS, BACKENDS_CAPACITY);
        let (from, to) = (backends(other)?, backends(own)?);
        let numbers = (0..BACKENDS_CAPACITY as u32).filter_map(|number| Some((to.get(number)?, number)));
        let to = numbers.filter(|(backend, _)| *backend != Backend::default()).collect();
        Ok(BackendNumbers { from, to })
    }

    /// The member in this version; `None` for a backend that it does not have. A member with IPv4 has no number: it has its
    /// port in the place of it, and an address in the place of the hash.
    fn translate(&self, member: Member) -> Option<Member> {
        match self.from.get(member.at) {
            Some(backend) if !backend.ip.is_v4() && backend.mark.to_ne_bytes() == member.mark => {
                let number = self.to.get(&backend)?;
                Some(Member { at: *number, ..member })
            }
            _ => Some(member),
        }
    }
}

fn mapped<V: bytemuck::Pod>(pins: &Pins, name: &'static str, len: usize) -> Result<MmapArray<V>, Error> {
    MmapArray::new(pins.open_data(name)?, len)
        .map_err(|error| failed(format!("map {name} into memory"), error))
}

#[cfg(test)]
mod tests {
    use contiv_abi::Segment;

    use super::*;

    /// The layout of version 6.
    #[test]
    fn connections_of_a_network_become_those_of_its_domain() {
        let [low, high] = [1, 2].map(|last| Address::v4([10, 1, 1, last]));
        let key = Record::of(&[
            ("segment.vni", &10_001_u32.to_ne_bytes()),
            ("segment.vlan", &0_u32.to_ne_bytes()),
            ("low", &low.0),
            ("high", &high.0),
            ("low_port", &80_u16.to_be_bytes()),
            ("high_port", &4000_u16.to_be_bytes()),
            ("protocol", &[6]),
        ]);
        let expected = FlowKey {
            segment: Segment::vxlan(10_001),
            low,
            high,
            low_port: Be16::new(80),
            high_port: Be16::new(4000),
            protocol: 6,
            zero: [0; 3],
        };
        assert_eq!(flow_key(&key), Some(expected));
        let [seen, closing] = [9_u32, 1].map(u32::to_ne_bytes);
        let entry = Record::of(&[("backend", &high.0), ("seen", &seen), ("closing", &closing)]);
        let expected = |domain: u32| {
            let domain = Domain::from_number(domain);
            Some(DsrEntry { backend: high, seen: 9, closing: 1, found: 0, domain, zero: 0 })
        };
        assert_eq!(dsr_entry(&key, &entry, &MovedDomains::new()), expected(10_001));
        assert_eq!(dsr_entry(&key, &entry, &MovedDomains::from([(10_001, 77)])), expected(77));
        assert_eq!(dsr_entry(&key, &Record::of(&[("backend", &high.0)]), &MovedDomains::new()), None);
        let later = Record::of(&[
            ("domain", &5_u32.to_ne_bytes()),
            ("backend", &high.0),
            ("seen", &seen),
            ("closing", &closing),
        ]);
        assert_eq!(dsr_entry(&key, &later, &MovedDomains::new()), expected(5));
    }

    #[test]
    fn clients_of_both_blocks_are_kept() {
        let client = |tag| Client { tag, seen: tag, with: Member::v4([10, 1, 1, tag as u8], 80) };
        let block = |tags: [u32; 4]| AffinityBlock {
            clients: tags.map(|tag| if tag == 0 { Client::default() } else { client(tag) }),
        };
        let merged = merge(block([1, 0, 3, 0]), block([3, 5, 7, 9]), Some);
        assert_eq!(merged, block([1, 5, 3, 7]));
        let merged =
            merge(block([0; 4]), block([1, 2, 0, 0]), |member| (member.mark[3] != 1).then_some(member));
        assert_eq!(merged, block([2, 0, 0, 0]));
    }
}
