//! Leases, and keys that exist as long as the process that put them.

use crate::backoff::Backoff;
use crate::error::one_line;
use crate::members::Turn;
use crate::{Cause, Error, Operation, Status, Store};
use bytes::Bytes;
use etcd_client::{LeaseClient, LeaseKeepAliveStream, LeaseKeeper};
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
    /// Time limit of the next answer; see [`Pace::next_limit`].
    limit: Duration,
    /// Send time of the last request that the store answered. The store counts the TTL from a later
    /// time.
    proven: Instant,
    /// Time since which an answer is overdue after `limit`.
    waiting_since: Instant,
    link: Link,
    /// Streams that are being opened. The earlier ones go on: a new connection may take longer than
    /// the limit on a slow network.
    opening: FuturesUnordered<BoxFuture<'static, Opened>>,
}

/// Schedule of keep-alives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) interval: Duration,
    /// Shortest time limit of an answer, so that one member that does not answer costs little.
    pub(crate) limit: Duration,
    /// Time limit after one that did not suffice. No longer: a store that continues after a stall must
    /// be asked again at once.
    pub(crate) after_silence: Duration,
    /// Longest time limit, of a store that is far away: twice the last round trip, up to this.
    pub(crate) longest: Duration,
}

impl Pace {
    /// Time limit of the next request, after one with `limit` that was answered within `taken`, or
    /// not at all.
    pub(crate) fn next_limit(self, limit: Duration, taken: Option<Duration>) -> Duration {
        match taken {
            None => limit.max(self.after_silence),
            Some(taken) => (taken * 2).clamp(self.limit, self.longest),
        }
    }
}

enum Link {
    Down,
    Up(Box<Stream>),
}

/// A stream of keep-alives at one member.
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    /// Send times of the keep-alives without an answer. Answers come in the same order.
    sent: VecDeque<Instant>,
    turn: Turn,
}

/// The first keep-alive of a new stream.
struct Opened {
    sent: Instant,
    turn: Turn,
    /// None if the lease does not exist.
    stream: Result<Option<Box<Stream>>, etcd_client::Error>,
}

/// Number of unanswered keep-alives on one stream.
const MAX_UNANSWERED: usize = 50;

enum Event {
    Answer(Result<Option<Duration>, etcd_client::Error>),
    Opened(Opened),
    Late,
}

pub(crate) enum KeepAlive {
    /// The store has answered this keep-alive or an earlier one.
    Proven,
    /// No answer yet; none is overdue.
    Waiting,
    /// The store does not know the lease: its keys are deleted.
    Gone,
}

impl Lease {
    pub(crate) async fn grant(store: &Store, key: &str, ttl: Duration) -> Result<Lease, Error> {
        let proven = Instant::now();
        let (id, ttl) = store.grant(key, ttl).await?;
        // Two attempts may fail before the lease expires.
        let pace = Pace { interval: ttl / 3, limit: ttl / 3, after_silence: ttl / 3, longest: ttl / 3 };
        let (store, key, limit) = (store.clone(), key.to_owned(), pace.limit);
        let (link, opening) = (Link::Down, FuturesUnordered::new());
        Ok(Lease { store, key, id, ttl, pace, limit, proven, waiting_since: proven, link, opening })
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

    /// Most of the TTL is left.
    pub(crate) fn is_fresh(&self) -> bool {
        self.proven.elapsed() < self.ttl / 4
    }

    /// Sends one keep-alive, without waiting for the answers to earlier ones: on a slow network the
    /// store must not see fewer of them. Waits for an answer for an interval at most.
    ///
    /// When an answer is overdue, another stream is opened at the next member. The first one to
    /// answer is used from then on.
    pub(crate) async fn keep_alive(&mut self) -> Result<KeepAlive, Error> {
        let start = Instant::now();
        self.send(start).await;
        loop {
            let until = (start + self.pace.interval).min(self.waiting_since + self.limit);
            let event = tokio::select! {
                // Answers first: after a stall, many may be there.
                biased;
                answer = self.link.answer() => Event::Answer(answer),
                Some(opened) = self.opening.next() => Event::Opened(opened),
                () = tokio::time::sleep_until(until) => Event::Late,
            };
            match event {
                Event::Answer(Ok(Some(ttl))) => {
                    self.ttl = ttl;
                    if let Some(sent) = self.link.answered() {
                        return Ok(self.prove(sent));
                    }
                }
                Event::Answer(Ok(None)) | Event::Opened(Opened { stream: Ok(None), .. }) => {
                    return Ok(KeepAlive::Gone);
                }
                Event::Opened(Opened { sent, stream: Ok(Some(stream)), .. }) => {
                    self.link = Link::Up(stream);
                    return Ok(self.prove(sent));
                }
                Event::Answer(Err(e)) => {
                    let turn = self.link.turn().unwrap_or_else(|| self.store.members().turn());
                    self.link = Link::Down;
                    return Err(self.failed(turn, e).await);
                }
                Event::Opened(Opened { turn, stream: Err(e), .. }) => return Err(self.failed(turn, e).await),
                Event::Late if self.waiting_since.elapsed() < self.limit => return Ok(KeepAlive::Waiting),
                Event::Late => return Err(self.overdue().await),
            }
        }
    }

    async fn send(&mut self, now: Instant) {
        match &mut self.link {
            Link::Up(stream) if stream.sent.len() < MAX_UNANSWERED => {
                if stream.sent.is_empty() && self.opening.is_empty() {
                    self.waiting_since = now;
                }
                // Before it is sent: an answer must not count for a later keep-alive.
                stream.sent.push_back(now);
                // The stream reports why it ended.
                let _ended = stream.keeper.keep_alive().await;
            }
            Link::Up(_) => {}
            Link::Down if self.opening.is_empty() => self.open(),
            Link::Down => {}
        }
    }

    fn prove(&mut self, sent: Instant) -> KeepAlive {
        self.proven = self.proven.max(sent);
        self.limit = self.pace.next_limit(self.limit, Some(sent.elapsed()));
        self.opening.clear();
        if let Link::Up(stream) = &self.link {
            self.waiting_since = stream.sent.front().copied().unwrap_or_else(Instant::now);
        }
        self.store.answered();
        KeepAlive::Proven
    }

    /// The stream broke or could not be opened.
    async fn failed(&mut self, turn: Turn, cause: etcd_client::Error) -> Error {
        let error = self.error(cause);
        self.store.members().failed(turn, &error).await;
        error
    }

    async fn overdue(&mut self) -> Error {
        let error = self.store.timeout(Operation::KeepAlive, &self.key, self.limit);
        // Of the last stream that was opened.
        let turn = match &self.link {
            Link::Up(stream) if self.opening.is_empty() => stream.turn,
            _ => self.store.members().turn(),
        };
        self.store.members().failed(turn, &error).await;
        self.limit = self.pace.next_limit(self.limit, None);
        self.open();
        error
    }

    /// Opens a stream at the current member.
    fn open(&mut self) {
        let (sent, turn) = (Instant::now(), self.store.members().turn());
        let (client, id, limit) = (self.store.lease_client(), self.id, self.ttl);
        self.waiting_since = sent;
        let open = async move {
            let stream = tokio::time::timeout(limit, open(client, id, turn)).await;
            let late = || Err(etcd_client::Error::LeaseKeepAliveError("no answer within the TTL".into()));
            Opened { sent, turn, stream: stream.unwrap_or_else(|_| late()) }
        };
        self.opening.push(open.boxed());
    }

    fn error(&self, cause: impl Into<Cause>) -> Error {
        self.store.error(Operation::KeepAlive, &self.key, cause)
    }

    pub(crate) async fn revoke(self) -> Result<(), Error> {
        self.store.revoke(&self.key, self.id).await
    }
}

impl Link {
    /// The next answer: the TTL, or none if the lease does not exist.
    async fn answer(&mut self) -> Result<Option<Duration>, etcd_client::Error> {
        match self {
            Link::Down => std::future::pending().await,
            Link::Up(stream) => match stream.answers.message().await? {
                Some(answer) if answer.ttl() > 0 => {
                    Ok(Some(Duration::from_secs(answer.ttl().unsigned_abs())))
                }
                Some(_) => Ok(None),
                None => Err(etcd_client::Error::LeaseKeepAliveError("the server ended the stream".into())),
            },
        }
    }

    /// Send time of the keep-alive that was answered.
    fn answered(&mut self) -> Option<Instant> {
        match self {
            Link::Down => None,
            Link::Up(stream) => stream.sent.pop_front(),
        }
    }

    fn turn(&self) -> Option<Turn> {
        match self {
            Link::Down => None,
            Link::Up(stream) => Some(stream.turn),
        }
    }
}

/// Sends the first keep-alive of a new stream, and waits for its answer.
async fn open(
    mut client: LeaseClient,
    id: i64,
    turn: Turn,
) -> Result<Option<Box<Stream>>, etcd_client::Error> {
    match client.keep_alive(id).await {
        Ok((keeper, answers)) => Ok(Some(Box::new(Stream { keeper, answers, sent: VecDeque::new(), turn }))),
        // Either the lease is unknown or the stream broke; the library distinguishes them by text
        // only.
        Err(e @ etcd_client::Error::LeaseKeepAliveError(_)) => {
            let left = client.time_to_live(id, None).await?.ttl();
            if left > 0 { Err(e) } else { Ok(None) }
        }
        Err(e) => Err(e),
    }
}

/// Keys under one lease, which the store deletes soon after this process ends.
///
/// Dropping it stops the keep-alives, and the store deletes the keys when their TTL has passed.
/// [`Registration::revoke`] deletes them at once.
pub struct Registration {
    task: JoinHandle<Lease>,
    stop: DropGuard,
    status: watch::Receiver<Status>,
}

impl Store {
    /// Puts a key under a lease; see [`Store::register_all`].
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
        self.register_all([(key.to_owned(), value.into())], ttl).await
    }

    /// Puts keys with their values under one lease of `ttl` (rounded up to whole seconds) and keeps
    /// them until the registration is revoked or dropped. A process costs the store one lease and
    /// one keep-alive, however many keys it registers.
    ///
    /// If the store loses the lease (after an outage longer than `ttl`) or a key is deleted, it is
    /// put again.
    ///
    /// # Errors
    ///
    /// Fails if the lease cannot be granted or a key cannot be put. Keys that were put then expire.
    pub async fn register_all(
        &self,
        records: impl IntoIterator<Item = (String, Bytes)>,
        ttl: Duration,
    ) -> Result<Registration, Error> {
        register(self.clone(), records.into_iter().collect(), ttl).await
    }
}

impl Registration {
    /// Revokes the lease, which deletes the keys.
    ///
    /// # Errors
    ///
    /// Fails if the store does not answer or refuses the request; the keys then expire after their
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

    /// `Connected` while the keys are known to be in the store.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }
}

pub(crate) async fn register(store: Store, records: Records, ttl: Duration) -> Result<Registration, Error> {
    let lease = put(&store, &records, ttl).await?;
    let (stop, (status, receiver)) = (CancellationToken::new(), watch::channel(Status::Connected));
    let (others, backoff) = (BTreeSet::new(), Backoff::default());
    let keeper = Keeper { store, records, ttl, lease, others, backoff, status };
    let task = tokio::spawn(keeper.run(stop.clone()));
    Ok(Registration { task, stop: stop.drop_guard(), status: receiver })
}

/// Values by key.
type Records = BTreeMap<String, Bytes>;

/// Key that stands for all of them in errors and logs.
fn name(records: &Records) -> &str {
    records.keys().next().map_or("nothing", String::as_str)
}

async fn put(store: &Store, records: &Records, ttl: Duration) -> Result<Lease, Error> {
    let lease = Lease::grant(store, name(records), ttl).await?;
    for (key, value) in records {
        store.put(key, value, lease.id()).await?;
    }
    Ok(lease)
}

struct Keeper {
    store: Store,
    records: Records,
    ttl: Duration,
    lease: Lease,
    /// Keys that other processes hold.
    others: BTreeSet<String>,
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
            KeepAlive::Waiting => Ok(()),
            KeepAlive::Gone => {
                let key = name(&self.records);
                tracing::warn!(key, "the lease does not exist any more; putting its keys again");
                self.lease = put(&self.store, &self.records, self.ttl).await?;
                Ok(())
            }
        }
    }

    /// Checks the keys. The lease may exist and a key not: another process has put the key under its
    /// own lease, or has deleted it. A key that another process holds is left to it; otherwise both
    /// would put it in turn.
    async fn look(&mut self) -> Result<(), Error> {
        let held = self.store.keys_of_lease(name(&self.records), self.lease.id()).await?;
        for (key, value) in &self.records {
            if held.contains(key) {
                self.others.remove(key);
                continue;
            }
            match self.store.get(key).await?.map(|kv| kv.lease) {
                // Put since the keys were read.
                Some(lease) if lease == self.lease.id() => {}
                Some(_) => {
                    if self.others.insert(key.clone()) {
                        tracing::warn!(
                            key,
                            "another process holds our key; is a second one running with the same name?"
                        );
                    }
                }
                None => {
                    tracing::warn!(key, "our key was deleted; putting it again");
                    self.others.remove(key);
                    self.store.put(key, value, self.lease.id()).await?;
                }
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
