//! Watches of objects: server-sent events.
//!
//! Events are `put` with the object as GET answers it, `delete` with its key, `synced` after the
//! snapshot of a watch without a revision, and `gone` at the end of a watch whose history is not
//! available any more: the client lists the objects again. The id of an event is the revision of the
//! store to continue after.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use contiv_model::event;
use contiv_model::key::{Key, MODELDB};
use contiv_store::{Batch, KeyValue, Update};
use futures::{Stream, StreamExt as _, stream};
use serde_json::json;

use crate::access::Scope;
use crate::leadership::Leader;
use crate::objects::{FieldSelector, Type};
use crate::problem::Problem;

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
}

impl ObjectWatch {
    /// Starts the stream. It ends when this leadership ends; the client reconnects.
    pub(super) fn start(self, leader: &Leader) -> Result<Response<Body>, Problem> {
        let permit = leader.watch_permits.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Problem::unavailable("too many open watches; retry later"))?;
        let prefix = format!("{MODELDB}{}/", self.object_type.kind.as_str());
        let watch = match self.after {
            Some(revision) => leader.store.watch_after(&prefix, revision),
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
        // A listing is expected once, as the snapshot.
        let listings = usize::from(self.after.is_none());
        let state = Some((self, batches.boxed(), listings));
        let steps = stream::unfold(state, |state| async {
            let (watch, mut batches, listings) = state?;
            let batch = batches.next().await?;
            if batch.relisted.is_none() {
                return Some((watch.changes(batch.updates), Some((watch, batches, listings))));
            }
            match listings.checked_sub(1) {
                Some(left) => Some((watch.changes(batch.updates), Some((watch, batches, left)))),
                None => Some((vec![gone()], None)),
            }
        });
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
        let stored = match (self.object_type.operations.decode)(&kv.value) {
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
            true => {
                Some(Event::default().event("put").data(String::from_utf8_lossy(&stored.body).trim_end()))
            }
            false if known => self.delete(path),
            false => None,
        }
    }

    fn delete(&self, path: &str) -> Option<Event> {
        let Ok(Key::Object(_, key)) = path.parse() else { return None };
        if !self.scope.has_tenant(self.object_type.tenant_of(&key)) {
            return None;
        }
        Some(Event::default().event("delete").data(json!({"key": key}).to_string()))
    }
}

fn gone() -> Event {
    let why = "the changes since the last event are not available; list the objects again";
    Event::default().event("gone").data(json!({"status": 410, "detail": why}).to_string())
}
