use std::{
    fs, io,
    path::{Path, PathBuf},
};

use contiv_model::name::HostName;
use contiv_store::Position;
use serde::{Deserialize, Serialize};

use super::witness::Witness;
use crate::{atomic_file, source::Put};

/// The agent's memory of the store. It outlives the process, like the forwarding state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Memory {
    /// Cluster id of the store; `None` before the first listing.
    pub(super) cluster: Option<u64>,
    /// Newest revision seen.
    pub(super) revision: i64,
    /// The cluster's identity; `None` while netmaster has not given it one.
    pub(super) identity: Option<String>,
    /// Newest put seen.
    pub(super) newest: Option<Put>,
    /// Name of the node for which the state was applied; `None` if an earlier release has written the file.
    pub(super) host: Option<HostName>,
    /// Reason why the store is regressed.
    pub(super) regressed: Option<String>,
    /// Id of the regression; empty if there is none, or if an earlier release has written the file.
    pub(super) regression_id: String,
    /// Witnesses that are missing in the regressed store.
    pub(super) missing: Vec<Witness>,
}

impl Memory {
    /// Returns the reason why a store at this position cannot be a later state of the remembered one.
    pub(super) fn contradiction(&self, position: Position) -> Option<String> {
        let Position { cluster, revision } = position;
        match self.cluster {
            Some(before) if before != cluster => {
                Some(format!("the store's cluster id is {cluster:x}, before it was {before:x}"))
            }
            _ if revision < self.revision => {
                Some(format!("the store's revision went back from {} to {revision}", self.revision))
            }
            _ => None,
        }
    }

    /// Returns the reason why a store of a cluster with this identity is not the remembered one.
    pub(super) fn other_identity(&self, identity: Option<&str>) -> Option<String> {
        let before = self.identity.as_deref()?;
        match identity {
            Some(now) if now == before => None,
            Some(now) => Some(format!("the store belongs to cluster {now}, before it was {before}")),
            None => Some(format!("the store lacks the identity of cluster {before}")),
        }
    }

    /// Updates the memory with what was applied.
    pub(super) fn learn(&mut self, (cluster, revision): (Option<u64>, i64), newest: Option<&Put>) {
        self.cluster = cluster.or(self.cluster);
        self.revision = self.revision.max(revision);
        let is_newer =
            |put: &&Put| self.newest.as_ref().is_none_or(|old| old.mod_revision < put.mod_revision);
        if let Some(put) = newest.filter(is_newer) {
            self.newest = Some(put.clone());
        }
    }
}

/// File that outlives the agent, but not a reboot: a reboot removes the forwarding state as well.
#[derive(Clone, Debug)]
pub struct MemoryFile(PathBuf);

impl MemoryFile {
    /// Returns the file next to the CNI socket, so that each agent of a machine has its own.
    pub fn beside(socket: &Path) -> MemoryFile {
        MemoryFile(socket.with_extension("store.json"))
    }

    /// Removes the file, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the file exists and cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads the file. The memory is empty if it does not exist. A damaged file is an error: the forwarding state of this
    /// node may be the only copy of the cluster's former state.
    pub(super) fn read(&self) -> io::Result<Memory> {
        match fs::read(&self.0) {
            Ok(text) => serde_json::from_slice(&text).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Memory::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the file atomically.
    pub(super) fn write(&self, memory: &Memory) -> io::Result<()> {
        atomic_file::replace(&self.0, &serde_json::to_vec(memory)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(mod_revision: i64) -> Put {
        Put { key: "k".into(), create_revision: 2, mod_revision, value_hash: 7 }
    }

    #[test]
    fn memory_outlives_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = MemoryFile::beside(&directory.path().join("contiv-cni.sock"));
        assert_eq!(file.read().unwrap(), Memory::default());
        let mut memory = Memory::default();
        memory.learn((Some(9), 20), Some(&put(12)));
        memory.learn((None, 21), Some(&put(11)));
        file.write(&memory).unwrap();
        let read = file.read().unwrap();
        assert_eq!((read.cluster, read.revision, read.newest.as_ref()), (Some(9), 21, Some(&put(12))));
        assert_eq!(read.host, None);
        // A file of another release.
        fs::write(file.path(), r#"{"revision":7,"host":"h","later":1}"#).unwrap();
        let read = file.read().unwrap();
        assert_eq!((read.revision, read.host), (7, Some("h".into())));
        fs::write(file.path(), "{").unwrap();
        assert!(file.read().is_err());
        file.remove().unwrap();
        file.remove().unwrap();
    }

    #[test]
    fn another_store_and_an_older_revision_contradict() {
        let mut memory = Memory::default();
        let at = |cluster, revision| Position { cluster, revision };
        assert_eq!(memory.contradiction(at(3, 1)), None);
        memory.learn((Some(3), 20), None);
        assert_eq!(memory.contradiction(at(3, 20)), None);
        assert!(memory.contradiction(at(3, 19)).unwrap().contains("went back from 20 to 19"));
        assert!(memory.contradiction(at(4, 99)).unwrap().contains("cluster id"));
    }

    #[test]
    fn identity_may_appear_but_not_change_or_vanish() {
        let mut memory = Memory::default();
        assert_eq!((memory.other_identity(None), memory.other_identity(Some("a"))), (None, None));
        memory.identity = Some("a".into());
        assert_eq!(memory.other_identity(Some("a")), None);
        assert!(memory.other_identity(Some("b")).unwrap().contains("cluster b, before it was a"));
        assert!(memory.other_identity(None).unwrap().contains("lacks the identity"));
    }
}
