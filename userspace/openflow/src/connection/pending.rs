//! Requests that wait for replies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::codec::Received;

/// Table of pending requests. Each entry owns a range of consecutive transaction ids.
#[derive(Default)]
pub(super) struct PendingReplies {
    table: Mutex<Table>,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct Table {
    /// By the first transaction id of the range.
    ranges: BTreeMap<u32, Range>,
    /// Next free transaction id.
    next: u32,
    /// Reason of the closure.
    closed: Option<String>,
}

struct Range {
    /// Last transaction id.
    last: u32,
    replies: mpsc::UnboundedSender<Received>,
    /// Number of replies, since the reservation, to this range and to earlier ones.
    progress: u64,
}

/// Receiver of the replies to a range of requests. Later replies are discarded when it is dropped.
pub(super) struct Replies {
    first: u32,
    replies: mpsc::UnboundedReceiver<Received>,
    pending: Arc<PendingReplies>,
}

impl Replies {
    /// Waits for the next reply; `None` if the connection is closed.
    pub(super) async fn next(&mut self) -> Option<Received> {
        self.replies.recv().await
    }

    /// Number of replies so far to these requests and to earlier ones. The switch replies in the order of the requests, so that replies
    /// to later ones do not bring these nearer.
    pub(super) fn progress(&self) -> u64 {
        self.pending.lock().ranges.get(&self.first).map_or(0, |range| range.progress)
    }

    /// Returns the next reply that has already arrived.
    pub(super) fn try_next(&mut self) -> Option<Received> {
        self.replies.try_recv().ok()
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.pending.lock().ranges.remove(&self.first);
    }
}

impl PendingReplies {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // No code that holds the lock can panic, and the table is consistent between statements.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `count` consecutive transaction ids and returns the first; `None` if the connection is closed.
    pub(super) fn reserve(self: &Arc<Self>, count: u32) -> Option<(u32, Replies)> {
        let mut table = self.lock();
        if table.closed.is_some() {
            return None;
        }
        // Transaction id 0 is for messages that are not requests. Ranges do not wrap.
        let next = table.next.max(1);
        let first = if next.checked_add(count).is_some() { next } else { 1 };
        table.next = first.saturating_add(count);
        let (sender, replies) = mpsc::unbounded_channel();
        let range = Range { last: first + count.saturating_sub(1), replies: sender, progress: 0 };
        table.ranges.insert(first, range);
        drop(table);
        Some((first, Replies { first, replies, pending: self.clone() }))
    }

    /// Delivers a reply to the owner of its transaction id. A reply without an owner is discarded.
    pub(super) fn deliver(&self, received: Received) {
        let mut table = self.lock();
        for range in table.ranges.values_mut().filter(|range| range.last >= received.xid) {
            range.progress += 1;
        }
        if let Some((_, range)) = table.ranges.range(..=received.xid).next_back()
            && received.xid <= range.last
        {
            // Fails if the receiver was just dropped.
            let _delivered = range.replies.send(received);
        }
    }

    /// Marks the connection as closed and wakes all receivers. The reason of the first call is kept.
    pub(super) fn close(&self, why: String) {
        let mut table = self.lock();
        table.closed.get_or_insert(why);
        table.ranges.clear();
        drop(table);
        self.closed.send_replace(true);
    }

    pub(super) fn closed(&self) -> Option<String> {
        self.lock().closed.clone()
    }

    pub(super) async fn wait_closed(&self) {
        // Cannot fail: `self` holds the sender.
        let mut closed = self.closed.subscribe();
        let _closed = closed.wait_for(|closed| *closed).await;
    }
}
