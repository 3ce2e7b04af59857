//! GARP and NA announcer: sends gratuitous ARP replies and unsolicited neighbour advertisements to the uplinks when an endpoint
//! of a VLAN network comes up on this node, and when this node starts to answer for a service, so that switches learn the port of
//! the Ethernet address.
//!
//! A task sends the frames, so the reconciler does not wait. Each announcement is repeated once: the previous node may still
//! send frames from the address for a moment.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use openflow_rs::{Action, Connection, Port, message::Body, packet::PacketOut};
use tokio::{sync::Notify, task::AbortHandle, time::Instant};

use crate::datapath::{ObjectId, announcement::Outcomes};

/// Interval between frames. Each frame is flooded to every station of the network.
const SEND_INTERVAL: Duration = Duration::from_millis(4);
/// Interval between the two announcements of an address (`ANNOUNCE_INTERVAL` in RFC 5227, section 1.1).
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// Frames that wait for their first announcement: more take longer than four minutes.
const MAX_PENDING: usize = 65_536;

/// Numbers of announcements.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    pub(crate) endpoints: Outcomes,
    pub(crate) services: Outcomes,
}

impl Announced {
    fn of(&self, subject: &ObjectId) -> &Outcomes {
        match subject {
            ObjectId::Service(_) => &self.services,
            _ => &self.endpoints,
        }
    }
}

/// The endpoints and services that are being announced, and the task that does it. The task ends when this is dropped.
pub(crate) struct Announcer {
    shared: Arc<Shared>,
    task: Option<AbortHandle>,
}

struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
    announced: Arc<Announced>,
}

#[derive(Debug)]
struct Announcement {
    subject: ObjectId,
    /// Distinguishes the announcements of an endpoint or a service that was removed and came back.
    serial: u64,
    frame: Vec<u8>,
    uplinks: Action,
}

#[derive(Default)]
struct Pending {
    serial: u64,
    /// Serial number of the last announcements of each subject; they are void if it has another one.
    current: HashMap<ObjectId, u64>,
    first: VecDeque<Announcement>,
    repeat: VecDeque<(Instant, Announcement)>,
}

impl Announcer {
    /// Counts what it does in `announced`.
    pub(crate) fn new(announced: Arc<Announced>) -> Announcer {
        let shared = Shared { pending: Mutex::default(), changed: Notify::new(), announced };
        Announcer { shared: Arc::new(shared), task: None }
    }

    /// Announces an endpoint or a service by these frames through a bridge.
    pub(crate) fn announce(
        &mut self,
        bridge: &Connection,
        subject: &ObjectId,
        frames: Vec<Vec<u8>>,
        uplinks: &Action,
    ) {
        let count = frames.len() as u64;
        if !self.shared.lock().add(subject, frames, uplinks) {
            self.shared.announced.of(subject).leave_out(count);
        }
        self.shared.changed.notify_one();
        if self.task.is_none() {
            let (shared, bridge) = (Arc::clone(&self.shared), bridge.clone());
            self.task = Some(tokio::spawn(async move { shared.run(&bridge).await }).abort_handle());
        }
    }

    /// Ends the announcement of an endpoint or a service whose address is no longer on this node.
    pub(crate) fn withdraw(&mut self, subject: &ObjectId) {
        self.shared.lock().current.remove(subject);
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        // Each change is consistent after a panic.
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, bridge: &Connection) {
        loop {
            let (next, due) = {
                let mut pending = self.lock();
                (pending.pop(Instant::now()), pending.repeat.front().map(|(due, _)| *due))
            };
            if let Some((subject, frame, uplinks)) = next {
                let packet = PacketOut { in_port: Port::CONTROLLER, actions: vec![uplinks], data: frame };
                let sent = bridge.send_all(vec![Body::PacketOut(packet)], |_| "announce an address".into());
                let sent = sent.await.inspect_err(|error| tracing::debug!("{error}"));
                self.announced.of(&subject).count(sent.is_ok());
                tokio::time::sleep(SEND_INTERVAL).await;
                continue;
            }
            let changed = self.changed.notified();
            match due {
                Some(due) => tokio::select! { () = changed => {} () = tokio::time::sleep_until(due) => {} },
                None => changed.await,
            }
        }
    }
}

impl Pending {
    /// Returns whether there is room.
    fn add(&mut self, subject: &ObjectId, frames: Vec<Vec<u8>>, uplinks: &Action) -> bool {
        if self.first.len() + frames.len() > MAX_PENDING {
            tracing::debug!("announce {subject}: too many are waiting");
            return false;
        }
        self.serial += 1;
        let serial = self.serial;
        self.current.insert(subject.clone(), serial);
        let announcement =
            |frame| Announcement { subject: subject.clone(), serial, frame, uplinks: uplinks.clone() };
        self.first.extend(frames.into_iter().map(announcement));
        true
    }

    /// Returns the next frame, whose it is and where it goes.
    fn pop(&mut self, now: Instant) -> Option<(ObjectId, Vec<u8>, Action)> {
        while let Some((_, announcement)) = self.repeat.pop_front_if(|(due, _)| *due <= now) {
            if self.is_current(&announcement) {
                return Some((announcement.subject, announcement.frame, announcement.uplinks));
            }
        }
        while let Some(announcement) = self.first.pop_front() {
            if self.is_current(&announcement) {
                let Announcement { subject, frame, uplinks, .. } = &announcement;
                let next = (subject.clone(), frame.clone(), uplinks.clone());
                self.repeat.push_back((now + ANNOUNCE_INTERVAL, announcement));
                return Some(next);
            }
        }
        None
    }

    fn is_current(&self, announcement: &Announcement) -> bool {
        self.current.get(&announcement.subject) == Some(&announcement.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_sent_twice_while_the_endpoint_is_here() {
        let [a, b] = ["a", "b"].map(|id| ObjectId::Local(id.into()));
        let mut pending = Pending::default();
        let uplinks = Action::output(1);
        assert!(pending.add(&a, vec![vec![1], vec![2]], &uplinks));
        assert!(pending.add(&b, vec![vec![3]], &uplinks));
        let now = Instant::now();
        let all = |pending: &mut Pending, now| -> Vec<u8> {
            std::iter::from_fn(|| pending.pop(now)).map(|(_, frame, _)| frame[0]).collect()
        };
        assert_eq!(all(&mut pending, now), [1, 2, 3]);
        assert_eq!(all(&mut pending, now), [0_u8; 0]);
        // One endpoint is removed, the other one comes back with another address.
        pending.current.remove(&b);
        assert!(pending.add(&a, vec![vec![4]], &uplinks));
        assert_eq!(all(&mut pending, now + ANNOUNCE_INTERVAL), [4]);
        assert_eq!(all(&mut pending, now + 2 * ANNOUNCE_INTERVAL), [4]);
        assert_eq!(all(&mut pending, now + 3 * ANNOUNCE_INTERVAL), [0_u8; 0]);
    }
}
