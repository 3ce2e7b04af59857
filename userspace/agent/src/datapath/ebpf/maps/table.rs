//! A map and what we know to be in it.

use std::{collections::HashMap, hash::Hash};

use aya::{
    Pod,
    maps::{self, IterableMap as _, MapData},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::{batch, writes::Writes},
    },
    telemetry::TableUsage,
};

/// A hash map and a copy of it. We are the only writer, so the copy is true from `read` on, and what
/// is there already is not written again.
pub(crate) struct Table<K, V> {
    name: &'static str,
    capacity: usize,
    map: maps::HashMap<MapData, K, V>,
    known: HashMap<K, V>,
    writes: Writes,
}

impl<K: Pod + Eq + Hash, V: Pod + PartialEq> Table<K, V> {
    pub(crate) fn new(
        name: &'static str,
        capacity: usize,
        map: maps::HashMap<MapData, K, V>,
        writes: Writes,
    ) -> Self {
        Table { name, capacity, map, known: HashMap::new(), writes }
    }

    /// Makes the copy afresh.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.known = batch::entries(self.name, self.map.map())?.into_iter().collect();
        Ok(())
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.known.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.known.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    pub(crate) fn fill(&self) -> TableUsage {
        TableUsage { table: self.name, entries: self.known.len(), capacity: self.capacity }
    }

    pub(crate) fn set(&mut self, key: K, value: V) -> Result<(), Error> {
        if self.known.get(&key) == Some(&value) {
            return Ok(());
        }
        self.writes.count();
        match self.map.insert(key, value, 0) {
            Ok(()) => {
                self.known.insert(key, value);
                Ok(())
            }
            Err(error) if errno(&error) == Some(libc::E2BIG) => {
                let full =
                    format!("write to the map {}, which is full ({} entries)", self.name, self.capacity);
                Err(failed(full, error))
            }
            Err(error) => Err(failed(format!("write to the map {}", self.name), error)),
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Result<(), Error> {
        if !self.known.contains_key(key) {
            return Ok(());
        }
        self.writes.count();
        match self.map.remove(key) {
            Err(error) if errno(&error) != Some(libc::ENOENT) => {
                return Err(failed(format!("remove from the map {}", self.name), error));
            }
            _ => {}
        }
        self.known.remove(key);
        Ok(())
    }
}
