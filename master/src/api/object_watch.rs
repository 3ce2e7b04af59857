//! Watches of objects: server-sent events.
//!
//! Events are `put` with the object as GET answers it, `delete` with its key, `synced` after the
//! snapshot of a watch without a revision, and `gone` at the end of a watch whose history is not
//! available any more: the client lists the objects again. The id of an event is the revision of the
//! store to continue after. An event about changed links has no id: its record did not change.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use contiv_model::event;
use contiv_model::key::{Key, MODELDB};
use contiv_store::{Batch, KeyValue, Store, Update};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::access::Scope;
use crate::cache::{ClusterCache, LinkChanges, SharedCache};
use crate::leadership::{Leader, Reads};
use crate::objects::{FieldSelector, Stored, Type};
use crate::problem::{Problem, one_line};
use crate::reports::Report;

/// Interval of comments in an idle stream, so that clients and proxies notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Objects of a snapshot that are read and sent at a time.
const SNAPSHOT_PAGE: usize = 256;
/// Messages of the store that wait for a client. One that is slower loses its connection, and
/// continues after the last event that it has received.
const BACKLOG: usize = 64;

/// What a client watches.
pub(super) struct ObjectWatch {
    pub(super) object_type: &'static Type,
    /// Other objects are left out.
    pub(super) scope: Scope,
    pub(super) selector: FieldSelector,
    /// Continue after this revision, without a snapshot.
    pub(super) after: Option<i64>,
    pub(super) cache: SharedCache,
    pub(super) reads: Reads,
}

impl ObjectWatch {
    /// Starts the stream. It ends when this leadership ends; the client reconnects.
    pub(super) async fn start(self, leader: &Leader) -> Result<Response<Body>, Problem> {
        let permit = leader.watch_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Problem::unavailable("too many open watches; retry later"))?;
        if let Some(revision) = self.after {
            let position = leader.store.position().await;
            let position = position.map_err(|error| Problem::unavailable(one_line(&error)))?;
            if revision > position.revision {
                // Of a store before it was restored, or of none: a watch would be silent up to there.
                let end = stream::once(async { Ok::<_, Infallible>(gone()) });
                return Ok(Sse::new(end).into_response());
            }
        }
        let events = self.events(leader.store.clone()).take_until(leader.ended.clone().cancelled_owned());
        let events = events.map(move |event| {
            let _held = &permit;
            Ok::<_, Infallible>(event)
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
    }

    fn events(self, store: Store) -> impl Stream<Item = Event> + Send {
        let progress = match self.after {
            Some(revision) => Progress::Changes(self.changes_after(&store, revision)),
            None => Progress::Snapshot(Snapshot::default()),
        };
        let links = LinkFollower::new(&self);
        let following = Following { links, store, progress, sent: BTreeMap::new(), watch: Arc::new(self) };
        let steps = stream::unfold(Some(following), |following| async { following?.step().await });
        steps.flat_map(stream::iter)
    }

    /// The changes after a revision. They are read as they come, so that a client that is slow holds up
    /// no other reader of the connection to the store.
    fn changes_after(&self, store: &Store, revision: i64) -> BoxStream<'static, Batch> {
        let prefix = format!("{MODELDB}{}/", self.object_type.kind.as_str());
        let mut batches = store.watch_after(&prefix, revision).batches().boxed();
        let (sender, receiver) = mpsc::channel(BACKLOG);
        tokio::spawn(async move {
            loop {
                let batch = tokio::select! {
                    batch = batches.next() => batch,
                    () = sender.closed() => None,
                };
                if batch.is_none_or(|batch| sender.try_send(batch).is_err()) {
                    return;
                }
            }
        });
        stream::unfold(receiver, |mut receiver| async { Some((receiver.recv().await?, receiver)) }).boxed()
    }

    /// The next objects of a snapshot, and the state after them.
    async fn page(self: &Arc<ObjectWatch>, snapshot: Snapshot) -> Result<Page, Problem> {
        let watch = self.clone();
        let take = move |cache: &ClusterCache| -> Report<Result<Page, Problem>> {
            let operations = &watch.object_type.operations;
            let revision = snapshot.revision.unwrap_or_else(|| cache.complete_revision());
            let keys = (operations.keys)(cache, snapshot.after.as_deref(), SNAPSHOT_PAGE);
            let later = keys.iter().filter(|(_, changed)| *changed > revision).cloned().collect();
            let stored: Vec<Stored> =
                keys.iter().filter_map(|(key, _)| (operations.cached)(cache, key)?.ok()).collect();
            let is_last = keys.len() < SNAPSHOT_PAGE;
            let after = keys.into_iter().next_back().map(|(key, _)| key);
            let next = (!is_last).then_some(Snapshot { after, revision: Some(revision) });
            Box::new(move || {
                let selected = stored.iter().filter(|object| watch.selects(object));
                Ok(Page { events: selected.map(put_event).collect(), later, revision, next })
            })
        };
        self.reads.read(take).await
    }

    fn selects(&self, object: &Stored) -> bool {
        self.scope.has_tenant(object.tenant.as_deref()) && self.selector.matches(&object.fields)
    }

    /// Only the last event of a revision has its id: a client that reconnects before gets all of them
    /// again.
    fn changes(&self, updates: Vec<Update>) -> Vec<Event> {
        let mut events = Vec::with_capacity(updates.len());
        let mut updates = updates.iter().filter_map(|update| self.change(update)).peekable();
        while let Some((event, revision)) = updates.next() {
            let last = updates.peek().is_none_or(|(_, next)| *next != revision);
            events.push(if last { event.id(revision.to_string()) } else { event });
        }
        events
    }

    /// The event, and the revision to continue after. A watch after a revision has no snapshot.
    fn change(&self, update: &Update) -> Option<(Event, i64)> {
        match &update.event {
            event::Event::Init | event::Event::InitApply(..) | event::Event::InitDone => None,
            event::Event::Apply(path, kv) => Some((self.put(path, kv)?, update.revision)),
            event::Event::Delete(path) => Some((self.delete(path)?, update.revision)),
        }
    }

    /// The client may have an earlier version.
    fn put(&self, path: &str, kv: &KeyValue) -> Option<Event> {
        let stored = match (self.object_type.operations.decode)(&kv.value, &self.cache.read()) {
            Ok(stored) => stored,
            Err(error) => {
                tracing::warn!(key = path, %error, "watch objects: a record of the store is invalid; left out");
                return None;
            }
        };
        if !self.scope.has_tenant(stored.tenant.as_deref()) {
            return None;
        }
        if self.selector.matches(&stored.fields) { Some(put_event(&stored)) } else { self.delete(path) }
    }

    /// Objects whose derived links changed.
    fn relinked(&self, changes: LinkChanges, cache: &ClusterCache) -> Vec<Event> {
        let (kind, operations) = (self.object_type.kind, &self.object_type.operations);
        let keys: Vec<String> = match changes {
            LinkChanges::Known(changes) => {
                let of_type = changes.into_iter().filter(|change| change.object_type == kind);
                of_type.map(|change| change.key).collect()
            }
            LinkChanges::Lost => {
                (operations.keys)(cache, None, usize::MAX).into_iter().map(|(key, _)| key).collect()
            }
        };
        let objects = keys.iter().filter_map(|key| (operations.cached)(cache, key)?.ok());
        objects.filter(|object| self.selects(object)).map(|object| put_event(&object)).collect()
    }

    fn delete(&self, path: &str) -> Option<Event> {
        let Ok(Key::Object(_, key)) = path.parse() else { return None };
        if !self.scope.has_tenant(self.object_type.tenant_of(&key)) {
            return None;
        }
        Some(Event::default().event("delete").data(json!({"key": key}).to_string()))
    }
}

/// A watch that has started.
struct Following {
    watch: Arc<ObjectWatch>,
    store: Store,
    progress: Progress,
    /// Objects that the snapshot had in a later state than that of its revision.
    sent: BTreeMap<String, i64>,
    links: LinkFollower,
}

enum Progress {
    Snapshot(Snapshot),
    Changes(BoxStream<'static, Batch>),
}

/// Objects that are still to be sent, page by page. Changes after the revision of the first page follow,
/// so that a client needs no more than a page of memory here, however many objects there are.
#[derive(Default)]
struct Snapshot {
    /// Key of the last object that was sent.
    after: Option<String>,
    revision: Option<i64>,
}

/// A part of a snapshot.
struct Page {
    events: Vec<Event>,
    /// Keys of records that changed after the revision, and when.
    later: Vec<(String, i64)>,
    revision: i64,
    next: Option<Snapshot>,
}

impl Following {
    /// The next events; without a next state, the stream ends after them.
    async fn step(mut self) -> Option<(Vec<Event>, Option<Following>)> {
        let batches = match &mut self.progress {
            Progress::Snapshot(snapshot) => {
                let snapshot = std::mem::take(snapshot);
                return self.send(snapshot).await;
            }
            Progress::Changes(batches) => batches,
        };
        // Changes of links come first: an object that is deleted later must not appear again.
        let mut batch = tokio::select! {
            biased;
            events = self.links.next(&self.watch), if self.watch.object_type.operations.linked => {
                return Some((events?, Some(self)));
            }
            batch = batches.next() => batch?,
        };
        if batch.relisted.is_some() {
            return Some((vec![gone()], None));
        }
        if !self.sent.is_empty() {
            batch.updates.retain(|update| !self.was_sent(update));
        }
        Some((self.watch.changes(batch.updates), Some(self)))
    }

    /// Sends a page of the snapshot. The client of a netmaster that ceases to lead connects again.
    async fn send(mut self, snapshot: Snapshot) -> Option<(Vec<Event>, Option<Following>)> {
        let Page { mut events, later, revision, next } = match self.watch.page(snapshot).await {
            Ok(page) => page,
            Err(problem) => {
                tracing::warn!(error = problem.text, "watch objects: read the snapshot failed");
                return None;
            }
        };
        self.sent.extend(later);
        self.progress = match next {
            Some(snapshot) => Progress::Snapshot(snapshot),
            None => {
                events.push(Event::default().event("synced").data("{}").id(revision.to_string()));
                Progress::Changes(self.watch.changes_after(&self.store, revision))
            }
        };
        Some((events, Some(self)))
    }

    /// Whether the snapshot had this state of the object, or a later one.
    fn was_sent(&self, update: &Update) -> bool {
        let (event::Event::Apply(path, _) | event::Event::Delete(path)) = &update.event else { return false };
        let Ok(Key::Object(_, key)) = path.parse() else { return false };
        self.sent.get(&*key).is_some_and(|sent| update.revision <= *sent)
    }
}

/// Follows changes of derived links, which are no changes of the object's record.
struct LinkFollower {
    changed: watch::Receiver<u64>,
    /// Number of the next change; none before the changes after a revision are read.
    next: Option<u64>,
}

impl LinkFollower {
    fn new(watch: &ObjectWatch) -> LinkFollower {
        let changed = watch.cache.read().link_changes();
        let next = watch.after.is_none().then(|| *changed.borrow());
        LinkFollower { changed, next }
    }

    /// Events about the next changes; none if the cache is gone.
    async fn next(&mut self, watch: &ObjectWatch) -> Option<Vec<Event>> {
        if self.next.is_some_and(|next| next == *self.changed.borrow()) {
            let next = self.next;
            self.changed.wait_for(|number| Some(*number) != next).await.ok()?;
        }
        let cache = watch.cache.read();
        let changes = match (self.next, watch.after) {
            (None, Some(revision)) => cache.link_changes_after(revision),
            (next, _) => cache.link_changes_since(next.unwrap_or_default()),
        };
        self.next = Some(*self.changed.borrow());
        Some(watch.relinked(changes, &cache))
    }
}

fn put_event(object: &Stored) -> Event {
    Event::default().event("put").data(String::from_utf8_lossy(&object.body).trim_end())
}

fn gone() -> Event {
    let why = "the changes since the last event are not available; list the objects again";
    Event::default().event("gone").data(json!({"status": 410, "detail": why}).to_string())
}
