//! A disk that loses writes, for tests of durability.
//!
//! It keeps what was not synced apart from what was. A power failure keeps a random part of the
//! former: of each sector any version since the last sync, of the names a first part of the changes,
//! as a journal does. A failed sync writes a random part and forgets the rest, as Linux does: reads
//! return it until the file is opened again, and no later sync writes it.

mod file;
mod random;

use super::directory::Directory;
use file::{Change, File, put};
pub(super) use random::Random;
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A disk with the files of one directory. Clones are the same disk.
#[derive(Clone, Debug)]
pub(super) struct LossyDisk(Arc<Mutex<Inner>>);

/// What happens instead of an operation on a file or on the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The power fails: this and all later operations of the processes that run fail.
    PowerFailure,
    /// The operation fails. A sync that fails loses writes.
    Failure,
    /// The operation fails if it is a write or extends a file: there is no room. A sync waits for
    /// the next write.
    Full,
}

/// Numbers of operations that a disk has carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Operations {
    /// Writes, also those that changed the size of a file.
    pub(super) writes: u64,
    /// Syncs of files and of the directory.
    pub(super) syncs: u64,
    /// Sectors that were written and lost when the power or a sync failed.
    pub(super) lost_sectors: u64,
    /// Writes for which there was no room.
    pub(super) refused: u64,
}

#[derive(Debug)]
struct Inner {
    random: Random,
    /// Raised by each power failure; handles of an earlier one fail.
    boot: u64,
    powered: bool,
    next_file: u64,
    files: BTreeMap<u64, File>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    /// States of `names` since they were synced, oldest first.
    pending_names: Vec<BTreeMap<String, u64>>,
    /// The event that occurs after a number of operations.
    event: Option<(u64, Event)>,
    operations: Operations,
}

#[derive(Debug)]
struct Handle {
    disk: LossyDisk,
    file: u64,
    boot: u64,
}

impl LossyDisk {
    /// An empty disk. What it loses depends on `seed` and on the operations only.
    pub(super) fn new(seed: u64) -> LossyDisk {
        LossyDisk(Arc::new(Mutex::new(Inner {
            random: Random(seed),
            boot: 0,
            powered: true,
            next_file: 0,
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            pending_names: Vec::new(),
            event: None,
            operations: Operations::default(),
        })))
    }

    /// Lets the event occur instead of an operation, after `operations` more. Replaces the previous
    /// event if that has not occurred.
    pub(super) fn schedule(&self, operations: u64, event: Event) {
        self.lock().event = Some((operations, event));
    }

    /// Cuts the power: what was not synced is lost in part, and all operations fail.
    pub(super) fn cut_power(&self) {
        self.lock().cut_power();
    }

    /// Ends the processes that have files open, without a loss: what they wrote is in the cache of
    /// the system.
    pub(super) fn kill_processes(&self) {
        let mut inner = self.lock();
        (inner.boot, inner.event) = (inner.boot + 1, None);
    }

    /// Whether the power is on.
    pub(super) fn is_powered(&self) -> bool {
        self.lock().powered
    }

    /// Switches the power on.
    pub(super) fn power_on(&self) {
        self.lock().powered = true;
    }

    /// Operations so far.
    pub(super) fn operations(&self) -> Operations {
        self.lock().operations
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, file: u64, boot: u64) -> Box<dyn StorageBackend> {
        Box::new(Handle { disk: self.clone(), file, boot })
    }
}

impl Inner {
    fn powered(&self) -> io::Result<()> {
        if self.powered { Ok(()) } else { Err(io::Error::other("the power has failed")) }
    }

    /// Counts down to the event; returns it when it occurs.
    fn tick(&mut self, is_sync: bool) -> Option<Event> {
        match &mut self.event {
            Some((0, Event::Full)) if is_sync => None,
            Some((0, event)) => {
                let event = *event;
                self.event = None;
                Some(event)
            }
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }

    /// A write or sync begins. Returns false if it fails as a sync that loses writes.
    fn begin(&mut self, is_sync: bool) -> io::Result<bool> {
        self.powered()?;
        match self.tick(is_sync) {
            None => {
                let count = if is_sync { &mut self.operations.syncs } else { &mut self.operations.writes };
                *count += 1;
                Ok(true)
            }
            Some(Event::PowerFailure) => {
                self.cut_power();
                Err(io::Error::other("the power has failed"))
            }
            Some(Event::Failure) if is_sync => Ok(false),
            Some(Event::Failure) => Err(io::Error::other("injected failure of a write")),
            Some(Event::Full) => {
                self.operations.refused += 1;
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn cut_power(&mut self) {
        let kept = self.random.below(self.pending_names.len() as u64 + 1);
        if let Some(names) = usize::try_from(kept).ok().and_then(|kept| kept.checked_sub(1)) {
            self.durable_names = self.pending_names.swap_remove(names);
        }
        self.pending_names.clear();
        self.names = self.durable_names.clone();
        let names = &self.names;
        self.files.retain(|file, _| names.values().any(|named| named == file));
        for file in self.files.values_mut() {
            self.operations.lost_sectors += file.settle(&mut self.random);
            file.cached.clone_from(&file.durable);
        }
        (self.powered, self.event) = (false, None);
        self.boot += 1;
    }
}

impl Directory for LossyDisk {
    fn path(&self) -> &Path {
        Path::new("lossy")
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let mut inner = self.lock();
        inner.powered()?;
        let file = *inner.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        if !inner.begin(true)? {
            return Err(io::Error::other("injected failure of a sync"));
        }
        if let Some(file) = inner.files.get_mut(&file) {
            file.sync();
        }
        Ok(self.handle(file, inner.boot))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let mut inner = self.lock();
        if inner.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = inner.next_file;
        inner.next_file += 1;
        inner.files.insert(file, File::default());
        inner.rename(|names| {
            names.insert(name.to_owned(), file);
        })?;
        Ok(self.handle(file, inner.boot))
    }

    fn link(&self, name: &str, second: &str) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.names.contains_key(second) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = *inner.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        inner.rename(|names| {
            names.insert(second.to_owned(), file);
        })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.lock().rename(|names| {
            names.remove(name);
        })
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let inner = self.lock();
        inner.powered()?;
        Ok(inner.names.keys().cloned().collect())
    }

    fn sync(&self) -> io::Result<()> {
        let mut inner = self.lock();
        if !inner.begin(true)? {
            return Err(io::Error::other("injected failure of a sync"));
        }
        inner.durable_names = inner.names.clone();
        inner.pending_names.clear();
        Ok(())
    }

    fn size(&self, name: &str) -> u64 {
        let inner = self.lock();
        let file = inner.names.get(name).and_then(|file| inner.files.get(file));
        file.map_or(0, |file| file.cached.len() as u64)
    }
}

impl Inner {
    fn rename(&mut self, change: impl FnOnce(&mut BTreeMap<String, u64>)) -> io::Result<()> {
        self.begin(false)?;
        change(&mut self.names);
        self.pending_names.push(self.names.clone());
        Ok(())
    }
}

impl Handle {
    fn with<T>(&self, act: impl FnOnce(&mut Inner, u64) -> io::Result<T>) -> io::Result<T> {
        let mut inner = self.disk.lock();
        if inner.boot != self.boot {
            return Err(io::Error::other("the power has failed"));
        }
        act(&mut inner, self.file)
    }
}

fn file(inner: &mut Inner, file: u64) -> io::Result<&mut File> {
    inner.files.get_mut(&file).ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.with(|inner, id| Ok(file(inner, id)?.cached.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|inner, id| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let found = file(inner, id)?.cached.get(start..start + out.len());
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        self.with(|inner, id| {
            inner.begin(false)?;
            let file = file(inner, id)?;
            file.cached.resize(len, 0);
            file.pending.push(Change::SetLen(len));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|inner, id| {
            if inner.begin(true)? {
                file(inner, id)?.flush();
                return Ok(());
            }
            let mut random = inner.random.split();
            inner.operations.lost_sectors += file(inner, id)?.settle(&mut random);
            Err(io::Error::other("injected failure of a sync"))
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        self.with(|inner, id| {
            inner.begin(false)?;
            let file = file(inner, id)?;
            put(&mut file.cached, offset, data);
            file.pending.push(Change::Write(offset, data.to_vec()));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::file::SECTOR;
    use super::*;

    fn content(disk: &LossyDisk) -> Vec<u8> {
        let file = disk.open("f").unwrap();
        let mut out = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
        file.read(0, &mut out).unwrap();
        out
    }

    #[test]
    fn synced_writes_stay_and_others_are_lost_by_sector() {
        let (mut torn, mut kept, mut lost) = (0, 0, 0);
        for seed in 0..200 {
            let disk = LossyDisk::new(seed);
            let file = disk.create("f").unwrap();
            file.write(0, &[1; 2 * SECTOR]).unwrap();
            file.sync_data().unwrap();
            disk.sync().unwrap();
            file.write(0, &[2; 2 * SECTOR]).unwrap();
            disk.cut_power();
            assert!(file.read(0, &mut [0]).is_err() && disk.open("f").is_err());
            disk.power_on();
            assert!(file.write(0, &[3]).is_err(), "an old process writes");
            let now = content(&disk);
            assert_eq!(now.len(), 2 * SECTOR);
            assert!(now.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            match (now[0], now[SECTOR]) {
                (1, 1) => lost += 1,
                (2, 2) => kept += 1,
                _ => torn += 1,
            }
        }
        assert!(torn > 10 && kept > 10 && lost > 10, "{torn} {kept} {lost}");
    }

    #[test]
    fn names_are_lost_unless_they_are_synced() {
        let found = |seed| {
            let disk = LossyDisk::new(seed);
            drop(disk.create("f").unwrap());
            disk.cut_power();
            disk.power_on();
            disk.open("f").is_ok()
        };
        assert!((0..20).any(found) && !(0..20).all(found));
    }

    /// As on Linux: the second sync succeeds, and the data is not on the disk.
    #[test]
    fn a_failed_sync_forgets_writes() {
        let lost = (0..20).any(|seed| {
            let disk = LossyDisk::new(seed);
            let file = disk.create("f").unwrap();
            disk.sync().unwrap();
            file.write(0, &[1]).unwrap();
            disk.schedule(0, Event::Failure);
            assert!(file.sync_data().is_err());
            assert!(file.sync_data().is_ok());
            let mut read = [0];
            file.read(0, &mut read).unwrap();
            assert_eq!(read, [1]);
            content(&disk).is_empty()
        });
        assert!(lost);
    }

    #[test]
    fn a_full_disk_fails_a_write_and_no_sync() {
        let disk = LossyDisk::new(0);
        let file = disk.create("f").unwrap();
        disk.schedule(0, Event::Full);
        file.sync_data().unwrap();
        assert_eq!(file.write(0, &[1]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        file.write(0, &[1]).unwrap();
    }
}
