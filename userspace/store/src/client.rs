//! The client: reads and transactions, with their time limits and retries.

use crate::backoff::Backoff;
use crate::members::Members;
use crate::range::prefix_end;
use crate::rotation::Files;
use crate::{Cause, Config, Error, KeyValue, Listing, Operation, Outcome, Position, RequestMetrics, Txn};
use bytes::Bytes;
use etcd_client::proto::{PbKeyValue, PbResponseHeader};
use etcd_client::{GetOptions, LeaseClient, LeaseTimeToLiveOptions, PutOptions, WatchClient};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
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
/// Keys on the first page and on the largest page of a listing.
const FIRST_PAGE: i64 = 64;
const LARGEST_PAGE: i64 = 1000;
/// Bytes that a page should have. Each page is as long as the previous one allows to expect.
const PAGE_BYTES: usize = 4 << 20;

/// Key of reads whose answer's header is of interest. Below contiv's prefix, which is all that etcd's
/// user may be permitted to read.
const PROBED: &str = "/contiv.io/";

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
    last_answer: Mutex<Instant>,
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

fn position(header: Option<&PbResponseHeader>) -> Position {
    header.map_or_else(Position::default, |h| Position { cluster: h.cluster_id, revision: h.revision })
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
        let store = Store::begin(members, endpoints, config);
        store.probe(limit).await?;
        store.follow_files(config);
        Ok(store)
    }

    /// Like [`Store::connect`], without waiting for the store. Requests fail until it answers, and, if the
    /// configuration has a user, until [`Store::reach`] has succeeded.
    ///
    /// # Errors
    ///
    /// Fails if the configuration is invalid, or if a TLS file cannot be read.
    pub async fn open(config: &Config) -> Result<Store, Error> {
        let urls = config.urls()?;
        let endpoints = urls.join(",");
        let options = config.options().await?;
        // A login needs the store.
        let anonymous = Config { auth: None, ..config.clone() }.options().await?;
        let members = Members::open(urls, options, &anonymous).await;
        let members = members.map_err(|e| request_error(Operation::Connect, "the store", &endpoints, e))?;
        let store = Store::begin(members, endpoints, config);
        store.follow_files(config);
        Ok(store)
    }

    /// Logs in if the configuration, which is that of [`Store::open`], has a user, and waits for an answer.
    ///
    /// # Errors
    ///
    /// Fails within some seconds if the store does not answer, or if it refuses the user. May be repeated.
    pub async fn reach(&self, config: &Config) -> Result<(), Error> {
        let limit = CONNECT_LIMIT.min(config.request_timeout);
        if config.auth.is_some() {
            let (members, options) = (&self.shared.members, config.options().await?);
            let turn = members.turn();
            let error = match tokio::time::timeout(limit, members.reload(options)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(self.error(Operation::Connect, "the store", error)),
                Err(_) => Some(self.timeout(Operation::Connect, "the store", limit)),
            };
            if let Some(error) = error {
                if error.is_transient() {
                    members.failed(turn, &error).await;
                }
                return Err(error);
            }
        }
        self.probe(limit).await
    }

    fn begin(members: Members, endpoints: String, config: &Config) -> Store {
        let (request_timeout, metrics) = (config.request_timeout, config.metrics.clone());
        let last_answer = Mutex::new(Instant::now());
        let shared = Shared { members, endpoints, request_timeout, metrics, last_answer };
        Store { shared: Arc::new(shared) }
    }

    /// Waits for an answer.
    async fn probe(&self, limit: Duration) -> Result<(), Error> {
        let options = GetOptions::new().with_count_only();
        let patience = self.patience(Again::Always).min(limit);
        self.request_within((limit, patience), Operation::Connect, "the store", Again::Always, || {
            let (mut kv, options) = (self.shared.members.kv(), options.clone());
            async move { kv.get(PROBED, Some(options)).await }
        })
        .await
        .map(drop)
    }

    /// Reconnects when the TLS files change, as long as the store exists.
    fn follow_files(&self, config: &Config) {
        let Some(files) = Files::of(config) else { return };
        let shared = Arc::downgrade(&self.shared);
        tokio::spawn(files.follow(move |options| {
            let shared = shared.upgrade();
            async move { Some(shared?.members.reload(options).await) }
        }));
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

    /// Reads one key as it was at `revision`. Returns `None` if the key did not exist then.
    ///
    /// # Errors
    ///
    /// As [`Store::get`]. Also fails if the revision was compacted ([`Error::is_compacted`]) or does
    /// not exist yet.
    pub async fn get_at(&self, key: &str, revision: i64) -> Result<Option<KeyValue>, Error> {
        Ok(self.get_at_with_cluster(key, revision).await?.0)
    }

    /// Like [`Store::get_at`], and also returns the store's id.
    pub(crate) async fn get_at_with_cluster(
        &self,
        key: &str,
        revision: i64,
    ) -> Result<(Option<KeyValue>, u64), Error> {
        let options = GetOptions::new().with_revision(revision);
        let answer = self
            .request(Operation::Get, key, Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(key, Some(options)).await }
            })
            .await?
            .0;
        let cluster = position(answer.header.as_ref()).cluster;
        Ok((answer.kvs.into_iter().next().and_then(KeyValue::from_wire), cluster))
    }

    /// Number of keys that began with `prefix` at `revision`.
    pub(crate) async fn count_at(&self, prefix: &str, revision: i64) -> Result<usize, Error> {
        let options = GetOptions::new().with_revision(revision).with_count_only();
        let options = match prefix {
            "" => options.with_all_keys(),
            _ => options.with_prefix(),
        };
        let answer = self
            .request(Operation::List, prefix, Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(prefix, Some(options)).await }
            })
            .await?;
        Ok(usize::try_from(answer.count()).unwrap_or(0))
    }

    /// Reads the store's id and current revision. The read is linearizable.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn position(&self) -> Result<Position, Error> {
        let options = GetOptions::new().with_count_only();
        let answer = self
            .request(Operation::Get, "the store's revision", Again::Always, || {
                let (mut kv, options) = (self.shared.members.kv(), options.clone());
                async move { kv.get(PROBED, Some(options)).await }
            })
            .await?;
        Ok(position(answer.0.header.as_ref()))
    }

    /// Reads all keys that begin with `prefix`, in pages of some MB at one revision.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        self.list_where(prefix, |_| true).await
    }

    /// Like [`Store::list`], with only the keys that `keep` returns true for. The others are dropped page
    /// by page, so they never are in memory together. If the listing has to start again, `keep` sees
    /// keys twice.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    pub async fn list_where(
        &self,
        prefix: &str,
        mut keep: impl FnMut(&KeyValue) -> bool + Send,
    ) -> Result<Listing, Error> {
        Ok(self.list_counting(prefix, &mut keep).await?.0)
    }

    /// Like [`Store::list_where`], and also returns the number of dropped keys.
    pub(crate) async fn list_counting(
        &self,
        prefix: &str,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        loop {
            match self.list_once(prefix, keep).await {
                // The revision was compacted between two pages: a newer listing replaces it.
                Err(e) if e.is_compacted() => {
                    tracing::debug!(prefix, "compacted while listing; listing again");
                }
                result => return result,
            }
        }
    }

    async fn list_once(
        &self,
        prefix: &str,
        keep: &mut (dyn FnMut(&KeyValue) -> bool + Send),
    ) -> Result<(Listing, usize), Error> {
        let mut listing = Listing { cluster: 0, revision: 0, items: Vec::new() };
        let mut dropped = 0;
        let mut from = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
        let end = prefix_end(prefix.as_bytes());
        let mut page = FIRST_PAGE;
        loop {
            let options =
                GetOptions::new().with_range(end.clone()).with_limit(page).with_revision(listing.revision);
            let answer = self
                .request(Operation::List, prefix, Again::Always, || {
                    let (mut kv, from, options) = (self.shared.members.kv(), from.clone(), options.clone());
                    async move { kv.get(from, Some(options)).await }
                })
                .await;
            let answer = match answer {
                Err(e) if e.is_answer_too_large() && page > 1 => {
                    page = (page / 8).max(1);
                    continue;
                }
                answer => answer?.0,
            };
            page = next_page(&answer.kvs);
            if listing.revision == 0 {
                let Position { cluster, revision } = position(answer.header.as_ref());
                (listing.cluster, listing.revision) = (cluster, revision);
            }
            if answer.more
                && let Some(last) = answer.kvs.last()
            {
                from = last.key.clone();
                from.push(0);
            }
            // Keys that are not UTF-8 count as dropped.
            let received = answer.kvs.len();
            let before = listing.items.len();
            listing
                .items
                .extend(answer.kvs.into_iter().filter_map(KeyValue::from_wire).filter(|kv| keep(kv)));
            dropped += received - (listing.items.len() - before);
            if !answer.more {
                return Ok((listing, dropped));
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

    /// Keys of a lease; none if it does not exist. One request, whatever the number of keys.
    pub(crate) async fn keys_of_lease(&self, name: &str, lease: i64) -> Result<BTreeSet<String>, Error> {
        let answer = self
            .request(Operation::TimeToLive, name, Again::Always, || {
                let mut client = self.shared.members.lease();
                let options = LeaseTimeToLiveOptions::new().with_keys();
                async move { client.time_to_live(lease, Some(options)).await }
            })
            .await?;
        Ok(answer.keys().iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect())
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

    /// Time since the store last answered a request or a keep-alive of this client.
    pub fn silent_for(&self) -> Duration {
        self.shared.last_answer.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }

    pub(crate) fn answered(&self) {
        *self.shared.last_answer.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
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
        (limit, mut patience): (Duration, Duration),
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
        let mut earlier: Option<Error> = None;
        loop {
            let (turn, start) = (members.turn(), Instant::now());
            let left_alone = async {
                members.moved(turn).await;
                tokio::time::sleep(GRACE).await;
            };
            let error = tokio::select! {
                answer = send() => match answer {
                    Ok(answer) => {
                        self.answered();
                        return Ok(answer);
                    }
                    Err(e) => self.error(operation, key, e),
                },
                () = tokio::time::sleep_until(deadline.min(start + patience)) => {
                    let cut_short = again == Again::Always && start.elapsed() < patience;
                    match earlier.take_if(|_| cut_short) {
                        // The attempt had too little time to tell more than the one before.
                        Some(earlier) => return Err(earlier),
                        None => self.timeout(operation, key, start.elapsed()),
                    }
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
            tracing::debug!(%operation, key, %error, retry, "request failed");
            let error = match earlier.take() {
                // Whether the lost attempt took effect is as unknown as before.
                Some(lost) if again == Again::Lost && lost.hides_outcome_of(&error) => lost,
                _ => error,
            };
            if !retry || Instant::now() + wait >= deadline {
                return Err(error);
            }
            earlier = Some(error);
            // The next member needs a new connection, which takes longer on a slow network.
            patience *= 2;
            tokio::time::sleep(wait).await;
        }
    }
}

/// Keys on the page after one with `keys`.
fn next_page(keys: &[PbKeyValue]) -> i64 {
    let bytes: usize = keys.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let average = (bytes / keys.len().max(1)).max(1);
    i64::try_from(PAGE_BYTES / average).unwrap_or(LARGEST_PAGE).clamp(1, LARGEST_PAGE)
}

fn request_error(operation: Operation, key: &str, endpoints: &str, cause: impl Into<Cause>) -> Error {
    let (source, key) = (cause.into(), key.to_owned());
    if source.is_out_of_space() {
        Error::OutOfSpace { operation, key }
    } else if source.code().is_none() {
        Error::Unreachable { operation, key, endpoints: endpoints.to_owned(), source }
    } else {
        Error::Refused { operation, key, source }
    }
}
