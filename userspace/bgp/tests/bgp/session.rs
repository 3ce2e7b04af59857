//! The state machine, event by event.

use std::time::Duration;

use contiv_bgp::{Action, Config, Event, Failure, Session, State, Stop, Timer};
use rustbgpd_wire::{
    Afi, Capability, DecodeError, Message, NotificationCode, NotificationMessage, OpenMessage, Safi,
    UpdateMessage,
};

use crate::memory::{LEAF, leaf, node};

fn open(change: impl Fn(&mut OpenMessage)) -> Event {
    let mut session = Session::new(leaf());
    session.handle(Event::Start);
    let sent = session.handle(Event::Connected).into_iter().find_map(|action| match action {
        Action::Send(Message::Open(open)) => Some(open),
        _ => None,
    });
    let mut open = sent.unwrap();
    change(&mut open);
    Event::Received(Message::Open(open))
}

fn keepalive() -> Event {
    Event::Received(Message::Keepalive)
}

fn session(config: Config, events: &[Event]) -> (Session, Vec<Action>) {
    let mut session = Session::new(config);
    let mut actions = vec![];
    for event in events {
        actions = session.handle(event.clone());
    }
    (session, actions)
}

fn established(config: Config) -> Session {
    let (session, _) = session(config, &[Event::Start, Event::Connected, open(|_| ()), keepalive()]);
    assert_eq!(session.state(), State::Established);
    session
}

fn notification(actions: &[Action]) -> Option<(NotificationCode, u8)> {
    actions.iter().find_map(|action| match action {
        Action::Send(Message::Notification(message)) => Some((message.code, message.subcode)),
        _ => None,
    })
}

fn failure(actions: &[Action]) -> String {
    let failures = actions.iter().filter_map(|action| match action {
        Action::Down(failure) => Some(failure.to_string()),
        _ => None,
    });
    failures.collect()
}

#[test]
fn session_comes_up() {
    let mut session = Session::new(node());
    let actions = session.handle(Event::Start);
    assert_eq!(actions, [Action::StartTimer(Timer::ConnectRetry, Duration::from_secs(5)), Action::Connect]);
    assert_eq!(session.state(), State::Connect);
    let actions = session.handle(Event::Connected);
    assert!(matches!(actions[1], Action::Send(Message::Open(_))));
    assert_eq!(session.state(), State::OpenSent);
    // The smaller of 90 s and 30 s.
    let actions = session.handle(open(|open| open.hold_time = 30));
    let timers = [(Timer::Hold, 30), (Timer::Keepalive, 10)]
        .map(|(timer, seconds)| Action::StartTimer(timer, Duration::from_secs(seconds)));
    assert_eq!(actions[0], Action::Send(Message::Keepalive));
    assert_eq!(actions[1..], timers);
    assert_eq!(session.state(), State::OpenConfirm);
    let actions = session.handle(keepalive());
    assert!(
        matches!(&actions[1], Action::Up(negotiated) if negotiated.four_octet_as && negotiated.route_refresh)
    );
    assert_eq!(session.state(), State::Established);
    let actions = session.handle(Event::Expired(Timer::Keepalive));
    assert_eq!(actions, [Action::Send(Message::Keepalive), timers[1].clone()]);
    assert_eq!(session.handle(keepalive()), [timers[0].clone()]);
}

#[test]
fn failed_attempts_are_repeated_with_growing_delays() {
    let mut session = Session::new(node());
    session.handle(Event::Start);
    let delays: Vec<_> = (0..6)
        .map(|_| {
            let actions = session.handle(Event::Disconnected("connection refused".into()));
            assert_eq!(session.state(), State::Active);
            assert_eq!(
                failure(&actions),
                "connect to BGP neighbor 10.9.0.2: connection refused; check that the router IP is an address of this node \
                 and that the neighbor accepts BGP from it"
            );
            let actions_of_retry = session.handle(Event::Expired(Timer::ConnectRetry));
            assert!(actions_of_retry.contains(&Action::Connect));
            assert_eq!(session.state(), State::Connect);
            match actions[0] {
                Action::StartTimer(Timer::ConnectRetry, delay) => delay.as_secs(),
                _ => panic!("{actions:?}"),
            }
        })
        .collect();
    assert_eq!(delays, [5, 10, 20, 40, 60, 60]);
}

/// Runs a session that ends with an error, after a third of its hold time if it `lasts`. Returns the seconds until the next attempt.
fn delay_after(session: &mut Session, lasts: bool) -> u64 {
    for event in [Event::Connected, open(|_| ()), keepalive()] {
        session.handle(event);
    }
    assert_eq!(session.state(), State::Established);
    if lasts {
        session.handle(Event::Expired(Timer::Keepalive));
    }
    let actions = session.handle(Event::Malformed(DecodeError::InvalidMarker));
    session.handle(Event::Expired(Timer::IdleHold));
    let delay = actions.iter().find_map(|action| match action {
        Action::StartTimer(Timer::IdleHold, delay) => Some(delay.as_secs()),
        _ => None,
    });
    delay.unwrap()
}

/// With each of them the leaf withdraws the routes of the node, and the node adds and deletes those of the leaf.
#[test]
fn sessions_that_fail_at_once_are_repeated_with_growing_delays() {
    let mut session = Session::new(node());
    session.handle(Event::Start);
    let delays: Vec<_> = (0..6).map(|_| delay_after(&mut session, false)).collect();
    assert_eq!(delays, [5, 10, 20, 40, 60, 60]);
    let delays = [true, false, false].map(|lasts| delay_after(&mut session, lasts));
    assert_eq!(delays, [5, 5, 10]);
}

/// A leaf that restarts refuses connections for minutes, and may end the first session.
#[test]
fn attempts_before_a_session_do_not_delay_the_next_one() {
    let mut session = Session::new(node());
    session.handle(Event::Start);
    for _ in 0..4 {
        session.handle(Event::Disconnected("connection refused".into()));
        session.handle(Event::Expired(Timer::ConnectRetry));
    }
    assert_eq!(delay_after(&mut session, false), 5);
}

#[test]
fn attempt_that_takes_too_long_is_aborted() {
    let (session, actions) = session(node(), &[Event::Start, Event::Expired(Timer::ConnectRetry)]);
    assert_eq!(actions[0], Action::Disconnect);
    assert!(actions.contains(&Action::Connect) && failure(&actions).contains("timed out"));
    assert_eq!(session.state(), State::Connect);
}

#[test]
fn wrong_as_number_says_what_to_do() {
    let wrong = open(|open| {
        open.my_as = 65099;
        open.capabilities.retain(|capability| !matches!(capability, Capability::FourOctetAs { .. }));
    });
    let (session, actions) = session(node(), &[Event::Start, Event::Connected, wrong]);
    assert_eq!(session.state(), State::Idle);
    assert_eq!(notification(&actions), Some((NotificationCode::OpenMessage, 2)));
    assert_eq!(
        failure(&actions),
        "BGP neighbor 10.9.0.2 is in AS 65099, expected AS 65001; set neighbor-as of the Bgp object to 65099, or correct the \
         neighbor"
    );
    assert!(actions.contains(&Action::StartTimer(Timer::IdleHold, Duration::from_secs(5))));
}

#[test]
fn unacceptable_open_is_refused() {
    type Change = fn(&mut OpenMessage);
    let cases: [(Change, u8, &str); 3] = [
        (|open| open.hold_time = 2, 6, "hold time of 2 s"),
        (|open| open.bgp_identifier = [0; 4].into(), 3, "BGP identifier 0.0.0.0"),
        (
            |open| {
                open.capabilities = vec![
                    Capability::MultiProtocol { afi: Afi::L2Vpn, safi: Safi::Evpn },
                    Capability::FourOctetAs { asn: 65001 },
                ];
            },
            7,
            "no common address family",
        ),
    ];
    for (change, subcode, text) in cases {
        let (_, actions) = session(node(), &[Event::Start, Event::Connected, open(change)]);
        assert_eq!(notification(&actions), Some((NotificationCode::OpenMessage, subcode)));
        assert!(failure(&actions).contains(text), "{actions:?}");
    }
}

#[test]
fn neighbor_without_capabilities_speaks_ipv4_with_two_octets() {
    let plain = open(|open| open.capabilities.clear());
    let (session, _) = session(node(), &[Event::Start, Event::Connected, plain]);
    let negotiated = session.negotiated().unwrap();
    assert_eq!(negotiated.families, [contiv_bgp::Family::Ipv4]);
    assert!(!negotiated.four_octet_as && !negotiated.route_refresh && negotiated.graceful_restart.is_none());
}

#[test]
fn hold_time_of_zero_means_no_keepalives() {
    let (mut session, actions) =
        session(node(), &[Event::Start, Event::Connected, open(|open| open.hold_time = 0)]);
    assert_eq!(actions, [Action::Send(Message::Keepalive), Action::StopTimer(Timer::Hold)]);
    let actions = session.handle(keepalive());
    assert!(!actions.iter().any(|action| matches!(action, Action::StartTimer(..))), "{actions:?}");
}

#[test]
fn expired_hold_timer_ends_the_session() {
    let mut session = established(node());
    let actions = session.handle(Event::Expired(Timer::Hold));
    assert_eq!(notification(&actions), Some((NotificationCode::HoldTimerExpired, 0)));
    assert!(failure(&actions).starts_with("BGP neighbor 10.9.0.2: hold timer expired: no message for 90 s"));
    assert_eq!(session.state(), State::Idle);
    assert_eq!(session.handle(Event::Expired(Timer::Hold)), []);
    session.handle(Event::Expired(Timer::IdleHold));
    assert_eq!(session.state(), State::Connect);
}

#[test]
fn unexpected_messages_are_errors_of_the_state() {
    let update = || {
        Event::Received(Message::Update(UpdateMessage {
            withdrawn_routes: Default::default(),
            path_attributes: Default::default(),
            nlri: Default::default(),
        }))
    };
    let steps = [Event::Start, Event::Connected, open(|_| ()), keepalive()];
    for (events, unexpected, subcode) in [(2, update(), 1), (3, update(), 2), (4, open(|_| ()), 3)] {
        let (mut session, _) = session(node(), &steps[..events]);
        let actions = session.handle(unexpected);
        assert_eq!(notification(&actions), Some((NotificationCode::FsmError, subcode)));
        assert_eq!(session.state(), State::Idle);
    }
}

#[test]
fn malformed_bytes_are_answered_by_their_error() {
    let mut session = established(node());
    let actions = session.handle(Event::Malformed(DecodeError::InvalidMarker));
    assert_eq!(notification(&actions), Some((NotificationCode::MessageHeader, 1)));
}

#[test]
fn notification_of_the_neighbor_says_what_to_do() {
    let bad_as = NotificationMessage::new(NotificationCode::OpenMessage, 2, Default::default());
    let (_, actions) =
        session(node(), &[Event::Start, Event::Connected, Event::Received(Message::Notification(bad_as))]);
    assert_eq!(
        failure(&actions),
        "BGP neighbor 10.9.0.2 closed the session: Bad Peer AS: it does not expect AS 65000; set as of the Bgp object to the \
         number that the neighbor expects, or correct the neighbor"
    );
    assert_eq!(notification(&actions), None);
    let reason = rustbgpd_wire::notification::encode_shutdown_communication("maintenance");
    let shutdown = NotificationMessage::new(NotificationCode::Cease, 2, reason);
    let actions = established(node()).handle(Event::Received(Message::Notification(shutdown)));
    assert!(failure(&actions).ends_with("Administrative Shutdown: \"maintenance\""), "{actions:?}");
}

#[test]
fn shutdown_is_announced_and_restart_is_not() {
    let actions = established(node()).handle(Event::Stop(Stop::Shutdown));
    assert_eq!(notification(&actions), Some((NotificationCode::Cease, 2)));
    let actions = established(node()).handle(Event::Stop(Stop::Restart));
    assert_eq!(notification(&actions), None);
    assert!(actions.contains(&Action::Disconnect) && actions.contains(&Action::Down(Failure::Stopped)));
    let mut without = node();
    without.restart_time = 0;
    let actions = established(without).handle(Event::Stop(Stop::Restart));
    assert_eq!(notification(&actions), Some((NotificationCode::Cease, 2)));
}

#[test]
fn stopped_session_stays_idle() {
    let mut session = established(node());
    session.handle(Event::Stop(Stop::Shutdown));
    for event in [Event::Connected, Event::Expired(Timer::ConnectRetry), keepalive(), open(|_| ())] {
        assert_eq!(session.handle(event), []);
    }
    assert_eq!(session.state(), State::Idle);
    assert_eq!(session.config().neighbor.ip(), LEAF);
}
