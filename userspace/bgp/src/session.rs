//! The finite state machine of RFC 4271 section 8.

use std::{fmt, time::Duration};

use bytes::Bytes;
use rustbgpd_wire::{
    DecodeError, Message, NotificationCode, NotificationMessage,
    notification::{cease_subcode, encode_shutdown_communication},
};

use crate::{Config, Failure, Negotiated, open};

/// Hold time before the OPEN of the neighbor arrives (RFC 4271 section 8.2.2).
const OPEN_HOLD_TIME: Duration = Duration::from_secs(240);
const MAX_CONNECT_RETRY: Duration = Duration::from_secs(60);

/// State of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Not started, or waiting after a failure.
    Idle,
    /// Dialing.
    Connect,
    /// Waiting for the next attempt to connect. The speaker does not listen.
    Active,
    /// The neighbor's OPEN is awaited.
    OpenSent,
    /// The first KEEPALIVE is awaited.
    OpenConfirm,
    /// Routes are exchanged.
    Established,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Idle => "idle",
            State::Connect => "connect",
            State::Active => "active",
            State::OpenSent => "opensent",
            State::OpenConfirm => "openconfirm",
            State::Established => "established",
        })
    }
}

/// Timers of a peer. Starting a running timer restarts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Timer {
    /// Delay of the start after a failure (`IdleHoldTimer`).
    IdleHold,
    /// Time until the next attempt to connect (`ConnectRetryTimer`).
    ConnectRetry,
    /// Time without a message until the session ends (`HoldTimer`).
    Hold,
    /// Time until the next KEEPALIVE (`KeepaliveTimer`).
    Keepalive,
    /// Time that stale routes are kept (RFC 4724 section 4.2).
    Stale,
    /// Time to wait for the first session, and then for its End-of-RIB markers (RFC 4724 section 4.1,
    /// `Selection_Deferral_Timer`).
    Deferral,
}

/// How a speaker stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The neighbor removes the routes at once: Cease, Administrative Shutdown.
    Shutdown,
    /// The neighbor keeps the routes until the speaker is back (RFC 4724): the connection ends without a NOTIFICATION.
    Restart,
}

/// Input of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Start.
    Start,
    /// Stop for good.
    Stop(Stop),
    /// A timer has expired.
    Expired(Timer),
    /// The connection is established.
    Connected,
    /// The attempt to connect has failed, or the connection has ended, with the cause.
    Disconnected(String),
    /// A message has arrived.
    Received(Message),
    /// Bytes have arrived that are no message.
    Malformed(DecodeError),
}

/// Output of the state machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Dial the neighbor.
    Connect,
    /// Close the connection after the messages that were sent before, or abort the attempt.
    Disconnect,
    /// Send a message.
    Send(Message),
    /// Start a timer. Only the timers for connecting get jitter.
    StartTimer(Timer, Duration),
    /// Stop a timer.
    StopTimer(Timer),
    /// Log a warning about a message of the neighbor, at a limited rate.
    Warn(String),
    /// The session is established.
    Up(Negotiated),
    /// The session is not established any more, or an attempt has failed.
    Down(Failure),
}

/// State machine of one session.
#[derive(Debug)]
pub struct Session {
    config: Config,
    state: State,
    /// Failures since the last established session, plus the sessions in a row before it that have not lasted.
    failures: u32,
    /// Sessions in a row that have not lasted for a third of their hold time, including the established one.
    unstable: u32,
    negotiated: Option<Negotiated>,
    /// Whether no session was established since the start.
    first: bool,
}

impl Session {
    /// A session in the state Idle.
    pub fn new(config: Config) -> Session {
        Session { config, state: State::Idle, failures: 0, unstable: 0, negotiated: None, first: true }
    }

    /// Current state.
    pub fn state(&self) -> State {
        self.state
    }

    /// What was agreed on, from OpenConfirm on.
    pub fn negotiated(&self) -> Option<&Negotiated> {
        self.negotiated.as_ref()
    }

    /// Settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Handles an event. Events that do not fit the state, such as a timer that expired while it was stopped, do nothing.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        match (self.state, event) {
            (State::Idle, Event::Start | Event::Expired(Timer::IdleHold)) => self.connect(),
            (_, Event::Stop(stop)) => self.stop(stop),
            (State::Connect | State::Active, Event::Expired(Timer::ConnectRetry)) => {
                let mut actions = vec![Action::Disconnect];
                if self.state == State::Connect {
                    self.failures = self.failures.saturating_add(1);
                    actions.push(Action::Down(self.connect_failure("timed out".to_owned())));
                }
                actions.extend(self.connect());
                actions
            }
            (State::Connect | State::Active, Event::Connected) => self.open(),
            (State::Connect, Event::Disconnected(cause)) => {
                let failure = self.connect_failure(cause);
                self.wait(failure)
            }
            (State::OpenSent, Event::Disconnected(cause)) => {
                let cause =
                    format!("{cause}; check that the neighbor is configured for the router IP of this node");
                let failure = Failure::Lost { neighbor: self.config.neighbor.ip(), cause };
                let mut actions = vec![Action::Disconnect, Action::StopTimer(Timer::Hold)];
                actions.extend(self.wait(failure));
                actions
            }
            (State::OpenConfirm | State::Established, Event::Disconnected(cause)) => {
                let failure = Failure::Lost { neighbor: self.config.neighbor.ip(), cause };
                self.fail(None, failure)
            }
            (State::OpenSent | State::OpenConfirm | State::Established, event) => {
                self.handle_connected(event)
            }
            _ => vec![],
        }
    }

    fn handle_connected(&mut self, event: Event) -> Vec<Action> {
        let neighbor = self.config.neighbor.ip();
        match event {
            Event::Expired(Timer::Hold) => {
                let notification =
                    NotificationMessage::new(NotificationCode::HoldTimerExpired, 0, Bytes::new());
                let seconds = match &self.negotiated {
                    Some(negotiated) => negotiated.hold_time.into(),
                    None => OPEN_HOLD_TIME.as_secs(),
                };
                self.fail(Some(notification), Failure::HoldTimer { neighbor, seconds })
            }
            Event::Expired(Timer::Keepalive) if self.negotiated.is_some() => {
                if self.state == State::Established {
                    (self.failures, self.unstable) = (0, 0);
                }
                let mut actions = vec![Action::Send(Message::Keepalive)];
                actions.extend(self.start_keepalive());
                actions
            }
            Event::Malformed(error) => {
                let (code, subcode, data) = error.to_notification();
                let notification = NotificationMessage::new(code, subcode, data);
                let cause = format!("malformed message: {error}");
                self.fail(Some(notification), Failure::Protocol { neighbor, cause })
            }
            Event::Received(Message::Notification(notification)) => {
                let failure = Failure::from_notification(neighbor, self.config.local_as, &notification);
                self.fail(None, failure)
            }
            Event::Received(message) => self.receive(&message),
            _ => vec![],
        }
    }

    fn receive(&mut self, message: &Message) -> Vec<Action> {
        match (self.state, message) {
            (State::OpenSent, Message::Open(open)) => match open::negotiate(&self.config, open) {
                Ok(negotiated) => {
                    self.negotiated = Some(negotiated);
                    self.state = State::OpenConfirm;
                    let mut actions = vec![Action::Send(Message::Keepalive)];
                    actions.extend(self.start_hold());
                    actions.extend(self.start_keepalive());
                    actions
                }
                Err(refusal) => {
                    let (notification, failure) = *refusal;
                    self.fail(Some(notification), failure)
                }
            },
            (State::OpenConfirm, Message::Keepalive) => {
                self.state = State::Established;
                self.first = false;
                // Sessions that end at once are damped (RFC 4271 section 8.1.1, DampPeerOscillations): with each of them, both
                // sides add and remove all routes. Attempts that failed before the session do not count.
                self.failures = self.unstable;
                // Without keepalives no timer tells that a session lasts.
                if self.hold_time() > 0 {
                    self.unstable = self.unstable.saturating_add(1);
                }
                let mut actions = self.start_hold();
                actions.extend(self.negotiated.clone().map(Action::Up));
                actions
            }
            (State::Established, Message::Keepalive | Message::Update(_) | Message::RouteRefresh(_)) => {
                self.start_hold()
            }
            (state, message) => {
                // RFC 6608.
                let subcode = match state {
                    State::OpenSent => 1,
                    State::OpenConfirm => 2,
                    _ => 3,
                };
                let notification =
                    NotificationMessage::new(NotificationCode::FsmError, subcode, Bytes::new());
                let cause = format!("unexpected {message} in the state {state}");
                let failure = Failure::Protocol { neighbor: self.config.neighbor.ip(), cause };
                self.fail(Some(notification), failure)
            }
        }
    }

    /// Ends the session because of an error, and starts the timer for the next attempt.
    pub(crate) fn fail(
        &mut self,
        notification: Option<NotificationMessage>,
        failure: Failure,
    ) -> Vec<Action> {
        self.failures = self.failures.saturating_add(1);
        let delay = self.retry_delay();
        let mut actions = self.close(notification);
        actions.push(Action::StartTimer(Timer::IdleHold, delay));
        actions.push(Action::Down(failure));
        actions
    }

    fn close(&mut self, notification: Option<NotificationMessage>) -> Vec<Action> {
        self.state = State::Idle;
        self.negotiated = None;
        let mut actions: Vec<_> =
            notification.map(Message::Notification).map(Action::Send).into_iter().collect();
        actions.push(Action::Disconnect);
        actions.extend([Timer::ConnectRetry, Timer::Hold, Timer::Keepalive].map(Action::StopTimer));
        actions
    }

    fn stop(&mut self, stop: Stop) -> Vec<Action> {
        let connected = matches!(self.state, State::OpenSent | State::OpenConfirm | State::Established);
        let silent = stop == Stop::Restart && self.config.restart_time > 0;
        let notification = (connected && !silent).then(|| {
            let reason = encode_shutdown_communication("BGP is no longer configured on this node");
            NotificationMessage::new(NotificationCode::Cease, cease_subcode::ADMINISTRATIVE_SHUTDOWN, reason)
        });
        let mut actions = self.close(notification);
        actions.push(Action::StopTimer(Timer::IdleHold));
        actions.push(Action::Down(Failure::Stopped));
        actions
    }

    fn connect(&mut self) -> Vec<Action> {
        self.state = State::Connect;
        vec![Action::StartTimer(Timer::ConnectRetry, self.retry_delay()), Action::Connect]
    }

    fn open(&mut self) -> Vec<Action> {
        self.state = State::OpenSent;
        let restarted = self.config.restarted && self.first;
        vec![
            Action::StopTimer(Timer::ConnectRetry),
            Action::Send(Message::Open(open::build(&self.config, restarted))),
            Action::StartTimer(Timer::Hold, OPEN_HOLD_TIME),
        ]
    }

    /// Waits in Active for the next attempt.
    fn wait(&mut self, failure: Failure) -> Vec<Action> {
        self.state = State::Active;
        self.failures = self.failures.saturating_add(1);
        vec![Action::StartTimer(Timer::ConnectRetry, self.retry_delay()), Action::Down(failure)]
    }

    fn connect_failure(&self, cause: String) -> Failure {
        Failure::Connect { neighbor: self.config.neighbor.ip(), cause }
    }

    /// Doubles with each failure after the first.
    /// Whether several sessions in a row have ended soon, or one has and the present one may.
    pub(crate) fn is_unstable(&self) -> bool {
        self.unstable > 1
    }

    fn retry_delay(&self) -> Duration {
        let factor = 1 << self.failures.saturating_sub(1).min(16);
        self.config.connect_retry.saturating_mul(factor).min(MAX_CONNECT_RETRY.max(self.config.connect_retry))
    }

    /// Hold time of the session in seconds; 0 means no keepalives.
    fn hold_time(&self) -> u16 {
        self.negotiated.as_ref().map_or(0, |negotiated| negotiated.hold_time)
    }

    fn start_hold(&self) -> Vec<Action> {
        vec![match self.hold_time() {
            0 => Action::StopTimer(Timer::Hold),
            seconds => Action::StartTimer(Timer::Hold, Duration::from_secs(seconds.into())),
        }]
    }

    fn start_keepalive(&self) -> Vec<Action> {
        match self.negotiated.as_ref().map_or(0, Negotiated::keepalive_interval) {
            0 => vec![],
            seconds => vec![Action::StartTimer(Timer::Keepalive, Duration::from_secs(seconds.into()))],
        }
    }
}
