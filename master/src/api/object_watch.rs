//! Watches of objects: server-sent events.
//!
//! Events are `put` with the object as GET answers it, `delete` with its key, `synced` after the
//! snapshot of a watch without a revision, and `gone` at the end of a watch whose history is not
//! available any more: the client lists the objects again. The id of an event is the revision of the
//! store to continue after. An event about changed links has no id: its record did not change.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use contiv_model::event;
use contiv_model::key::{Key, MODELDB};
use contiv_store::{Batch, KeyValue, Update};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use serde_json::json;
use tokio::sync::watch;

use crate::access::Scope;
use crate::cache::{ClusterCache, LinkChanges, SharedCache};
use crate::leadership::Leader;
use crate::objects::{FieldSelector, Stored, Type};
use crate::problem::{Problem, one_line};

/// Interval of comments in an idle stream, so that clients and proxies notice a broken connection.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// What a client watches.
pub(super) struct ObjectWatch {
    pub(super) object_type: &'static Type,
    /// Other objects are left out.
    pub(super) scope: Scope,
    pub(super) selector: FieldSelector,
    /// Continue after this revision, without a snapshot.
    pub(super) after: Option<i64>,
    pub(super) cache: SharedCache,
}

impl ObjectWatch {
    /// Starts the stream. It ends when this leadership ends; the client reconnects.
    pub(super) async fn start(self, leader: &Leader) -> Result<Response<Body>, Problem> {
        let permit = leader.watch_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Problem::unavailable("too many open watches; retry later"))?;
        let prefix = format!("{MODELDB}{}/", self.object_type.kind.as_str());
        let watch = match self.after {
            Some(revision) => {
                let position = leader.store.position().await;
                let position = position.map_err(|error| Problem::unavailable(one_line(&error)))?;
                if revision > position.revision {
                    // Of a store before it was restored, or of none: a watch would be silent up to there.
                    let end = stream::once(async { Ok::<_, Infallible>(gone()) });
                    return Ok(Sse::new(end).into_response());
                }
                leader.store.watch_after(&prefix, revision)
            }
            None => leader.store.watch(&prefix),
        };
        let events = self.events(watch.batches()).take_until(leader.ended.clone().cancelled_owned());
        let events = events.map(move |event| {
            let _held = &permit;
            Ok::<_, Infallible>(event)
        });
        Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response())
    }

    fn events(self, batches: impl Stream<Item = Batch> + Send + 'static) -> impl Stream<Item = Event> + Send {
        let following = Following {
            // A listing is expected once, as the snapshot.
            listings: usize::from(self.after.is_none()),
            links: LinkFollower::new(&self),
            batches: batches.boxed(),
            watch: self,
        };
        let steps = stream::unfold(Some(following), |following| async { following?.step().await });
        steps.flat_map(stream::iter)
    }

    /// Only the last event of a revision has its id: a client that reconnects before gets all of them
    /// again.
    fn changes(&self, updates: Vec<Update>) -> Vec<Event> {
        let mut events = Vec::with_capacity(updates.len());
        let mut updates = updates.iter().filter_map(|update| self.change(update)).peekable();
        while let Some((event, revision)) = updates.next() {
            let last = updates.peek().is_none_or(|(_, next)| *next != revision);
            events.push(match revision.filter(|_| last) {
                Some(revision) => event.id(revision.to_string()),
                None => event,
            });
        }
        events
    }

    /// The event, and the revision to continue after; none within a snapshot.
    fn change(&self, update: &Update) -> Option<(Event, Option<i64>)> {
        match &update.event {
            event::Event::Init => None,
            event::Event::InitApply(path, kv) => Some((self.put(path, kv, false)?, None)),
            event::Event::InitDone => {
                Some((Event::default().event("synced").data("{}"), Some(update.revision)))
            }
            event::Event::Apply(path, kv) => Some((self.put(path, kv, true)?, Some(update.revision))),
            event::Event::Delete(path) => Some((self.delete(path)?, Some(update.revision))),
        }
    }

    /// `known`: the client may have an earlier version.
    fn put(&self, path: &str, kv: &KeyValue, known: bool) -> Option<Event> {
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
        match self.selector.matches(&stored.fields) {
            true => Some(put_event(&stored)),
            false if known => self.delete(path),
            false => None,
        }
    }

    /// Objects whose derived links changed.
    fn relinked(&self, changes: LinkChanges, cache: &ClusterCache) -> Vec<Event> {
        let (kind, operations) = (self.object_type.kind, &self.object_type.operations);
        let keys: Vec<String> = match changes {
            LinkChanges::Known(changes) => {
                let of_type = changes.into_iter().filter(|change| change.object_type == kind);
                of_type.map(|change| change.key).collect()
            }
            LinkChanges::Lost => (operations.keys)(cache),
        };
        let objects = keys.iter().filter_map(|key| (operations.cached)(cache, key)?.ok());
        let watched = objects.filter(|object| {
            self.scope.has_tenant(object.tenant.as_deref()) && self.selector.matches(&object.fields)
        });
        watched.map(|object| put_event(&object)).collect()
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
    watch: ObjectWatch,
    batches: BoxStream<'static, Batch>,
    /// Listings of the store that are expected.
    listings: usize,
    links: LinkFollower,
}

impl Following {
    /// The next events; without a next state, the stream ends after them.
    async fn step(mut self) -> Option<(Vec<Event>, Option<Following>)> {
        let may_relink = self.listings == 0 && self.watch.object_type.operations.linked;
        // Changes of links come first: an object that is deleted later must not appear again.
        let batch = tokio::select! {
            biased;
            events = self.links.next(&self.watch), if may_relink => return Some((events?, Some(self))),
            batch = self.batches.next() => batch?,
        };
        if batch.relisted.is_some() {
            match self.listings.checked_sub(1) {
                Some(left) => self.listings = left,
                None => return Some((vec![gone()], None)),
            }
        }
        Some((self.watch.changes(batch.updates), Some(self)))
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
