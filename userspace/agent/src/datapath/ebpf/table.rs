//! A map and what we know to be in it.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use aya::{
    Pod,
    maps::{self, IterableMap as _, MapData},
};

use super::{
    batch,
    failure::{errno, failed},
};
use crate::datapath::{Error, Fill};

/// Counts what is changed in the kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct Writes(Arc<AtomicU64>);

impl Writes {
    pub(super) fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A hash map and a copy of it. We are the only writer, so the copy is true from `read` on, and what
/// is there already is not written again.
pub(super) struct Table<K, V> {
    name: &'static str,
    capacity: usize,
    map: maps::HashMap<MapData, K, V>,
    known: HashMap<K, V>,
    writes: Writes,
}

impl<K: Pod + Eq + Hash, V: Pod + PartialEq> Table<K, V> {
    pub(super) fn new(
        name: &'static str,
        capacity: usize,
        map: maps::HashMap<MapData, K, V>,
        writes: Writes,
    ) -> Self {
        Table { name, capacity, map, known: HashMap::new(), writes }
    }

    /// Makes the copy afresh.
    pub(super) fn read(&mut self) -> Result<(), Error> {
        self.known = batch::entries(self.name, self.map.map())?.into_iter().collect();
        Ok(())
    }

    pub(super) fn get(&self, key: &K) -> Option<&V> {
        self.known.get(key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.known.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    pub(super) fn fill(&self) -> Fill {
        Fill { table: self.name, entries: self.known.len(), room: self.capacity }
    }

    pub(super) fn set(&mut self, key: K, value: V) -> Result<(), Error> {
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

    pub(super) fn remove(&mut self, key: &K) -> Result<(), Error> {
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
