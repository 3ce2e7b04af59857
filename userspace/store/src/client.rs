//! The connection: reads, transactions, and how long and how often a request is tried.

use crate::backoff::Backoff;
use crate::lease::{self, Registration, Remaining};
use crate::members::Members;
use crate::range::prefix_end;
use crate::{Cause, Config, Error, KeyValue, Listing, Operation, Outcome, Txn, Watch};
use bytes::Bytes;
use etcd_client::{GetOptions, LeaseClient, PutOptions, WatchClient};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// Where there are several members, each has so long to answer what may be asked again of the next ...
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// ... and so long to do what may not: an election among them takes less.
const ONCE_LIMIT: Duration = Duration::from_secs(3);
/// Longest pause before the next of several members is asked.
const PAUSE: Duration = Duration::from_millis(200);
/// What a member may still answer when others have found that it does not.
const GRACE: Duration = Duration::from_millis(300);
/// Keys per request of a listing; small enough that a page of ordinary bodies stays below a few MB.
const PAGE: i64 = 1000;

/// A handle on the store; clones share the connections.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    members: Members,
    endpoints: String,
    request_timeout: Duration,
}

/// Whether a request whose answer was lost may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// It reads, or doing it twice is the same as doing it once.
    Always,
    /// Whoever asks finds out what became of the request; not when the store has refused it.
    Lost,
    /// Only while it surely was not sent.
    Unsent,
}

impl Store {
    /// Fails within a few seconds when no endpoint answers.
    pub async fn connect(config: &Config) -> Result<Store, Error> {
        let urls = config.urls()?;
        let endpoints = urls.join(",");
        let limit = CONNECT_LIMIT.min(config.request_timeout);
        let options = config.options().await?;
        let members = match tokio::time::timeout(limit, Members::connect(urls, &options)).await {
            Ok(members) => {
                members.map_err(|e| request_error(Operation::Connect, "the store", &endpoints, e))?
            }
            Err(_) => {
                return Err(Error::Timeout {
                    operation: Operation::Connect,
                    key: "the store".into(),
                    endpoints,
                    limit,
                });
            }
        };
        let shared = Shared { members, endpoints, request_timeout: config.request_timeout };
        let store = Store { shared: Arc::new(shared) };
        let probe = GetOptions::new().with_count_only();
        let patience = store.patience(Again::Always).min(limit);
        store
            .request_within((limit, patience), Operation::Connect, "the store", Again::Always, || {
                let (mut kv, probe) = (store.shared.members.kv(), probe.clone());
                async move { kv.get("contiv.io", Some(probe)).await }
            })
            .await?;
        Ok(store)
    }

    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        Ok(self.get_with_revision(key).await?.0)
    }

    /// As [`Store::get`], and the store's revision at which it is so: whatever is told of the key as of an earlier one
    /// is old.
    pub async fn get_with_revision(&self, key: &str) -> Result<(Option<KeyValue>, i64), Error> {
        let answer = self
            .request(Operation::Get, key, Again::Always, || {
                let mut kv = self.shared.members.kv();
                async move { kv.get(key, None).await }
            })
            .await?;
        let revision = answer.header().map_or(0, |header| header.revision());
        Ok((answer.0.kvs.into_iter().next().and_then(KeyValue::from_wire), revision))
    }

    /// All keys that begin with `prefix`, read in pages at one revision.
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        loop {
            match self.list_once(prefix).await {
                // Compacted between two pages: the newer listing is as good.
                Err(e) if e.is_compacted() => tracing::debug!(prefix, "compacted while listing, again"),
                result => return result,
            }
        }
    }

    async fn list_once(&self, prefix: &str) -> Result<Listing, Error> {
        let mut listing = Listing { revision: 0, items: Vec::new() };
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        let end = prefix_end(prefix.as_bytes());
        loop {
            let options =
                GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(listing.revision);
            let answer = self
                .request(Operation::List, prefix, Again::Always, || {
                    let (mut kv, from, options) = (self.shared.members.kv(), from.clone(), options.clone());
                    async move { kv.get(from, Some(options)).await }
                })
                .await?
                .0;
            if listing.revision == 0 {
                listing.revision = answer.header.as_ref().map_or(0, |h| h.revision);
            }
            if answer.more
                && let Some(last) = answer.kvs.last()
            {
                from = last.key.clone();
                from.push(0);
            }
            listing.items.extend(answer.kvs.into_iter().filter_map(KeyValue::from_wire));
            if !answer.more {
                return Ok(listing);
            }
        }
    }

    /// Writes all of it or nothing. After an error with [`Error::outcome_unknown`] read before trying again.
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        self.commit_by(txn, Again::Unsent).await
    }

    /// As [`Store::commit`], for what may be asked for again when the answer was lost: a conflict may be with itself.
    pub(crate) async fn commit_again(&self, txn: Txn) -> Result<Outcome, Error> {
        self.commit_by(txn, Again::Lost).await
    }

    async fn commit_by(&self, txn: Txn, again: Again) -> Result<Outcome, Error> {
        txn.check()?;
        let (key, wire) = (txn.name().to_owned(), txn.into_wire());
        let answer = self
            .request(Operation::Commit, &key, again, || {
                let (mut kv, wire) = (self.shared.members.kv(), wire.clone());
                async move { kv.txn(wire).await }
            })
            .await?
            .0;
        let revision = answer.header.as_ref().map_or(0, |h| h.revision);
        Ok(if answer.succeeded { Outcome::Committed { revision } } else { Outcome::Conflict })
    }

    /// Follows all keys that begin with `prefix`; see [`Watch`]. Nothing is sent before the first poll.
    pub fn watch(&self, prefix: &str) -> Watch {
        Watch::new(self.clone(), prefix.to_owned())
    }

    /// Puts a key under a lease and keeps it there until the registration is revoked or dropped.
    ///
    /// When the store has lost the lease (it was away for longer than `ttl`), or somebody has deleted the key, it is put again.
    pub async fn register(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<Registration, Error> {
        lease::register(self.clone(), key.to_owned(), value.into(), ttl).await
    }

    /// Puts unconditionally, which may be repeated when the answer was lost.
    pub(crate) async fn put(&self, key: &str, value: &Bytes, lease: i64) -> Result<(), Error> {
        self.request(Operation::Commit, key, Again::Always, || {
            let mut kv = self.shared.members.kv();
            let options = PutOptions::new().with_lease(lease);
            async move { kv.put(key, value.to_vec(), Some(options)).await }
        })
        .await
        .map(drop)
    }

    /// A lease's id and the TTL that the store really gave.
    pub(crate) async fn grant(&self, key: &str, ttl: Duration) -> Result<(i64, Duration), Error> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        // A second grant after a lost answer leaves an unused lease behind, which expires.
        let answer = self
            .request(Operation::Grant, key, Again::Always, || {
                let mut lease = self.shared.members.lease();
                async move { lease.grant(seconds.max(1), None).await }
            })
            .await?;
        Ok((answer.id(), Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0))))
    }

    /// Revoking a lease that is gone already succeeds.
    pub(crate) async fn revoke(&self, key: &str, lease: i64) -> Result<(), Error> {
        let revoked = self.request(Operation::Revoke, key, Again::Always, || {
            let mut client = self.shared.members.lease();
            async move { client.revoke(lease).await }
        });
        match revoked.await {
            Err(e) if e.is_not_found() => Ok(()),
            result => result.map(drop),
        }
    }

    /// What is left of a lease; none if it is gone. Each member has `patience` to tell.
    pub(crate) async fn time_to_live(
        &self,
        key: &str,
        lease: i64,
        patience: Duration,
    ) -> Result<Option<Remaining>, Error> {
        let limit = self.shared.request_timeout;
        let answer = self
            .request_within((limit, patience.min(limit)), Operation::TimeToLive, key, Again::Always, || {
                let mut client = self.shared.members.lease();
                async move { client.time_to_live(lease, None).await }
            })
            .await?;
        let seconds = |n: i64| Duration::from_secs(n.unsigned_abs());
        let alive = answer.ttl() >= 0;
        Ok(alive.then(|| Remaining { left: seconds(answer.ttl()), granted: seconds(answer.granted_ttl()) }))
    }

    pub(crate) fn members(&self) -> &Members {
        &self.shared.members
    }

    pub(crate) fn lease_client(&self) -> LeaseClient {
        self.shared.members.lease()
    }

    pub(crate) fn watch_client(&self) -> WatchClient {
        self.shared.members.watch()
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        self.shared.request_timeout
    }

    pub(crate) fn error(&self, operation: Operation, key: &str, cause: impl Into<Cause>) -> Error {
        request_error(operation, key, &self.shared.endpoints, cause)
    }

    pub(crate) fn timeout(&self, operation: Operation, key: &str, limit: Duration) -> Error {
        // Whole milliseconds, for people.
        let limit = Duration::from_millis(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        Error::Timeout { operation, key: key.to_owned(), endpoints: self.shared.endpoints.clone(), limit }
    }

    pub(crate) async fn request<T, F, A>(
        &self,
        operation: Operation,
        key: &str,
        again: Again,
        send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let limits = (self.shared.request_timeout, self.patience(again));
        self.request_within(limits, operation, key, again, send).await
    }

    /// How long one member may take to answer.
    fn patience(&self, again: Again) -> Duration {
        match again {
            _ if !self.shared.members.several() => self.shared.request_timeout,
            Again::Always | Again::Lost => ANSWER_LIMIT,
            Again::Unsent => ONCE_LIMIT,
        }
    }

    /// The limits are for all attempts together, and for each.
    async fn request_within<T, F, A>(
        &self,
        (limit, patience): (Duration, Duration),
        operation: Operation,
        key: &str,
        again: Again,
        mut send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let deadline = Instant::now() + limit;
        let members = &self.shared.members;
        let mut backoff = Backoff::default();
        loop {
            let (turn, start) = (members.turn(), Instant::now());
            let left_alone = async {
                members.moved(turn).await;
                tokio::time::sleep(GRACE).await;
            };
            let error = tokio::select! {
                answer = send() => match answer {
                    Ok(answer) => return Ok(answer),
                    Err(e) => self.error(operation, key, e),
                },
                () = tokio::time::sleep_until(deadline.min(start + patience)) => {
                    self.timeout(operation, key, start.elapsed())
                }
                () = left_alone => self.timeout(operation, key, start.elapsed()),
            };
            if error.is_transient() {
                members.failed(turn, &error).await;
            }
            let retry = error.is_transient()
                && match again {
                    Again::Always => true,
                    Again::Lost => error.is_unsent() || error.outcome_unknown(),
                    Again::Unsent => error.is_unsent(),
                };
            let wait = backoff.next().min(if members.several() { PAUSE } else { Duration::MAX });
            if !retry || Instant::now() + wait >= deadline {
                return Err(error);
            }
            tracing::debug!(%operation, key, %error, "again in {wait:?}");
            tokio::time::sleep(wait).await;
        }
    }
}

fn request_error(operation: Operation, key: &str, endpoints: &str, cause: impl Into<Cause>) -> Error {
    let (source, key) = (cause.into(), key.to_owned());
    if source.code().is_none() {
        Error::Unreachable { operation, key, endpoints: endpoints.to_owned(), source }
    } else {
        Error::Refused { operation, key, source }
    }
}
