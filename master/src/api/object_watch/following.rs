//! A watch that has started: what its client gets next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use contiv_model::event;
use contiv_model::key::Key;
use contiv_store::{Batch, Store, Update};
use futures::StreamExt as _;
use futures::stream::BoxStream;

use super::link_follower::LinkFollower;
use super::page::{LinkPage, Page, Snapshot};
use super::untaken::WatchEvent;
use super::{ObjectWatch, gone};
use crate::cache::LinkChanges;

/// A watch that has started.
pub(super) struct Following {
    pub(super) watch: Arc<ObjectWatch>,
    pub(super) store: Store,
    /// Sent before everything else.
    pub(super) snapshot: Option<Snapshot>,
    /// Keys of objects whose derived links changed, which are sent before the changes.
    pub(super) relinked: BTreeSet<String>,
    /// None before a snapshot is complete.
    pub(super) changes: Option<BoxStream<'static, Batch>>,
    /// The client has the changes up to this revision; none before the first snapshot is complete.
    pub(super) position: Option<i64>,
    /// After a loss of link changes.
    pub(super) catch_up: Option<CatchUp>,
    /// The changes between the revision that the client has named and the time of its request. They come as
    /// fast as the store has them, which is no sign of a slow client.
    pub(super) history: Option<CatchUp>,
    /// Objects that the client has from the snapshot in a later state than that of its revision.
    pub(super) sent: BTreeMap<String, i64>,
    pub(super) links: LinkFollower,
}

/// Earlier changes that the client gets. Meanwhile its connection is not ended because it is slow: the
/// changes are read again from its position.
///
/// After a loss of link changes, the client gets all objects again, and then the changes since its position,
/// deletions in particular. Until it has them, it would get all objects once more if it connected again, and
/// changes of links wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CatchUp {
    /// Revision of the newest of the changes.
    pub(super) until: i64,
    /// Position at which the stream of changes was opened, or the catch-up began.
    pub(super) from: i64,
}

impl CatchUp {
    /// None if the client has the changes.
    pub(super) fn new(position: i64, until: i64) -> Option<CatchUp> {
        (position < until).then_some(CatchUp { until, from: position })
    }
}

impl Following {
    pub(super) fn new(watch: Arc<ObjectWatch>, store: Store) -> Following {
        Following {
            links: LinkFollower::new(&watch),
            snapshot: watch.after.is_none().then(Snapshot::default),
            changes: watch.after.map(|revision| watch.changes_after(&store, revision)),
            position: watch.after,
            catch_up: None,
            history: None,
            relinked: BTreeSet::new(),
            sent: BTreeMap::new(),
            store,
            watch,
        }
    }

    /// The next events; without a next state, the stream ends after them.
    pub(super) async fn step(mut self) -> Option<(Vec<WatchEvent>, Option<Following>)> {
        if let Some(snapshot) = self.snapshot.take() {
            return self.send(snapshot).await;
        }
        if !self.relinked.is_empty() {
            return self.send_relinked().await;
        }
        let follows_links = self.watch.object_type.operations.linked && self.catch_up.is_none();
        let changes = self.changes.as_mut()?;
        // Changes of links come first: an object that is deleted later must not appear again.
        let batch = tokio::select! {
            biased;
            links = self.links.next(&self.watch), if follows_links => {
                match links? {
                    LinkChanges::Known(links) => self.relinked = self.watch.relinked(links),
                    LinkChanges::Lost => {
                        // The changes are read when the client has the objects.
                        (self.snapshot, self.changes) = (Some(Snapshot::default()), None);
                    }
                }
                return Some((Vec::new(), Some(self)));
            }
            batch = changes.next() => batch,
        };
        let Some(mut batch) = batch else { return self.reopen() };
        if batch.relisted.is_some() {
            return Some((vec![gone()], None));
        }
        self.position = self.position.max(batch.updates.iter().map(|update| update.revision).max());
        let position = self.position;
        let is_left = |earlier: &CatchUp| position < Some(earlier.until);
        self.catch_up = self.catch_up.filter(is_left);
        self.history = self.history.filter(is_left);
        if !self.sent.is_empty() {
            batch.updates.retain(|update| !self.was_sent(update));
        }
        Some((self.watch.changes(batch.updates), Some(self)))
    }

    /// The stream of changes has ended because the client is slow. While the client gets earlier changes
    /// and makes progress, they are read again from its position.
    fn reopen(mut self) -> Option<(Vec<WatchEvent>, Option<Following>)> {
        let (earlier, position) = (self.catch_up.or(self.history)?, self.position?);
        if position <= earlier.from {
            return None;
        }
        let from_here = |earlier: CatchUp| CatchUp::new(position, earlier.until);
        self.catch_up = self.catch_up.and_then(from_here);
        self.history = self.history.and_then(from_here);
        self.changes = Some(self.watch.changes_after(&self.store, position));
        Some((Vec::new(), Some(self)))
    }

    /// Sends a page of the snapshot. The client of a netmaster that ceases to lead connects again.
    async fn send(mut self, snapshot: Snapshot) -> Option<(Vec<WatchEvent>, Option<Following>)> {
        let Page { mut events, later, revision, newest, next } = match self.watch.page(snapshot).await {
            Ok(page) => page,
            Err(problem) => {
                tracing::warn!(error = problem.text, "watch objects: read the snapshot failed");
                return None;
            }
        };
        self.sent.extend(later);
        self.snapshot = next;
        match self.position {
            _ if self.snapshot.is_some() => {}
            Some(position) => {
                self.catch_up = CatchUp::new(position, newest);
                self.changes = Some(self.watch.changes_after(&self.store, position));
            }
            None => {
                let id = self.watch.history.revision(revision);
                events.push(WatchEvent::new("synced", "{}").id(id));
                self.changes = Some(self.watch.changes_after(&self.store, revision));
                self.position = Some(revision);
            }
        }
        Some((events, Some(self)))
    }

    /// Sends a page of the objects whose derived links changed.
    async fn send_relinked(mut self) -> Option<(Vec<WatchEvent>, Option<Following>)> {
        let keys = std::mem::take(&mut self.relinked);
        match self.watch.first_of(keys).await {
            Ok(LinkPage { events, others }) => {
                self.relinked = others;
                Some((events, Some(self)))
            }
            Err(problem) => {
                tracing::warn!(error = problem.text, "watch objects: read objects with changed links failed");
                None
            }
        }
    }

    /// Whether the snapshot had this state of the object, or a later one.
    fn was_sent(&self, update: &Update) -> bool {
        let (event::Event::Apply(path, _) | event::Event::Delete(path)) = &update.event else { return false };
        let Ok(Key::Object(_, key)) = path.parse() else { return false };
        self.sent.get(&*key).is_some_and(|sent| update.revision <= *sent)
    }
}
