//! All versions of all keys: by key for reads, by revision for watches.
//!
//! All of it is in memory; the file holds the same versions so that a restart can load them.

use super::span::Span;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Revisions kept for reads of the past and for watches that were interrupted. etcd keeps all until
/// it is told to compact.
pub(super) const KEEP_REVISIONS: i64 = 10_000;
/// Compacting in batches of this size; compacting a few at a time would add one removal to every
/// write.
const SLACK_REVISIONS: i64 = 500;
/// Bound on replaced values, so that a large value that is written often (an address bitmap) does
/// not fill the memory.
const KEEP_BYTES: usize = 64 << 20;

/// Revision of an empty store; as in etcd the first write has revision 2.
const FIRST_REVISION: i64 = 1;
/// As in etcd, so that a first compaction to 0 is accepted.
pub(super) const NEVER_COMPACTED: i64 = -1;

/// A key from one revision on: a put, or a tombstone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    pub(super) create_revision: i64,
    pub(super) mod_revision: i64,
    /// Position among the changes of its revision.
    pub(super) sub: u32,
    /// Puts since the key was created; 0 marks a tombstone.
    pub(super) version: i64,
    pub(super) lease: i64,
}

impl Version {
    pub(super) fn deletion(key: Bytes, mod_revision: i64, sub: u32) -> Version {
        Version { key, value: Bytes::new(), create_revision: 0, mod_revision, sub, version: 0, lease: 0 }
    }

    pub(super) fn is_deletion(&self) -> bool {
        self.version == 0
    }

    fn size(&self) -> usize {
        self.key.len() + self.value.len()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) now: Arc<Version>,
    /// The put that this change replaced or deleted.
    pub(super) before: Option<Arc<Version>>,
}

#[derive(Debug)]
pub(super) struct History {
    /// Versions of each key, oldest first, never empty.
    keys: BTreeMap<Bytes, Vec<Arc<Version>>>,
    /// Changes from `compacted` on.
    log: BTreeMap<i64, Vec<Change>>,
    revision: i64,
    compacted: i64,
    /// Bytes that a compaction could free.
    superseded: usize,
}

impl History {
    /// An empty history of a store that was last compacted at `compacted`; [`History::append`] adds
    /// the versions.
    pub(super) fn new(compacted: i64) -> History {
        let (keys, log) = (BTreeMap::new(), BTreeMap::new());
        History { keys, log, revision: FIRST_REVISION.max(compacted), compacted, superseded: 0 }
    }

    /// Revision of the last change, durable or not.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    pub(super) fn compacted(&self) -> i64 {
        self.compacted
    }

    /// Raises the revision. Tombstones may have been compacted away, and their revisions must not
    /// be reused.
    pub(super) fn advance(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    /// Adds a version. Versions come in the order of revision and position. Returns the previous
    /// put of the key.
    pub(super) fn append(&mut self, version: Arc<Version>) -> Option<Arc<Version>> {
        let versions = self.keys.entry(version.key.clone()).or_default();
        let last = versions.last();
        // A tombstone is garbage from the start.
        self.superseded += last.filter(|v| !v.is_deletion()).map_or(0, |v| v.size());
        self.superseded += if version.is_deletion() { version.size() } else { 0 };
        let before = last.filter(|v| !v.is_deletion()).cloned();
        versions.push(version.clone());
        self.advance(version.mod_revision);
        if version.mod_revision >= self.compacted {
            let change = Change { now: version.clone(), before: before.clone() };
            self.log.entry(version.mod_revision).or_default().push(change);
        }
        before
    }

    /// The key at `revision`, if it existed.
    pub(super) fn at(&self, key: &[u8], revision: i64) -> Option<&Arc<Version>> {
        self.keys.get(key).and_then(|versions| live(versions, revision))
    }

    /// The keys of `span` at `revision`, in key order.
    pub(super) fn range(&self, span: &Span, revision: i64) -> impl Iterator<Item = &Arc<Version>> {
        let bounds = (!span.is_empty()).then(|| span.bounds());
        bounds
            .into_iter()
            .flat_map(|bounds| self.keys.range::<Bytes, _>(bounds))
            .filter_map(move |(_, versions)| live(versions, revision))
    }

    /// Changes of the revisions `from..=to`, one revision at a time.
    pub(super) fn changes(&self, from: i64, to: i64) -> impl Iterator<Item = (i64, &[Change])> {
        let revisions = (from <= to).then(|| self.log.range(from..=to));
        revisions.into_iter().flatten().map(|(revision, changes)| (*revision, &changes[..]))
    }

    /// Revision to compact at so that the history stays within its bounds, if it exceeds them; at
    /// most `durable`.
    pub(super) fn overgrown(&self, durable: i64) -> Option<i64> {
        let mut target = self.compacted;
        if self.revision - self.compacted > KEEP_REVISIONS + SLACK_REVISIONS {
            target = self.revision - KEEP_REVISIONS;
        }
        if self.superseded > KEEP_BYTES {
            let mut left = self.superseded;
            for (revision, changes) in &self.log {
                if left <= KEEP_BYTES / 4 * 3 {
                    break;
                }
                let freed: usize = changes.iter().filter_map(|c| c.before.as_ref()).map(|v| v.size()).sum();
                left = left.saturating_sub(freed);
                target = target.max(*revision);
            }
        }
        let target = target.min(durable);
        (target > self.compacted).then_some(target)
    }

    /// Removes all versions that are not visible at `to` or later, except deletions at `to`: watches from `to` on
    /// report them, also after a restart. Returns the removed ones.
    pub(super) fn compact(&mut self, to: i64) -> Vec<(i64, u32)> {
        let mut gone = Vec::new();
        let touched: BTreeSet<Bytes> = self
            .log
            .range(..=to)
            .flat_map(|(_, changes)| changes.iter().map(|change| change.now.key.clone()))
            .collect();
        for key in touched {
            let Some(versions) = self.keys.get_mut(&key) else { continue };
            let mut keep_from = versions.partition_point(|v| v.mod_revision <= to);
            // The last of them is visible at `to`, or a deletion.
            let is_kept = |last: &Arc<Version>| !last.is_deletion() || last.mod_revision == to;
            if versions[..keep_from].last().is_some_and(is_kept) {
                keep_from -= 1;
            }
            for version in versions.drain(..keep_from) {
                self.superseded = self.superseded.saturating_sub(version.size());
                gone.push((version.mod_revision, version.sub));
            }
            if versions.is_empty() {
                self.keys.remove(&key);
            }
        }
        self.log = self.log.split_off(&to);
        self.compacted = to;
        gone
    }
}

fn live(versions: &[Arc<Version>], revision: i64) -> Option<&Arc<Version>> {
    let until = versions.partition_point(|v| v.mod_revision <= revision);
    versions[..until].last().filter(|v| !v.is_deletion())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(history: &mut History, key: &str, value: &str) -> i64 {
        let revision = history.revision() + 1;
        let last = history.at(key.as_bytes(), revision);
        let (create_revision, version) = last.map_or((revision, 1), |v| (v.create_revision, v.version + 1));
        let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
        let put = Version { key, value, create_revision, mod_revision: revision, sub: 0, version, lease: 0 };
        history.append(Arc::new(put));
        revision
    }

    fn delete(history: &mut History, key: &str) -> i64 {
        let revision = history.revision() + 1;
        let key = Bytes::copy_from_slice(key.as_bytes());
        history.append(Arc::new(Version::deletion(key, revision, 0)));
        revision
    }

    fn keys(history: &History, revision: i64) -> Vec<String> {
        let all = Span::new(b"\0", b"\0");
        history
            .range(&all, revision)
            .map(|v| format!("{:?}={:?}", v.key, v.value).replace(['b', '"'], ""))
            .collect()
    }

    #[test]
    fn the_past_can_be_read_until_it_is_compacted() {
        let mut history = History::new(NEVER_COMPACTED);
        assert_eq!(put(&mut history, "x", "1"), 2);
        put(&mut history, "y", "1");
        put(&mut history, "x", "2");
        delete(&mut history, "y");
        put(&mut history, "y", "3");
        assert_eq!(keys(&history, 3), ["x=1", "y=1"]);
        assert_eq!(keys(&history, 5), ["x=2"]);
        assert_eq!(keys(&history, 6), ["x=2", "y=3"]);
        assert_eq!(history.at(b"y", 6).unwrap().version, 1);

        let mut gone = history.compact(5);
        gone.sort_unstable();
        assert_eq!(gone, [(2, 0), (3, 0)]);
        assert_eq!(keys(&history, 5), ["x=2"]);
        assert_eq!(keys(&history, 6), ["x=2", "y=3"]);
        assert_eq!(history.changes(5, 6).count(), 2);
        assert_eq!(history.compact(6), [(5, 0)]);
        assert_eq!(history.superseded, 0);
    }

    /// Its deletion is reported as long as it is not older than the last compaction.
    #[test]
    fn a_deleted_key_leaves_nothing_behind() {
        let mut history = History::new(NEVER_COMPACTED);
        put(&mut history, "x", "1");
        let deletion = delete(&mut history, "x");
        assert_eq!(history.compact(deletion), [(2, 0)]);
        assert_eq!((keys(&history, deletion), history.keys.len()), (vec![], 1));
        let end = put(&mut history, "y", "1");
        assert_eq!(history.compact(end), [(deletion, 0)]);
        assert_eq!(history.keys.keys().collect::<Vec<_>>(), ["y"]);
        assert_eq!(history.superseded, 0);
        assert_eq!(history.revision(), end);
    }

    #[test]
    fn the_past_is_bounded_in_revisions_and_in_bytes() {
        let mut history = History::new(NEVER_COMPACTED);
        assert_eq!(history.overgrown(0), None);
        let large = "v".repeat(1 << 20);
        for _ in 0..70 {
            put(&mut history, "map", &large);
        }
        let target = history.overgrown(history.revision()).unwrap();
        history.compact(target);
        assert!(history.superseded <= KEEP_BYTES);
        assert_eq!(history.overgrown(history.revision()), None);

        let mut history = History::new(NEVER_COMPACTED);
        for _ in 0..KEEP_REVISIONS + SLACK_REVISIONS {
            put(&mut history, "x", "v");
        }
        let end = history.revision();
        assert_eq!(history.overgrown(end), Some(end - KEEP_REVISIONS));
        assert_eq!(history.overgrown(5), Some(5));
    }
}
