//! Election of one leader.
//!
//! The leader is the process that created the lock key; the key is attached to the leader's lease.
//! The leader writes by [`Leadership::commit`] only: the commit of a deposed leader that has not
//! noticed yet conflicts. It answers reads from memory only after [`ReadIndex::confirm`].
//!
//! These two make it safe to take the lock from a leader at any time; doing so only has to be right
//! most of the time. Candidates therefore do not wait for the end of the lease, which has a lower
//! bound in etcd: they read the remaining time of the leader's lease, which gives the age of its
//! last keep-alive, and delete the key of a leader whose last keep-alive is older than
//! [`Timing::staleness`] while the store commits writes. The store's clock alone decides, so all candidates get the same answer: a
//! candidate that is cut off from the leader cannot depose it, nor can one that is cut off from the
//! store. When etcd elects a leader of its own, it restarts the full TTL of every lease.
//! Keep-alives and reads of leases are served from etcd's memory and write nothing.

mod commit;
mod suspicion;
mod thread;

pub use thread::{ElectionThread, StartError};

use crate::backoff::Backoff;
use crate::error::one_line;
use crate::lease::{KeepAlive, Lease, Pace};
use crate::{Error, Guard, KeyValue, Op, Outcome, Store, Txn, Watch};
use contiv_model::event::Event;
use futures::StreamExt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use suspicion::{Step, Suspicion, Write};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

/// How long a leader that does not renew its lease keeps the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Lease TTL: after this time without keep-alives the store deletes the lock, also without a
    /// candidate. Whole seconds.
    pub ttl: Duration,
    /// Age of the last keep-alive after which candidates depose the leader. Whole seconds, less
    /// than `ttl`: etcd reports no finer.
    pub staleness: Duration,
}

impl Timing {
    /// Three keep-alives may be lost, or one may hang at a member, before the lease is stale.
    fn pace(self) -> Pace {
        Pace {
            interval: self.staleness / 4,
            limit: self.staleness * 2 / 5,
            after_silence: self.staleness * 4 / 5,
            longest: self.staleness * 4,
        }
    }

    /// Interval at which candidates check the lease, and time limit of one check.
    fn look(self) -> Pace {
        Pace { interval: self.staleness / 8, ..self.pace() }
    }
}

/// Proof that this process was elected. It is not `Clone`, and only [`campaign`] creates one.
///
/// Dropping it stops the keep-alives, and another process is elected at the latest when the TTL has
/// passed.
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership {
    key: String,
    value: String,
    lease: i64,
    create_revision: i64,
    /// Revision of the lock's last put; see [`Leadership::commit`].
    fence: AtomicI64,
    /// Value of `fence` for commits whose outcome is unknown; 0 if there are none.
    unsettled: AtomicI64,
    store: Store,
    /// Ends with the leadership; returns the lease.
    task: JoinHandle<Lease>,
    lost: CancellationToken,
    stop: DropGuard,
}

/// Waits until this process is elected: no other process holds `key`, and it is created with
/// `value` under a lease of `timing.ttl`.
///
/// Outages of the store are waited out. Dropping the future withdraws, at the latest after the TTL.
///
/// # Errors
///
/// Fails with the first error that is not transient ([`Error::is_transient`]). Waits while the
/// database has reached its quota.
pub async fn campaign(store: &Store, key: &str, value: &str, timing: Timing) -> Result<Leadership, Error> {
    campaign_with((store, store), key, value, timing, None).await
}

/// Campaigns with client `own`, in the runtime of the caller, first with the lease if one was prepared. The leadership
/// commits with `store`.
async fn campaign_with(
    (own, store): (&Store, &Store),
    key: &str,
    value: &str,
    timing: Timing,
    mut prepared: Option<Lease>,
) -> Result<Leadership, Error> {
    let mut backoff = Backoff::default();
    loop {
        match try_acquire((own, store), key, value, timing, prepared.take()).await {
            Ok(Some(leadership)) => return Ok(leadership),
            Ok(None) => {
                backoff.reset();
                prepared = wait_released(own, key, timing).await;
            }
            // The lease may have run out before it was used.
            Err(e) if e.is_transient() || e.is_out_of_space() || e.is_not_found() => {
                let wait = backoff.next();
                if backoff.worth_logging() {
                    tracing::warn!(
                        failures = backoff.failures(),
                        "election: {}; retrying in {wait:?}",
                        one_line(&e)
                    );
                }
                tokio::time::sleep(wait).await;
            }
            Err(e) => return Err(e),
        }
    }
}

/// Makes one attempt, with the lease if one was prepared; returns `None` if another process holds
/// the key.
async fn try_acquire(
    (own, store): (&Store, &Store),
    key: &str,
    value: &str,
    timing: Timing,
    prepared: Option<Lease>,
) -> Result<Option<Leadership>, Error> {
    let lease = match prepared {
        Some(lease) => lease,
        None if own.get(key).await?.is_some() => return Ok(None),
        None => grant(own, key, timing).await?,
    };
    let put = Op::Put { key: key.to_owned(), value: value.to_owned().into(), lease: Some(lease.id()) };
    let free = Guard::CreateRevision { key: key.to_owned(), revision: 0 };
    match own.commit_again(Txn { guards: vec![free], ops: vec![put] }).await {
        Ok(Outcome::Committed { revision }) => {
            Ok(Some(Leadership::begin((own, store), key, value, revision, lease)))
        }
        Ok(Outcome::Conflict) => match own.get(key).await {
            // An earlier attempt whose answer was lost.
            Ok(Some(lock)) if lock.lease == lease.id() => {
                Ok(Some(Leadership::begin((own, store), key, value, lock.create_revision, lease)))
            }
            Ok(_) => {
                lease.revoke().await?;
                Ok(None)
            }
            Err(e) => Err(give_up(lease, key, e).await),
        },
        Err(e) => Err(give_up(lease, key, e).await),
    }
}

/// Revokes the lease of a failed attempt, whose put may have been applied: without its lease the key is deleted.
/// Returns the error of the attempt.
async fn give_up(lease: Lease, key: &str, error: Error) -> Error {
    if let Err(revoke) = lease.revoke().await {
        tracing::debug!(key, "after a failed attempt: {}", one_line(&revoke));
    }
    error
}

async fn grant(store: &Store, key: &str, timing: Timing) -> Result<Lease, Error> {
    Ok(Lease::grant(store, key, timing.ttl).await?.paced(timing.pace()))
}

/// Resolves when the key does not exist. Returns a lease if one was granted while the lease of the
/// key's holder became stale: the next attempt is one request shorter then.
async fn wait_released(store: &Store, key: &str, timing: Timing) -> Option<Lease> {
    let mut watch = store.watch(key);
    let mut look = tokio::time::interval(timing.look().interval);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut holder: Option<KeyValue> = None;
    let mut suspicion = Suspicion::default();
    let mut prepared: Option<Preparation> = None;
    let mut limit = timing.look().limit;
    loop {
        let check = async {
            look.tick().await;
            let begin = Instant::now();
            match &holder {
                // A key without a lease was put by an operator.
                Some(lock) if lock.lease != 0 => {
                    is_stale(store, lock, timing, &mut limit).await.then_some(begin)
                }
                _ => None,
            }
        };
        let update = tokio::select! {
            // Cancelled by an update of the watch, which may change the holder.
            stale = check => {
                let write = prepared.as_ref().map_or(Write::Pending, Preparation::write);
                // The store handles the keep-alives that have waited at once.
                match (suspicion.next(stale, write, timing.look().interval / 2), &holder) {
                    (Step::Write, _) => prepared = Some(Preparation::begin(store, key, timing)),
                    (Step::Depose, Some(lock)) => {
                        depose(store, lock.clone(), timing).await;
                        suspicion.clear();
                    }
                    _ => {}
                }
                continue;
            }
            update = watch.next() => update,
        };
        let update = update?;
        match update.event {
            Event::InitApply(k, kv) | Event::Apply(k, kv) if k == key => {
                if holder.as_ref().is_none_or(|known| known.lease != kv.lease) {
                    suspicion.clear();
                }
                holder = Some(kv);
            }
            Event::InitDone if holder.is_none() => break,
            Event::Delete(k) if k == key => break,
            _ => {}
        }
    }
    // One of an earlier suspicion may be about to expire.
    prepared?.lease.await.ok()?.filter(Lease::is_fresh)
}

/// A lease that a candidate gets before it campaigns, which also shows whether the store commits writes.
struct Preparation {
    lease: AbortOnDropHandle<Option<Lease>>,
    /// Set at the end: when the store had granted it, none if it did not.
    granted: Arc<OnceLock<Option<Instant>>>,
}

impl Preparation {
    fn begin(store: &Store, key: &str, timing: Timing) -> Preparation {
        let (store, key, granted) = (store.clone(), key.to_owned(), Arc::new(OnceLock::new()));
        let end = Arc::clone(&granted);
        let lease = async move {
            let lease = grant(&store, &key, timing).await.ok();
            end.get_or_init(|| lease.is_some().then(Instant::now));
            lease
        };
        Preparation { lease: AbortOnDropHandle::new(tokio::spawn(lease)), granted }
    }

    fn write(&self) -> Write {
        match self.granted.get() {
            None => Write::Pending,
            Some(None) => Write::Failed,
            Some(Some(at)) => Write::Committed(*at),
        }
    }
}

/// Returns true if the last keep-alive of the lock's holder is older than the limit.
/// `limit` is the time that each member has to answer, and is adapted.
async fn is_stale(store: &Store, lock: &KeyValue, timing: Timing, limit: &mut Duration) -> bool {
    let asked = Instant::now();
    let answer = store.time_to_live(&lock.key, lock.lease, *limit).await;
    *limit = timing.look().next_limit(*limit, answer.is_ok().then(|| asked.elapsed()));
    match answer {
        Ok(Some(remaining)) => remaining.left + timing.staleness < remaining.granted,
        // The store is about to delete the key.
        Ok(None) => false,
        Err(e) => {
            tracing::debug!(key = lock.key, "{}", one_line(&e));
            false
        }
    }
}

/// Deletes the lock, unless another process holds it by now.
async fn depose(store: &Store, lock: KeyValue, timing: Timing) {
    let holder = String::from_utf8_lossy(&lock.value);
    tracing::warn!(key = lock.key, %holder, "the leader has not renewed its lease for {:?}; deleting its lock", timing.staleness);
    let held = Guard::CreateRevision { key: lock.key.clone(), revision: lock.create_revision };
    // The watch reports the result.
    if let Err(e) = store.commit_again(Txn::new().guard(held).delete(lock.key)).await {
        tracing::warn!("{}", one_line(&e));
    }
}

impl Leadership {
    fn begin(
        (own, store): (&Store, &Store),
        key: &str,
        value: &str,
        create_revision: i64,
        lease: Lease,
    ) -> Leadership {
        let id = lease.id();
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let term = Term { key: key.to_owned(), create_revision, lease, seen: false };
        let watch = own.watch(key);
        let (lost_guard, stopped) = (lost.clone().drop_guard(), stop.clone());
        let task = tokio::spawn(async move {
            // Dropped at the end of the task, also after a panic: leadership must not outlive the
            // task.
            let _lost_guard = lost_guard;
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

    /// Revision at which the leadership began: that of the lock's creation. Grows with each leader.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }

    /// A handle that confirms this leadership for linearizable reads.
    pub fn read_index(&self) -> ReadIndex {
        ReadIndex { store: self.store.clone(), key: self.key.clone(), create_revision: self.create_revision }
    }

    /// A guard that holds only during this leadership, and only until [`Leadership::commit`] moves
    /// the fence.
    pub fn guard(&self) -> Guard {
        Guard::ModRevision { key: self.key.clone(), revision: self.fence.load(Ordering::Acquire) }
    }

    /// Resolves when leadership is lost, or cannot be confirmed for the rest of the TTL.
    pub async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Returns true if leadership is known to be lost.
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Deletes the lock at once, so that another process can be elected without waiting for the
    /// TTL.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer or refuses the request; the lock then expires after its
    /// TTL.
    ///
    /// # Panics
    ///
    /// Panics if the task of the keep-alives panicked.
    pub async fn resign(self) -> Result<(), Error> {
        drop(self.stop);
        match self.task.await {
            Ok(lease) => lease.revoke().await,
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }
}

/// Confirms a leadership at the store, so that a read from the leader's memory is linearizable.
#[derive(Clone)]
pub struct ReadIndex {
    store: Store,
    key: String,
    create_revision: i64,
}

impl ReadIndex {
    /// Returns true if this process still held the lock after the call began: no other leader has
    /// written before.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer or refuses the read.
    pub async fn confirm(&self) -> Result<bool, Error> {
        let lock = self.store.get(&self.key).await?;
        Ok(lock.is_some_and(|lock| lock.create_revision == self.create_revision))
    }
}

struct Term {
    key: String,
    create_revision: i64,
    lease: Lease,
    /// The watch has reported the key.
    seen: bool,
}

impl Term {
    /// Renews the lease until `stop` or until leadership is lost.
    async fn run(mut self, mut watch: Watch, stop: CancellationToken) -> Lease {
        let mut next = Instant::now() + self.lease.interval();
        let mut failures = 0_u32;
        loop {
            // Slightly early: the holder must stop before another process can begin.
            let deadline = self.lease.expires() - self.lease.interval() / 2;
            let why = tokio::select! {
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep_until(deadline) => Some("the store did not answer keep-alives in time"),
                Some(update) = watch.next() => self.deposed(&update.event),
                (sent, beat) = async {
                    tokio::time::sleep_until(next).await;
                    (Instant::now(), self.lease.keep_alive().await)
                } => {
                    next = sent + self.lease.interval();
                    match beat {
                        Ok(KeepAlive::Proven) => {
                            failures = 0;
                            None
                        }
                        Ok(KeepAlive::Waiting) => None,
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
                (kv.create_revision != self.create_revision).then_some("another process holds the key")
            }
            // The key was put before the watch began, so a first snapshot without it means that it
            // was deleted.
            Event::InitDone if !self.seen => Some("the key was deleted"),
            Event::Delete(key) if *key == self.key => Some("the key was deleted"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, embedded};

    #[tokio::test]
    async fn a_lease_that_ran_out_before_it_was_used_ends_the_attempt_only() {
        let dir = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(dir.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let store = Store::connect(&Config::new([server.endpoint()])).await.unwrap();
        let timing = Timing { ttl: Duration::from_secs(30), staleness: Duration::from_secs(1) };
        let prepared = grant(&store, "lock", timing).await.unwrap();
        store.revoke("lock", prepared.id()).await.unwrap();
        let elected = campaign_with((&store, &store), "lock", "a", timing, Some(prepared)).await.unwrap();
        elected.resign().await.unwrap();
    }
}
