//! Asynchronous messages of the switch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::message::Message;

/// Capacity of the queue.
const QUEUE: usize = 1024;

/// Asynchronous messages of the switch: packet-in, port status, flow removed. At most 1024 are queued, later ones are
/// dropped; [`Connection::lost_notifications`](super::Connection::lost_notifications) counts them. The channel closes with the
/// connection.
pub type Notifications = mpsc::Receiver<Message>;

/// Numbers of asynchronous messages of the switch that were not queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostNotifications {
    /// Messages that arrived while the queue was full.
    pub queue_full: u64,
    /// Messages that do not decode.
    pub undecodable: u64,
}

#[derive(Default)]
pub(super) struct Lost {
    queue_full: AtomicU64,
    undecodable: AtomicU64,
}

impl Lost {
    pub(super) fn numbers(&self) -> LostNotifications {
        LostNotifications {
            queue_full: self.queue_full.load(Ordering::Relaxed),
            undecodable: self.undecodable.load(Ordering::Relaxed),
        }
    }
}

/// Sending side of the queue.
pub(super) struct Notifier {
    queue: mpsc::Sender<Message>,
    lost: Arc<Lost>,
}

impl Notifier {
    pub(super) fn new() -> (Notifier, Notifications, Arc<Lost>) {
        let (queue, notifications) = mpsc::channel(QUEUE);
        let lost = Arc::new(Lost::default());
        (Notifier { queue, lost: lost.clone() }, notifications, lost)
    }

    pub(super) fn send(&self, message: Message) {
        // A receiver that was dropped loses nothing.
        if let Err(mpsc::error::TrySendError::Full(_)) = self.queue.try_send(message) {
            self.lost.queue_full.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn count_undecodable(&self) {
        self.lost.undecodable.fetch_add(1, Ordering::Relaxed);
    }
}
