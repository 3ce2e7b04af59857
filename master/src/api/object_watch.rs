//! Watches of objects: server-sent events.
//!
//! Events are `put` with the object as GET answers it, `delete` with its key, `synced` after the
//! snapshot of a watch without a revision, and `gone` at the end of a watch whose history is not
//! available any more: the client lists the objects again. The id of an event is the revision of the
//! store to continue after, with the tag of its history. An event about changed links has no id: its
//! record did not change.

mod link_follower;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
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
use link_follower::LinkFollower;
use serde_json::json;

use crate::access::Scope;
use crate::cache::{ClusterCache, LinkChange, LinkChanges, SharedCache};
use crate::commit::store_problem;
use crate::leadership::{BacklogSender, History, Leader, Reads, WatchBacklogs};
use crate::objects::{FieldSelector, Stored, Type, Unencoded};
use crate::problem::{Problem, one_line};
use crate::reports::Report;

/// Interval of comments in an idle stream, so that clients and proxies notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Objects that are read and sent at a time.
const PAGE_OBJECTS: usize = 256;
/// Bytes of bodies after which a page has no more objects.
const PAGE_BYTES: usize = 1 << 20;

/// What a client watches.
pub(super) struct ObjectWatch {
    pub(super) object_type: &'static Type,
    /// Other objects are left out.
    pub(super) scope: Scope,
    pub(super) selector: FieldSelector,
    /// Continue after this revision, without a snapshot.
    pub(super) after: Option<i64>,
    /// History of the revisions.
    pub(super) history: History,
    pub(super) cache: SharedCache,
    pub(super) reads: Reads,
    pub(super) backlogs: WatchBacklogs,
}

impl ObjectWatch {
    /// Starts the stream. It ends when this leadership ends; the client reconnects.
    pub(super) async fn start(self, leader: &Leader) -> Result<Response<Body>, Problem> {
        let permit = leader.watch_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Problem::unavailable("too many open watches; retry later"))?;
        let mut history = None;
        if let Some(revision) = self.after {
            let position = leader.store.position().await;
            let position = position.map_err(|error| {
                tracing::warn!(error = one_line(&error), "watch objects: read the position of the store");
                store_problem(&error)
            })?;
            if revision > position.revision {
                // Of a store before it was restored, or of none: a watch would be silent up to there.
                return Ok(gone_response());
            }
            history = CatchUp::new(revision, position.revision);
        }
        let events = self.events(leader.store.clone(), history);
        let events = events.take_until(leader.ended.clone().cancelled_owned());
        let events = events.map(move |event| {
            let _held = &permit;
            Ok::<_, Infallible>(event)
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
    }

    fn events(self, store: Store, history: Option<CatchUp>) -> impl Stream<Item = Event> + Send {
        let following = Following { history, ..Following::new(Arc::new(self), store) };
        let steps = stream::unfold(Some(following), |following| async { following?.step().await });
        steps.flat_map(stream::iter)
    }

    /// The changes after a revision. The store is asked for them when the client has taken everything
    /// before them. The stream ends early if the client is slow.
    fn changes_after(&self, store: &Store, revision: i64) -> BoxStream<'static, Batch> {
        let prefix = format!("{MODELDB}{}/", self.object_type.kind.as_str());
        let (store, backlogs) = (store.clone(), self.backlogs.clone());
        let opened = stream::once(async move {
            let (sender, receiver) = backlogs.open();
            tokio::spawn(fill(store.watch_after(&prefix, revision).batches().boxed(), sender));
            stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
        });
        opened.flatten().boxed()
    }

    /// The next objects of a snapshot, and the state after them.
    async fn page(self: &Arc<ObjectWatch>, snapshot: Snapshot) -> Result<Page, Problem> {
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
    async fn first_of(self: &Arc<ObjectWatch>, mut keys: BTreeSet<String>) -> Result<LinkPage, Problem> {
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
    fn encode(&self, taken: Vec<Taken>) -> Encoded {
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

    /// Whether the tenant in the key is in the scope.
    fn is_in_scope(&self, key: &str) -> bool {
        self.scope.has_tenant(self.object_type.tenant_of(key))
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
            events.push(if last { event.id(self.history.revision(revision)) } else { event });
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
        let stored = match (self.object_type.operations.decode)(&kv.value, &self.cache) {
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

    /// Keys of the watched objects among those whose derived links changed. An object that changed
    /// several times is sent once.
    fn relinked(&self, changes: Vec<LinkChange>) -> BTreeSet<String> {
        let of_type = changes.into_iter().filter(|change| change.object_type == self.object_type.kind);
        of_type.map(|change| change.key).filter(|key| self.is_in_scope(key)).collect()
    }

    fn delete(&self, path: &str) -> Option<Event> {
        let Ok(Key::Object(_, key)) = path.parse() else { return None };
        if !self.is_in_scope(&key) {
            return None;
        }
        Some(Event::default().event("delete").data(json!({"key": key}).to_string()))
    }
}

/// Reads changes into the backlog of a watch until it is closed.
async fn fill(mut batches: BoxStream<'static, Batch>, backlog: BacklogSender) {
    loop {
        let batch = tokio::select! {
            batch = batches.next() => batch,
            () = backlog.closed() => None,
        };
        let Some(mut batch) = batch else { return };
        if batch.relisted.is_some() {
            // Changes are lost, which ends the watch.
            batch.updates = Vec::new();
        } else if batch.updates.is_empty() {
            continue;
        }
        backlog.send(batch);
    }
}

/// A watch that has started.
struct Following {
    watch: Arc<ObjectWatch>,
    store: Store,
    /// Sent before everything else.
    snapshot: Option<Snapshot>,
    /// Keys of objects whose derived links changed, which are sent before the changes.
    relinked: BTreeSet<String>,
    /// None before a snapshot is complete.
    changes: Option<BoxStream<'static, Batch>>,
    /// The client has the changes up to this revision; none before the first snapshot is complete.
    position: Option<i64>,
    /// After a loss of link changes.
    catch_up: Option<CatchUp>,
    /// The changes between the revision that the client has named and the time of its request. They come as
    /// fast as the store has them, which is no sign of a slow client.
    history: Option<CatchUp>,
    /// Objects that the client has from the snapshot in a later state than that of its revision.
    sent: BTreeMap<String, i64>,
    links: LinkFollower,
}

/// Objects that are still to be sent, page by page. Changes after the revision of the first page follow,
/// so that a client needs no more than a page of memory here, however many objects there are.
#[derive(Default)]
struct Snapshot {
    /// Key of the last object that was sent.
    after: Option<String>,
    revision: Option<i64>,
    /// Revision of the newest record that was sent and that had not changed after that revision.
    newest: i64,
}

/// Earlier changes that the client gets. Meanwhile its connection is not ended because it is slow: the
/// changes are read again from its position.
///
/// After a loss of link changes, the client gets all objects again, and then the changes since its position,
/// deletions in particular. Until it has them, it would get all objects once more if it connected again, and
/// changes of links wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CatchUp {
    /// Revision of the newest of the changes.
    until: i64,
    /// Position at which the stream of changes was opened, or the catch-up began.
    from: i64,
}

impl CatchUp {
    /// None if the client has the changes.
    fn new(position: i64, until: i64) -> Option<CatchUp> {
        (position < until).then_some(CatchUp { until, from: position })
    }
}

/// An object that is not encoded yet.
struct Taken {
    key: String,
    /// Revision of the record.
    changed: i64,
    /// None if the object does not exist, or is not in the scope.
    object: Option<Unencoded>,
}

/// An object that was taken and encoded, or left out.
struct Passed {
    key: String,
    /// Revision of the record.
    changed: i64,
    /// Whether there is an event about it.
    is_sent: bool,
}

/// Events about the first of the objects that were taken.
struct Encoded {
    events: Vec<Event>,
    /// These objects, also those that are not selected.
    passed: Vec<Passed>,
    /// Whether no other objects were taken.
    is_whole: bool,
}

/// A part of a snapshot.
struct Page {
    events: Vec<Event>,
    /// Keys of records that were sent and changed after the revision, and when.
    later: Vec<(String, i64)>,
    revision: i64,
    /// Revision of the newest other record, also on the pages before.
    newest: i64,
    next: Option<Snapshot>,
}

/// A part of the objects whose derived links changed.
struct LinkPage {
    events: Vec<Event>,
    /// Keys of objects that are still to be sent.
    others: BTreeSet<String>,
}

impl Following {
    fn new(watch: Arc<ObjectWatch>, store: Store) -> Following {
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
    async fn step(mut self) -> Option<(Vec<Event>, Option<Following>)> {
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
    fn reopen(mut self) -> Option<(Vec<Event>, Option<Following>)> {
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
    async fn send(mut self, snapshot: Snapshot) -> Option<(Vec<Event>, Option<Following>)> {
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
                events.push(Event::default().event("synced").data("{}").id(id));
                self.changes = Some(self.watch.changes_after(&self.store, revision));
                self.position = Some(revision);
            }
        }
        Some((events, Some(self)))
    }

    /// Sends a page of the objects whose derived links changed.
    async fn send_relinked(mut self) -> Option<(Vec<Event>, Option<Following>)> {
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

fn put_event(object: &Stored) -> Event {
    Event::default().event("put").data(String::from_utf8_lossy(&object.body).trim_end())
}

/// The response to a client whose history is not available.
pub(super) fn gone_response() -> Response<Body> {
    Sse::new(stream::once(async { Ok::<_, Infallible>(gone()) })).into_response()
}

fn gone() -> Event {
    let why = "the changes since the last event are not available; list the objects again";
    Event::default().event("gone").data(json!({"status": 410, "detail": why}).to_string())
}
