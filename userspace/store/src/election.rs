//! One leader at a time.
//!
//! The leader is whoever made the lock key; the key hangs on the leader's lease. Whatever the leader writes, it
//! guards with [`Leadership::guard`]: a deposed leader that has not noticed yet gets a conflict, not a write.

use crate::backoff::Backoff;
use crate::lease::{KeepAlive, Lease};
use crate::watch::one_line;
use crate::{Error, Guard, Op, Outcome, Store, Txn, Watch};
use contiv_model::event::Event;
use futures::StreamExt;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Proof that this process was elected; not `Clone`, and only [`campaign`] makes one.
///
/// Dropping it stops the keep-alive, and another is elected when the TTL has passed.
#[must_use = "leadership ends when this is dropped"]
pub struct Leadership {
    key: String,
    create_revision: i64,
    /// Ends when leadership does; gives the lease back.
    task: JoinHandle<Lease>,
    lost: CancellationToken,
    stop: DropGuard,
}

/// Waits until this process is elected: nobody holds `key`, and it is made with `value` under a lease of `ttl`.
///
/// The store may come and go meanwhile; only an error that waiting does not mend is returned. Dropping the
/// future withdraws, at the latest after `ttl`.
pub async fn campaign(store: &Store, key: &str, value: &str, ttl: Duration) -> Result<Leadership, Error> {
    let mut backoff = Backoff::default();
    loop {
        match stand(store, key, value, ttl).await {
            Ok(Some(leadership)) => return Ok(leadership),
            Ok(None) => {
                backoff.reset();
                vacant(store, key).await;
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
async fn stand(store: &Store, key: &str, value: &str, ttl: Duration) -> Result<Option<Leadership>, Error> {
    if store.get(key).await?.is_some() {
        return Ok(None);
    }
    let lease = Lease::grant(store, key, ttl).await?;
    let put = Op::Put { key: key.to_owned(), value: value.to_owned().into(), lease: Some(lease.id()) };
    let free = Guard::CreateRevision { key: key.to_owned(), revision: 0 };
    match store.commit(Txn { guards: vec![free], ops: vec![put] }).await {
        Ok(Outcome::Committed { revision }) => Ok(Some(Leadership::begin(store, key, revision, lease))),
        Ok(Outcome::Conflict) => {
            lease.revoke().await?;
            Ok(None)
        }
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
async fn vacant(store: &Store, key: &str) {
    let mut watch = store.watch(key);
    let mut held = false;
    while let Some(update) = watch.next().await {
        match update.event {
            Event::InitApply(k, _) | Event::Apply(k, _) if k == key => held = true,
            Event::InitDone if !held => return,
            Event::Delete(k) if k == key => return,
            _ => {}
        }
    }
}

impl Leadership {
    fn begin(store: &Store, key: &str, create_revision: i64, lease: Lease) -> Leadership {
        let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
        let term = Term { key: key.to_owned(), create_revision, lease, seen: false };
        let watch = store.watch(key);
        let (told, stopped) = (lost.clone().drop_guard(), stop.clone());
        let task = tokio::spawn(async move {
            // Dropped at the end of the task, however it ends: a panic must not look like leadership.
            let _told = told;
            term.run(watch, stopped).await
        });
        Leadership { key: key.to_owned(), create_revision, task, lost, stop: stop.drop_guard() }
    }

    /// Holds at the store only while this leadership does. Belongs into every transaction of the leader.
    pub fn guard(&self) -> Guard {
        Guard::CreateRevision { key: self.key.clone(), revision: self.create_revision }
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
        loop {
            // A little early: the holder has to stop before another can begin.
            let deadline = self.lease.expires() - self.lease.interval() / 4;
            let why = tokio::select! {
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep_until(deadline) => Some("the store did not answer keep-alives in time"),
                Some(update) = watch.next() => self.deposed(&update.event),
                beat = async { tokio::time::sleep_until(next).await; self.lease.keep_alive().await } => {
                    next = Instant::now() + self.lease.interval();
                    match beat {
                        Ok(KeepAlive::Proven) => None,
                        Ok(KeepAlive::Gone) => Some("the store has lost the lease"),
                        Err(e) => {
                            tracing::warn!("{}", one_line(&e));
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

    fn deposed(&mut self, event: &Event<String, crate::KeyValue>) -> Option<&'static str> {
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
