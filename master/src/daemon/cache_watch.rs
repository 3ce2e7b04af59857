//! Applies the store's watch to the cache. Followers do so too, so that a new leader has a current
//! cache.

use std::ops::ControlFlow;

use contiv_model::event::Event;
use contiv_model::key;
use contiv_store::{Batch, Progress, Relisted, Store, Update, Watch};
use futures::StreamExt;
use prometheus_client::metrics::counter::Counter;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::cache::{ClusterCache, DERIVED_KEYS, DecodedUpdate, SharedCache};
use crate::commit::COMMIT_RECORD;
use crate::leadership::StoreHealth;
use crate::metrics::Metrics;

/// Updates applied at once at most, except those of a listing; readers wait meanwhile.
const BATCH: usize = 64;

/// Batches that wait for the next step: a page of the first snapshot is received while the one before is decoded,
/// and the one before that is applied.
const READ_AHEAD: usize = 1;

/// State of the leader lock as of the cache's revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lock {
    /// Address of the holder.
    pub(super) holder: Option<String>,
    /// Creation revision of the current or last lock. The cache holds all changes up to it.
    pub(super) since: i64,
    /// A committed redo log has steps that are not applied.
    pub(super) pending: bool,
    /// The first snapshot is complete.
    pub(super) complete: bool,
    /// Number of times that the store was replaced while it was watched.
    pub(super) generation: u64,
}

/// Watches the store and applies the updates. Loads the cache anew when the store turns out to be
/// another one, or to have lost changes. Counts in `progress` what is received and applied. Never returns.
pub(super) async fn run(
    store: Store,
    health: StoreHealth,
    cache: SharedCache,
    lock: watch::Sender<Lock>,
    metrics: Metrics,
    progress: Progress,
) {
    loop {
        let watch = store.watch_in_pages(key::ROOT, &DERIVED_KEYS, &progress);
        health.watching(watch.status());
        let why = follow(watch, &cache, &lock, &metrics.leader_changes, &progress).await;
        tracing::error!("the store was emptied, replaced or restored: {why}; loading its state anew");
        let generation = lock.borrow().generation + 1;
        lock.send_replace(Lock { generation, ..Lock::default() });
    }
}

/// Applies updates until a listing contradicts what the watch has reported. Returns the reason.
async fn follow(
    watch: Watch,
    cache: &SharedCache,
    lock: &watch::Sender<Lock>,
    elections: &Counter,
    progress: &Progress,
) -> String {
    let (received, to_decode) = mpsc::channel(READ_AHEAD);
    let (decoded, mut batches) = mpsc::channel(READ_AHEAD);
    // They end when this function returns.
    let mut steps = JoinSet::new();
    steps.spawn(async move {
        let mut read = watch.batches().boxed();
        while let Some(batch) = read.next().await {
            if received.send(batch).await.is_err() {
                return;
            }
        }
    });
    steps.spawn(decode(to_decode, decoded));
    while let Some(batch) = batches.recv().await {
        if let ControlFlow::Break(why) = apply(batch, cache, lock, elections, progress).await {
            return why;
        }
    }
    while let Some(ended) = steps.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    "the watch ended".to_owned()
}

/// Applies a batch to the cache, then to the state of the lock. Breaks with the reason if its listing contradicts what
/// the watch has reported.
async fn apply(
    mut batch: DecodedBatch,
    cache: &SharedCache,
    lock: &watch::Sender<Lock>,
    elections: &Counter,
    progress: &Progress,
) -> ControlFlow<String> {
    // A listing that replaces lost changes is not in the order of their revisions: with a part of it, the cache may have
    // the lock of a new leader, but not what was written before.
    let at_once = if batch.relisted.is_some() { batch.updates.len().max(1) } else { BATCH };
    if let Some(relisted) = batch.relisted {
        if let Some(why) = relisted.divergence {
            return ControlFlow::Break(why);
        }
        let _lock = cache.lock_commits().await;
        cache.write().forget_unlisted(relisted.position.revision);
    }
    for updates in batch.updates.chunks_mut(at_once) {
        {
            let _lock = cache.lock_commits().await;
            let mut cache = cache.write();
            for update in &mut *updates {
                if matches!(update.update.event, Event::Init) {
                    *cache = ClusterCache::default();
                }
                cache.apply_decoded(update);
            }
        }
        progress.advance();
        lock.send_if_modified(|lock| {
            let mut changed = false;
            for DecodedUpdate { update, .. } in &*updates {
                let (complete, since) = (lock.complete, lock.since);
                changed |= lock.apply(update);
                // The first snapshot contains the lock of an earlier election.
                if complete && lock.since != since {
                    elections.inc();
                }
            }
            changed
        });
    }
    ControlFlow::Continue(())
}

/// A [`Batch`] whose updates are decoded.
struct DecodedBatch {
    relisted: Option<Relisted>,
    updates: Vec<DecodedUpdate>,
}

/// Decodes batches until there are no more of them, or they are not wanted any more.
async fn decode(mut batches: mpsc::Receiver<Batch>, decoded: mpsc::Sender<DecodedBatch>) {
    while let Some(Batch { relisted, updates: received, .. }) = batches.recv().await {
        let mut updates = Vec::with_capacity(received.len());
        for (n, update) in received.into_iter().enumerate() {
            updates.push(DecodedUpdate::decode(update));
            if n % BATCH == BATCH - 1 {
                // Other tasks of this thread do not wait for a whole page.
                tokio::task::yield_now().await;
            }
        }
        if decoded.send(DecodedBatch { relisted, updates }).await.is_err() {
            return;
        }
    }
}

impl Lock {
    /// Applies an update. Returns true if the lock state may have changed.
    fn apply(&mut self, update: &Update) -> bool {
        match &update.event {
            Event::InitApply(key, kv) | Event::Apply(key, kv) if key == key::LEADER => {
                self.holder = Some(String::from_utf8_lossy(&kv.value).into_owned());
                self.since = kv.create_revision;
            }
            Event::Delete(key) if key == key::LEADER => self.holder = None,
            Event::InitApply(key, _) | Event::Apply(key, _) if key == COMMIT_RECORD => self.pending = true,
            Event::Delete(key) if key == COMMIT_RECORD => self.pending = false,
            // Of the first snapshot; what a part of an interrupted one contained may be gone.
            Event::Init => *self = Lock { generation: self.generation, ..Lock::default() },
            Event::InitDone => self.complete = true,
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::api::Tenant;
    use contiv_store::{KeyValue, Position};

    use super::*;

    fn update(event: Event<String, KeyValue>) -> Update {
        Update { revision: 7, event }
    }

    fn have(key: &str) -> Update {
        let value = b"10.0.0.1:9999".as_slice().into();
        let kv = KeyValue {
            key: key.to_owned(),
            value,
            create_revision: 5,
            mod_revision: 5,
            version: 1,
            lease: 0,
        };
        update(Event::InitApply(key.to_owned(), kv))
    }

    fn put(key: String, value: Vec<u8>, revision: i64) -> DecodedUpdate {
        let kv = KeyValue {
            key: key.clone(),
            value: value.into(),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: 0,
        };
        DecodedUpdate::decode(Update { revision: 600, event: Event::Apply(key, kv) })
    }

    /// A term that begins with a part of the cache deletes what is derived from the objects that it lacks.
    #[tokio::test]
    async fn the_lock_of_a_listing_is_known_when_all_of_the_listing_is_applied() {
        let tenant = |n: i64| {
            let name = format!("t{n}");
            let key = format!("/contiv.io/obj/modeldb/tenant/{name}");
            let tenant = Tenant { key: name.clone(), tenant_name: name, ..Tenant::default() };
            put(key, serde_json::to_vec(&tenant).unwrap(), 201 + n)
        };
        let lock_of_leader = put(key::LEADER.to_owned(), b"10.0.0.1:9999".to_vec(), 200);
        let relisted = Relisted { position: Position { cluster: 1, revision: 600 }, divergence: None };
        let updates = std::iter::once(lock_of_leader).chain((0..300).map(tenant)).collect();
        let batch = DecodedBatch { relisted: Some(relisted), updates };

        let cache = SharedCache::default();
        let lock = watch::Sender::new(Lock { complete: true, ..Lock::default() });
        let (elections, progress) = (Counter::default(), Progress::default());
        // Has its turn between any two parts that are applied.
        let tenants_of_leader = async {
            loop {
                let _commits = cache.lock_commits().await;
                if lock.borrow().since == 200 {
                    return cache.read().all::<Tenant>().count();
                }
            }
        };
        // Both wait for it at first.
        let gate = cache.lock_commits().await;
        let open = async move { drop(gate) };
        let apply = apply(batch, &cache, &lock, &elections, &progress);
        let (applied, tenants, ()) = tokio::join!(apply, tenants_of_leader, open);
        assert!(applied.is_continue());
        assert_eq!((tenants, elections.get()), (300, 1));
    }

    /// A commit record that was applied meanwhile would keep this netmaster from leading for ever.
    #[test]
    fn nothing_of_an_interrupted_snapshot_is_left() {
        let mut lock = Lock { generation: 3, ..Lock::default() };
        for update in [update(Event::Init), have(key::LEADER), have(COMMIT_RECORD)] {
            lock.apply(&update);
        }
        assert_eq!((lock.pending, lock.since), (true, 5));
        lock.apply(&update(Event::Init));
        lock.apply(&update(Event::InitDone));
        assert_eq!(lock, Lock { complete: true, generation: 3, ..Lock::default() });
    }
}
