//! Tables of the domains with longest-prefix lookup: subnets, and routes to other addresses.

use std::collections::HashMap;

use aya::{
    Pod,
    maps::{
        MapData,
        lpm_trie::{Key, LpmTrie},
    },
};
use contiv_abi::{Address, Domain, NeighKey};
use ipnet::IpNet;

use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{pins::Pins, sizes, writes::Writes},
    },
    telemetry::TableUsage,
};

/// A prefix in a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DomainPrefix {
    pub(crate) domain: Domain,
    /// First address.
    pub(crate) first: Address,
    /// Length in bits of the prefix of an IPv6 or mapped address.
    pub(crate) len: u32,
}

impl DomainPrefix {
    pub(crate) fn new(domain: Domain, prefix: IpNet) -> DomainPrefix {
        let len = match prefix {
            IpNet::V4(prefix) => Address::BITS - 32 + u32::from(prefix.prefix_len()),
            IpNet::V6(prefix) => prefix.prefix_len().into(),
        };
        DomainPrefix { domain, first: Address::from(prefix.network()), len }
    }

    /// Bits of a key before the address.
    const BEFORE: u32 = NeighKey::BITS - Address::BITS;

    fn key(&self) -> Key<NeighKey> {
        Key::new(DomainPrefix::BEFORE + self.len, NeighKey::new(self.domain, self.first))
    }

    fn of(key: &Key<NeighKey>) -> DomainPrefix {
        let NeighKey { domain, ip, .. } = key.data();
        DomainPrefix { domain, first: ip, len: key.prefix_len().saturating_sub(DomainPrefix::BEFORE) }
    }
}

/// A map, and a copy of its entries. The agent is the only writer.
pub(crate) struct PrefixTable<V: Pod> {
    name: &'static str,
    capacity: usize,
    map: LpmTrie<MapData, NeighKey, V>,
    entries: HashMap<DomainPrefix, V>,
    writes: Writes,
}

impl<V: Pod + PartialEq> PrefixTable<V> {
    pub(crate) fn open(
        name: &'static str,
        capacity: usize,
        pins: &Pins,
        writes: &Writes,
    ) -> Result<Self, Error> {
        let map = pins.open_map(name)?;
        Ok(PrefixTable { name, capacity, map, entries: HashMap::new(), writes: writes.clone() })
    }

    /// Reads the map into the copy.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        let read = |error| failed(format!("read the map {}", self.name), error);
        let entry = |entry: Result<(Key<NeighKey>, V), _>| {
            entry.map(|(key, value)| (DomainPrefix::of(&key), value)).map_err(read)
        };
        self.entries = self.map.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(())
    }

    pub(crate) fn get(&self, prefix: &DomainPrefix) -> Option<&V> {
        self.entries.get(prefix)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&DomainPrefix, &V)> {
        self.entries.iter()
    }

    pub(crate) fn usage(&self) -> TableUsage {
        TableUsage { table: self.name, entries: self.entries.len(), capacity: self.capacity }
    }

    pub(crate) fn set(&mut self, prefix: DomainPrefix, value: V) -> Result<(), Error> {
        if self.entries.get(&prefix) == Some(&value) {
            return Ok(());
        }
        self.writes.count();
        self.map.insert(&prefix.key(), value, 0).map_err(|error| match errno(&error) {
            Some(libc::ENOSPC) => failed(sizes::full(self.name, self.capacity), error),
            _ => failed(format!("write to the map {}", self.name), error),
        })?;
        self.entries.insert(prefix, value);
        Ok(())
    }

    /// Removes an entry. Succeeds if there is no such entry.
    pub(crate) fn remove(&mut self, prefix: &DomainPrefix) -> Result<(), Error> {
        if !self.entries.contains_key(prefix) {
            return Ok(());
        }
        self.writes.count();
        match self.map.remove(&prefix.key()) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                return Err(failed(format!("remove from the map {}", self.name), error));
            }
            _ => {}
        }
        self.entries.remove(prefix);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_read_back_from_its_key() {
        let prefix = DomainPrefix::new(Domain::of_vrf(3), "10.1.2.0/24".parse().unwrap());
        assert_eq!(prefix.first, Address::v4([10, 1, 2, 0]));
        let key = prefix.key();
        // The key holds the domain, four zeros, the mapping, and three bytes of the address.
        assert_eq!({ key.prefix_len() }, 8 * (4 + 4 + 12 + 3));
        assert_eq!(DomainPrefix::of(&key), prefix);
    }
}
