//! The file: versions by revision, leases, and counters.

use super::directory::Directory;
use super::guarded_file::{Fault, FirstFault, GuardedFile};
use super::history::{History, NEVER_COMPACTED, Version};
use super::leases::Leases;
use super::state::{Changes, State};
use bytes::Bytes;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition, TableError,
};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

pub(super) const FILE: &str = "store.redb";
/// A file whose name begins so is a store that is not complete yet.
const DRAFT: &str = "store.redb.new-";
/// All data is in memory; the file is read once, and its cache serves writes only.
const CACHE: usize = 16 << 20;
const FORMAT: u64 = 1;

/// (revision, position) -> an encoded version.
const VERSIONS: TableDefinition<(i64, u32), &[u8]> = TableDefinition::new("versions");
/// id -> TTL in seconds.
const LEASES: TableDefinition<i64, i64> = TableDefinition::new("leases");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");

const FORMAT_KEY: &str = "format";
const CLUSTER_KEY: &str = "cluster";
const MEMBER_KEY: &str = "member";
const REVISION_KEY: &str = "revision";
const COMPACTED_KEY: &str = "compacted";

/// Why the store's file cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The directory cannot be created or synced.
    #[error("make the directory {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The file cannot be opened.
    #[error("open {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// Another process has the file open.
    #[error("{} is in use by another process; is a netmaster with this store running already?", .0.display())]
    InUse(PathBuf),
    /// The file is not a redb database.
    #[error("open {} as a store", .0.display())]
    Open(PathBuf, #[source] DatabaseError),
    /// The file was written by an incompatible version.
    #[error("{} has format {found}, this version reads {FORMAT}", .path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Format number in the file.
        found: u64,
    },
    /// A record of the file cannot be decoded.
    #[error("{}: damaged record at revision {revision}", .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// Revision of the record.
        revision: i64,
    },
    /// The file cannot be read.
    #[error("read {}", .0.display())]
    Read(PathBuf, #[source] Box<redb::Error>),
    /// The disk has no room for a write. Earlier ones are not affected.
    #[error("write {}", .0.display())]
    Full(PathBuf, #[source] Box<redb::Error>),
    /// The file cannot be written or synced. What it holds of the last changes is unknown.
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] Box<redb::Error>),
}

impl DiskError {
    /// Whether the store can go on when there is room again.
    pub(super) fn is_full(&self) -> bool {
        matches!(self, DiskError::Full(..))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Identity {
    pub(super) cluster: u64,
    pub(super) member: u64,
}

#[derive(Debug)]
pub(super) struct Disk {
    database: Database,
    path: PathBuf,
    fault: FirstFault,
}

impl Disk {
    /// Opens or creates the store. One process at a time can open the file; only its user can read
    /// it.
    pub(super) fn open(directory: &dyn Directory) -> Result<(Disk, Identity, State), DiskError> {
        remove_drafts(directory)?;
        let path = directory.path().join(FILE);
        let disk = match directory.open(FILE) {
            Ok(file) => Disk::on(file, path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Disk::create(directory)?,
            Err(e) => return Err(DiskError::File(path, e)),
        };
        // Also if the file exists: the process that created it may have been killed before this.
        directory.sync().map_err(|e| DiskError::Directory(directory.path().to_owned(), e))?;
        let identity = disk.prepare()?;
        let state = disk.load()?;
        Ok((disk, identity, state))
    }

    pub(super) fn size(directory: &dyn Directory) -> u64 {
        directory.size(FILE)
    }

    /// Creates the store under another name, and names it when it is complete: a crash on the way
    /// leaves no file that cannot be opened. If another process was faster, opens its file.
    fn create(directory: &dyn Directory) -> Result<Disk, DiskError> {
        let draft = format!("{DRAFT}{:016x}", RandomState::new().hash_one(DRAFT));
        let (path, target) = (directory.path().join(&draft), directory.path().join(FILE));
        let failed = |e| DiskError::File(path.clone(), e);
        let mut disk = Disk::on(directory.create(&draft).map_err(failed)?, path.clone())?;
        disk.prepare()?;
        let linked = directory.link(&draft, FILE);
        directory.remove(&draft).map_err(failed)?;
        match linked {
            Ok(()) => {
                disk.path = target;
                Ok(disk)
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let file = directory.open(FILE).map_err(|e| DiskError::File(target.clone(), e))?;
                Disk::on(file, target)
            }
            Err(e) => Err(failed(e)),
        }
    }

    fn on(file: Box<dyn StorageBackend>, path: PathBuf) -> Result<Disk, DiskError> {
        let (file, fault) = GuardedFile::new(file);
        let opened = Database::builder().set_cache_size(CACHE).create_with_backend(file);
        let database = opened.map_err(|e| match (e, fault.get()) {
            (DatabaseError::DatabaseAlreadyOpen, _) => DiskError::InUse(path.clone()),
            (e, Some(Fault::Full)) => DiskError::Full(path.clone(), Box::new(e.into())),
            (e, _) => DiskError::Open(path.clone(), e),
        })?;
        Ok(Disk { database, path, fault })
    }

    /// Creates the tables and identity of a new store; checks the format of an existing one.
    fn prepare(&self) -> Result<Identity, DiskError> {
        // An existing store is only read: a full disk may have no room for a transaction.
        let found = match self.identity()? {
            Some(found) => found,
            None => self.create_tables()?,
        };
        match found {
            (FORMAT, identity) => Ok(identity),
            (found, _) => Err(DiskError::Format { path: self.path.clone(), found }),
        }
    }

    /// Format and identity; `None` if the store is not complete.
    fn identity(&self) -> Result<Option<(u64, Identity)>, DiskError> {
        let read = |e: redb::Error| DiskError::Read(self.path.clone(), Box::new(e));
        let txn = self.database.begin_read().map_err(|e| read(e.into()))?;
        let numbers = match txn.open_table(NUMBERS) {
            Ok(numbers) => numbers,
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(e) => return Err(read(e.into())),
        };
        let number = |key| -> Result<Option<u64>, DiskError> {
            let found = numbers.get(key).map_err(|e| read(e.into()))?;
            Ok(found.map(|n| n.value()))
        };
        let (format, cluster, member) = (number(FORMAT_KEY)?, number(CLUSTER_KEY)?, number(MEMBER_KEY)?);
        let identity = cluster.zip(member).map(|(cluster, member)| Identity { cluster, member });
        Ok(format.zip(identity))
    }

    /// Creates what is missing of the tables, the format and the identity. Returns the latter two.
    fn create_tables(&self) -> Result<(u64, Identity), DiskError> {
        self.writing(|txn| {
            txn.open_table(VERSIONS)?;
            txn.open_table(LEASES)?;
            let mut numbers = txn.open_table(NUMBERS)?;
            let random = RandomState::new();
            let mut settled = |key: &'static str, new: u64| -> Result<u64, redb::Error> {
                let old = numbers.get(key)?.map(|n| n.value());
                if old.is_none() {
                    numbers.insert(key, new)?;
                }
                Ok(old.unwrap_or(new))
            };
            let format = settled(FORMAT_KEY, FORMAT)?;
            // Some clients read both as i64; 0 means none.
            let cluster = settled(CLUSTER_KEY, random.hash_one(CLUSTER_KEY) >> 1 | 1)?;
            let member = settled(MEMBER_KEY, random.hash_one(MEMBER_KEY) >> 1 | 1)?;
            Ok((format, Identity { cluster, member }))
        })
    }

    fn load(&self) -> Result<State, DiskError> {
        let read = |e: redb::Error| DiskError::Read(self.path.clone(), Box::new(e));
        let txn = self.database.begin_read().map_err(|e| read(e.into()))?;
        let numbers = txn.open_table(NUMBERS).map_err(|e| read(e.into()))?;
        let number = |key| -> Result<Option<i64>, DiskError> {
            let found = numbers.get(key).map_err(|e| read(e.into()))?;
            Ok(found.map(|n| n.value().cast_signed()))
        };
        let mut history = History::new(number(COMPACTED_KEY)?.unwrap_or(NEVER_COMPACTED));
        let mut leases = Leases::default();
        let now = Instant::now();
        for entry in
            txn.open_table(LEASES).and_then(|t| Ok(t.range::<i64>(..)?)).map_err(|e| read(e.into()))?
        {
            let (id, ttl) = entry.map_err(|e| read(e.into()))?;
            leases.restore(id.value(), ttl.value(), now);
        }
        let versions = txn.open_table(VERSIONS).map_err(|e| read(e.into()))?;
        for entry in versions.range::<(i64, u32)>(..).map_err(|e| read(e.into()))? {
            let (at, record) = entry.map_err(|e| read(e.into()))?;
            let (revision, sub) = at.value();
            let version = decode(revision, sub, record.value());
            let version = version.ok_or_else(|| DiskError::Damaged { path: self.path.clone(), revision })?;
            let version = Arc::new(version);
            let before = history.append(version.clone());
            leases.moved(&version.key, before.map_or(0, |v| v.lease), version.lease);
        }
        history.advance(number(REVISION_KEY)?.unwrap_or(0));
        let durable = history.revision();
        Ok(State { history, leases, durable })
    }

    /// Writes the changes; they are durable when it returns.
    pub(super) fn commit(&self, changes: &Changes, revision: i64, compacted: i64) -> Result<(), DiskError> {
        self.writing(|txn| {
            let mut versions = txn.open_table(VERSIONS)?;
            let mut record = Vec::new();
            for version in &changes.versions {
                encode(version, &mut record);
                versions.insert((version.mod_revision, version.sub), &record[..])?;
            }
            for at in &changes.dropped {
                versions.remove(*at)?;
            }
            if !changes.granted.is_empty() || !changes.revoked.is_empty() {
                let mut leases = txn.open_table(LEASES)?;
                for (id, ttl) in &changes.granted {
                    leases.insert(*id, *ttl)?;
                }
                for id in &changes.revoked {
                    leases.remove(*id)?;
                }
            }
            let mut numbers = txn.open_table(NUMBERS)?;
            numbers.insert(REVISION_KEY, revision.cast_unsigned())?;
            numbers.insert(COMPACTED_KEY, compacted.cast_unsigned())?;
            Ok(())
        })
    }

    fn writing<T>(
        &self,
        write: impl FnOnce(&redb::WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, DiskError> {
        let run = || -> Result<T, redb::Error> {
            let txn = self.database.begin_write()?;
            let result = write(&txn)?;
            txn.commit()?;
            Ok(result)
        };
        run().map_err(|e| match self.fault.get() {
            Some(Fault::Full) => DiskError::Full(self.path.clone(), Box::new(e)),
            Some(Fault::Broken) | None => DiskError::Write(self.path.clone(), Box::new(e)),
        })
    }
}

/// Removes what crashes left of stores that were being created.
fn remove_drafts(directory: &dyn Directory) -> Result<(), DiskError> {
    let remove = || {
        let names = directory.names()?;
        for draft in names.iter().filter(|name| name.starts_with(DRAFT)) {
            match directory.remove(draft) {
                // By another process.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                result => result?,
            }
        }
        Ok(())
    };
    remove().map_err(|e: io::Error| DiskError::Directory(directory.path().to_owned(), e))
}

fn encode(version: &Version, record: &mut Vec<u8>) {
    record.clear();
    for number in [version.create_revision, version.version, version.lease] {
        record.extend_from_slice(&number.to_le_bytes());
    }
    // A key is part of a request, so it has at most 1.5 MiB.
    record.extend_from_slice(&u32::try_from(version.key.len()).unwrap_or(u32::MAX).to_le_bytes());
    record.extend_from_slice(&version.key);
    record.extend_from_slice(&version.value);
}

fn decode(mod_revision: i64, sub: u32, record: &[u8]) -> Option<Version> {
    let (create_revision, rest) = record.split_first_chunk()?;
    let (version, rest) = rest.split_first_chunk()?;
    let (lease, rest) = rest.split_first_chunk()?;
    let (length, rest) = rest.split_first_chunk()?;
    let (key, value) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
    Some(Version {
        key: Bytes::copy_from_slice(key),
        value: Bytes::copy_from_slice(value),
        create_revision: i64::from_le_bytes(*create_revision),
        mod_revision,
        sub,
        version: i64::from_le_bytes(*version),
        lease: i64::from_le_bytes(*lease),
    })
}

#[cfg(test)]
mod tests {
    use super::super::directory::Folder;
    use super::*;
    use std::fs;
    use std::path::Path;

    fn open(dir: &Path) -> Result<(Disk, Identity, State), DiskError> {
        Disk::open(&Folder::new(dir).unwrap())
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let version = Version {
            key: Bytes::from_static(b"/key"),
            value: Bytes::from_static(b"value\0"),
            create_revision: 3,
            mod_revision: i64::MAX,
            sub: 7,
            version: 2,
            lease: -1,
        };
        let mut record = Vec::new();
        encode(&version, &mut record);
        assert_eq!(decode(i64::MAX, 7, &record), Some(version));
        for cut in 0..28 + 4 {
            assert_eq!(decode(1, 0, &record[..cut]), None, "{cut}");
        }
    }

    #[test]
    fn one_process_at_a_time_and_private() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("a/b");
        let (disk, identity, state) = open(&dir).unwrap();
        assert_eq!(state.durable, 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(FILE))), (0o700, 0o600));
        let second = open(&dir).unwrap_err();
        assert!(matches!(second, DiskError::InUse(_)), "{second}");
        drop(disk);
        let (_, again, _) = open(&dir).unwrap();
        assert_eq!((again.cluster, again.member), (identity.cluster, identity.member));
    }

    #[test]
    fn something_else_in_the_file_is_told() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(FILE), "not a store at all").unwrap();
        let error = open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("store.redb as a store"), "{error}");
    }
}
