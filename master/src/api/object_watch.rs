//! Watches of objects: server-sent events.
//!
//! Events are `put` with the object as GET answers it, `delete` with its key, `synced` after the
//! snapshot of a watch without a revision, and `gone` at the end of a watch whose history is not
//! available any more: the client lists the objects again. The id of an event is the revision of the
//! store to continue after, with the tag of its history. An event about changed links has no id: its
//! record did not change.

mod following;
mod link_follower;
mod page;
#[cfg(test)]
mod tests;
mod untaken;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use contiv_model::event;
use contiv_model::key::{Key, MODELDB};
use contiv_store::{Batch, KeyValue, Store, Update};
use following::{CatchUp, Following};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _, future};
use serde_json::json;
use untaken::{Untaken, WatchEvent};

use super::in_flight::StreamMemory;
use crate::access::Scope;
use crate::cache::{LinkChange, SharedCache};
use crate::commit::store_problem;
use crate::leadership::{BacklogSender, History, Leader, Reads, WatchBacklogs};
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
    /// History of the revisions.
    pub(super) history: History,
    pub(super) cache: SharedCache,
    pub(super) reads: Reads,
    pub(super) backlogs: WatchBacklogs,
    /// Counts the events that the client has not taken; none if another netmaster counts the requests of
    /// the client.
    pub(super) memory: Option<StreamMemory>,
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

    /// The events. The stream ends if those that the client has not taken exceed a limit of memory together
    /// with its other responses: it continues after its last event when it connects again.
    fn events(self, store: Store, history: Option<CatchUp>) -> impl Stream<Item = Event> + Send {
        let memory = self.memory.clone();
        let following = Following { history, ..Following::new(Arc::new(self), store) };
        let steps = stream::unfold(Some(following), |following| async { following?.step().await });
        let counted =
            steps.scan(memory, |memory, events| future::ready(Untaken::new(memory.as_ref(), events)));
        counted.flat_map(stream::iter)
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

    /// Whether the tenant in the key is in the scope.
    fn is_in_scope(&self, key: &str) -> bool {
        self.scope.has_tenant(self.object_type.tenant_of(key))
    }

    fn selects(&self, object: &Stored) -> bool {
        self.scope.has_tenant(object.tenant.as_deref()) && self.selector.matches(&object.fields)
    }

    /// Only the last event of a revision has its id: a client that reconnects before gets all of them
    /// again.
    fn changes(&self, updates: Vec<Update>) -> Vec<WatchEvent> {
        let mut events = Vec::with_capacity(updates.len());
        let mut updates = updates.iter().filter_map(|update| self.change(update)).peekable();
        while let Some((event, revision)) = updates.next() {
            let last = updates.peek().is_none_or(|(_, next)| *next != revision);
            events.push(if last { event.id(self.history.revision(revision)) } else { event });
        }
        events
    }

    /// The event, and the revision to continue after. A watch after a revision has no snapshot.
    fn change(&self, update: &Update) -> Option<(WatchEvent, i64)> {
        match &update.event {
            event::Event::Init | event::Event::InitApply(..) | event::Event::InitDone => None,
            event::Event::Apply(path, kv) => Some((self.put(path, kv)?, update.revision)),
            event::Event::Delete(path) => Some((self.delete(path)?, update.revision)),
        }
    }

    /// The client may have an earlier version.
    fn put(&self, path: &str, kv: &KeyValue) -> Option<WatchEvent> {
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

    fn delete(&self, path: &str) -> Option<WatchEvent> {
        let Ok(Key::Object(_, key)) = path.parse() else { return None };
        if !self.is_in_scope(&key) {
            return None;
        }
        Some(WatchEvent::new("delete", &json!({"key": key}).to_string()))
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

fn put_event(object: &Stored) -> WatchEvent {
    WatchEvent::new("put", String::from_utf8_lossy(&object.body).trim_end())
}

/// The response to a client whose history is not available.
pub(super) fn gone_response() -> Response<Body> {
    Sse::new(stream::once(async { Ok::<_, Infallible>(gone().event) })).into_response()
}

fn gone() -> WatchEvent {
    let why = "the changes since the last event are not available; list the objects again";
    WatchEvent::new("gone", &json!({"status": 410, "detail": why}).to_string())
}
