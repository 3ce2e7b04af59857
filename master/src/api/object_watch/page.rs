//! Pages of objects: the snapshot of a watch, and objects whose derived links changed.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::untaken::WatchEvent;
use super::{ObjectWatch, put_event};
use crate::cache::ClusterCache;
use crate::objects::Unencoded;
use crate::problem::Problem;
use crate::reports::Report;

/// Objects that are read and sent at a time.
const PAGE_OBJECTS: usize = 256;
/// Bytes of bodies after which a page has no more objects. Every open watch may keep a page, and the object
/// that exceeded it.
pub(super) const PAGE_BYTES: usize = 64 << 10;

/// Objects that are still to be sent, page by page. Changes after the revision of the first page follow,
/// so that a client needs no more than a page of memory here, however many objects there are.
#[derive(Default)]
pub(super) struct Snapshot {
    /// Key of the last object that was sent.
    pub(super) after: Option<String>,
    pub(super) revision: Option<i64>,
    /// Revision of the newest record that was sent and that had not changed after that revision.
    pub(super) newest: i64,
}

/// An object that is not encoded yet.
pub(super) struct Taken {
    pub(super) key: String,
    /// Revision of the record.
    pub(super) changed: i64,
    /// None if the object does not exist, or is not in the scope.
    pub(super) object: Option<Unencoded>,
}

/// An object that was taken and encoded, or left out.
pub(super) struct Passed {
    pub(super) key: String,
    /// Revision of the record.
    pub(super) changed: i64,
    /// Whether there is an event about it.
    pub(super) is_sent: bool,
}

/// Events about the first of the objects that were taken.
pub(super) struct Encoded {
    pub(super) events: Vec<WatchEvent>,
    /// These objects, also those that are not selected.
    pub(super) passed: Vec<Passed>,
    /// Whether no other objects were taken.
    pub(super) is_whole: bool,
}

/// A part of a snapshot.
pub(super) struct Page {
    pub(super) events: Vec<WatchEvent>,
    /// Keys of records that were sent and changed after the revision, and when.
    pub(super) later: Vec<(String, i64)>,
    pub(super) revision: i64,
    /// Revision of the newest other record, also on the pages before.
    pub(super) newest: i64,
    pub(super) next: Option<Snapshot>,
}

/// A part of the objects whose derived links changed.
pub(super) struct LinkPage {
    pub(super) events: Vec<WatchEvent>,
    /// Keys of objects that are still to be sent.
    pub(super) others: BTreeSet<String>,
}

impl ObjectWatch {
    /// The next objects of a snapshot, and the state after them.
    pub(super) async fn page(self: &Arc<ObjectWatch>, snapshot: Snapshot) -> Result<Page, Problem> {
        let watch = self.clone();
        let take = move |cache: &ClusterCache| -> Report<Result<Page, Problem>> {
            let revision = snapshot.revision.unwrap_or_else(|| cache.complete_revision());
            let keys = (watch.object_type.operations.keys)(cache, snapshot.after.as_deref(), PAGE_OBJECTS);
            let is_last = keys.len() < PAGE_OBJECTS;
            let taken = watch.take_out(cache, keys);
            let newest = snapshot.newest;
            Box::new(move || {
                let Encoded { events, passed, is_whole } = watch.encode(taken);
                let after = passed.last().map(|object| object.key.clone());
                let (later, earlier): (Vec<_>, Vec<_>) =
                    passed.into_iter().partition(|object| object.changed > revision);
                let newest = earlier.into_iter().map(|object| object.changed).fold(newest, i64::max);
                // The client may have an earlier version of an object that is left out: it gets the change.
                let later = later.into_iter().filter(|object| object.is_sent);
                let later = later.map(|object| (object.key, object.changed)).collect();
                let next = Snapshot { after, revision: Some(revision), newest };
                let next = (!(is_last && is_whole)).then_some(next);
                Ok(Page { events, later, revision, newest, next })
            })
        };
        self.reads.read(take).await
    }

    /// Events about the first of the objects, and the other keys.
    pub(super) async fn first_of(
        self: &Arc<ObjectWatch>,
        mut keys: BTreeSet<String>,
    ) -> Result<LinkPage, Problem> {
        let watch = self.clone();
        let take = move |cache: &ClusterCache| -> Report<Result<LinkPage, Problem>> {
            let first = keys.iter().take(PAGE_OBJECTS).map(|key| (key.clone(), 0)).collect();
            let taken = watch.take_out(cache, first);
            Box::new(move || {
                let encoded = watch.encode(taken);
                for object in &encoded.passed {
                    keys.remove(&object.key);
                }
                Ok(LinkPage { events: encoded.events, others: keys })
            })
        };
        self.reads.read(take).await
    }

    /// Takes the objects with these keys and revisions out of the cache. They are encoded later, so
    /// that commits do not wait for it.
    fn take_out(&self, cache: &ClusterCache, keys: Vec<(String, i64)>) -> Vec<Taken> {
        let cached = self.object_type.operations.cached;
        let taken = keys.into_iter().map(|(key, changed)| {
            let object = if self.is_in_scope(&key) { cached(cache, &key) } else { None };
            Taken { key, changed, object }
        });
        taken.collect()
    }

    /// Encodes objects until the page is full.
    pub(super) fn encode(&self, taken: Vec<Taken>) -> Encoded {
        let (mut events, mut passed, mut bytes) = (Vec::new(), Vec::new(), 0);
        let mut taken = taken.into_iter();
        for Taken { key, changed, object } in taken.by_ref() {
            let stored = object.and_then(|encode| encode().ok()).filter(|stored| self.selects(stored));
            if let Some(stored) = &stored {
                bytes += stored.body.len();
                events.push(put_event(stored));
            }
            passed.push(Passed { key, changed, is_sent: stored.is_some() });
            if bytes >= PAGE_BYTES {
                break;
            }
        }
        Encoded { events, passed, is_whole: taken.next().is_none() }
    }
}
