//! Changes of the store that wait for the clients of watches.
//!
//! They are read as they come, so that a client that is slow holds up no other reader of the connection to
//! the store. What waits is limited for each watch, and for all watches together. A watch that exceeds a
//! limit ends, and what waits for its client is dropped at once: the client may never take it. It connects
//! again and continues after its last event.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use contiv_model::event::Event;
use contiv_store::{Batch, Update};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Batches that wait for one client.
const MAX_BATCHES: usize = 64;
/// Bytes that wait for one client. A single batch may be larger. It is several messages of the store: a
/// client that gets earlier changes exceeds it again and again, and each time etcd reads the changes anew.
const MAX_BYTES: usize = 8 << 20;
/// Bytes that wait for all clients. A single batch may be larger.
const MAX_BYTES_OF_ALL: usize = 128 << 20;

/// The backlogs of all watches.
#[derive(Clone)]
pub struct WatchBacklogs(Arc<Shared>);

struct Shared {
    /// Largest number of bytes of all backlogs.
    limit: usize,
    backlogs: Mutex<Backlogs>,
}

#[derive(Default)]
struct Backlogs {
    /// By the numbers of the watches.
    open: HashMap<u64, Backlog>,
    next: u64,
    bytes: usize,
}

/// Batches that wait for the client of a watch.
struct Backlog {
    /// With the size of each.
    batches: VecDeque<(Batch, usize)>,
    bytes: usize,
    /// The client waits for a batch.
    is_awaited: bool,
    signals: Signals,
}

#[derive(Clone, Default)]
struct Signals {
    /// A batch arrived, or the backlog was closed.
    changed: Arc<Notify>,
    /// No further batch is accepted.
    closed: CancellationToken,
}

/// One side of a backlog.
struct Side {
    shared: Arc<Shared>,
    number: u64,
    signals: Signals,
}

/// Adds batches to a backlog. The backlog is closed when this is dropped.
pub struct BacklogSender(Side);

/// Takes batches out of a backlog.
pub struct BacklogReceiver(Side);

impl WatchBacklogs {
    /// `limit`: bytes that may wait for all clients.
    fn new(limit: usize) -> WatchBacklogs {
        WatchBacklogs(Arc::new(Shared { limit, backlogs: Mutex::default() }))
    }

    /// Opens the backlog of a watch.
    pub fn open(&self) -> (BacklogSender, BacklogReceiver) {
        let signals = Signals::default();
        let mut backlogs = self.0.lock();
        let number = backlogs.next;
        backlogs.next += 1;
        let backlog =
            Backlog { batches: VecDeque::new(), bytes: 0, is_awaited: false, signals: signals.clone() };
        backlogs.open.insert(number, backlog);
        let side = || Side { shared: self.0.clone(), number, signals: signals.clone() };
        (BacklogSender(side()), BacklogReceiver(side()))
    }

    /// Approximate bytes that wait for all clients.
    pub fn bytes(&self) -> usize {
        self.0.lock().bytes
    }
}

impl Default for WatchBacklogs {
    fn default() -> WatchBacklogs {
        WatchBacklogs::new(MAX_BYTES_OF_ALL)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Backlogs> {
        self.backlogs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BacklogSender {
    /// Adds a batch, unless the backlog is closed. Closes it if it exceeds a limit.
    pub fn send(&self, batch: Batch) {
        let size = size(&batch);
        let limit = self.0.shared.limit;
        // What is dropped is freed without the lock.
        let _dropped = self.0.shared.lock().push(self.0.number, batch, size, limit);
    }

    /// Resolves when the backlog is closed.
    pub async fn closed(&self) {
        self.0.signals.closed.cancelled().await;
    }
}

impl Drop for BacklogSender {
    fn drop(&mut self) {
        self.0.signals.close();
    }
}

impl BacklogReceiver {
    /// The next batch; none if the backlog is closed and empty.
    pub async fn recv(&mut self) -> Option<Batch> {
        loop {
            let next = self.0.shared.lock().take(self.0.number);
            match next {
                Poll::Ready(batch) => return batch,
                Poll::Pending => self.0.signals.changed.notified().await,
            }
        }
    }
}

impl Drop for BacklogReceiver {
    fn drop(&mut self) {
        self.0.signals.close();
        let _dropped = self.0.shared.lock().remove(self.0.number);
    }
}

impl Signals {
    fn close(&self) {
        self.closed.cancel();
        self.changed.notify_one();
    }
}

impl Backlogs {
    /// Returns what is dropped because a limit is exceeded.
    fn push(&mut self, number: u64, batch: Batch, size: usize, limit: usize) -> Vec<(Batch, usize)> {
        let Some(backlog) = self.open.get_mut(&number).filter(|backlog| !backlog.is_closed()) else {
            return vec![(batch, size)];
        };
        backlog.batches.push_back((batch, size));
        backlog.bytes += size;
        self.bytes += size;
        backlog.signals.changed.notify_one();
        let count = backlog.batches.len();
        let is_exceeded = count > MAX_BATCHES || count > 1 && backlog.bytes > MAX_BYTES;
        let mut dropped = if is_exceeded { self.cut(number) } else { Vec::new() };
        // One that is slow makes room for the others.
        while self.bytes > limit
            && let Some(largest) = self.largest()
        {
            dropped.extend(self.cut(largest));
        }
        dropped
    }

    /// The largest backlog that can be cut, of those that are not closed if there are any. The last one
    /// that is filled is not cut twice, so a single batch may be larger than the limit.
    fn largest(&self) -> Option<u64> {
        let is_last = |backlog: &Backlog| backlog.bytes == self.bytes;
        let filled = self.open.iter().filter(|(_, backlog)| backlog.bytes > 0);
        let left = filled.filter(|(_, backlog)| !(backlog.is_closed() && is_last(backlog)));
        let largest = left.max_by_key(|(number, backlog)| (!backlog.is_closed(), backlog.bytes, **number));
        largest.map(|(number, _)| *number)
    }

    /// Closes a backlog and drops what waits in it. A client that waits is about to take the first batch:
    /// it stays, so that a client makes progress with each connection. It is dropped when the closed
    /// backlog is cut again.
    fn cut(&mut self, number: u64) -> Vec<(Batch, usize)> {
        let Some(backlog) = self.open.get_mut(&number) else { return Vec::new() };
        let stay = usize::from(backlog.is_awaited && !backlog.is_closed()).min(backlog.batches.len());
        let dropped: Vec<(Batch, usize)> = backlog.batches.drain(stay..).collect();
        let bytes: usize = dropped.iter().map(|(_, size)| size).sum();
        backlog.bytes -= bytes;
        self.bytes -= bytes;
        backlog.signals.close();
        dropped
    }

    /// The next batch; none if there will be none.
    fn take(&mut self, number: u64) -> Poll<Option<Batch>> {
        let Some(backlog) = self.open.get_mut(&number) else { return Poll::Ready(None) };
        let first = backlog.batches.pop_front();
        backlog.is_awaited = first.is_none();
        match first {
            Some((batch, size)) => {
                backlog.bytes -= size;
                self.bytes -= size;
                Poll::Ready(Some(batch))
            }
            None if backlog.is_closed() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    fn remove(&mut self, number: u64) -> Option<Backlog> {
        let backlog = self.open.remove(&number)?;
        self.bytes -= backlog.bytes;
        Some(backlog)
    }
}

impl Backlog {
    fn is_closed(&self) -> bool {
        self.signals.closed.is_cancelled()
    }
}

/// Approximate size of a batch in memory.
fn size(batch: &Batch) -> usize {
    let content = |update: &Update| match &update.event {
        Event::Init | Event::InitDone => 0,
        Event::InitApply(key, kv) | Event::Apply(key, kv) => key.len() + kv.key.len() + kv.value.len(),
        Event::Delete(key) => key.len(),
    };
    batch.updates.iter().map(|update| size_of::<Update>() + content(update)).sum()
}

#[cfg(test)]
mod tests {
    use contiv_store::KeyValue;
    use futures::poll;

    use super::*;

    /// A batch with a value of so many bytes.
    fn batch(bytes: usize) -> Batch {
        let kv = KeyValue {
            key: String::new(),
            value: vec![0; bytes].into(),
            create_revision: 1,
            mod_revision: 1,
            version: 1,
            lease: 0,
        };
        let update = Update { revision: 1, event: Event::Apply(String::new(), kv) };
        Batch { updates: vec![update], ..Batch::default() }
    }

    async fn is_closed(sender: &BacklogSender) -> bool {
        let mut closed = Box::pin(sender.closed());
        poll!(closed.as_mut()).is_ready()
    }

    #[tokio::test]
    async fn a_watch_that_exceeds_its_limit_ends_without_what_waits() {
        let backlogs = WatchBacklogs::default();
        let (sender, mut receiver) = backlogs.open();
        // One batch may have any size, and what is taken does not count any more.
        for _ in 0..3 {
            sender.send(batch(2 * MAX_BYTES));
            assert!(!is_closed(&sender).await && backlogs.bytes() > 2 * MAX_BYTES);
            assert!(receiver.recv().await.is_some());
            assert_eq!(backlogs.bytes(), 0);
        }
        sender.send(batch(MAX_BYTES / 2));
        sender.send(batch(MAX_BYTES / 4));
        assert!(!is_closed(&sender).await);
        sender.send(batch(MAX_BYTES / 4));
        assert!(is_closed(&sender).await);
        assert_eq!(backlogs.bytes(), 0, "it is dropped although the client takes nothing");
        sender.send(batch(1));
        assert!(receiver.recv().await.is_none());
        assert_eq!(backlogs.bytes(), 0);

        let (sender, mut receiver) = backlogs.open();
        (0..MAX_BATCHES).for_each(|_| sender.send(batch(1)));
        assert!(!is_closed(&sender).await);
        sender.send(batch(1));
        assert!(receiver.recv().await.is_none());
    }

    #[tokio::test]
    async fn the_largest_of_all_backlogs_makes_room() {
        const PART: usize = 100_000;
        let backlogs = WatchBacklogs::new(10 * PART);
        let sides = [(); 3].map(|()| backlogs.open());
        for ((sender, _), count) in sides.iter().zip([4, 3, 2]) {
            (0..count).for_each(|_| sender.send(batch(PART)));
        }
        let [(large, mut first), (_medium, mut second), (small, mut third)] = sides;
        assert!(!is_closed(&large).await);
        small.send(batch(PART));
        assert!(is_closed(&large).await && !is_closed(&small).await);
        assert!((6 * PART..7 * PART).contains(&backlogs.bytes()), "{}", backlogs.bytes());
        assert!(first.recv().await.is_none());
        assert!(second.recv().await.is_some() && third.recv().await.is_some());
        // What is left over when a client goes does not count.
        drop((first, second, third));
        assert_eq!(backlogs.bytes(), 0);
        assert!(is_closed(&small).await);
    }

    /// It would make no progress if it lost the batch that it is about to take.
    #[tokio::test]
    async fn a_client_that_waits_gets_the_first_batch() {
        for limit in [4 * MAX_BYTES, MAX_BYTES / 2] {
            let backlogs = WatchBacklogs::new(limit);
            let (sender, mut receiver) = backlogs.open();
            let mut next = Box::pin(receiver.recv());
            assert!(poll!(next.as_mut()).is_pending());
            (0..2).for_each(|_| sender.send(batch(MAX_BYTES)));
            assert!(is_closed(&sender).await);
            assert!(next.await.is_some());
            assert!(receiver.recv().await.is_none());
        }
    }

    #[tokio::test]
    async fn clients_that_wait_do_not_exceed_the_limit_together() {
        let backlogs = WatchBacklogs::new(MAX_BYTES);
        let [(first, mut one), (second, mut other)] = [(); 2].map(|()| backlogs.open());
        let mut nexts = [Box::pin(one.recv()), Box::pin(other.recv())];
        for next in &mut nexts {
            assert!(poll!(next.as_mut()).is_pending());
        }
        for sender in [&first, &second] {
            sender.send(batch(MAX_BYTES / 4 * 3));
        }
        assert!(backlogs.bytes() <= MAX_BYTES);
        let [one, other] = nexts;
        assert_eq!((one.await.is_some(), other.await.is_some()), (true, false));
    }

    #[tokio::test]
    async fn what_arrived_before_the_end_of_the_source_is_delivered() {
        let backlogs = WatchBacklogs::default();
        let (sender, mut receiver) = backlogs.open();
        sender.send(batch(1));
        drop(sender);
        assert!(receiver.recv().await.is_some());
        assert!(receiver.recv().await.is_none());
    }
}
