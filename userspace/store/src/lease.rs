//! Leases, and keys that exist as long as the process that put them.

use crate::backoff::Backoff;
use crate::error::one_line;
use crate::{Cause, Error, Operation, Status, Store};
use bytes::Bytes;
use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

/// A lease of this process, and the time until which it is known to exist.
pub(crate) struct Lease {
    store: Store,
    /// Key that the lease is for; used in error messages.
    key: String,
    id: i64,
    ttl: Duration,
    /// Interval and time limits of keep-alives.
    pace: Pace,
    /// Time limit of the next keep-alive.
    limit: Duration,
    /// Send time of the last request that the store answered. The store counts the TTL from a later
    /// time.
    proven: Instant,
    link: Link,
}

/// Schedule of keep-alives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    /// Time limit, so that one member that does not answer costs little.
    pub(crate) limit: Duration,
    /// Time limit after one that did not suffice: the store may be slow, or far away.
    pub(crate) longest: Duration,
}

impl Pace {
    /// Time limit of the next request, after one with `limit` that was answered within `taken`, or
    /// not at all.
    pub(crate) fn next_limit(self, limit: Duration, taken: Option<Duration>) -> Duration {
        match taken {
            None => self.longest,
            Some(taken) if taken * 2 < self.limit => self.limit,
            Some(_) => limit,
        }
    }
}

enum Link {
    Down,
    Up(LeaseKeeper, Box<LeaseKeepAliveStream>),
}

pub(crate) enum KeepAlive {
    Proven,
    /// The store does not know the lease: its keys are deleted.
    Gone,
}

impl Lease {
    pub(crate) async fn grant(store: &Store, key: &str, ttl: Duration) -> Result<Lease, Error> {
        let proven = Instant::now();
        let (id, ttl) = store.grant(key, ttl).await?;
        // Two attempts may fail before the lease expires.
        let pace = Pace { interval: ttl / 3, limit: ttl / 3, longest: ttl / 3 };
        let (store, key, limit) = (store.clone(), key.to_owned(), pace.limit);
        Ok(Lease { store, key, id, ttl, pace, limit, proven, link: Link::Down })
    }

    pub(crate) fn paced(self, pace: Pace) -> Lease {
        Lease { pace, limit: pace.limit, ..self }
    }

    pub(crate) fn id(&self) -> i64 {
        self.id
    }

    /// Interval of keep-alives.
    pub(crate) fn interval(&self) -> Duration {
        self.pace.interval
    }

    /// Time until which no other process can hold the keys.
    pub(crate) fn expires(&self) -> Instant {
        self.proven + self.ttl
    }

    /// Sends one keep-alive.
    pub(crate) async fn keep_alive(&mut self) -> Result<KeepAlive, Error> {
        let (limit, turn, sent) = (self.limit, self.store.members().turn(), Instant::now());
        // Taken: an attempt that times out leaves an answer behind, which must not count for the
        // next.
        let link = std::mem::replace(&mut self.link, Link::Down);
        let beat = tokio::time::timeout(limit, self.beat(link)).await;
        self.limit = self.pace.next_limit(limit, beat.is_ok().then(|| sent.elapsed()));
        let timeout = || self.store.timeout(Operation::KeepAlive, &self.key, limit);
        let beat = beat.map_err(|_| timeout()).and_then(|r| r.map_err(|e| self.error(e)));
        if let Err(error) = &beat {
            self.store.members().failed(turn, error).await;
        }
        match beat? {
            Some((ttl, link)) => {
                (self.proven, self.ttl, self.link) = (sent, ttl, link);
                self.store.answered();
                Ok(KeepAlive::Proven)
            }
            None => Ok(KeepAlive::Gone),
        }
    }

    async fn beat(&self, link: Link) -> Result<Option<(Duration, Link)>, etcd_client::Error> {
        match link {
            Link::Up(mut keeper, mut answers) => {
                keeper.keep_alive().await?;
                match answers.message().await? {
                    Some(answer) if answer.ttl() > 0 => Ok(Some((
                        Duration::from_secs(answer.ttl().unsigned_abs()),
                        Link::Up(keeper, answers),
                    ))),
                    Some(_) => Ok(None),
                    None => {
                        Err(etcd_client::Error::LeaseKeepAliveError("the server ended the stream".into()))
                    }
                }
            }
            Link::Down => {
                let mut client = self.store.lease_client();
                match client.keep_alive(self.id).await {
                    Ok((keeper, answers)) => Ok(Some((self.ttl, Link::Up(keeper, Box::new(answers))))),
                    // Either the lease is unknown or the stream broke; the library distinguishes
                    // them by text only.
                    Err(e @ etcd_client::Error::LeaseKeepAliveError(_)) => {
                        let left = client.time_to_live(self.id, None).await?.ttl();
                        if left > 0 { Err(e) } else { Ok(None) }
                    }
                    Err(e) => Err(e),
                }
            }
        }
    }

    fn error(&self, cause: impl Into<Cause>) -> Error {
        self.store.error(Operation::KeepAlive, &self.key, cause)
    }

    pub(crate) async fn revoke(self) -> Result<(), Error> {
        self.store.revoke(&self.key, self.id).await
    }
}

/// A key that the store deletes soon after this process ends.
///
/// Dropping it stops the keep-alives, and the store deletes the key when its TTL has passed.
/// [`Registration::revoke`] deletes it at once.
pub struct Registration {
    task: JoinHandle<Lease>,
    stop: DropGuard,
    status: watch::Receiver<Status>,
}

impl Store {
    /// Puts a key under a lease of `ttl` (rounded up to whole seconds) and keeps it until the
    /// registration is revoked or dropped.
    ///
    /// If the store loses the lease (after an outage longer than `ttl`) or the key is deleted, the
    /// key is put again.
    ///
    /// # Errors
    ///
    /// Fails if the lease cannot be granted or the key cannot be put.
    pub async fn register(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<Registration, Error> {
        register(self.clone(), key.to_owned(), value.into(), ttl).await
    }
}

impl Registration {
    /// Revokes the lease, which deletes the key.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer or refuses the request; the key then expires after its
    /// TTL.
    ///
    /// # Panics
    ///
    /// Panics if the task of the keep-alives panicked.
    pub async fn revoke(self) -> Result<(), Error> {
        drop(self.stop);
        match self.task.await {
            Ok(lease) => lease.revoke().await,
            Err(e) => std::panic::resume_unwind(e.into_panic()),
        }
    }

    /// `Connected` while the key is known to be in the store.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}

pub(crate) async fn register(
    store: Store,
    key: String,
    value: Bytes,
    ttl: Duration,
) -> Result<Registration, Error> {
    let lease = put(&store, &key, &value, ttl).await?;
    let (stop, (status, receiver)) = (CancellationToken::new(), watch::channel(Status::Connected));
    let keeper = Keeper { store, key, value, ttl, lease, others: false, backoff: Backoff::default(), status };
    let task = tokio::spawn(keeper.run(stop.clone()));
    Ok(Registration { task, stop: stop.drop_guard(), status: receiver })
}

async fn put(store: &Store, key: &str, value: &Bytes, ttl: Duration) -> Result<Lease, Error> {
    let lease = Lease::grant(store, key, ttl).await?;
    store.put(key, value, lease.id()).await?;
    Ok(lease)
}

struct Keeper {
    store: Store,
    key: String,
    value: Bytes,
    ttl: Duration,
    lease: Lease,
    /// Another process holds the key.
    others: bool,
    backoff: Backoff,
    status: watch::Sender<Status>,
}

impl Keeper {
    /// Runs until `stop`; returns the lease so that the caller can revoke it.
    async fn run(mut self, stop: CancellationToken) -> Lease {
        let mut wait = self.lease.interval();
        loop {
            tokio::select! {
                () = stop.cancelled() => return self.lease,
                () = tokio::time::sleep(wait) => {}
            }
            let beat = tokio::select! {
                () = stop.cancelled() => return self.lease,
                beat = self.beat() => beat,
            };
            wait = match beat {
                Ok(()) => {
                    self.backoff.reset();
                    self.status
                        .send_if_modified(|s| std::mem::replace(s, Status::Connected) != Status::Connected);
                    self.lease.interval()
                }
                Err(e) => self.failed(&e),
            };
        }
    }

    async fn beat(&mut self) -> Result<(), Error> {
        match self.lease.keep_alive().await? {
            KeepAlive::Proven => self.look().await,
            KeepAlive::Gone => {
                tracing::warn!(key = self.key, "the lease does not exist any more; putting the key again");
                self.lease = put(&self.store, &self.key, &self.value, self.ttl).await?;
                Ok(())
            }
        }
    }

    /// Checks the key. The lease may exist and the key not: another process has put the key under
    /// its own lease, or has deleted it. A key that another process holds is left to it; otherwise
    /// both would put it in turn.
    async fn look(&mut self) -> Result<(), Error> {
        let holder = self.store.get(&self.key).await?.map(|kv| kv.lease);
        match holder {
            Some(lease) if lease == self.lease.id() => self.others = false,
            Some(_) => {
                if !std::mem::replace(&mut self.others, true) {
                    tracing::warn!(
                        key = self.key,
                        "another process holds our key; is a second one running with the same name?"
                    );
                }
            }
            None => {
                tracing::warn!(key = self.key, "our key was deleted; putting it again");
                self.others = false;
                self.store.put(&self.key, &self.value, self.lease.id()).await?;
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: &Error) -> Duration {
        let wait = self.backoff.next().min(self.lease.interval());
        let text: Arc<str> = one_line(error).into();
        if self.backoff.worth_logging() {
            tracing::warn!(failures = self.backoff.failures(), "{text}; retrying in {wait:?}");
        }
        self.status.send_replace(Status::Retrying { failures: self.backoff.failures(), error: text });
        wait
    }
}
