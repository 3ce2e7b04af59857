//! Hash maps with a copy in the process.

use std::{collections::HashMap, hash::Hash};

use aya::{
    Pod,
    maps::{self, IterableMap as _, MapData},
};

use super::{batch, sizes, writes::Writes};
use crate::datapath::{
    Error,
    ebpf::failure::{errno, failed},
    telemetry::TableUsage,
};

/// A hash map and a copy of its entries. The agent is the only writer, so the copy is accurate after
/// [`read`](Self::read), and [`set`](Self::set) skips entries that are already present.
pub(crate) struct Table<K, V> {
    name: &'static str,
    capacity: usize,
    map: maps::HashMap<MapData, K, V>,
    entries: HashMap<K, V>,
    writes: Writes,
}

impl<K: Pod + Eq + Hash, V: Pod + PartialEq> Table<K, V> {
    pub(crate) fn new(
        name: &'static str,
        capacity: usize,
        map: maps::HashMap<MapData, K, V>,
        writes: Writes,
    ) -> Self {
        Table { name, capacity, map, entries: HashMap::new(), writes }
    }

    /// Reads the map into the copy.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.entries = batch::entries(self.name, self.map.map())?.into_iter().collect();
        Ok(())
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.entries.iter()
    }

    pub(crate) fn usage(&self) -> TableUsage {
        TableUsage { table: self.name, entries: self.entries.len(), capacity: self.capacity }
    }

    pub(crate) fn set(&mut self, key: K, value: V) -> Result<(), Error> {
        if self.entries.get(&key) == Some(&value) {
            return Ok(());
        }
        self.writes.count();
        match self.map.insert(key, value, 0) {
            Ok(()) => {
                self.entries.insert(key, value);
                Ok(())
            }
            Err(error) if errno(&error) == Some(libc::E2BIG) => {
                Err(failed(sizes::full(self.name, self.capacity), error))
            }
            Err(error) => Err(failed(format!("write to the map {}", self.name), error)),
        }
    }

    /// Removes an entry. Succeeds if there is no such entry.
    pub(crate) fn remove(&mut self, key: &K) -> Result<(), Error> {
        if !self.entries.contains_key(key) {
            return Ok(());
        }
        self.writes.count();
        match self.map.remove(key) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                return Err(failed(format!("remove from the map {}", self.name), error));
            }
            _ => {}
        }
        self.entries.remove(key);
        Ok(())
    }
}
