//! Who waits for which answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};

use crate::codec::Received;

/// Answers are told by xid; each waiter owns a range of them.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// First xid of the range -> the range's last, and where its answers go.
    ranges: BTreeMap<u32, (u32, mpsc::UnboundedSender<Received>)>,
    next: u32,
    closed: Option<String>,
}

/// The answers to a range of requests; dropped, they go nowhere.
pub(super) struct Replies {
    first: u32,
    answers: mpsc::UnboundedReceiver<Received>,
    waiting: Arc<Waiting>,
}

impl Replies {
    /// `None` when the connection was lost.
    pub(super) async fn next(&mut self) -> Option<Received> {
        self.answers.recv().await
    }

    /// An answer that has come already.
    pub(super) fn try_next(&mut self) -> Option<Received> {
        self.answers.try_recv().ok()
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.waiting.lock().ranges.remove(&self.first);
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic happens under the lock; were it so, the table would still be sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `count` consecutive xids that nobody waits for; `None` when the connection was lost.
    pub(super) fn reserve(self: &Arc<Self>, count: u32) -> Option<(u32, Replies)> {
        let mut state = self.lock();
        if state.closed.is_some() {
            return None;
        }
        // Xid 0 is for what is not a request. Ranges do not wrap.
        let next = state.next.max(1);
        let first = if next.checked_add(count).is_some() { next } else { 1 };
        state.next = first.saturating_add(count);
        let (sender, answers) = mpsc::unbounded_channel();
        state.ranges.insert(first, (first + count.saturating_sub(1), sender));
        drop(state);
        Some((first, Replies { first, answers, waiting: self.clone() }))
    }

    /// Hands an answer to whoever waits for it; nobody may.
    pub(super) fn deliver(&self, received: Received) {
        let state = self.lock();
        if let Some((_, (last, sender))) = state.ranges.range(..=received.xid).next_back()
            && received.xid <= *last
        {
            // The waiter may have gone in this moment.
            let _delivered = sender.send(received);
        }
    }

    /// The connection is lost: nobody need wait any longer. The first reason stands.
    pub(super) fn close(&self, why: String) {
        let mut state = self.lock();
        state.closed.get_or_insert(why);
        state.ranges.clear();
        drop(state);
        self.closed.send_replace(true);
    }

    pub(super) fn closed(&self) -> Option<String> {
        self.lock().closed.clone()
    }

    pub(super) async fn until_closed(&self) {
        // The sender is ours, so waiting cannot fail.
        let mut closed = self.closed.subscribe();
        let _closed = closed.wait_for(|closed| *closed).await;
    }
}
