//! Graceful restart (RFC 4724), by events.

use std::time::Duration;

use contiv_bgp::{Action, Event, Family, Peer, State, Stop, Timer};
use rustbgpd_wire::{DecodeError, Message, OpenMessage, UpdateMessage};

use crate::memory::{LEAF, Pair, addresses, leaf, learnt, node};

fn stale(peer: &Peer) -> (usize, usize) {
    (peer.status().received, peer.status().stale)
}

/// The leaf has two routes, and the connection ends.
fn cut() -> Pair {
    let mut pair = Pair::established(node(), leaf());
    pair.originate(1, &addresses(&["10.2.0.1", "10.2.0.2", "2001:db8:2::1"]));
    pair.cut();
    assert_eq!(stale(&pair.peers[0]), (3, 3));
    pair
}

#[test]
fn routes_are_kept_for_the_restart_time() {
    let mut pair = cut();
    assert!(pair.log[0].contains(&Action::StartTimer(Timer::Stale, Duration::from_secs(120))));
    assert_eq!(learnt(&mut pair.peers[0]).len(), 3);
    pair.event(0, Event::Expired(Timer::Stale));
    assert_eq!(learnt(&mut pair.peers[0]), [""; 0]);
}

/// Seconds until the next attempts to connect, each of which is refused.
fn delays(pair: &mut Pair) -> Vec<u64> {
    let attempts = (0..6).map(|_| {
        pair.log[0].clear();
        pair.event(0, Event::Expired(Timer::ConnectRetry));
        pair.event(0, Event::Expired(Timer::IdleHold));
        pair.event(0, Event::Disconnected("connection refused".into()));
        let delay = pair.log[0].iter().rev().find_map(|action| match action {
            Action::StartTimer(Timer::ConnectRetry, delay) => Some(delay.as_secs()),
            _ => None,
        });
        delay.unwrap()
    });
    attempts.collect()
}

/// With growing delays, a neighbor that is back after 76 s of 120 s would be dialed when its routes are gone.
#[test]
fn attempts_are_frequent_while_there_are_stale_routes() {
    let mut pair = cut();
    assert!(pair.log[0].contains(&Action::StartTimer(Timer::IdleHold, Duration::from_secs(5))));
    assert_eq!(delays(&mut pair), [5; 6]);
    pair.event(0, Event::Expired(Timer::Stale));
    assert_eq!(delays(&mut pair), [60; 6]);
}

#[test]
fn attempts_are_frequent_until_the_routes_are_complete() {
    let mut pair = Pair::new(node(), leaf());
    pair.event(0, Event::Start);
    assert_eq!(delays(&mut pair), [5; 6]);
    pair.event(0, Event::Expired(Timer::Deferral));
    assert_eq!(delays(&mut pair), [60; 6]);
}

#[test]
fn end_of_rib_removes_what_the_neighbor_no_longer_has() {
    let mut pair = cut();
    let mut restarted = leaf();
    restarted.restarted = true;
    pair.peers[1] = Peer::new(restarted);
    pair.connect();
    assert_eq!(stale(&pair.peers[0]), (3, 3), "routes stay until the End-of-RIB marker");
    pair.originate(1, &addresses(&["10.2.0.2", "10.2.0.3"]));
    assert_eq!(stale(&pair.peers[0]), (2, 0));
    assert_eq!(learnt(&mut pair.peers[0]), ["10.2.0.2/32", "10.2.0.3/32"]);
}

#[test]
fn neighbor_that_did_not_keep_forwarding_loses_its_routes() {
    let mut pair = cut();
    let mut without = leaf();
    without.restart_time = 0;
    pair.peers[1] = Peer::new(without);
    pair.connect();
    assert_eq!(stale(&pair.peers[0]), (0, 0));
}

#[test]
fn second_failure_removes_stale_routes() {
    let mut pair = cut();
    let mut restarted = leaf();
    restarted.restarted = true;
    pair.peers[1] = Peer::new(restarted);
    pair.connect();
    assert_eq!(stale(&pair.peers[0]), (3, 3));
    pair.cut();
    assert_eq!(stale(&pair.peers[0]), (0, 0));
}

#[test]
fn stale_routes_do_not_outlive_a_neighbor_that_never_finishes() {
    let mut pair = cut();
    pair.peers[1] = Peer::new(leaf());
    pair.connect();
    assert_eq!(stale(&pair.peers[0]), (3, 3));
    // Neighbors wait for their own ones, for 240 s and more.
    assert!(pair.log[0].contains(&Action::StartTimer(Timer::Stale, Duration::from_secs(360))));
    pair.event(0, Event::Expired(Timer::Stale));
    assert_eq!(stale(&pair.peers[0]), (0, 0));
    assert_eq!(pair.peers[0].status().state, State::Established);
}

#[test]
fn routes_do_not_survive_an_error_or_a_shutdown() {
    for event in [Event::Expired(Timer::Hold), Event::Stop(Stop::Shutdown)] {
        let mut pair = Pair::established(node(), leaf());
        pair.originate(0, &addresses(&["10.1.0.1"]));
        pair.originate(1, &addresses(&["10.2.0.1"]));
        pair.event(0, event);
        assert_eq!(stale(&pair.peers[0]), (0, 0));
        // The neighbor got a NOTIFICATION.
        assert_eq!(stale(&pair.peers[1]), (0, 0));
    }
}

#[test]
fn learnt_routes_are_complete_after_the_end_of_rib_or_the_deferral() {
    let mut pair = Pair::established(node(), leaf());
    assert!(!pair.peers[0].learnt().complete);
    pair.originate(1, &addresses(&[]));
    assert!(pair.peers[0].learnt().complete);

    let mut pair = Pair::established(node(), leaf());
    pair.event(0, Event::Expired(Timer::Deferral));
    assert!(pair.peers[0].learnt().complete);
}

#[test]
fn without_earlier_routes_nothing_is_awaited() {
    let mut config = node();
    config.has_earlier_routes = false;
    let mut pair = Pair::new(config, leaf());
    assert!(pair.peers[0].learnt().complete);
    pair.connect();
    let is_deferral = |action: &Action| matches!(action, Action::StartTimer(Timer::Deferral, _));
    assert!(!pair.log[0].iter().any(is_deferral), "{:?}", pair.log[0]);
    pair.originate(1, &addresses(&["10.2.0.1"]));
    assert_eq!(learnt(&mut pair.peers[0]), ["10.2.0.1/32"]);
}

/// Times in seconds to wait for the first routes.
fn deferrals(pair: &Pair) -> Vec<u64> {
    let of_action = |action: &Action| match action {
        Action::StartTimer(Timer::Deferral, duration) => Some(duration.as_secs()),
        _ => None,
    };
    pair.log[0].iter().filter_map(of_action).collect()
}

/// A leaf that has restarted waits for its own neighbors before it announces their routes.
#[test]
fn the_first_routes_of_a_leaf_that_has_restarted_have_more_time() {
    let mut restarted = leaf();
    restarted.restarted = true;
    let mut pair = Pair::new(node(), restarted);
    pair.connect();
    assert_eq!(deferrals(&pair), [360, 360]);
    pair.cut();
    pair.connect();
    assert_eq!(deferrals(&pair), [360, 360], "the time is limited");
}

/// Each session makes both sides add and remove all routes.
#[test]
fn sessions_in_a_row_are_damped_while_routes_are_awaited() {
    let mut pair = Pair::new(node(), leaf());
    let mut delays = vec![];
    for _ in 0..4 {
        pair.connect();
        pair.log[0].clear();
        pair.cut();
        delays.extend(pair.log[0].iter().find_map(|action| match action {
            Action::StartTimer(Timer::IdleHold, delay) => Some(delay.as_secs()),
            _ => None,
        }));
    }
    assert_eq!(delays, [5, 10, 20, 40]);
}

/// A leaf that restarts at the same time may be away for longer than it takes to send its routes.
#[test]
fn the_time_for_the_first_routes_begins_with_the_session() {
    let mut pair = Pair::new(node(), leaf());
    pair.connect();
    assert_eq!(deferrals(&pair), [360, 60]);
    // The leaf may restart now, which takes longer.
    pair.cut();
    assert_eq!(deferrals(&pair), [360, 60, 360]);
    pair.connect();
    pair.cut();
    pair.connect();
    assert_eq!(deferrals(&pair), [360, 60, 360], "the time is limited");
    pair.event(0, Event::Expired(Timer::Deferral));
    assert!(pair.peers[0].learnt().complete);
}

fn end_of_rib(family: Family) -> Event {
    let attributes: &[u8] = match family {
        Family::Ipv4 => &[],
        // MP_UNREACH_NLRI without prefixes.
        Family::Ipv6 => &[0x80, 0x0f, 3, 0, 2, 1],
    };
    Event::Received(Message::Update(UpdateMessage {
        withdrawn_routes: Default::default(),
        path_attributes: attributes.into(),
        nlri: Default::default(),
    }))
}

/// Else the speaker takes the routes of one session for all routes of the neighbor, or awaits a marker that does not come.
#[test]
fn each_session_awaits_the_markers_of_its_families() {
    let mut pair = Pair::established(node(), leaf());
    pair.event(0, end_of_rib(Family::Ipv4));
    // The routes that it has sent are gone.
    pair.event(0, Event::Malformed(DecodeError::InvalidMarker));
    pair.connect();
    pair.event(0, end_of_rib(Family::Ipv6));
    assert!(!pair.peers[0].learnt().complete);
    pair.event(0, end_of_rib(Family::Ipv4));
    assert!(pair.peers[0].learnt().complete);

    let mut pair = Pair::established(node(), leaf());
    pair.event(0, Event::Malformed(DecodeError::InvalidMarker));
    for event in [Event::Expired(Timer::IdleHold), Event::Connected, open_without_capabilities()] {
        pair.peers[0].handle(event);
    }
    pair.peers[0].handle(Event::Received(Message::Keepalive));
    assert_eq!(pair.peers[0].status().negotiated.unwrap().families, [Family::Ipv4]);
    assert!(!pair.peers[0].learnt().complete);
    pair.peers[0].handle(end_of_rib(Family::Ipv4));
    assert!(pair.peers[0].learnt().complete);
}

/// A neighbor without the multiprotocol capability has IPv4 only.
fn open_without_capabilities() -> Event {
    Event::Received(Message::Open(OpenMessage {
        version: 4,
        my_as: 65001,
        hold_time: 90,
        bgp_identifier: LEAF,
        capabilities: vec![],
    }))
}

/// To select the routes anew costs as much as there are, and the neighbor may send any number of markers.
#[test]
fn end_of_rib_without_effect_selects_no_routes() {
    let mut pair = Pair::established(node(), leaf());
    pair.originate(1, &addresses(&["10.2.0.1"]));
    assert_eq!(learnt(&mut pair.peers[0]), ["10.2.0.1/32"]);
    pair.event(0, end_of_rib(Family::Ipv4));
    assert_eq!(pair.peers[0].status().state, State::Established);
    assert!(!pair.peers[0].has_changed());
}

#[test]
fn nothing_is_announced_before_the_routes_are_known() {
    let mut pair = Pair::established(node(), leaf());
    assert_eq!(pair.peers[0].status().counters.updates_sent, 0);
    pair.originate(0, &addresses(&[]));
    // The two End-of-RIB markers.
    assert_eq!(pair.peers[0].status().counters.updates_sent, 2);
}
