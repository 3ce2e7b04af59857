use contiv_model::{
    event::Event,
    global::ClusterIdentity,
    key::{AGENT_PREFIXES, ENDPOINTS, Key, NODE_VTEPS, POLICIES},
    name::HostName,
};
use contiv_store::{KeyValue, Position, Relisted, Status, Store};
use futures::{StreamExt as _, stream};
use tokio::sync::watch;

use super::{
    decode::decode,
    needed::{self, NeededWatches},
    status_vteps,
};
use crate::state::{Reader, Source, Update, Writer};

pub use contiv_model::key::{NETWORKS, SETTINGS};

/// Key prefixes of the agent's state. Each has its own snapshots, [`ENDPOINTS`] one for each network and [`POLICIES`] one for each
/// group; the plan tolerates references between them that are not resolved yet.
pub fn prefixes() -> impl Iterator<Item = &'static str> {
    AGENT_PREFIXES.into_iter().chain([ENDPOINTS, POLICIES])
}

/// Updates that one watch received together.
#[derive(Debug)]
pub struct Batch {
    /// Source of the updates.
    pub source: Source,
    /// How the updates must be applied.
    pub kind: BatchKind,
    /// Present if the updates come from a listing.
    pub relisted: Option<Relisted>,
    /// True if the watch was lost and continues.
    pub resumed: bool,
    /// Present if the batch contains the cluster's identity: `Some(None)` if the store has none.
    pub identity: Option<Option<String>>,
    /// Newest put of the batch.
    pub newest: Option<Put>,
    /// Decoded updates, without the keys that the agent does not use.
    pub updates: Vec<Update>,
}

/// Kind of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchKind {
    /// The updates are changes of the source.
    Updates,
    /// The state has everything that the node needs of the source; there are no updates.
    Complete,
    /// The node no longer needs the source; there are no updates.
    Forgotten,
}

/// A put, identified well enough to be recognised in the store's history.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Put {
    /// Key.
    pub key: String,
    /// Revision of the key's creation.
    pub create_revision: i64,
    /// Revision of the put.
    pub mod_revision: i64,
    /// FNV-1a hash of the value.
    pub value_hash: u64,
}

impl Put {
    /// The put that produced this value.
    pub fn of(value: &KeyValue) -> Put {
        // The hash is stored in a file: the hashers of the standard library may change.
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        Put {
            key: value.key.clone(),
            create_revision: value.create_revision,
            mod_revision: value.mod_revision,
            value_hash: value.value.iter().fold(0xcbf2_9ce4_8422_2325, step),
        }
    }
}

impl Batch {
    pub(super) fn new(source: Source, batch: contiv_store::Batch) -> Batch {
        let put = |update: &contiv_store::Update| match &update.event {
            Event::InitApply(_, value) | Event::Apply(_, value) => Some(value.mod_revision),
            _ => None,
        };
        let newest = batch.updates.iter().max_by_key(|update| put(update));
        let newest = newest.and_then(|update| match &update.event {
            Event::InitApply(_, value) | Event::Apply(_, value) => Some(Put::of(value)),
            _ => None,
        });
        let identity = if source.prefix() == SETTINGS { identity(&batch.updates) } else { None };
        let updates = batch.updates.into_iter().filter_map(|update| decode_update(&source, update)).collect();
        let (relisted, resumed) = (batch.relisted, batch.resumed);
        Batch { source, kind: BatchKind::Updates, relisted, resumed, identity, newest, updates }
    }

    /// A batch that does not come from the store.
    fn of(source: Source, kind: BatchKind) -> Batch {
        let (relisted, resumed, identity, newest) = (None, false, None, None);
        Batch { source, kind, relisted, resumed, identity, newest, updates: vec![] }
    }

    /// Applies the updates in one step: a transaction is in one batch, so that no plan contains only a part of it.
    pub fn apply(self, writer: &mut Writer) {
        match self.kind {
            BatchKind::Updates => writer.apply_all(self.updates),
            BatchKind::Complete => writer.complete(&self.source),
            BatchKind::Forgotten => writer.forget(&self.source),
        }
    }

    /// Returns the store and revision after the batch. The cluster id is known only after a listing.
    pub fn position(&self) -> (Option<u64>, i64) {
        match &self.relisted {
            Some(Relisted { position: Position { cluster, revision }, .. }) => (Some(*cluster), *revision),
            None => (None, self.updates.iter().map(|update| update.revision).max().unwrap_or_default()),
        }
    }
}

/// Returns the cluster's identity if the updates contain it.
fn identity(updates: &[contiv_store::Update]) -> Option<Option<String>> {
    let path = Key::ClusterIdentity.to_string();
    let told = updates.iter().rev().find_map(|update| match &update.event {
        Event::InitApply(key, value) | Event::Apply(key, value) if *key == path => {
            Some(Some(identity_in(value)))
        }
        Event::Delete(key) if *key == path => Some(None),
        _ => None,
    });
    let is_first = updates.first().is_some_and(|update| matches!(update.event, Event::Init));
    told.or_else(|| is_first.then_some(None))
}

/// Returns the cluster's identity in the value of [`Key::ClusterIdentity`]. An unreadable value counts as a different
/// identity.
pub fn identity_in(value: &KeyValue) -> String {
    let body = serde_json::from_slice::<ClusterIdentity>(&value.value);
    body.map_or_else(|_| String::from_utf8_lossy(&value.value).into_owned(), |body| body.id)
}

/// Watches of the store: of [`AGENT_PREFIXES`], and of the endpoints and policies that the node needs.
pub struct Sources {
    batches: stream::SelectAll<stream::BoxStream<'static, Batch>>,
    statuses: Vec<watch::Receiver<Status>>,
    needed: NeededWatches,
}

impl Sources {
    /// Creates the watches of the node `host`, which start at the first poll. `reader` reads the state to which the batches
    /// are applied.
    pub fn new(store: &Store, host: HostName, reader: Reader) -> Sources {
        let watches: Vec<_> =
            AGENT_PREFIXES.into_iter().map(|prefix| (prefix, store.watch(prefix))).collect();
        let statuses = watches.iter().map(|(_, watch)| watch.status()).collect();
        let streams = watches.into_iter().map(|(prefix, watch)| {
            let store = store.clone();
            let decoded = watch.batches().map(move |batch| Batch::new(prefix.into(), batch));
            decoded.then(move |batch| complete(store.clone(), batch)).boxed()
        });
        let batches = stream::select_all(streams);
        Sources { batches, statuses, needed: NeededWatches::new(store.clone(), host, reader) }
    }

    /// Returns the next batch. The previous one must have been applied to the state, which determines the node's needs.
    /// The stream does not end while the store client exists. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Batch> {
        loop {
            match self.needed.update() {
                Some(needed::Event::Opened(source, watch)) => {
                    self.batches.push(watch.map(move |batch| Batch::new(source.clone(), batch)).boxed());
                    continue;
                }
                Some(needed::Event::Forgotten(source)) => {
                    return Some(Batch::of(source, BatchKind::Forgotten));
                }
                Some(needed::Event::Complete(prefix)) => {
                    return Some(Batch::of(prefix.into(), BatchKind::Complete));
                }
                None => {}
            }
            tokio::select! {
                batch = self.batches.next() => {
                    let batch = batch?;
                    if batch.relisted.is_some() {
                        self.needed.listed(&batch.source);
                    }
                    return Some(batch);
                }
                () = self.needed.changed() => {}
            }
        }
    }

    /// Connection status of each watch.
    pub fn statuses(&self) -> Vec<watch::Receiver<Status>> {
        self.statuses.iter().cloned().chain(self.needed.statuses()).collect()
    }

    /// Number of changes of [`statuses`](Self::statuses).
    pub fn changes_of_statuses(&self) -> u64 {
        self.needed.changes_of_statuses()
    }
}

/// Adds the VTEPs that are only in node statuses to the first snapshot of the VTEPs.
async fn complete(store: Store, mut batch: Batch) -> Batch {
    let is_first = batch.updates.first().is_some_and(|update| matches!(update.event, Event::Init));
    if is_first && batch.source.prefix() == NODE_VTEPS {
        batch.updates = status_vteps::complete(&store, batch.updates).await;
    }
    batch
}

/// Decodes an update; `None` for keys that the agent does not use.
fn decode_update(source: &Source, update: contiv_store::Update) -> Option<Update> {
    let object = |path: &str, value: &KeyValue| match path.parse::<Key>() {
        Ok(key) => decode(&key, value).map(|object| (key, object)),
        Err(unknown) => {
            tracing::debug!("{unknown}");
            None
        }
    };
    let event = match update.event {
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
        Event::InitApply(path, value) => {
            let (key, object) = object(&path, &value)?;
            Event::InitApply(key, object)
        }
        Event::Apply(path, value) => {
            let (key, object) = object(&path, &value)?;
            Event::Apply(key, object)
        }
        Event::Delete(path) => Event::Delete(path.parse().ok()?),
    };
    Some(Update { source: source.clone(), revision: update.revision, event })
}
