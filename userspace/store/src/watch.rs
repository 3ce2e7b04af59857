//! Watches on a prefix: a snapshot, then every change.

mod fragments;
mod known;

use crate::backoff::Backoff;
use crate::client::{ANSWER_LIMIT, Omission, Walk, Without};
use crate::error::one_line;
use crate::members::Turn;
use crate::{Cause, Error, KeyValue, Operation, Position, Store};
use contiv_model::event::Event;
use etcd_client::proto::PbWatchResponse;
use etcd_client::{ResponseHeader, WatchOptions, WatchStream};
use fragments::Fragments;
use futures::Stream;
use futures::stream::{self, BoxStream, StreamExt};
use known::Known;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Code;

/// A watch that existed for this long resets the backoff when it ends.
const SETTLED: Duration = Duration::from_secs(10);

/// One change below the prefix, or a part of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The store's revision of the change. Changes of one transaction have the same revision.
    pub revision: i64,
    /// The change; the key is the full key.
    pub event: Event<String, KeyValue>,
}

/// Updates that a [`Watch`] received together: a listing, or the whole revisions that one message of the
/// server completed. The changes of one revision are never in different batches.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Present if the updates come from a listing.
    pub relisted: Option<Relisted>,
    /// True if the watch was lost and continues from its revision with what follows. Such a batch has no
    /// updates. The watch compared its own prefix only.
    pub resumed: bool,
    /// The updates. A listing without differences has none.
    pub updates: Vec<Update>,
}

/// A listing, as compared with what the watch reported before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relisted {
    /// Store and revision of the listing.
    pub position: Position,
    /// Why the listing is not of a later state of the same store: the store was emptied, replaced or
    /// restored from a backup.
    pub divergence: Option<String>,
}

/// Number of keys and messages that watches have received. It grows while a listing arrives page by page.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    /// The number.
    pub fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts one more.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// State of a watch or registration, for readiness checks and operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// The first snapshot has not arrived.
    Connecting,
    /// Changes arrive as they happen.
    Connected,
    /// The connection failed, and the known state may be stale. Retried without limit.
    Retrying {
        /// Failed attempts so far.
        failures: u32,
        /// Last error, in one line.
        error: Arc<str>,
    },
}

/// The stream of [`Update`]s; it never ends.
///
/// `Init`, `InitApply`..., `InitDone` come once, at the beginning. Afterwards there are only
/// `Apply` and `Delete`, and only for real changes. After a restart or an outage of the store, the
/// watch continues from its revision. If the history since then was compacted, or is not that of the
/// store that was watched, the watch lists the prefix again and reports the differences. Several changes of a
/// key during an outage are reported as one. Dropping a `next()` future loses nothing.
///
/// The watch makes progress only while it is polled, within a tokio runtime.
pub struct Watch {
    batches: BoxStream<'static, Batch>,
    /// Updates of the last batch that were not returned yet.
    ready: VecDeque<Update>,
    status: watch::Receiver<Status>,
}

impl Store {
    /// Watches all keys that begin with `prefix`; see [`Watch`]. Sends nothing before the first
    /// poll.
    pub fn watch(&self, prefix: &str) -> Watch {
        Follower::new(self, prefix, State::Unlisted).watch()
    }

    /// Like [`Store::watch`], with a first snapshot in batches of some MB: it is never in memory as a
    /// whole. The last of these batches has [`Batch::relisted`]. If the snapshot has to begin again, there is
    /// another `Init` before the first `InitDone`. The watch counts in `progress` what it receives.
    ///
    /// Of keys that begin with one of these prefixes, listings leave out the values, which are empty then, or the keys, of which
    /// the caller reads what it needs; none of the prefixes may begin with another one. The watch reports each change of such a key
    /// with its value. But where a listing replaces lost changes ([`Batch::relisted`]), those of omitted keys are lost.
    pub fn watch_in_pages(&self, prefix: &str, omissions: &[(&str, Without)], progress: &Progress) -> Watch {
        let owned = |(prefix, without): &(&str, Without)| ((*prefix).to_owned(), *without);
        let omissions: Arc<[Omission]> = omissions.iter().map(owned).collect();
        let walk = Box::new(Walk::new(prefix, omissions.clone()));
        let follower = Follower {
            in_pages: true,
            progress: progress.clone(),
            known: Known::new(false, omissions),
            ..Follower::new(self, prefix, State::Listing { walk })
        };
        follower.watch()
    }

    /// Like [`Store::watch`], with only the keys whose values `keep` returns true for. The watch neither
    /// reports the others nor holds them, but the server sends them. A key whose new value is not kept is reported
    /// as deleted. `keep` must return the same for the same value.
    pub fn watch_where(
        &self,
        prefix: &str,
        keep: impl Fn(&KeyValue) -> bool + Send + Sync + 'static,
    ) -> Watch {
        let follower = Follower {
            filter: Filter(Some(Box::new(keep))),
            known: Known::new(true, Arc::default()),
            ..Follower::new(self, prefix, State::Unlisted)
        };
        follower.watch()
    }

    /// Like [`Store::watch`], without the snapshot: the updates are the changes after `revision`,
    /// and deletions of keys that the watch has not reported. If the history since `revision` is not
    /// available, or ceases to be, the watch lists the prefix: a batch with [`Batch::relisted`].
    pub fn watch_after(&self, prefix: &str, revision: i64) -> Watch {
        Follower::new(self, prefix, State::Listed { revision, resumed: false }).watch()
    }
}

impl Watch {
    /// Changes whenever the connection is established or lost.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Returns the updates in batches instead of one by one.
    pub fn batches(self) -> impl Stream<Item = Batch> + Send + use<> {
        self.batches
    }
}

impl Stream for Watch {
    type Item = Update;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Update>> {
        loop {
            if let Some(update) = self.ready.pop_front() {
                return Poll::Ready(Some(update));
            }
            match self.batches.poll_next_unpin(cx) {
                Poll::Ready(Some(batch)) => self.ready = batch.updates.into(),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// Which keys a watch reports; all of them if there is no function.
#[derive(Default)]
struct Filter(Option<Box<Keep>>);

type Keep = dyn Fn(&KeyValue) -> bool + Send + Sync;

impl Filter {
    fn keeps(&self, kv: &KeyValue) -> bool {
        self.0.as_ref().is_none_or(|keep| keep(kv))
    }
}

struct Follower {
    store: Store,
    prefix: String,
    filter: Filter,
    progress: Progress,
    /// Whether the first snapshot is reported page by page.
    in_pages: bool,
    state: State,
    known: Known,
    backoff: Backoff,
    status: watch::Sender<Status>,
}

enum State {
    /// The known state, if any, may be stale.
    Unlisted,
    /// There was no snapshot, and a part of the first one may have been reported.
    Listing { walk: Box<Walk> },
    /// The state up to `revision` is known, of a store that may be replaced by now; `resumed` if a
    /// watch was opened there before and lost.
    Listed { revision: i64, resumed: bool },
    /// The state up to `revision` is known, and the member of `turn` sends later changes.
    /// `fragments` has changes after `revision` that have arrived in part.
    Watching { revision: i64, stream: Box<WatchStream>, fragments: Fragments, since: Instant, turn: Turn },
    /// A request failed; the next attempt is at `until`, with the watch if the state up to `known`
    /// is known.
    Waiting { until: Instant, known: Option<i64> },
}

/// A stream whose watch the server has confirmed.
struct Opened {
    stream: WatchStream,
    /// The server's revision at the confirmation.
    revision: i64,
}

impl Follower {
    fn new(store: &Store, prefix: &str, state: State) -> Follower {
        Follower {
            store: store.clone(),
            prefix: prefix.to_owned(),
            filter: Filter::default(),
            progress: Progress::default(),
            in_pages: false,
            state,
            known: Known::default(),
            backoff: Backoff::default(),
            status: watch::Sender::new(Status::Connecting),
        }
    }

    fn watch(self) -> Watch {
        let status = self.status.subscribe();
        let batches = stream::unfold(self, |mut follower| async move {
            loop {
                let batch = follower.step().await;
                if batch.relisted.is_some() || batch.resumed || !batch.updates.is_empty() {
                    return Some((batch, follower));
                }
            }
        });
        Watch { batches: batches.boxed(), ready: VecDeque::new(), status }
    }

    /// Takes one step: one request or one message. A step that is dropped half-way is taken again.
    async fn step(&mut self) -> Batch {
        match &mut self.state {
            State::Unlisted if self.in_pages && !self.known.is_complete() => {
                self.restart_listing();
                Batch::default()
            }
            State::Listing { walk } => {
                let mut keep = |kv: &KeyValue| {
                    self.progress.advance();
                    self.filter.keeps(kv)
                };
                match self.store.list_page(&self.prefix, walk, &mut keep).await {
                    Ok(page) => {
                        let (at, is_last) = (page.at, page.is_last);
                        let updates = self.known.part(page);
                        if is_last {
                            self.state = State::Listed { revision: at.revision, resumed: false };
                        }
                        let relisted = is_last.then_some(Relisted { position: at, divergence: None });
                        Batch { relisted, resumed: false, updates }
                    }
                    // The revision was compacted between two pages.
                    Err(e) if e.is_compacted() => {
                        tracing::debug!(prefix = self.prefix, "compacted while listing; listing again");
                        self.restart_listing();
                        Batch::default()
                    }
                    Err(e) => {
                        self.known.forget_parts();
                        self.failed(e)
                    }
                }
            }
            State::Unlisted => {
                let mut keep = |kv: &KeyValue| {
                    self.progress.advance();
                    self.filter.keeps(kv)
                };
                match self.store.list_counting(&self.prefix, &self.known.omissions(), &mut keep).await {
                    Ok((listing, dropped)) => {
                        self.state = State::Listed { revision: listing.revision, resumed: false };
                        let position = Position { cluster: listing.cluster, revision: listing.revision };
                        let divergence = self.known.divergence(&listing);
                        let updates = self.known.snapshot(listing, dropped);
                        Batch { relisted: Some(Relisted { position, divergence }), resumed: false, updates }
                    }
                    Err(e) => self.failed(e),
                }
            }
            State::Listed { revision, resumed } => {
                let (revision, resumed) = (*revision, *resumed);
                self.follow(revision, resumed).await
            }
            State::Watching { revision, stream, fragments, since, turn } => {
                let turn = *turn;
                let message = tokio::select! {
                    message = stream.message() => message,
                    // A member that does not answer other requests may be silent here for a long
                    // time.
                    () = self.store.members().moved(turn) => {
                        self.state = State::Listed { revision: *revision, resumed: true };
                        return Batch::default();
                    }
                };
                let settled = since.elapsed() > SETTLED;
                match message {
                    Ok(Some(message)) if message.canceled() => {
                        let cause = canceled(&message.0);
                        self.lost(settled, cause)
                    }
                    Ok(Some(message)) => {
                        self.progress.advance();
                        // A watch whose keys rarely change would otherwise fall behind the compaction, and
                        // list them again after each interruption.
                        let progress = fragments.progress(&message.0);
                        let events = fragments.join(message.0);
                        // Not the revision of the header: a server with a backlog reports its
                        // current revision there, ahead of the events that it has sent.
                        let sent = events.iter().filter_map(|e| Some(e.kv.as_ref()?.mod_revision));
                        *revision = sent.chain(progress).fold(*revision, i64::max);
                        if !events.is_empty() {
                            self.backoff.reset();
                        }
                        let keep = |kv: &KeyValue| self.filter.keeps(kv);
                        Batch { updates: self.known.changes(events, keep), ..Batch::default() }
                    }
                    Ok(None) => self.broken(settled, turn, Cause::broken("the server ended the watch")).await,
                    Err(e) => self.broken(settled, turn, e.into()).await,
                }
            }
            State::Waiting { until, known } => {
                tokio::time::sleep_until(*until).await;
                self.state = match *known {
                    Some(revision) => State::Listed { revision, resumed: true },
                    None => State::Unlisted,
                };
                Batch::default()
            }
        }
    }

    /// Begins the first snapshot, again if a part of it was reported.
    fn restart_listing(&mut self) {
        self.known.forget_parts();
        let walk = Walk::new(&self.prefix, self.known.omissions());
        self.state = State::Listing { walk: Box::new(walk) };
    }

    /// Opens a watch of the changes after `revision`. Then compares the history: a store that is
    /// replaced later ends the watch.
    async fn follow(&mut self, revision: i64, resumed: bool) -> Batch {
        let turn = self.store.members().turn();
        let opened = match self.open(revision.saturating_add(1)).await {
            Ok(opened) => opened,
            Err(e) => {
                if e.is_transient() {
                    self.store.members().failed(turn, &e).await;
                }
                return self.failed(e);
            }
        };
        match self.continues(revision).await {
            Ok(true) => {}
            Ok(false) => {
                self.state = State::Unlisted;
                return Batch::default();
            }
            Err(e) => return self.failed(e),
        }
        // A member that lags would be silent until it has reached the revision.
        if opened.revision < revision {
            let cause = Cause::broken("the server has not reached the revision of the watch");
            let error = self.store.error(Operation::Watch, &self.prefix, cause);
            self.store.members().failed(turn, &error).await;
            return self.failed(error);
        }
        let (stream, fragments) = (Box::new(opened.stream), Fragments::default());
        self.state = State::Watching { revision, stream, fragments, since: Instant::now(), turn };
        self.status.send_if_modified(|s| std::mem::replace(s, Status::Connected) != Status::Connected);
        Batch { resumed, ..Batch::default() }
    }

    /// Returns true if the store has the history that was known up to `revision`, and can tell what
    /// happened since. It has not if it was emptied, replaced or restored, or if the history was
    /// compacted. Reads one key and the number of keys.
    async fn continues(&self, revision: i64) -> Result<bool, Error> {
        if !self.known.is_complete() {
            // Nothing to compare. The server refuses the watch if the history is compacted.
            return Ok(true);
        }
        // Without keys, the cluster and the number are compared. The key is in the prefix, which the
        // store's user may read.
        let none = if self.prefix.is_empty() { "\0" } else { &self.prefix };
        let newest = self.known.newest().unwrap_or_else(|| none.to_owned());
        let at_revision = async {
            let (kv, cluster) = self.store.get_at_with_cluster(&newest, revision).await?;
            let count = self.store.count_at(&self.prefix, revision).await?;
            Ok::<_, Error>(self.known.has(&newest, kv.as_ref(), cluster) && count == self.known.count())
        };
        match at_revision.await {
            // Compacted, or a revision that the store has not reached.
            Err(e) if e.is_out_of_range() => Ok(false),
            result => result,
        }
    }

    /// Opens a stream whose watch the server has confirmed.
    async fn open(&self, start: i64) -> Result<Opened, Error> {
        // Longer after failures: the next member needs a new connection, which takes longer on a slow
        // network.
        let patience = ANSWER_LIMIT * (1 << self.backoff.failures().min(2));
        let limit = match self.store.members().several() {
            true => patience.min(self.store.request_timeout()),
            false => self.store.request_timeout(),
        };
        // Without fragments, etcd sends the history of up to 1000 revisions in one message.
        let options = WatchOptions::new().with_start_revision(start).with_progress_notify().with_fragment();
        let options = if self.prefix.is_empty() { options.with_all_keys() } else { options.with_prefix() };
        let open = async {
            let mut client = self.store.watch_client();
            let mut stream = client.watch(self.prefix.as_str(), Some(options)).await?;
            let first = stream.message().await?;
            Ok::<_, etcd_client::Error>((first, stream))
        };
        let opened = tokio::time::timeout(limit, open).await;
        let fail = |cause: Cause| self.store.error(Operation::Watch, &self.prefix, cause);
        match opened.map_err(|_| self.store.timeout(Operation::Watch, &self.prefix, limit))? {
            Ok((Some(first), _)) if first.canceled() => Err(fail(canceled(&first.0))),
            Ok((Some(first), stream)) => {
                let revision = first.header().map_or(i64::MAX, ResponseHeader::revision);
                Ok(Opened { revision, stream })
            }
            Ok((None, _)) => Err(fail(Cause::broken("the server ended the watch at once"))),
            Err(e) => Err(fail(e.into())),
        }
    }

    /// Handles the end of the stream, which may mean that the member failed.
    async fn broken(&mut self, settled: bool, turn: Turn, cause: Cause) -> Batch {
        let error = self.store.error(Operation::Watch, &self.prefix, cause.clone());
        self.store.members().failed(turn, &error).await;
        self.lost(settled, cause)
    }

    fn lost(&mut self, settled: bool, cause: Cause) -> Batch {
        if settled {
            self.backoff.reset();
        }
        let error = self.store.error(Operation::Watch, &self.prefix, cause);
        self.failed(error)
    }

    #[expect(clippy::needless_pass_by_value, reason = "the error ends here, as text")]
    fn failed(&mut self, error: Error) -> Batch {
        let wait = self.backoff.next();
        let text: Arc<str> = one_line(&error).into();
        if self.backoff.worth_logging() {
            tracing::warn!(failures = self.backoff.failures(), "{text}; retrying in {wait:?}");
        }
        let known = match &self.state {
            // The history is compacted: only a listing helps.
            _ if error.is_out_of_range() => None,
            State::Listed { revision, .. } | State::Watching { revision, .. } => Some(*revision),
            State::Unlisted | State::Listing { .. } | State::Waiting { .. } => None,
        };
        self.state = State::Waiting { until: Instant::now() + wait, known };
        self.status.send_replace(Status::Retrying { failures: self.backoff.failures(), error: text });
        Batch::default()
    }
}

fn canceled(message: &PbWatchResponse) -> Cause {
    if message.compact_revision > 0 {
        let text = format!("history before revision {} is compacted", message.compact_revision);
        return Cause::refused(Code::OutOfRange, text);
    }
    let reason =
        if message.cancel_reason.is_empty() { "canceled by the server" } else { &message.cancel_reason };
    Cause::refused(Code::Aborted, reason)
}
