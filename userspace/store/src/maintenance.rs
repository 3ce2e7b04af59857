//! Maintenance: compaction of the history, size and alarms of the database.

use crate::client::Again;
use crate::{Error, Operation, Store};
use etcd_client::{AlarmAction, AlarmType};
use std::fmt;

const DATABASE: &str = "the store";

/// Size of the store's database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Database {
    /// Size of the member's file in bytes. etcd compares it with its quota.
    pub size: u64,
    /// Bytes of it in use. Defragmentation frees the others.
    pub in_use: u64,
}

/// A condition under which etcd restricts its service until an operator ends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// The database has reached its quota: writes are refused.
    NoSpace,
    /// The data of the members differs: all requests are refused.
    Corrupt,
}

impl Alarm {
    /// All alarms.
    pub const ALL: [Alarm; 2] = [Alarm::NoSpace, Alarm::Corrupt];
}

/// The name that etcd gives it.
impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Alarm::NoSpace => "NOSPACE",
            Alarm::Corrupt => "CORRUPT",
        })
    }
}

impl Store {
    /// Removes all versions of keys that no read at `revision` or later returns. Succeeds if the
    /// store is compacted as far already.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer, or if it does not have `revision` yet.
    pub async fn compact(&self, revision: i64) -> Result<(), Error> {
        let key = format!("{DATABASE} at revision {revision}");
        let compacted = self.request(Operation::Compact, &key, Again::Always, || {
            let mut kv = self.members().kv();
            async move { kv.compact(revision, None).await }
        });
        match compacted.await {
            Err(error) if error.is_compacted() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Reads the size of the database of the member in use. etcd may permit this to its root user
    /// only.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer, or refuses the request.
    pub async fn database(&self) -> Result<Database, Error> {
        let status = self.request(Operation::Status, DATABASE, Again::Always, || {
            let mut maintenance = self.members().maintenance();
            async move { maintenance.status().await }
        });
        let status = status.await?;
        let bytes = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Ok(Database { size: bytes(status.db_size()), in_use: bytes(status.raft_used_db_size()) })
    }

    /// Reads the active alarms of all members, without repetitions.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer, or refuses the request.
    pub async fn alarms(&self) -> Result<Vec<Alarm>, Error> {
        let active = self.request(Operation::Status, DATABASE, Again::Always, || {
            let mut maintenance = self.members().maintenance();
            async move { maintenance.alarm(AlarmAction::Get, AlarmType::None, None).await }
        });
        let active = active.await?;
        let mut alarms: Vec<Alarm> =
            active.alarms().iter().filter_map(|member| Alarm::read(member.alarm())).collect();
        alarms.sort_unstable();
        alarms.dedup();
        Ok(alarms)
    }
}

impl Alarm {
    fn read(alarm: AlarmType) -> Option<Alarm> {
        match alarm {
            AlarmType::None => None,
            AlarmType::Nospace => Some(Alarm::NoSpace),
            AlarmType::Corrupt => Some(Alarm::Corrupt),
        }
    }
}
