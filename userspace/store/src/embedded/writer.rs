//! The thread that changes the state: it takes all queued requests, applies each at its own
//! revision, makes them durable with one fsync, and then answers.

use super::directory::Directory;
use super::disk::{Disk, DiskError};
use super::refusal::Refusal;
use super::state::{Changes, State};
use etcd_client::proto::{
    PbCompactionRequest, PbDeleteRequest, PbDeleteResponse, PbPutRequest, PbPutResponse, PbResponseHeader,
    PbTxnRequest, PbTxnResponse,
};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::DropGuard;
use tonic::Status;

/// Requests in one commit. More would only delay the first of them.
const BATCH: usize = 1024;
/// Commits that take longer are logged: they let leases of a second or two expire.
const SLOW: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(3600);

pub(super) enum Command {
    Put(PbPutRequest, Reply<PbPutResponse>),
    Delete(PbDeleteRequest, Reply<PbDeleteResponse>),
    Txn(PbTxnRequest, Reply<PbTxnResponse>),
    Compact(PbCompactionRequest, Reply<PbResponseHeader>),
    /// Id and TTL as requested and as granted.
    Grant((i64, i64), Reply<(i64, i64)>),
    Revoke(i64, Reply<PbResponseHeader>),
    /// Changes nothing: the answer is sent when everything before is durable.
    Barrier(Reply<()>),
    Stop,
}

pub(super) type Reply<T> = oneshot::Sender<Result<T, Status>>;

/// An answer that is sent after the commit.
type Answer = Box<dyn FnOnce(Result<(), &Status>)>;

pub(super) struct Writer {
    pub(super) directory: Arc<dyn Directory>,
    /// `None` after a failed write, until the file was opened again.
    pub(super) disk: Option<Disk>,
    /// Why the store takes no writes until it is opened anew by another [`Writer`].
    pub(super) failure: watch::Sender<Option<Arc<str>>>,
    pub(super) state: Arc<RwLock<State>>,
    pub(super) durable: watch::Sender<i64>,
    pub(super) commands: Receiver<Command>,
    /// Signals the end of the thread, also after a panic.
    pub(super) _ended: DropGuard,
}

impl Writer {
    pub(super) fn run(mut self) {
        loop {
            let deadline = match *self.failure.borrow() {
                None => self.state.read().unwrap_or_else(PoisonError::into_inner).leases.next_deadline(),
                Some(_) => None,
            };
            let wait = deadline.map_or(IDLE, |at| at.saturating_duration_since(Instant::now()));
            let mut batch = match self.commands.recv_timeout(wait) {
                Ok(first) => vec![first],
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            batch.extend(self.commands.try_iter().take(BATCH));
            let stop = batch.iter().any(|command| matches!(command, Command::Stop));
            self.commit(batch);
            if stop {
                return;
            }
        }
    }

    fn commit(&mut self, batch: Vec<Command>) {
        let failed = self.failure.borrow().as_deref().map(Status::unavailable);
        if let Some(status) = failed {
            batch.into_iter().for_each(|command| refuse(command, &status));
            return;
        }
        if let Err(e) = self.reopen() {
            let status = self.failed(&e);
            batch.into_iter().for_each(|command| refuse(command, &status));
            // An expired lease wakes the thread again; this prevents a busy loop.
            std::thread::sleep(Duration::from_millis(100));
            return;
        }
        let mut changes = Changes::default();
        // One time for both: a pause between them ends no lease.
        let now = Instant::now();
        let (answers, revision, compacted) = {
            let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
            state.leases.runs(now);
            let mut answers: Vec<Answer> = Vec::with_capacity(batch.len());
            answers.extend(batch.into_iter().filter_map(|command| apply(&mut state, &mut changes, command)));
            tidy(&mut state, &mut changes, now);
            (answers, state.history.revision(), state.history.compacted())
        };
        let start = Instant::now();
        let written = match &self.disk {
            Some(disk) if !changes.is_empty() => disk.commit(&changes, revision, compacted),
            _ => Ok(()),
        };
        let (took, put, dropped) = (start.elapsed(), changes.versions.len(), changes.dropped.len());
        if took > SLOW {
            tracing::warn!(?took, put, dropped, "slow disk under the embedded store");
        } else {
            tracing::trace!(?took, put, dropped, "commit");
        }
        let durable = match written {
            Ok(()) => {
                self.publish(revision);
                Ok(())
            }
            Err(e) => {
                let unknown = self.failed(&e);
                if !e.is_full() || self.reopen().is_err() {
                    Err(unknown)
                } else if self.has(&changes, revision, compacted) {
                    Ok(())
                } else {
                    // Unavailable would mean that the outcome is unknown. A leader finds it out by another write,
                    // again and again while there is no room.
                    Err(Status::resource_exhausted(unknown.message()))
                }
            }
        };
        answers.into_iter().for_each(|answer| answer(durable.as_ref().copied()));
    }

    /// Whether the state, which was read from the file, has the changes of a batch. The file has all of them or none.
    fn has(&self, changes: &Changes, revision: i64, compacted: i64) -> bool {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let has_lease = |id: &i64| state.leases.exists(*id);
        // Only puts and deletions raise the revision.
        state.durable >= revision
            && state.history.compacted() >= compacted
            && changes.granted.iter().all(|(id, _)| has_lease(id) || changes.revoked.contains(id))
            && !changes.revoked.iter().any(has_lease)
    }

    /// After a write for which there was no room, the contents of the file count: `reopen` reads it
    /// at once, or before the next batch. After every other failure, those that this system reads now may differ
    /// from those on the disk, so the store takes no writes any more.
    fn failed(&mut self, error: &DiskError) -> Status {
        self.disk = None;
        let source = std::error::Error::source(error).map(|s| format!(": {s}")).unwrap_or_default();
        let text = if error.is_full() {
            format!("embedded store: {error}{source}")
        } else {
            let text = format!(
                "store failed: {error}{source}; it takes no writes until netmaster is restarted, check the disk first"
            );
            self.failure.send_replace(Some(text.as_str().into()));
            text
        };
        tracing::error!("{text}");
        Status::unavailable(text)
    }

    fn publish(&self, revision: i64) {
        self.state.write().unwrap_or_else(PoisonError::into_inner).durable = revision;
        self.durable.send_if_modified(|durable| std::mem::replace(durable, revision) != revision);
    }

    fn reopen(&mut self) -> Result<(), DiskError> {
        if self.disk.is_none() {
            let (disk, _, state) = Disk::open(&*self.directory)?;
            let durable = state.durable;
            *self.state.write().unwrap_or_else(PoisonError::into_inner) = state;
            self.disk = Some(disk);
            self.publish(durable);
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failure.send_replace(Some("store failed: its writer panicked; restart netmaster".into()));
        }
    }
}

/// Changes the state in memory. The returned answer is sent when the change is durable.
fn apply(state: &mut State, changes: &mut Changes, command: Command) -> Option<Answer> {
    Some(match command {
        Command::Put(request, reply) => answer(reply, state.step(changes).put(request)),
        Command::Delete(request, reply) => answer(reply, Ok(state.step(changes).delete(&request))),
        Command::Txn(request, reply) => answer(reply, state.step(changes).txn(request)),
        Command::Compact(request, reply) => {
            let result = state.compact(changes, request.revision);
            answer(reply, result.map(|()| header(state)))
        }
        Command::Grant(wanted, reply) => answer(reply, state.grant(changes, wanted, Instant::now())),
        Command::Revoke(id, reply) => {
            let result = state.revoke(changes, id);
            answer(reply, result.map(|()| header(state)))
        }
        Command::Barrier(reply) => answer(reply, Ok(())),
        Command::Stop => return None,
    })
}

/// Revokes leases that have expired by `now`, and compacts the history.
fn tidy(state: &mut State, changes: &mut Changes, now: Instant) {
    for id in state.leases.expired(now) {
        tracing::debug!(lease = id, "expired");
        // Cannot fail: the lease was found under the same lock.
        if let Err(refusal) = state.revoke(changes, id) {
            tracing::error!(lease = id, %refusal, "expired lease");
        }
    }
    if let Some(to) = state.history.overgrown(state.durable)
        && let Err(refusal) = state.compact(changes, to)
    {
        tracing::error!(to, %refusal, "automatic compaction");
    }
}

fn header(state: &State) -> PbResponseHeader {
    PbResponseHeader { revision: state.history.revision(), ..PbResponseHeader::default() }
}

fn answer<T: 'static>(reply: Reply<T>, result: Result<T, Refusal>) -> Answer {
    Box::new(move |durable| {
        let result = match durable {
            Ok(()) => result.map_err(Status::from),
            Err(status) => Err(status.clone()),
        };
        // Fails if the client has gone away.
        drop(reply.send(result));
    })
}

fn refuse(command: Command, status: &Status) {
    fn no<T>(reply: Reply<T>, status: &Status) {
        drop(reply.send(Err(status.clone())));
    }
    match command {
        Command::Put(_, reply) => no(reply, status),
        Command::Delete(_, reply) => no(reply, status),
        Command::Txn(_, reply) => no(reply, status),
        Command::Compact(_, reply) | Command::Revoke(_, reply) => no(reply, status),
        Command::Grant(_, reply) => no(reply, status),
        Command::Barrier(reply) => no(reply, status),
        Command::Stop => {}
    }
}
