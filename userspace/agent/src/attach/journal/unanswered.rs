//! Requests to create an endpoint that netmaster has not answered. netmaster may execute them after the endpoint was
//! deleted.
//!
//! They have files next to the entries, and the next process checks them again.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use contiv_model::name::EndpointId;

use super::{Entry, Journal, Progress, remove_file};
use crate::attach::pod::Pod;

/// Age after which netmaster no longer executes a request. A request of an agent ends after 15 s, and a request that a
/// netmaster forwards ends after a minute. Linux aborts a closed connection whose data is not acknowledged within a
/// quarter of an hour.
const AGE_LIMIT: Duration = Duration::from_secs(900);
/// Age at the first check. Each further check is at twice the age of the previous one.
const FIRST_CHECK: Duration = Duration::from_secs(2);
/// Extension of a file with the entry of an ADD.
pub(super) const EXTENSION: &str = "unanswered";

/// Requests by the id of their endpoint.
#[derive(Debug, Default)]
pub(super) struct Unanswered(BTreeMap<EndpointId, Creation>);

#[derive(Debug)]
struct Creation {
    entry: Entry,
    /// Time of the request or later.
    since: Instant,
    next_check: Instant,
}

impl Unanswered {
    /// Reads a file of an earlier process. The age of the request is unknown, so that it starts at zero again. A file
    /// that cannot be decoded does not identify its endpoint, and is removed.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<()> {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) => {
                tracing::warn!("read {}: {error}", path.display());
                return Ok(());
            }
        };
        match serde_json::from_slice::<Entry>(&text) {
            Ok(entry) => self.insert(entry, Instant::now()),
            Err(error) => {
                tracing::warn!(
                    "decode {}: {error}; removing it: an endpoint that netmaster creates late may stay",
                    path.display()
                );
                remove_file(path)?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, entry: Entry, now: Instant) {
        let creation = Creation { since: now, next_check: now + FIRST_CHECK, entry };
        self.0.insert(creation.entry.pod().endpoint_id(), creation);
    }

    fn due(&self, now: Instant) -> Vec<Pod> {
        let due = self.0.values().filter(|creation| creation.next_check <= now);
        due.map(|creation| creation.entry.pod()).collect()
    }

    /// Sets the time of the next check, or removes a request that is too old. Returns true if it was removed.
    fn checked(&mut self, id: &EndpointId, now: Instant) -> bool {
        let Some(creation) = self.0.get_mut(id) else { return false };
        let age = now.saturating_duration_since(creation.since);
        creation.next_check = now + age.max(FIRST_CHECK);
        let is_over = age >= AGE_LIMIT;
        if is_over {
            self.0.remove(id);
        }
        is_over
    }
}

impl Journal {
    /// Reports whether netmaster may not have answered the request of an ADD. An entry that cannot be read may be that of
    /// an ADD.
    pub(in crate::attach) fn may_be_unanswered(&self, id: &EndpointId) -> bool {
        self.is_damaged(id) || self.get(id).is_some_and(|entry| entry.progress == Progress::Adding)
    }

    /// Records the request to create the endpoint of a pod, for the life of the process even if the file cannot be
    /// written.
    pub(in crate::attach) fn remember_unanswered(&self, pod: &Pod) -> io::Result<()> {
        let entry = Entry::new(pod, Progress::Adding);
        let text = serde_json::to_vec(&entry)?;
        self.lock_unanswered().insert(entry, Instant::now());
        self.replace(&self.unanswered_file(&pod.endpoint_id()), &text)
    }

    /// Returns the endpoints whose check is due.
    pub(in crate::attach) fn due_unanswered(&self) -> Vec<Pod> {
        self.lock_unanswered().due(Instant::now())
    }

    /// Records that the endpoint has been checked. A request that is too old is removed.
    pub(in crate::attach) fn checked_unanswered(&self, id: &EndpointId) -> io::Result<()> {
        let is_forgotten = self.lock_unanswered().checked(id, Instant::now());
        if !is_forgotten {
            return Ok(());
        }
        remove_file(&self.unanswered_file(id))
    }

    fn unanswered_file(&self, id: &EndpointId) -> PathBuf {
        self.file(id).with_extension(EXTENSION)
    }

    fn lock_unanswered(&self) -> MutexGuard<'_, Unanswered> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use contivk8s::wire::Request;

    use super::*;

    fn pod(container: &str) -> Pod {
        let (container, ifname) = (container.into(), "eth0".into());
        Pod::try_from(&Request { container, ifname, ..Request::default() }).unwrap()
    }

    #[test]
    fn requests_are_checked_at_twice_the_age_until_they_are_too_old() {
        let (start, pod) = (Instant::now(), pod("c1"));
        let mut unanswered = Unanswered::default();
        unanswered.insert(Entry::new(&pod, Progress::Adding), start);
        let mut checks = vec![];
        for second in 0..3600 {
            let now = start + Duration::from_secs(second);
            for found in unanswered.due(now) {
                assert_eq!(found.endpoint_id(), pod.endpoint_id());
                checks.push(second);
                unanswered.checked(&found.endpoint_id(), now);
            }
        }
        assert_eq!(checks, [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
        assert!(unanswered.0.is_empty());
    }

    #[test]
    fn files_that_cannot_be_decoded_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let journal = Journal::beside(&socket).unwrap();
        let files = ["c1", "c2"].map(|name| {
            journal.remember_unanswered(&pod(name)).unwrap();
            journal.unanswered_file(&pod(name).endpoint_id())
        });
        fs::write(&files[1], "{").unwrap();
        let journal = Journal::beside(&socket).unwrap();
        assert_eq!(journal.lock_unanswered().0.len(), 1);
        assert_eq!(files.map(|file| file.exists()), [true, false]);
    }

    #[test]
    fn requests_outlive_the_process_and_their_entries() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cni.sock");
        let journal = Journal::beside(&socket).unwrap();
        let (pod, id) = (pod("c1"), pod("c1").endpoint_id());
        assert!(!journal.may_be_unanswered(&id));
        journal.write(&pod, Progress::Adding).unwrap();
        assert!(journal.may_be_unanswered(&id));
        journal.remember_unanswered(&pod).unwrap();
        journal.write(&pod, Progress::Deleting).unwrap();
        assert!(!journal.may_be_unanswered(&id));
        journal.remove(&id).unwrap();

        let journal = Journal::beside(&socket).unwrap();
        assert!(journal.entries().is_empty());
        let due = |journal: &Journal| journal.lock_unanswered().due(Instant::now() + FIRST_CHECK).len();
        assert_eq!((journal.due_unanswered().len(), due(&journal)), (0, 1));
        // The check of a newer request of another ADD keeps the file.
        journal.remember_unanswered(&pod).unwrap();
        journal.checked_unanswered(&id).unwrap();
        assert_eq!(due(&Journal::beside(&socket).unwrap()), 1);
        assert!(journal.lock_unanswered().checked(&id, Instant::now() + AGE_LIMIT));
        assert_eq!(due(&journal), 0);
    }
}
