//! Executes the actions of a [`Peer`] with tokio.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    hash::{BuildHasher as _, RandomState},
    io,
    net::{IpAddr, Ipv6Addr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use crate::{
    Action, Config, ConfigError, Event, Failure, Learnt, Peer, Status, Stop, Timer, connection::Connection,
    warnings::Warnings,
};

/// Minimum interval between publications of learnt routes within a session. Each one selects all routes, and the neighbor may send many
/// small messages.
const PUBLICATION_INTERVAL: Duration = Duration::from_millis(20);

/// What a speaker announces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Addresses, each by a host route.
    pub addresses: Arc<BTreeSet<IpAddr>>,
    /// Next hop of the IPv6 routes. Without it IPv6 routes are learnt, but none is announced.
    pub next_hop_v6: Option<Ipv6Addr>,
}

/// A BGP speaker for one neighbor.
pub struct Speaker {
    peer: Peer,
    source: Option<IpAddr>,
    neighbor: std::net::SocketAddr,
    announcement: watch::Receiver<Option<Announcement>>,
    connecting: Option<Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>>,
    connection: Option<Connection>,
    timers: BTreeMap<Timer, Instant>,
    established: Option<Instant>,
    /// When learnt routes may be published next.
    due: Instant,
    warnings: Warnings,
    status: watch::Sender<Status>,
    learnt: watch::Sender<Learnt>,
}

/// What a speaker publishes.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Status of the session.
    pub status: watch::Receiver<Status>,
    /// Learnt routes.
    pub learnt: watch::Receiver<Learnt>,
}

enum Wakeup {
    Stop(Stop),
    Announcement,
    Connected(io::Result<Connection>),
    Exchanged(io::Result<()>),
    Expired(Timer),
    Publication,
}

impl Speaker {
    /// Creates a speaker, which does nothing until [`Speaker::run`]. While the announcement is `None`, because it is not known, no
    /// route is announced, and no End-of-RIB marker sent. Changes do not interrupt the session.
    ///
    /// # Errors
    ///
    /// If the settings are not valid.
    pub fn new(
        config: Config,
        announcement: watch::Receiver<Option<Announcement>>,
    ) -> Result<(Speaker, Handle), ConfigError> {
        config.validate()?;
        let (source, neighbor) = (config.source, config.neighbor);
        let mut peer = Peer::new(config);
        let (status, status_receiver) = watch::channel(peer.status());
        let (learnt, learnt_receiver) = watch::channel(peer.learnt().clone());
        let speaker = Speaker {
            peer,
            source,
            neighbor,
            announcement,
            connecting: None,
            connection: None,
            timers: BTreeMap::new(),
            established: None,
            due: Instant::now(),
            warnings: Warnings::default(),
            status,
            learnt,
        };
        Ok((speaker, Handle { status: status_receiver, learnt: learnt_receiver }))
    }

    /// Keeps the session until `stop` is ready.
    pub async fn run(mut self, stop: impl Future<Output = Stop> + Send) {
        let mut stop = std::pin::pin!(stop);
        self.announcement.mark_changed();
        self.step(Event::Start);
        loop {
            self.send_updates();
            self.publish();
            match self.wait(stop.as_mut()).await {
                Wakeup::Stop(how) => {
                    self.step(Event::Stop(how));
                    self.publish();
                    return;
                }
                Wakeup::Announcement => {
                    let announcement = self.announcement.borrow_and_update().clone();
                    if let Some(Announcement { addresses, next_hop_v6 }) = announcement {
                        self.peer.originate(&addresses, next_hop_v6);
                    }
                }
                Wakeup::Connected(result) => {
                    self.connecting = None;
                    match result {
                        Ok(connection) => {
                            self.connection = Some(connection);
                            self.step(Event::Connected);
                        }
                        Err(error) => self.step(Event::Disconnected(error.to_string())),
                    }
                }
                // What arrived before the end counts, such as a NOTIFICATION.
                Wakeup::Exchanged(result) => {
                    self.receive();
                    if let Err(error) = result
                        && self.connection.take().is_some()
                    {
                        self.step(Event::Disconnected(error.to_string()));
                    }
                }
                Wakeup::Expired(timer) => {
                    self.timers.remove(&timer);
                    self.step(Event::Expired(timer));
                }
                Wakeup::Publication => {}
            }
        }
    }

    async fn wait(&mut self, stop: Pin<&mut impl Future<Output = Stop>>) -> Wakeup {
        let next = self.timers.iter().min_by_key(|(_, at)| **at).map(|(timer, at)| (*timer, *at));
        let timer = async {
            match next {
                Some((timer, at)) => {
                    sleep_until(at).await;
                    timer
                }
                None => std::future::pending().await,
            }
        };
        let connecting = async {
            match &mut self.connecting {
                Some(connecting) => connecting.await,
                None => std::future::pending().await,
            }
        };
        let exchange = async {
            match &mut self.connection {
                Some(connection) => connection.exchange().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            how = stop => Wakeup::Stop(how),
            // If the sender is gone, the announcement stays as it is.
            Ok(()) = self.announcement.changed() => Wakeup::Announcement,
            result = connecting => Wakeup::Connected(result),
            result = exchange => Wakeup::Exchanged(result),
            timer = timer => Wakeup::Expired(timer),
            () = sleep_until(self.due), if self.peer.has_changed() => Wakeup::Publication,
        }
    }

    /// Handles all messages that have arrived.
    fn receive(&mut self) {
        while let Some(connection) = &mut self.connection {
            match connection.next() {
                Ok(Some(message)) => self.step(Event::Received(message)),
                Ok(None) => break,
                Err(error) => self.step(Event::Malformed(error)),
            }
        }
    }

    fn send_updates(&mut self) {
        while self.connection.as_ref().is_some_and(Connection::has_room) {
            let actions = self.peer.next_updates();
            if actions.is_empty() {
                break;
            }
            self.execute(actions);
        }
    }

    fn step(&mut self, event: Event) {
        let actions = self.peer.handle(event);
        self.execute(actions);
    }

    fn execute(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Connect => {
                    let (source, neighbor) = (self.source, self.neighbor);
                    self.connecting = Some(Box::pin(Connection::connect(source, neighbor)));
                }
                Action::Disconnect => {
                    self.connecting = None;
                    let closed = self.connection.take().map_or(Ok(()), Connection::close);
                    if let Err(error) = closed {
                        tracing::debug!(neighbor = %self.neighbor, "close the BGP connection: {error}");
                    }
                }
                Action::Send(message) => {
                    let sent =
                        self.connection.as_mut().map_or(Ok(()), |connection| connection.send(&message));
                    if let Err(error) = sent {
                        tracing::error!(neighbor = %self.neighbor, "encode a BGP message: {error}");
                    }
                }
                Action::StartTimer(timer, duration) => {
                    let duration = match timer {
                        Timer::ConnectRetry | Timer::IdleHold | Timer::Keepalive => jitter(duration),
                        Timer::Hold | Timer::Stale | Timer::Deferral => duration,
                    };
                    self.timers.insert(timer, Instant::now() + duration);
                }
                Action::StopTimer(timer) => drop(self.timers.remove(&timer)),
                Action::Warn(warning) => {
                    if let Some(warning) = self.warnings.next(&warning) {
                        tracing::warn!(neighbor = %self.neighbor, "{warning}");
                    }
                }
                Action::Up(negotiated) => {
                    self.set_established(Some(Instant::now()));
                    tracing::info!(
                        neighbor = %self.neighbor, peer_as = negotiated.peer_as, hold_time = negotiated.hold_time,
                        "BGP session established"
                    );
                }
                Action::Down(Failure::Stopped) => self.set_established(None),
                Action::Down(failure) => {
                    self.set_established(None);
                    tracing::warn!("{failure}");
                }
            }
        }
    }

    /// The routes of a session that begins or ends are published with its status.
    fn set_established(&mut self, since: Option<Instant>) {
        self.established = since;
        self.due = Instant::now();
    }

    fn publish(&mut self) {
        let mut status = self.peer.status();
        status.established = self.established.map(Instant::into_std);
        self.status.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
        if Instant::now() < self.due {
            return;
        }
        let learnt = self.peer.learnt();
        let is_published = self.learnt.send_if_modified(|current| {
            let same = Arc::ptr_eq(&current.routes, &learnt.routes) && current.complete == learnt.complete;
            if !same {
                *current = learnt.clone();
            }
            !same
        });
        if is_published {
            self.due = Instant::now() + PUBLICATION_INTERVAL;
        }
    }
}

/// Reduces a duration by a random part of up to a quarter (RFC 4271 section 10).
fn jitter(duration: Duration) -> Duration {
    // Each RandomState has other keys, so the hash of nothing is a random number.
    let random = u32::try_from(RandomState::new().hash_one(()) >> 40).unwrap_or(0);
    duration - duration.mul_f64(f64::from(random) / f64::from(1 << 24) / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A neighbor with many routes that sends one small message after another would occupy a CPU.
    #[tokio::test(start_paused = true)]
    async fn learnt_routes_are_published_at_intervals() {
        let config = Config::new(65000, [10, 9, 0, 1].into(), [10, 9, 0, 2].into(), 65001);
        let (_announcement, receiver) = watch::channel(None);
        let (mut speaker, mut handle) = Speaker::new(config, receiver).unwrap();
        let mut change = |speaker: &mut Speaker| {
            // Other routes may be selected.
            speaker.peer.originate(&BTreeSet::new(), None);
            speaker.publish();
            let is_published = handle.learnt.has_changed().unwrap();
            handle.learnt.mark_unchanged();
            is_published
        };
        assert!(change(&mut speaker));
        assert!(!change(&mut speaker), "too early");
        // Paused time advances as soon as all tasks wait.
        let wakeup = speaker.wait(std::pin::pin!(std::future::pending::<Stop>())).await;
        assert!(matches!(wakeup, Wakeup::Publication));
        assert!(change(&mut speaker));
        assert!(!change(&mut speaker), "too early");
        // A session that ends.
        speaker.execute(vec![Action::Down(Failure::Stopped)]);
        assert!(change(&mut speaker));
    }

    #[test]
    fn jitter_takes_off_a_quarter_at_most() {
        let second = Duration::from_secs(1);
        let durations: BTreeSet<_> = (0..100).map(|_| jitter(second)).collect();
        assert!(durations.len() > 50);
        assert!(durations.iter().all(|duration| (second * 3 / 4..=second).contains(duration)));
    }
}
