//! GARP and NA announcer: sends gratuitous ARP replies and unsolicited neighbour advertisements when an endpoint of a VLAN network
//! comes up on this node, and when this node starts to answer for a service, so that switches learn the port of the Ethernet
//! address.
//!
//! The frames enter the bridge at the port of the endpoint, and leave it as others do (`NORMAL`). So the bridge itself learns the
//! port, which it may know as the uplink from a node that had the address before, and of several uplinks the bond chooses one.
//!
//! A task sends the frames, so the reconciler does not wait. Each announcement is repeated once: the previous node may still
//! send frames from the address for a moment. What waits outlives the connection to the switch: a resync opens another one.

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

/// Where an endpoint or a service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Not on this node.
    Elsewhere,
    /// At a port that does not carry the VLAN yet.
    Closed,
    /// At this port. A service is at [`Port::CONTROLLER`].
    At(Port),
}

/// The endpoints and services that are being announced.
#[derive(Default)]
pub(crate) struct Announcer {
    shared: Arc<Shared>,
}

/// The task that sends announcements through one bridge. It ends when this is dropped.
pub(crate) struct Sender(AbortHandle);

#[derive(Default)]
struct Shared {
    pending: Mutex<Pending>,
    changed: Notify,
    announced: Announced,
}

#[derive(Clone, Debug)]
struct Announcement {
    subject: ObjectId,
    /// Distinguishes the announcements of an endpoint or a service that was removed and came back.
    serial: u64,
    frame: Vec<u8>,
}

#[derive(Default)]
struct Pending {
    serial: u64,
    /// Serial number of the last announcements of each subject; they are void if it has another one.
    current: HashMap<ObjectId, u64>,
    /// Those that wait for a port.
    held: Vec<Announcement>,
    first: VecDeque<(Port, Announcement)>,
    repeat: VecDeque<(Instant, Port, Announcement)>,
}

/// Which time an announcement is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    First,
    Repeat,
}

impl Announcer {
    /// Announces an endpoint or a service by these frames, as soon as [`update`](Self::update) has found its port.
    pub(crate) fn announce(&self, subject: &ObjectId, frames: Vec<Vec<u8>>) {
        let count = frames.len() as u64;
        if !self.shared.lock().add(subject, frames) {
            self.shared.announced.of(subject).leave_out(count);
        }
    }

    /// Ends the announcement of an endpoint or a service whose address is no longer on this node.
    pub(crate) fn withdraw(&self, subject: &ObjectId) {
        self.shared.lock().current.remove(subject);
    }

    /// Takes over where the endpoints and services are now that wait.
    pub(crate) fn update(&self, place: impl Fn(&ObjectId) -> Place) {
        self.shared.lock().update(place);
        self.shared.changed.notify_one();
    }

    /// Sends what waits, and what is to come, through a bridge.
    pub(crate) fn start(&self, bridge: &Connection) -> Sender {
        let (shared, bridge) = (Arc::clone(&self.shared), bridge.clone());
        Sender(tokio::spawn(async move { shared.run(&bridge).await }).abort_handle())
    }

    pub(crate) fn announced(&self) -> &Announced {
        &self.shared.announced
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.abort();
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
                (pending.next(Instant::now()), pending.repeat.front().map(|(due, ..)| *due))
            };
            if let Some((turn, in_port, Announcement { subject, frame, .. })) = next {
                let packet = PacketOut { in_port, actions: vec![Action::output(Port::NORMAL)], data: frame };
                let sent = bridge.send_all(vec![Body::PacketOut(packet)], |_| "announce an address".into());
                let sent = sent.await.inspect_err(|error| tracing::debug!("{error}"));
                if sent.is_err() && bridge.is_closed() {
                    // It waits for the next connection.
                    return;
                }
                self.announced.of(&subject).count(sent.is_ok());
                self.lock().sent(turn, Instant::now());
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
    fn add(&mut self, subject: &ObjectId, frames: Vec<Vec<u8>>) -> bool {
        if self.held.len() + self.first.len() + frames.len() > MAX_PENDING {
            tracing::debug!("announce {subject}: too many are waiting");
            return false;
        }
        self.serial += 1;
        let serial = self.serial;
        self.current.insert(subject.clone(), serial);
        let announcement = |frame| Announcement { subject: subject.clone(), serial, frame };
        self.held.extend(frames.into_iter().map(announcement));
        true
    }

    fn update(&mut self, place: impl Fn(&ObjectId) -> Place) {
        let first = self.first.iter_mut().map(|(port, announcement)| (port, &announcement.subject));
        let repeat = self.repeat.iter_mut().map(|(_, port, announcement)| (port, &announcement.subject));
        for (port, subject) in first.chain(repeat) {
            match place(subject) {
                Place::At(now) => *port = now,
                Place::Closed => {}
                Place::Elsewhere => drop(self.current.remove(subject)),
            }
        }
        for announcement in std::mem::take(&mut self.held) {
            if !self.is_current(&announcement) {
                continue;
            }
            match place(&announcement.subject) {
                Place::At(port) => self.first.push_back((port, announcement)),
                Place::Closed => self.held.push(announcement),
                Place::Elsewhere => drop(self.current.remove(&announcement.subject)),
            }
        }
    }

    /// Returns the next frame and the port where it enters the bridge. It stays the next one until it is [`sent`](Self::sent).
    fn next(&mut self, now: Instant) -> Option<(Turn, Port, Announcement)> {
        while let Some((_, port, announcement)) = self.repeat.front().filter(|(due, ..)| *due <= now) {
            if self.is_current(announcement) {
                return Some((Turn::Repeat, *port, announcement.clone()));
            }
            self.repeat.pop_front();
        }
        while let Some((port, announcement)) = self.first.front() {
            if self.is_current(announcement) {
                return Some((Turn::First, *port, announcement.clone()));
            }
            self.first.pop_front();
        }
        None
    }

    /// The frame that was the next one has been sent.
    fn sent(&mut self, turn: Turn, now: Instant) {
        match turn {
            Turn::First => {
                let first = self.first.pop_front();
                let again = |(port, announcement)| (now + ANNOUNCE_INTERVAL, port, announcement);
                self.repeat.extend(first.map(again));
            }
            Turn::Repeat => drop(self.repeat.pop_front()),
        }
    }

    fn is_current(&self, announcement: &Announcement) -> bool {
        self.current.get(&announcement.subject) == Some(&announcement.serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subjects() -> [ObjectId; 2] {
        ["a", "b"].map(|id| ObjectId::Local(id.into()))
    }

    /// Sends all that is due; the first byte of each frame, and the port.
    fn send(pending: &mut Pending, now: Instant) -> Vec<(u8, u32)> {
        std::iter::from_fn(|| {
            let (turn, port, announcement) = pending.next(now)?;
            pending.sent(turn, now);
            Some((announcement.frame[0], port.0))
        })
        .collect()
    }

    #[test]
    fn frames_are_sent_twice_while_the_endpoint_is_here() {
        let [a, b] = subjects();
        let mut pending = Pending::default();
        assert!(pending.add(&a, vec![vec![1], vec![2]]));
        assert!(pending.add(&b, vec![vec![3]]));
        let here = |_: &ObjectId| Place::At(Port(5));
        pending.update(here);
        let now = Instant::now();
        assert_eq!(send(&mut pending, now), [(1, 5), (2, 5), (3, 5)]);
        assert!(send(&mut pending, now).is_empty());
        // One endpoint is removed, the other one comes back with another address.
        pending.current.remove(&b);
        assert!(pending.add(&a, vec![vec![4]]));
        pending.update(here);
        assert_eq!(send(&mut pending, now + ANNOUNCE_INTERVAL), [(4, 5)]);
        assert_eq!(send(&mut pending, now + 2 * ANNOUNCE_INTERVAL), [(4, 5)]);
        assert!(send(&mut pending, now + 3 * ANNOUNCE_INTERVAL).is_empty());
    }

    #[test]
    fn a_frame_stays_the_next_one_until_it_is_sent() {
        let [a, _] = subjects();
        let mut pending = Pending::default();
        assert!(pending.add(&a, vec![vec![1]]));
        pending.update(|_| Place::At(Port(5)));
        let now = Instant::now();
        // The connection ends before the switch has the frame.
        assert!(pending.next(now).is_some());
        assert_eq!(send(&mut pending, now), [(1, 5)]);
        assert!(pending.next(now + ANNOUNCE_INTERVAL).is_some());
        assert_eq!(send(&mut pending, now + ANNOUNCE_INTERVAL), [(1, 5)]);
    }

    #[test]
    fn frames_wait_for_their_port_and_follow_it() {
        let [a, b] = subjects();
        let mut pending = Pending::default();
        assert!(pending.add(&a, vec![vec![1]]) && pending.add(&b, vec![vec![2]]));
        let now = Instant::now();
        assert!(send(&mut pending, now).is_empty());
        pending.update(|subject| if *subject == a { Place::Closed } else { Place::At(Port(5)) });
        assert_eq!(send(&mut pending, now), [(2, 5)]);
        // After a restart of the switch the ports have other numbers.
        pending.update(|subject| if *subject == a { Place::At(Port(7)) } else { Place::At(Port(8)) });
        assert_eq!(send(&mut pending, now + ANNOUNCE_INTERVAL), [(2, 8), (1, 7)]);
        pending.update(|_| Place::Elsewhere);
        assert!(send(&mut pending, now + 2 * ANNOUNCE_INTERVAL).is_empty());
    }
}
