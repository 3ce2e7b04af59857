//! The file: versions by revision, leases, and counters.

use super::history::{History, NEVER_COMPACTED, Version};
use super::leases::Leases;
use super::state::{Changes, State};
use bytes::Bytes;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const FILE: &str = "store.redb";
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
    /// The file cannot be written.
    #[error("write {}", .0.display())]
    Write(PathBuf, #[source] Box<redb::Error>),
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
}

impl Disk {
    /// Opens or creates the store. One process at a time can open the file; only its user can read
    /// it.
    pub(super) fn open(dir: &Path) -> Result<(Disk, Identity, State), DiskError> {
        let path = dir.join(FILE);
        make_dir(dir).map_err(|e| DiskError::Directory(dir.to_owned(), e))?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(|e| DiskError::File(path.clone(), e))?;
        let database = Database::builder().set_cache_size(CACHE).create_file(file).map_err(|e| match e {
            DatabaseError::DatabaseAlreadyOpen => DiskError::InUse(path.clone()),
            other => DiskError::Open(path.clone(), other),
        })?;
        // The directory entry must be as durable as the file's contents.
        File::open(dir).and_then(|d| d.sync_all()).map_err(|e| DiskError::Directory(dir.to_owned(), e))?;
        let disk = Disk { database, path };
        let identity = disk.prepare()?;
        let state = disk.load()?;
        Ok((disk, identity, state))
    }

    pub(super) fn size(dir: &Path) -> u64 {
        fs::metadata(dir.join(FILE)).map_or(0, |m| m.len())
    }

    /// Creates the tables and identity of a new store; checks the format of an existing one.
    fn prepare(&self) -> Result<Identity, DiskError> {
        let found = self.writing(|txn| {
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
        });
        match found? {
            (FORMAT, identity) => Ok(identity),
            (found, _) => Err(DiskError::Format { path: self.path.clone(), found }),
        }
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
        run().map_err(|e| DiskError::Write(self.path.clone(), Box::new(e)))
    }
}

/// Sets the mode only of a directory that is created here: an existing one may be shared on
/// purpose.
fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)
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
    use super::*;

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
        let (disk, identity, state) = Disk::open(&dir).unwrap();
        assert_eq!(state.durable, 1);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&dir.join(FILE))), (0o700, 0o600));
        let second = Disk::open(&dir).unwrap_err();
        assert!(matches!(second, DiskError::InUse(_)), "{second}");
        drop(disk);
        let (_, again, _) = Disk::open(&dir).unwrap();
        assert_eq!((again.cluster, again.member), (identity.cluster, identity.member));
    }

    #[test]
    fn something_else_in_the_file_is_told() {
        let temp = tempfile::tempdir().unwrap();
        fs::write(temp.path().join(FILE), "not a store at all").unwrap();
        let error = Disk::open(temp.path()).unwrap_err().to_string();
        assert!(error.contains("store.redb as a store"), "{error}");
    }
}
