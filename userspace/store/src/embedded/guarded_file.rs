//! The store's file, closed for writes after the first failure.
//!
//! When a sync fails, the kernel may drop the changes and report the next sync as successful. What
//! is on the disk is then unknown until the file is read from it again.

use redb::{BackendError, StorageBackend};
use std::io;
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

/// Kind of the first failure of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A write was refused for lack of room. Nothing that was synced is affected.
    Full,
    /// A sync failed, or a read or write for another reason.
    Broken,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FirstFault(Arc<OnceLock<Fault>>);

impl FirstFault {
    pub(super) fn get(&self) -> Option<Fault> {
        self.0.get().copied()
    }

    fn record<T>(&self, result: io::Result<T>, fault: impl FnOnce(&io::Error) -> Fault) -> io::Result<T> {
        result.inspect_err(|e| {
            // Only the first counts: later ones may be its consequences.
            self.0.get_or_init(|| fault(e));
        })
    }

    fn check(&self) -> io::Result<()> {
        match self.get() {
            None => Ok(()),
            Some(_) => Err(io::Error::other("an earlier operation on the file failed")),
        }
    }
}

fn of_write(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Fault::Full,
        _ => Fault::Broken,
    }
}

#[derive(Debug)]
pub(super) struct GuardedFile {
    file: Box<dyn StorageBackend>,
    first: FirstFault,
}

impl GuardedFile {
    pub(super) fn new(file: Box<dyn StorageBackend>) -> (GuardedFile, FirstFault) {
        let first = FirstFault::default();
        (GuardedFile { file, first: first.clone() }, first)
    }
}

impl StorageBackend for GuardedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.first.record(self.file.read(offset, out), |_| Fault::Broken)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.first.check()?;
        self.first.record(self.file.set_len(len), of_write)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.first.check()?;
        self.first.record(self.file.sync_data(), |_| Fault::Broken)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.first.check()?;
        self.first.record(self.file.write(offset, data), of_write)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}
