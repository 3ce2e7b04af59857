//! The forwarding database, with its revision.

use contiv_abi::{
    FdbEntry, FdbKey,
    maps::{FDB, FDB_REVISION},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, pins::Pins, sizes::Sizes, table::Table, writes::Writes},
    },
    telemetry::TableUsage,
};

/// `ctv_fdb` and `ctv_fdbrev`.
pub(crate) struct Fdb {
    entries: Table<FdbKey, FdbEntry>,
    revision: MmapArray<u64>,
}

impl Fdb {
    pub(crate) fn open(pins: &Pins, sizes: &Sizes, writes: &Writes) -> Result<Self, Error> {
        Ok(Fdb {
            entries: Table::new(FDB, sizes.of(FDB)?, pins.open_map(FDB)?, writes.clone()),
            revision: revision(pins)?,
        })
    }

    /// Reads the map.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.entries.read()
    }

    pub(crate) fn get(&self, key: &FdbKey) -> Option<&FdbEntry> {
        self.entries.get(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &FdbKey> {
        self.entries.iter().map(|(key, _)| key)
    }

    pub(crate) fn usage(&self) -> TableUsage {
        self.entries.usage()
    }

    /// Writes or removes an entry.
    pub(crate) fn set(&mut self, key: FdbKey, entry: Option<FdbEntry>) -> Result<(), Error> {
        let replaces = self.entries.get(&key).is_some_and(|before| Some(*before) != entry);
        match entry {
            Some(entry) => self.entries.set(key, entry)?,
            None => self.entries.remove(&key)?,
        }
        if replaces {
            self.invalidate();
        }
        Ok(())
    }

    /// Makes programs repeat lookups that they have cached. Must be called after a change: results of later lookups have
    /// the new revision.
    pub(crate) fn invalidate(&mut self) {
        let revision = self.revision.get(0).unwrap_or(0).wrapping_add(1);
        self.revision.set(0, revision);
    }
}

/// The revision in the memory of the process.
pub(crate) fn revision(pins: &Pins) -> Result<MmapArray<u64>, Error> {
    MmapArray::new(pins.open_data(FDB_REVISION)?, 1)
        .map_err(|error| failed(format!("map {FDB_REVISION} into memory"), error))
}
