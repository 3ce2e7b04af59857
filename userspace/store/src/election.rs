//! One leader at a time.
//!
//! The leader is whoever made the lock key; the key hangs on the leader's lease. Whatever the leader writes, it
//! writes by [`Leadership::commit`]: a deposed leader that has not noticed yet gets a conflict, not a write. What it
//! answers from memory, it answers after [`ReadIndex::holds`].
//!
//! With that, taking the lock from a leader is always safe, and only has to be right most of the time. So nobody waits
//! for the end of the lease, which etcd does not let be short: whoever waits for the lock asks the store how old
//! the leader's last keep-alive is, and deletes the key of a leader that has been silent for longer than
//! [`Timing::staleness`]. The store alone is asked, which makes one clock and one answer for all: a candidate that is cut
//! off from the leader takes nothing from it, nor can one that is cut off from the store. When etcd elects a leader of
//! its own, it gives every lease its full time again. Keep-alives and questions about leases stay in etcd's memory;
//! nothing is written for them.

mod commit;

use crate::backoff::Backoff;
use crate::lease::{KeepAlive, Lease, Pace};
use crate::watch::one_line;
use crate::{Error, Guard, KeyValue, Op, Outcome, Store, Txn, Watch};
use contiv_model::event::Event;
use futures::StreamExt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How long a leader that gives no sign of life stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// After this the store itself drops its lock, also when nobody waits for it. Whole seconds.
    pub ttl: Duration,
    /// After this others take the lock from it. Whole seconds, fewer than `ttl`: stores tell no less.
    pub staleness: Duration,
}

impl Timing {
    /// Three keep-alives may be lost before others call it silence, or one member of the store may let one hang.
    fn pace(self) -> Pace {
        Pace { interval: self.staleness / 4, limit: self.staleness * 2 / 5 }
    }

    /// How often to look whether the leader is silent, and how long one member may take to tell.
    fn look(self) -> Pace {
        Pace { interval: self.staleness / 8, limit: self.pace().limit }
    }
}

/// ReadIndex that this process was elected; not `Clone`, and only [`campaign`] makes one.
///
/// Dropping it stops the keep-alive, and another is elected when the TTL has passed.
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership {
    key: String,
    value: String,
    lease: i64,
    create_revision: i64,
    /// The revision of the lock's last put; see [`Leadership::commit`].
    fence: AtomicI64,
    /// What the fence was for commits whose outcome is not known; 0 if there are none.
    unsettled: AtomicI64,
    store: Store,
    /// Ends when leadership does; gives the lease back.
    task: JoinHandle<Lease>,
    lost: CancellationToken,
    stop: DropGuard,
}

/// Waits until this process is elected: nobody holds `key`, and it is made with `value` under a lease of `timing.ttl`.
///
/// The store may come and go meanwhile; only an error that waiting does not mend is returned. Dropping the
/// future withdraws, at the latest after the TTL.
pub async fn campaign(store: &Store, key: &str, value: &str, timing: Timing) -> Result<Leadership, Error> {
    let mut backoff = Backoff::default();
    loop {
        match stand(store, key, value, timing).await {
            Ok(Some(leadership)) => return Ok(leadership),
            Ok(None) => {
                backoff.reset();
                vacant(store, key, timing).await;
            }
            Err(e) if e.is_transient() => {
                let wait = backoff.next();
                if backoff.worth_logging() {
                    tracing::warn!(
                        failures = backoff.failures(),
                        "election: {}; again in {wait:?}",
                        one_line(&e)
                    );
                }
                tokio::time::sleep(wait).await;
            }
            Err(e) => return Err(e),
        }
    }
}

/// One attempt; none if another holds the key.
async fn stand(store: &Store, key: &str, value: &str, timing: Timing) -> Result<Option<Leadership>, Error> {
    if store.get(key).await?.is_some() {
        return Ok(None);
    }
    let lease = Lease::grant(store, key, timing.ttl).await?.paced(timing.pace());
    let put = Op::Put { key: key.to_owned(), value: value.to_owned().into(), lease: Some(lease.id()) };
    let free = Guard::CreateRevision { key: key.to_owned(), revision: 0 };
    match store.commit_again(Txn { guards: vec![free], ops: vec![put] }).await {
        Ok(Outcome::Committed { revision }) => {
            Ok(Some(Leadership::begin(store, key, value, revision, lease)))
        }
        Ok(Outcome::Conflict) => match store.get(key).await? {
            // An attempt whose answer was lost.
            Some(lock) if lock.lease == lease.id() => {
                Ok(Some(Leadership::begin(store, key, value, lock.create_revision, lease)))
            }
            _ => {
                lease.revoke().await?;
                Ok(None)
            }
        },
        Err(e) => {
            // The put may have happened; without its lease the key does not stay.
            if let Err(revoke) = lease.revoke().await {
                tracing::debug!(key, "after a failed attempt: {}", one_line(&revoke));
            }
            Err(e)
        }
    }
}

/// Resolves when nobody holds the key.
async fn vacant(store: &Store, key: &str, timing: Timing) {
    let mut watch = store.watch(key);
    let mut look = tokio::time::interval(timing.look().interval);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut holder: Option<KeyValue> = None;
    loop {
        let silent = async {
            look.tick().await;
            match &holder {
                // Without a lease somebody put it there by hand.
                Some(lock) if lock.lease != 0 => is_silent(store, lock, timing).await.then(|| lock.clone()),
                _ => None,
            }
        };
        let update = tokio::select! {
            // Dropped when the watch tells something, and then there is news of the holder.
            lock = silent => {
                if let Some(lock) = lock {
                    depose(store, lock, timing).await;
                }
                continue;
            }
            update = watch.next() => update,
        };
        let Some(update) = update else { return };
        match update.event {
            Event::InitApply(k, kv) | Event::Apply(k, kv) if k == key => holder = Some(kv),
            Event::InitDone if holder.is_none() => return,
            Event::Delete(k) if k == key => return,
            _ => {}
        }
    }
}

/// Whether the store has heard nothing of the lock's holder for too long.
async fn is_silent(store: &Store, lock: &KeyValue, timing: Timing) -> bool {
    match store.time_to_live(&lock.key, lock.lease, timing.look().limit).await {
        Ok(Some(remaining)) => remaining.left + timing.staleness < remaining.granted,
        // The store is about to drop the key by itself.
        Ok(None) => false,
        Err(e) => {
            tracing::debug!(key = lock.key, "{}", one_line(&e));
            false
        }
    }
}

/// Takes the lock away from its holder, unless it is another's by now.
async fn depose(store: &Store, lock: KeyValue, timing: Timing) {
    let holder = String::from_utf8_lossy(&lock.value);
    tracing::warn!(key = lock.key, %holder, "no sign of life for {:?}; taking the lock from it", timing.staleness);
    let held = Guard::CreateRevision { key: lock.key.clone(), revision: lock.create_revision };
    // The watch tells what came of it.
    if let Err(e) = store.commit_again(Txn::new().guard(held).delete(lock.key)).await {
        tracing::warn!("{}", one_line(&e));
    }
}

impl Leadership {
    fn begin(store: &Store, key: &str, value: &str, create_revision: i64, lease: Lease) -> Leadership {
        let id = lease.id();
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let term = Term { key: key.to_owned(), create_revision, lease, seen: false };
        let watch = store.watch(key);
        let (told, stopped) = (lost.clone().drop_guard(), stop.clone());
        let task = tokio::spawn(async move {
            // Dropped at the end of the task, however it ends: a panic must not look like leadership.
            let _told = told;
            term.run(watch, stopped).await
        });
        Leadership {
            key: key.to_owned(),
            value: value.to_owned(),
            lease: id,
            create_revision,
            fence: create_revision.into(),
            unsettled: 0.into(),
            store: store.clone(),
            task,
            lost,
            stop: stop.drop_guard(),
        }
    }

    /// The revision at which it began: that of the lock's creation.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    pub fn read_index(&self) -> ReadIndex {
        ReadIndex { store: self.store.clone(), key: self.key.clone(), create_revision: self.create_revision }
    }

    /// Holds at the store only while this leadership does, and until [`Leadership::commit`] moves it.
    pub fn guard(&self) -> Guard {
        Guard::ModRevision { key: self.key.clone(), revision: self.fence.load(Ordering::Acquire) }
    }

    /// Resolves when leadership is lost, or can not be proven for the rest of the TTL.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Gives the key up at once, so that the next is elected without waiting for the TTL.
    pub async fn resign(self) -> Result<(), Error> {
        drop(self.stop);
        match self.task.await {
            Ok(lease) => lease.revoke().await,
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }
}

/// Asks the store about a leadership.
#[derive(Clone)]
pub struct ReadIndex {
    store: Store,
    key: String,
    create_revision: i64,
}

impl ReadIndex {
    /// Whether the store had this leader after the call began: nobody else wrote before.
    pub async fn confirm(&self) -> Result<bool, Error> {
        let lock = self.store.get(&self.key).await?;
        Ok(lock.is_some_and(|lock| lock.create_revision == self.create_revision))
    }
}

struct Term {
    key: String,
    create_revision: i64,
    lease: Lease,
    /// The watch has shown the key.
    seen: bool,
}

impl Term {
    /// Keeps the lease alive until told to stop or leadership is over.
    async fn run(mut self, mut watch: Watch, stop: CancellationToken) -> Lease {
        let mut next = Instant::now() + self.lease.interval();
        let mut failures = 0_u32;
        loop {
            // A little early: the holder has to stop before another can begin.
            let deadline = self.lease.expires() - self.lease.interval() / 2;
            let why = tokio::select! {
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep_until(deadline) => Some("the store did not answer keep-alives in time"),
                Some(update) = watch.next() => self.deposed(&update.event),
                beat = async { tokio::time::sleep_until(next).await; self.lease.keep_alive().await } => {
                    next = Instant::now() + self.lease.interval();
                    match beat {
                        Ok(KeepAlive::Proven) => {
                            failures = 0;
                            None
                        }
                        Ok(KeepAlive::Gone) => Some("the store has lost the lease"),
                        Err(e) => {
                            failures += 1;
                            if failures.is_power_of_two() {
                                tracing::warn!(failures, "{}", one_line(&e));
                            }
                            next = Instant::now() + self.lease.interval() / 4;
                            None
                        }
                    }
                }
            };
            if let Some(why) = why {
                tracing::warn!(key = self.key, "leadership lost: {why}");
                return self.lease;
            }
        }
    }

    fn deposed(&mut self, event: &Event<String, KeyValue>) -> Option<&'static str> {
        match event {
            Event::InitApply(key, kv) | Event::Apply(key, kv) if *key == self.key => {
                self.seen = true;
                (kv.create_revision != self.create_revision).then_some("another holds the key")
            }
            // It was put before the watch began, so a first look without it means that it is gone already.
            Event::InitDone if !self.seen => Some("the key was deleted"),
            Event::Delete(key) if *key == self.key => Some("the key was deleted"),
            _ => None,
        }
    }
}
