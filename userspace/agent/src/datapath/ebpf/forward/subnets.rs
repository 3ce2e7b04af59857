//! Subnets of the domains, found by the longest prefix.

use std::collections::HashMap;

use aya::maps::{
    MapData,
    lpm_trie::{Key, LpmTrie},
};
use contiv_abi::{
    Address, Domain, NeighKey, Subnet,
    maps::{SUBNETS, SUBNETS_CAPACITY},
};

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
pub(crate) struct SubnetPrefix {
    pub(crate) domain: Domain,
    /// First address.
    pub(crate) first: Address,
    /// Length in bits of the prefix of an IPv6 or mapped address.
    pub(crate) len: u32,
}

impl SubnetPrefix {
    /// Bits of a key before the address.
    const BEFORE: u32 = NeighKey::BITS - Address::BITS;

    fn key(&self) -> Key<NeighKey> {
        Key::new(SubnetPrefix::BEFORE + self.len, NeighKey::new(self.domain, self.first))
    }

    fn of(key: &Key<NeighKey>) -> SubnetPrefix {
        let NeighKey { domain, ip, .. } = key.data();
        SubnetPrefix { domain, first: ip, len: key.prefix_len().saturating_sub(SubnetPrefix::BEFORE) }
    }
}

/// `ctv_subnets`, and a copy of its entries. The agent is the only writer.
pub(crate) struct Subnets {
    map: LpmTrie<MapData, NeighKey, Subnet>,
    entries: HashMap<SubnetPrefix, Subnet>,
    writes: Writes,
}

impl Subnets {
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        Ok(Subnets { map: pins.open_map(SUBNETS)?, entries: HashMap::new(), writes: writes.clone() })
    }

    /// Reads the map into the copy.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        let read = |error| failed(format!("read the map {SUBNETS}"), error);
        let entry = |entry: Result<(Key<NeighKey>, Subnet), _>| {
            entry.map(|(key, subnet)| (SubnetPrefix::of(&key), subnet)).map_err(read)
        };
        self.entries = self.map.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(())
    }

    pub(crate) fn get(&self, prefix: &SubnetPrefix) -> Option<&Subnet> {
        self.entries.get(prefix)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SubnetPrefix, &Subnet)> {
        self.entries.iter()
    }

    pub(crate) fn usage(&self) -> TableUsage {
        TableUsage { table: SUBNETS, entries: self.entries.len(), capacity: SUBNETS_CAPACITY }
    }

    pub(crate) fn set(&mut self, prefix: SubnetPrefix, subnet: Subnet) -> Result<(), Error> {
        if self.entries.get(&prefix) == Some(&subnet) {
            return Ok(());
        }
        self.writes.count();
        self.map.insert(&prefix.key(), subnet, 0).map_err(|error| match errno(&error) {
            Some(libc::ENOSPC) => failed(sizes::full(SUBNETS, SUBNETS_CAPACITY), error),
            _ => failed(format!("write to the map {SUBNETS}"), error),
        })?;
        self.entries.insert(prefix, subnet);
        Ok(())
    }

    /// Removes a subnet. Succeeds if there is no such subnet.
    pub(crate) fn remove(&mut self, prefix: &SubnetPrefix) -> Result<(), Error> {
        if !self.entries.contains_key(prefix) {
            return Ok(());
        }
        self.writes.count();
        match self.map.remove(&prefix.key()) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                return Err(failed(format!("remove from the map {SUBNETS}"), error));
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
        let first = Address::v4([10, 1, 2, 0]);
        let prefix = SubnetPrefix { domain: Domain::of_vrf(3), first, len: 96 + 24 };
        let key = prefix.key();
        // The domain, four zeros, the mapping, and three bytes of the address.
        assert_eq!({ key.prefix_len() }, 8 * (4 + 4 + 12 + 3));
        assert_eq!(SubnetPrefix::of(&key), prefix);
    }
}
