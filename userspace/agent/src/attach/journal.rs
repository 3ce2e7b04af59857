//! Attachments that this node has, or has begun to create or to delete.
//!
//! An entry is written before addresses are requested from netmaster and removed after they are released. So an agent
//! that starts after a crash finds the addresses to release. Requests change an entry under the locks of its endpoint. If
//! an entry is not [`Progress::Attached`] while no request holds these locks, its request was interrupted or has failed.

mod entry;
mod unanswered;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use contiv_model::name::EndpointId;

use super::{boot::Boot, pod::Pod};
use crate::atomic_file::{self, UNFINISHED};
pub(super) use entry::{Entry, Progress};
use unanswered::Unanswered;

/// The entries, in a directory with one file each. They outlive the agent, and a reboot if the directory does.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    boot: Boot,
    entries: Mutex<Entries>,
    unanswered: Mutex<Unanswered>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: BTreeMap<EndpointId, Known>,
    /// Files whose entries cannot be read. Their names still identify the endpoints.
    damaged: BTreeSet<PathBuf>,
    /// Number of writes since the start.
    writes: u64,
}

#[derive(Debug)]
struct Known {
    entry: Entry,
    /// The entry is in the file.
    is_stored: bool,
    /// Number of the write of the entry, including writes that did not change it.
    written: u64,
}

impl Journal {
    /// Opens the directory next to the CNI socket, so that each agent of a machine has its own. Creates it with mode
    /// 0700.
    ///
    /// # Errors
    ///
    /// Fails if the directory cannot be created or read.
    pub fn beside(socket: &Path) -> io::Result<Journal> {
        let directory = socket.with_extension("attachments");
        create(&directory)?;
        let (mut entries, mut unanswered) = (Entries::default(), Unanswered::default());
        for file in fs::read_dir(&directory)? {
            let path = file?.path();
            match path.extension().and_then(OsStr::to_str) {
                Some(UNFINISHED) => fs::remove_file(path)?,
                Some(COMPLETE) => entries.read(path),
                Some(unanswered::EXTENSION) => unanswered.read(&path)?,
                _ => {}
            }
        }
        let (entries, unanswered) = (Mutex::new(entries), Mutex::new(unanswered));
        Ok(Journal { directory, boot: Boot::beside(socket)?, entries, unanswered })
    }

    /// Directory of the files.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Detects whether interfaces may have vanished since an earlier boot.
    pub(super) fn boot(&self) -> &Boot {
        &self.boot
    }

    /// Writes the entry of a pod. A deletion is recorded for the life of the process even if the file cannot be written.
    pub(super) fn write(&self, pod: &Pod, progress: Progress) -> io::Result<()> {
        let (id, entry) = (pod.endpoint_id(), Entry::new(pod, progress));
        if self.lock().repeat(&id, &entry) {
            return Ok(());
        }
        let (path, text) = (self.file(&id), serde_json::to_vec(&entry)?);
        // Done before the write, so that `remove_unknown` does not remove the new file.
        let was_damaged = self.lock().damaged.remove(&path);
        let written = self.replace(&path, &text);
        let mut entries = self.lock();
        if was_damaged && written.is_err() {
            entries.damaged.insert(path);
        }
        if written.is_ok() || progress == Progress::Deleting {
            entries.insert(id, entry, written.is_ok());
        }
        written
    }

    /// Removes an entry, if it exists.
    pub(super) fn remove(&self, id: &EndpointId) -> io::Result<()> {
        if self.contains(id) {
            let path = self.file(id);
            remove_file(&path)?;
            let mut entries = self.lock();
            entries.by_id.remove(id);
            entries.damaged.remove(&path);
        }
        Ok(())
    }

    pub(super) fn get(&self, id: &EndpointId) -> Option<Entry> {
        self.lock().by_id.get(id).map(|known| known.entry.clone())
    }

    /// Reports whether there is an entry, including one that cannot be read.
    pub(super) fn contains(&self, id: &EndpointId) -> bool {
        let entries = self.lock();
        entries.by_id.contains_key(id) || entries.damaged.contains(&self.file(id))
    }

    /// Whether there is an entry that cannot be read.
    pub(super) fn is_damaged(&self, id: &EndpointId) -> bool {
        self.lock().damaged.contains(&self.file(id))
    }

    /// Whether any entry cannot be read.
    pub(super) fn has_damaged(&self) -> bool {
        !self.lock().damaged.is_empty()
    }

    /// Removes the entries that cannot be read, except for those of these endpoints.
    pub(super) fn remove_unknown(&self, known: &BTreeSet<EndpointId>) -> io::Result<()> {
        let known: BTreeSet<PathBuf> = known.iter().map(|id| self.file(id)).collect();
        let mut entries = self.lock();
        let unknown: Vec<PathBuf> = entries.damaged.difference(&known).cloned().collect();
        for path in unknown {
            remove_file(&path)?;
            tracing::info!("removed {}: it is of no endpoint of this node", path.display());
            entries.damaged.remove(&path);
        }
        Ok(())
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        self.lock().by_id.values().map(|known| known.entry.clone()).collect()
    }

    /// Returns the entries of requests that are running, were interrupted, or have failed.
    pub(super) fn unfinished(&self) -> Vec<Entry> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.progress != Progress::Attached);
        entries
    }

    /// Number of writes since the start, for [`written_after`](Self::written_after).
    pub(super) fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// Whether the entry was written after the first `writes` writes.
    pub(super) fn written_after(&self, id: &EndpointId, writes: u64) -> bool {
        self.lock().by_id.get(id).is_some_and(|known| known.written > writes)
    }

    /// Replaces a file atomically; creates the directory again if it was removed.
    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        match atomic_file::replace(path, text) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&self.directory)?;
                atomic_file::replace(path, text)
            }
            written => written,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names of runtimes may be long and contain any byte; a file name has at most 255 bytes.
    fn file(&self, id: &EndpointId) -> PathBuf {
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = id.as_str().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        let readable = |c: &char| c.is_ascii_alphanumeric() || *c == '-' || *c == '.';
        let name: String = id.as_str().chars().filter(readable).take(100).collect();
        self.directory.join(format!("{name}-{hash:016x}.{COMPLETE}"))
    }
}

impl Entries {
    fn read(&mut self, path: PathBuf) {
        let entry = fs::read(&path).and_then(|text| Ok(serde_json::from_slice::<Entry>(&text)?));
        match entry {
            Ok(entry) => self.insert(entry.pod().endpoint_id(), entry, true),
            Err(error) => {
                tracing::warn!(
                    "read {}: {error}; the attachment is deleted if it has no interface",
                    path.display()
                );
                self.damaged.insert(path);
            }
        }
    }

    fn insert(&mut self, id: EndpointId, entry: Entry, is_stored: bool) {
        self.writes += 1;
        self.by_id.insert(id, Known { entry, is_stored, written: self.writes });
    }

    /// Counts a write that changes nothing. Returns false if the file does not have the entry.
    fn repeat(&mut self, id: &EndpointId, entry: &Entry) -> bool {
        let Some(known) = self.by_id.get_mut(id) else { return false };
        let is_same = known.is_stored && known.entry == *entry;
        if is_same {
            self.writes += 1;
            known.written = self.writes;
        }
        is_same
    }
}

/// Extension of a file with an entry.
const COMPLETE: &str = "json";

fn create(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Removes a file, if it exists.
fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use contivk8s::wire::Request;

    use super::*;

    fn pod(container: &str) -> Pod {
        let request = Request {
            container: container.into(),
            ifname: "net1".into(),
            network_name: "contiv-net".into(),
            ..Request::default()
        };
        Pod::try_from(&request).unwrap()
    }

    #[test]
    fn entries_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let journal = Journal::beside(&socket).unwrap();
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
        assert_eq!((entry.pod().endpoint.as_str(), entry.container.as_str()), ("c1-net1", "c1"));
        assert!(!journal.path().join("half.json.new").exists());
    }

    #[test]
    fn attachments_are_deleted_by_endpoint_or_container() {
        let entry = |request: &Request| Entry::new(&Pod::try_from(request).unwrap(), Progress::Attached);
        let request = |container: &str, infra: &str, ifname: &str| Request {
            container: container.into(),
            infra_container: infra.into(),
            ifname: ifname.into(),
            ..Request::default()
        };
        let attached = entry(&request("y", "x", "net1"));
        let is_deleted = |by: &Request| attached.is_deleted_with(&Pod::try_from(by).unwrap());
        assert!(is_deleted(&request("y", "x", "net1")) && is_deleted(&request("y", "", "net1")));
        assert!(is_deleted(&request("x", "", "net1")));
        assert!(!is_deleted(&request("y", "", "eth0")) && !is_deleted(&request("z", "", "net1")));
        // A client that sends no container id, like the plugin of the original Contiv.
        let unknown = entry(&request("", "x", "net1"));
        assert!(!unknown.is_deleted_with(&Pod::try_from(&request("", "z", "net1")).unwrap()));
    }

    #[test]
    fn damaged_entries_are_known_by_their_files() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let (whole, torn) = (pod("c1"), pod("c2"));
        let journal = Journal::beside(&socket).unwrap();
        for pod in [&whole, &torn] {
            journal.write(pod, Progress::Adding).unwrap();
        }
        for text in ["", "{", "[]"] {
            fs::write(journal.file(&torn.endpoint_id()), text).unwrap();
            fs::write(journal.path().join("notes"), "").unwrap();
            let journal = Journal::beside(&socket).unwrap();
            assert_eq!(journal.entries().len(), 1, "{text:?}");
            assert!(journal.is_damaged(&torn.endpoint_id()) && journal.contains(&torn.endpoint_id()));
            assert!(!journal.is_damaged(&whole.endpoint_id()));
        }
        let journal = Journal::beside(&socket).unwrap();
        journal.write(&torn, Progress::Attached).unwrap();
        assert!(!journal.is_damaged(&torn.endpoint_id()));
        fs::write(journal.file(&torn.endpoint_id()), "").unwrap();
        let journal = Journal::beside(&socket).unwrap();
        journal.remove(&torn.endpoint_id()).unwrap();
        assert!(!journal.contains(&torn.endpoint_id()) && !journal.file(&torn.endpoint_id()).exists());
    }

    #[test]
    fn damaged_entries_of_no_endpoint_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let pods = ["c1", "c2", "c3", "c4"].map(pod);
        let journal = Journal::beside(&socket).unwrap();
        pods.iter().for_each(|pod| journal.write(pod, Progress::Attached).unwrap());
        let files = pods.each_ref().map(|pod| journal.file(&pod.endpoint_id()));
        files[..3].iter().for_each(|file| fs::write(file, "{").unwrap());
        let journal = Journal::beside(&socket).unwrap();
        // An ADD has replaced the entry meanwhile.
        journal.write(&pods[0], Progress::Adding).unwrap();
        journal.remove_unknown(&BTreeSet::from([pods[1].endpoint_id()])).unwrap();
        assert_eq!(files.each_ref().map(|file| file.exists()), [true, true, false, true]);
        assert!(journal.is_damaged(&pods[1].endpoint_id()) && journal.has_damaged());
        journal.remove_unknown(&BTreeSet::new()).unwrap();
        assert!(!journal.has_damaged() && !journal.contains(&pods[1].endpoint_id()));
        assert_eq!(Journal::beside(&socket).unwrap().entries().len(), 2);
    }

    #[test]
    fn files_that_were_removed_or_cannot_be_written_keep_no_attachment_alive() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let journal = Journal::beside(&socket).unwrap();
        let first = pod("c1");
        let id = first.endpoint_id();
        journal.write(&first, Progress::Attached).unwrap();
        fs::remove_dir_all(journal.path()).unwrap();
        journal.remove(&id).unwrap();
        journal.write(&first, Progress::Attached).unwrap();
        assert!(journal.file(&id).exists());

        // As on a full disk, nothing can be written.
        let blocked = journal.file(&id).with_added_extension(UNFINISHED);
        fs::create_dir(&blocked).unwrap();
        assert!(journal.write(&first, Progress::Adding).is_err());
        assert_eq!(journal.get(&id).unwrap().progress, Progress::Attached);
        assert!(journal.write(&first, Progress::Deleting).is_err());
        assert_eq!(journal.get(&id).unwrap().progress, Progress::Deleting);
        fs::remove_dir(&blocked).unwrap();
        journal.write(&first, Progress::Deleting).unwrap();
        let read = Journal::beside(&socket).unwrap();
        assert_eq!(read.get(&id).unwrap().progress, Progress::Deleting);
    }

    #[test]
    fn repeated_writes_count() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::beside(&directory.path().join("cni.sock")).unwrap();
        let (first, second) = (pod("c1"), pod("c2"));
        journal.write(&first, Progress::Attached).unwrap();
        journal.write(&second, Progress::Attached).unwrap();
        let before = journal.writes();
        journal.write(&first, Progress::Attached).unwrap();
        assert!(journal.written_after(&first.endpoint_id(), before));
        assert!(!journal.written_after(&second.endpoint_id(), before));
    }
}
