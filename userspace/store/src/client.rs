//! The client: reads and transactions, with their time limits and retries.

use crate::backoff::Backoff;
use crate::members::Members;
use crate::range::prefix_end;
use crate::{Cause, Config, Error, KeyValue, Listing, Operation, Outcome, RequestMetrics, Txn};
use bytes::Bytes;
use etcd_client::{GetOptions, LeaseClient, PutOptions, WatchClient};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Time limit of [`Store::connect`].
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// With several members: time limit of one attempt of a request that may be repeated.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// With several members: time limit of one attempt of a request that may not be repeated. An
/// election among the members takes less.
const ONCE_LIMIT: Duration = Duration::from_secs(3);
/// Longest pause before the next of several members is tried.
const PAUSE: Duration = Duration::from_millis(200);
/// Time that a member still has to answer after another request has given it up.
const GRACE: Duration = Duration::from_millis(300);
/// Keys per page of a listing. A page of ordinary bodies stays below a few MB.
const PAGE: i64 = 1000;

/// A handle on the store. Clones share the connections.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    members: Members,
    endpoints: String,
    request_timeout: Duration,
    metrics: RequestMetrics,
}

/// Remaining and granted time of a lease, in whole seconds, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) left: Duration,
    pub(crate) granted: Duration,
}

/// Whether a request is sent again after its answer was lost.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// The request only reads, or is idempotent.
    Always,
    /// The caller finds out whether the request took effect. Not repeated if the store refused it.
    Lost,
    /// Only if the request certainly was not sent.
    Unsent,
}

impl Store {
    /// Connects to the first endpoint that answers.
    ///
    /// # Errors
    ///
    /// Fails if the configuration is invalid, if a TLS file cannot be read, or within 3 s if no
    /// endpoint answers.
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
        let (request_timeout, metrics) = (config.request_timeout, config.metrics.clone());
        let shared = Shared { members, endpoints, request_timeout, metrics };
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

    /// Reads one key. Returns `None` if the key does not exist. The read is linearizable.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer within the request timeout, or refuses the request.
    pub async fn get(&self, key: &str) -> Result<Option<KeyValue>, Error> {
        Ok(self.get_with_revision(key).await?.0)
    }

    /// Like [`Store::get`], and also returns the store's revision of the read. Watch updates of the
    /// key with a lower revision are older than this value.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
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

    /// Reads all keys that begin with `prefix`, in pages at one revision.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        loop {
            match self.list_once(prefix).await {
                // The revision was compacted between two pages: a newer listing replaces it.
                Err(e) if e.is_compacted() => {
                    tracing::debug!(prefix, "compacted while listing; listing again");
                }
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

    /// Applies all operations of `txn` if all its guards hold, else none.
    ///
    /// # Errors
    ///
    /// Fails if `txn` has more than [`MAX_TXN_OPS`](crate::MAX_TXN_OPS) guards or operations, or if
    /// the store does not answer or refuses it. After an error with [`Error::outcome_unknown`] the
    /// transaction may have been applied: read the keys before a retry.
    pub async fn commit(&self, txn: Txn) -> Result<Outcome, Error> {
        self.commit_by(txn, Again::Unsent).await
    }

    /// Like [`Store::commit`], but repeats the request when the answer was lost. A conflict may
    /// then be with the transaction's own earlier attempt.
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

    /// Puts without guards. Repeated when the answer was lost.
    pub(crate) async fn put(&self, key: &str, value: &Bytes, lease: i64) -> Result<(), Error> {
        self.request(Operation::Commit, key, Again::Always, || {
            let mut kv = self.shared.members.kv();
            let options = PutOptions::new().with_lease(lease);
            async move { kv.put(key, value.to_vec(), Some(options)).await }
        })
        .await
        .map(drop)
    }

    /// Grants a lease. Returns its id and the TTL that the store granted.
    pub(crate) async fn grant(&self, key: &str, ttl: Duration) -> Result<(i64, Duration), Error> {
        let seconds = i64::try_from(ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)).unwrap_or(i64::MAX);
        // If the answer was lost, the repeated grant leaves an unused lease behind, which expires.
        let answer = self
            .request(Operation::Grant, key, Again::Always, || {
                let mut lease = self.shared.members.lease();
                async move { lease.grant(seconds.max(1), None).await }
            })
            .await?;
        Ok((answer.id(), Duration::from_secs(u64::try_from(answer.ttl()).unwrap_or(0))))
    }

    /// Revokes a lease. Succeeds if the lease does not exist.
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

    /// Reads the remaining time of a lease; `None` if the lease does not exist. Each member has
    /// `patience` to answer.
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
        // Whole milliseconds, for readable messages.
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

    /// Time limit of one attempt.
    fn patience(&self, again: Again) -> Duration {
        match again {
            _ if !self.shared.members.several() => self.shared.request_timeout,
            Again::Always | Again::Lost => ANSWER_LIMIT,
            Again::Unsent => ONCE_LIMIT,
        }
    }

    /// Sends a request with limits for all attempts together and for each attempt.
    async fn request_within<T, F, A>(
        &self,
        limits: (Duration, Duration),
        operation: Operation,
        key: &str,
        again: Again,
        send: F,
    ) -> Result<T, Error>
    where
        F: FnMut() -> A,
        A: Future<Output = Result<T, etcd_client::Error>>,
    {
        let start = Instant::now();
        let result = self.attempts(limits, operation, key, again, send).await;
        self.shared.metrics.record(operation, &result, start.elapsed());
        result
    }

    async fn attempts<T, F, A>(
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
            tracing::debug!(%operation, key, %error, "retrying in {wait:?}");
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
