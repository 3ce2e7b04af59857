//! `etcdserverpb.Watch`. A watcher is a position in the history: after each durable change, every
//! stream reads on from the positions of its watchers. A watcher that cannot keep up is cancelled
//! because its position was compacted.

use super::fragments;
use super::history::Change;
use super::shared::Shared;
use super::span::Span;
use super::state::{State, wire};
use etcd_client::proto::{
    PbEvent, PbKeyValue, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse, PbWatchService,
};
use etcd_client::{EventType, WatchFilterType};
use futures::StreamExt;
use futures::stream::BoxStream;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Interval of progress notifications, as in etcd.
const PROGRESS: Duration = Duration::from_secs(600);
/// Responses queued for a slow client; its position in the history waits with it.
const QUEUE: usize = 8;
/// Events in one response, unless a single revision has more.
const MAX_EVENTS: usize = 1000;
const MAX_BYTES: usize = 1 << 20;

/// Watch id of responses about the stream.
const NO_WATCH: i64 = -1;

pub(super) struct WatchService(pub(super) Shared);

#[tonic::async_trait]
impl PbWatchService for WatchService {
    type WatchStream = BoxStream<'static, Result<PbWatchResponse, Status>>;

    async fn watch(
        &self,
        request: Request<Streaming<PbWatchRequest>>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (out, responses) = mpsc::channel(QUEUE);
        let session = Session { shared: self.0.clone(), watchers: BTreeMap::new(), next_id: 0, out };
        // It ends with either side of the stream, or with the server.
        tokio::spawn(session.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(responses).boxed()))
    }
}

struct Session {
    shared: Shared,
    watchers: BTreeMap<i64, Watcher>,
    next_id: i64,
    out: mpsc::Sender<Result<PbWatchResponse, Status>>,
}

struct Watcher {
    span: Span,
    /// The first revision that has not been sent.
    next: i64,
    puts: bool,
    deletes: bool,
    prev_kv: bool,
    progress: bool,
    /// Whether large responses are divided.
    fragment: bool,
    last_sent: Instant,
}

/// The client or the server has closed the stream.
struct Gone;

impl Session {
    async fn run(mut self, mut requests: Streaming<PbWatchRequest>) {
        let (stop, out) = (self.shared.stop.clone(), self.out.clone());
        let serve = async {
            let mut durable = self.shared.durable.clone();
            let mut progress = tokio::time::interval(PROGRESS);
            loop {
                let step = tokio::select! {
                    request = requests.message() => match request {
                        Ok(Some(request)) => self.request(request).await,
                        Ok(None) | Err(_) => Err(Gone),
                    },
                    moved = durable.changed() => match moved {
                        Ok(()) => self.deliver().await,
                        Err(_) => Err(Gone),
                    },
                    _ = progress.tick() => self.send_progress().await,
                };
                if step.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = serve => {}
            () = stop.cancelled() => {
                let stopping = Status::unavailable("embedded store: stopping");
                // Does not wait for a client that does not read.
                drop(out.try_send(Err(stopping)));
            }
            () = out.closed() => {}
        }
    }

    async fn send(&self, mut response: PbWatchResponse, revision: i64) -> Result<(), Gone> {
        response.header = self.shared.header(revision);
        self.out.send(Ok(response)).await.map_err(|_| Gone)
    }

    async fn request(&mut self, request: PbWatchRequest) -> Result<(), Gone> {
        match request.request_union {
            Some(PbWatchRequestUnion::CreateRequest(create)) => {
                let now = self.shared.read(|state| state.durable);
                let key = if create.key.is_empty() { &[0][..] } else { &create.key[..] };
                let watcher = Watcher {
                    span: Span::new(key, &create.range_end),
                    next: if create.start_revision > 0 { create.start_revision } else { now + 1 },
                    puts: !create.filters.contains(&(WatchFilterType::NoPut as i32)),
                    deletes: !create.filters.contains(&(WatchFilterType::NoDelete as i32)),
                    prev_kv: create.prev_kv,
                    progress: create.progress_notify,
                    fragment: create.fragment,
                    last_sent: Instant::now(),
                };
                self.create(create.watch_id, watcher, now).await
            }
            Some(PbWatchRequestUnion::CancelRequest(cancel)) => {
                let id = cancel.watch_id;
                if self.watchers.remove(&id).is_none() {
                    return Ok(());
                }
                let now = self.shared.read(|state| state.durable);
                self.send(PbWatchResponse { watch_id: id, canceled: true, ..Default::default() }, now).await
            }
            Some(PbWatchRequestUnion::ProgressRequest(_)) => {
                let now = *self.shared.durable.borrow();
                // A client that has received a revision has received everything before it.
                self.deliver().await?;
                self.send(PbWatchResponse { watch_id: NO_WATCH, ..Default::default() }, now).await
            }
            None => Ok(()),
        }
    }

    async fn create(&mut self, wanted: i64, watcher: Watcher, now: i64) -> Result<(), Gone> {
        let refused = if watcher.span.is_empty() {
            Some("mvcc: watcher range is empty")
        } else if wanted != 0 && self.watchers.contains_key(&wanted) {
            Some("mvcc: duplicate watch ID provided on the WatchStream")
        } else {
            None
        };
        if let Some(reason) = refused {
            let refusal = PbWatchResponse {
                watch_id: NO_WATCH,
                created: true,
                canceled: true,
                cancel_reason: reason.to_owned(),
                ..Default::default()
            };
            return self.send(refusal, now).await;
        }
        let id = if wanted != 0 { wanted } else { self.free_id() };
        self.watchers.insert(id, watcher);
        self.send(PbWatchResponse { watch_id: id, created: true, ..Default::default() }, now).await?;
        self.deliver_to(id).await
    }

    fn free_id(&mut self) -> i64 {
        while self.watchers.contains_key(&self.next_id) {
            self.next_id += 1;
        }
        self.next_id += 1;
        self.next_id - 1
    }

    async fn deliver(&mut self) -> Result<(), Gone> {
        let ids: Vec<i64> = self.watchers.keys().copied().collect();
        for id in ids {
            self.deliver_to(id).await?;
        }
        Ok(())
    }

    /// Sends all durable changes that the watcher has not received.
    async fn deliver_to(&mut self, id: i64) -> Result<(), Gone> {
        while let Some(watcher) = self.watchers.get_mut(&id) {
            match self.shared.read(|state| watcher.read_on(state)) {
                Portion::Nothing => return Ok(()),
                Portion::Events { events, upto, rest } => {
                    (watcher.next, watcher.last_sent) = (upto + 1, Instant::now());
                    let parts = if watcher.fragment { fragments::divide(events) } else { vec![events] };
                    let mut parts = parts.into_iter().peekable();
                    while let Some(events) = parts.next() {
                        let fragment = parts.peek().is_some();
                        let response =
                            PbWatchResponse { watch_id: id, events, fragment, ..Default::default() };
                        self.send(response, upto).await?;
                    }
                    if !rest {
                        return Ok(());
                    }
                }
                Portion::Compacted { at, now } => {
                    self.watchers.remove(&id);
                    let response = PbWatchResponse {
                        watch_id: id,
                        canceled: true,
                        compact_revision: at,
                        ..Default::default()
                    };
                    return self.send(response, now).await;
                }
            }
        }
        Ok(())
    }

    /// Notifies watchers that asked for it and have received nothing for a long time.
    async fn send_progress(&mut self) -> Result<(), Gone> {
        let now = *self.shared.durable.borrow();
        self.deliver().await?;
        let quiet = |w: &&mut Watcher| w.progress && w.last_sent.elapsed() >= PROGRESS / 2;
        let mut due = Vec::new();
        for (id, watcher) in &mut self.watchers {
            if let Some(watcher) = Some(watcher).filter(quiet) {
                watcher.last_sent = Instant::now();
                due.push((*id, now.min(watcher.next - 1)));
            }
        }
        for (id, revision) in due {
            self.send(PbWatchResponse { watch_id: id, ..Default::default() }, revision).await?;
        }
        Ok(())
    }
}

enum Portion {
    Nothing,
    Events { events: Vec<PbEvent>, upto: i64, rest: bool },
    Compacted { at: i64, now: i64 },
}

impl Watcher {
    /// Reads the next changes; skips those of other keys.
    fn read_on(&mut self, state: &State) -> Portion {
        let (now, compacted) = (state.durable, state.history.compacted());
        if self.next < compacted {
            return Portion::Compacted { at: compacted, now };
        }
        let (mut events, mut bytes) = (Vec::new(), 0);
        for (revision, changes) in state.history.changes(self.next, now) {
            if events.len() >= MAX_EVENTS || bytes >= MAX_BYTES {
                return Portion::Events { events, upto: revision - 1, rest: true };
            }
            for change in changes.iter().filter(|change| self.wants(change)) {
                bytes += change.now.key.len() + change.now.value.len();
                events.push(self.event(change));
            }
        }
        if events.is_empty() {
            self.next = self.next.max(now + 1);
            return Portion::Nothing;
        }
        Portion::Events { events, upto: now, rest: false }
    }

    fn wants(&self, change: &Change) -> bool {
        let kind = if change.now.is_deletion() { self.deletes } else { self.puts };
        kind && self.span.contains(&change.now.key)
    }

    fn event(&self, change: &Change) -> PbEvent {
        let now = &change.now;
        let (kind, kv) = if now.is_deletion() {
            let kv =
                PbKeyValue { key: now.key.to_vec(), mod_revision: now.mod_revision, ..Default::default() };
            (EventType::Delete, kv)
        } else {
            (EventType::Put, wire(now))
        };
        let prev_kv = change.before.as_ref().filter(|_| self.prev_kv).map(|before| wire(before));
        PbEvent { r#type: kind as i32, kv: Some(kv), prev_kv }
    }
}
