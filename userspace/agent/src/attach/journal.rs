//! Attachments that this node has, or has begun to make or to delete.
//!
//! An entry is written before netmaster is asked for addresses and removed after they are released, so an agent that was
//! killed in between knows what to release.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::{EndpointId, NetworkName, TenantName};
use serde::{Deserialize, Serialize};

use super::pod::Pod;
use crate::datapath::Owner;

/// One attachment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    tenant: TenantName,
    network: NetworkName,
    /// Orchestrator's name of the endpoint.
    pub(super) endpoint: String,
    ifname: String,
    /// Name of the runtime's network configuration; empty if unknown.
    pub(super) configuration: String,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Progress {
    /// An ADD has begun.
    Adding,
    /// An ADD has succeeded.
    Attached,
    /// A DEL has begun, or an ADD could not be rolled back.
    Deleting,
}

impl Entry {
    pub(super) fn new(pod: &Pod, progress: Progress) -> Entry {
        Entry {
            tenant: pod.tenant.clone(),
            network: pod.network.clone(),
            endpoint: pod.endpoint.clone(),
            ifname: pod.ifname.clone(),
            configuration: pod.configuration.clone(),
            progress,
        }
    }

    /// What a DEL of the attachment needs.
    pub(super) fn pod(&self) -> Pod {
        Pod {
            tenant: self.tenant.clone(),
            network: self.network.clone(),
            group: None,
            endpoint: self.endpoint.clone(),
            common_name: self.endpoint.clone(),
            configuration: self.configuration.clone(),
            netns: PathBuf::new(),
            ifname: self.ifname.clone(),
            owner: Owner::Pod,
            defaults: vec![],
        }
    }
}

/// The entries, in a directory with one file each. They outlive the agent, but not a reboot, like the interfaces.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    entries: Mutex<BTreeMap<EndpointId, Entry>>,
}

impl Journal {
    /// Opens the directory beside the CNI socket, which each agent of a machine has for itself; creates it with mode 0700.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created or a file cannot be read.
    pub fn beside(socket: &Path) -> io::Result<Journal> {
        let directory = socket.with_extension("attachments");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let mut entries = BTreeMap::new();
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                fs::remove_file(path)?;
                continue;
            }
            let entry: Entry = serde_json::from_slice(&fs::read(path)?)?;
            entries.insert(entry.pod().endpoint_id(), entry);
        }
        Ok(Journal { directory, entries: Mutex::new(entries) })
    }

    /// Directory of the files.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Writes the entry of a pod.
    pub(super) fn write(&self, pod: &Pod, progress: Progress) -> io::Result<()> {
        let (id, entry) = (pod.endpoint_id(), Entry::new(pod, progress));
        if self.lock().get(&id) == Some(&entry) {
            return Ok(());
        }
        let path = self.file(&id);
        let new = path.with_added_extension(UNFINISHED);
        fs::write(&new, serde_json::to_vec(&entry)?)?;
        fs::rename(&new, &path)?;
        self.lock().insert(id, entry);
        Ok(())
    }

    /// Removes an entry, if it exists.
    pub(super) fn remove(&self, id: &EndpointId) -> io::Result<()> {
        if self.lock().contains_key(id) {
            fs::remove_file(self.file(id))?;
            self.lock().remove(id);
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &EndpointId) -> Option<Entry> {
        self.lock().get(id).cloned()
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EndpointId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of runtimes may be long and have any byte; a file name has at most 255.
    fn file(&self, id: &EndpointId) -> PathBuf {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = id.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        let readable = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '.';
        let name: String = id.as_str().chars().filter(readable).take(100).collect();
        self.directory.join(format!("{name}-{hash:016x}.json"))
    }
}

/// Extension of a file that is being written.
const UNFINISHED: &str = "new";

#[cfg(test)]
mod tests {
    use std::slice;

    use contivk8s::wire::Request;

    use super::*;

    #[test]
    fn entries_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let journal = Journal::beside(&socket).unwrap();
        let pod = |container: &str| {
            let request = Request {
                container: container.into(),
                ifname: "net1".into(),
                network_name: "contiv-net".into(),
                ..Request::default()
            };
            Pod::try_from(&request).unwrap()
        };
        let (first, second) = (pod("c1"), pod(&"x".repeat(300)));
        journal.write(&first, Progress::Adding).unwrap();
        journal.write(&second, Progress::Adding).unwrap();
        journal.write(&first, Progress::Attached).unwrap();
        journal.remove(&second.endpoint_id()).unwrap();
        journal.remove(&second.endpoint_id()).unwrap();
        fs::write(journal.path().join("half.json.new"), "{").unwrap();

        let journal = Journal::beside(&socket).unwrap();
        let entry = journal.get(&first.endpoint_id()).unwrap();
        assert_eq!(journal.entries(), slice::from_ref(&entry));
        assert_eq!((entry.progress, entry.configuration.as_str()), (Progress::Attached, "contiv-net"));
        assert_eq!(entry.pod().endpoint_id(), first.endpoint_id());
        assert_eq!(entry.pod().endpoint, "c1-net1");
        assert!(!journal.path().join("half.json.new").exists());
    }
}
