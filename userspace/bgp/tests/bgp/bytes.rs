//! Messages byte by byte.

use bytes::Bytes;
use contiv_bgp::{Action, Config, Event, Failure, Family, Origin, Peer, Session, State};
use rustbgpd_wire::{
    Afi, MAX_MESSAGE_LEN, Message, NotificationCode, RouteRefreshMessage, Safi, decode_message,
    encode_message,
};

use crate::memory::{NODE_V6, Pair, addresses, leaf, learnt, node};

const MARKER: &str = "ffffffffffffffffffffffffffffffff";

fn hex(message: &Message) -> String {
    let bytes = encode_message(message).unwrap();
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    text.strip_prefix(MARKER).unwrap().to_owned()
}

/// A message from the hexadecimal text of everything after the header; spaces are ignored.
fn message(kind: u8, body: &str) -> Event {
    let body: String = body.split_whitespace().collect();
    let length = 19 + body.len() / 2;
    let text = format!("{MARKER}{length:04x}{kind:02x}{body}");
    let byte = |index| u8::from_str_radix(&text[index..index + 2], 16).unwrap();
    let mut bytes: Bytes = (0..text.len()).step_by(2).map(byte).collect();
    Event::Received(decode_message(&mut bytes, MAX_MESSAGE_LEN).unwrap())
}

fn update(withdrawn: &str, attributes: &str, nlri: &str) -> Event {
    let length = |text: &str| text.split_whitespace().collect::<String>().len() / 2;
    message(
        2,
        &format!("{:04x} {withdrawn} {:04x} {attributes} {nlri}", length(withdrawn), length(attributes)),
    )
}

fn sent(actions: &[Action]) -> Vec<String> {
    let messages = actions.iter().filter_map(|action| match action {
        Action::Send(message) => Some(hex(message)),
        _ => None,
    });
    messages.collect()
}

fn open(config: Config) -> Vec<String> {
    let mut session = Session::new(config);
    session.handle(Event::Start);
    sent(&session.handle(Event::Connected))
}

/// A peer of `config` whose neighbor is the leaf, with an established session.
fn peer(config: Config) -> Peer {
    let [peer, _] = Pair::established(config, leaf()).peers;
    peer
}

const CAPABILITIES: &str = "010400010001 010400020001 0200";

#[test]
fn open_has_the_capabilities() {
    let expected = format!(
        "003f01 04 fde8 005a 0a090001 22 0220 {CAPABILITIES} 400a0078 00010180 00020180 41040000fde8"
    );
    assert_eq!(open(node()), [expected.replace(' ', "")]);
}

#[test]
fn open_tells_of_a_restart_and_of_a_large_as_number() {
    let mut config = node();
    (config.restarted, config.local_as) = (true, 4_200_000_000);
    // AS_TRANS, and the bit "Restart State".
    let expected = format!(
        "003f01 04 5ba0 005a 0a090001 22 0220 {CAPABILITIES} 400a8078 00010180 00020180 4104fa56ea00"
    );
    assert_eq!(open(config), [expected.replace(' ', "")]);
}

#[test]
fn open_without_graceful_restart() {
    let mut config = node();
    config.restart_time = 0;
    let expected = format!("003301 04 fde8 005a 0a090001 16 0214 {CAPABILITIES} 41040000fde8");
    assert_eq!(open(config), [expected.replace(' ', "")]);
}

#[test]
fn updates_announce_and_withdraw() {
    let mut peer = peer(node());
    peer.originate(&addresses(&["10.1.0.1", "2001:db8:1::1"]), Some(NODE_V6));
    let path = "40010100 4002060201 0000fde8";
    let next_hop = "20010db8000900000000000000000001";
    let host = "80 20010db8000100000000000000000001";
    let expected = [
        format!("003002 0000 0014 {path} 4003040a090001 200a010001"),
        "001702 0000 0000".to_owned(),
        format!("004d02 0000 0036 {path} 800e26 0002 01 10 {next_hop} 00 {host}"),
        "001d02 0000 0006 800f03 0002 01".to_owned(),
    ];
    assert_eq!(sent(&peer.next_updates()), expected.map(|text| text.replace(' ', "")));
    peer.originate(&addresses(&[]), Some(NODE_V6));
    let expected =
        ["001c02 0005 200a010001 0000".to_owned(), format!("002e02 0000 0017 800f14 0002 01 {host}")];
    assert_eq!(sent(&peer.next_updates()), expected.map(|text| text.replace(' ', "")));
}

const PATH: &str = "40010100 4002060201 0000fde9 4003040a090002";

#[test]
fn updates_are_learnt() {
    let mut peer = peer(node());
    peer.handle(update("", &format!("{PATH} 800404 0000000a"), "10 1401 18 140203"));
    assert_eq!(learnt(&mut peer), ["20.1.0.0/16", "20.2.3.0/24"]);
    let learnt_routes = peer.learnt().clone();
    let route = &learnt_routes.routes[&"20.1.0.0/16".parse().unwrap()];
    assert_eq!((route.attributes.origin, route.attributes.med), (Origin::Igp, Some(10)));
    peer.handle(update("18 140203", "", ""));
    assert_eq!(learnt(&mut peer), ["20.1.0.0/16"]);
}

#[test]
fn malformed_attribute_withdraws_its_routes_and_keeps_the_session() {
    let mut peer = peer(node());
    peer.handle(update("", PATH, "10 1401 10 1402"));
    assert_eq!(learnt(&mut peer), ["20.1.0.0/16", "20.2.0.0/16"]);
    let malformed = [
        // ORIGIN has the value 9, is missing, and has two bytes.
        "40010109 4002060201 0000fde9 4003040a090002",
        "4002060201 0000fde9 4003040a090002",
        "4001020000 4002060201 0000fde9 4003040a090002",
        // AS_PATH is shorter than its segment says.
        "40010100 4002060202 0000fde9 4003040a090002",
        // AS_PATH has an AS_SET, and an AS_CONFED_SEQUENCE (RFC 9774).
        "40010100 4002060101 0000fde9 4003040a090002",
        "40010100 4002060301 0000fde9 4003040a090002",
        // The next hop is a multicast address.
        "40010100 4002060201 0000fde9 400304e0000001",
    ];
    for (count, attributes) in (1..).zip(malformed) {
        peer.handle(update("", PATH, "10 1401"));
        let actions = peer.handle(update("", attributes, "10 1401"));
        // A warning, whose rate is limited, and no message.
        let [Action::Warn(warning)] = &actions[1..] else { panic!("{actions:?}") };
        assert!(warning.starts_with("UPDATE treated as withdrawal (RFC 7606): "), "{warning}");
        assert_eq!(learnt(&mut peer), ["20.2.0.0/16"], "{attributes}");
        assert_eq!(peer.status().counters.updates_malformed, count);
        assert_eq!(peer.status().state, State::Established);
    }
}

#[test]
fn next_hop_of_another_family_withdraws_the_prefix() {
    let mut peer = peer(node());
    peer.handle(update("", PATH, "10 1401 10 1402"));
    // MP_REACH_NLRI of 20.1.0.0/16 with an IPv6 next hop, which was not negotiated.
    let next_hop = "20010db8000900000000000000000002";
    let attributes = format!("40010100 4002060201 0000fde9 800e18 0001 01 10 {next_hop} 00 10 1401");
    let actions = peer.handle(update("", &attributes, ""));
    assert_eq!(sent(&actions), [""; 0]);
    assert_eq!(learnt(&mut peer), ["20.2.0.0/16"]);
    assert_eq!(peer.status().counters.updates_malformed, 1);
    assert_eq!(peer.status().state, State::Established);
}

#[test]
fn malformed_attribute_that_does_not_matter_is_discarded() {
    let mut peer = peer(node());
    // ATOMIC_AGGREGATE with a byte.
    peer.handle(update("", &format!("{PATH} 40060100"), "10 1401"));
    assert_eq!(learnt(&mut peer), ["20.1.0.0/16"]);
}

#[test]
fn prefix_that_cannot_be_parsed_closes_the_session() {
    let mut peer = peer(node());
    let actions = peer.handle(update("", PATH, "21 1401010101"));
    let [Action::Send(Message::Notification(notification)), ..] = &actions[1..] else {
        panic!("{actions:?}")
    };
    assert_eq!((notification.code, notification.subcode), (NotificationCode::UpdateMessage, 10));
    assert!(matches!(peer.status().failure, Some(Failure::Protocol { .. })));
}

#[test]
fn prefixes_without_unicast_forwarding_are_ignored() {
    let mut peer = peer(node());
    // 127.0.0.0/8, 169.254.169.254/32, 224.0.0.0/4, 255.255.255.255/32, and beside them 0.0.0.0/0, 128.0.0.0/1,
    // 20.1.0.0/16 and 250.0.0.0/8.
    let martians = "08 7f 20 a9fea9fe 04 e0 20 ffffffff";
    peer.handle(update("", PATH, &format!("{martians} 00 01 80 10 1401 08 fa")));
    let others = ["0.0.0.0/0", "20.1.0.0/16", "128.0.0.0/1", "250.0.0.0/8"];
    assert_eq!(learnt(&mut peer), others);
    let counters = peer.status().counters;
    assert_eq!((counters.prefixes_ignored, counters.updates_malformed), (4, 0));
    // ::1/128, fe80::/64 and ff02::/16.
    let next_hop = "20010db8000900000000000000000002";
    let prefixes = "80 00000000000000000000000000000001 40 fe80000000000000 10 ff02";
    let path = "40010100 4002060201 0000fde9";
    peer.handle(update("", &format!("{path} 800e32 0002 01 10 {next_hop} 00 {prefixes}"), ""));
    assert_eq!(peer.status().counters.prefixes_ignored, 7);
    assert_eq!(peer.status().counters.updates_malformed, 0);
    peer.handle(update(martians, "", ""));
    assert_eq!(learnt(&mut peer), others);
    assert_eq!(peer.status().state, State::Established);
}

#[test]
fn loops_and_own_next_hops_are_not_used() {
    let mut peer = peer(node());
    peer.handle(update("", PATH, "10 1401"));
    assert_eq!(learnt(&mut peer), ["20.1.0.0/16"]);
    // The AS path 65001 65000.
    peer.handle(update("", "40010100 40020a0202 0000fde9 0000fde8 4003040a090002", "10 1401"));
    assert_eq!(learnt(&mut peer), [""; 0]);
    peer.handle(update("", "40010100 4002060201 0000fde9 4003040a090001", "10 1402"));
    assert_eq!(learnt(&mut peer), [""; 0]);
}

#[test]
fn as_path_of_two_octets_is_completed() {
    let mut pair = Pair::new(node(), leaf());
    pair.peers[0].handle(Event::Start);
    pair.peers[0].handle(Event::Connected);
    // An OPEN without capabilities.
    pair.peers[0].handle(message(1, "04 fde9 005a 0a090002 00"));
    pair.peers[0].handle(Event::Received(Message::Keepalive));
    let peer = &mut pair.peers[0];
    assert_eq!(peer.status().negotiated.unwrap().families, [Family::Ipv4]);
    // AS_PATH 65001 23456, and AS4_PATH 65001 4200000000.
    let as4_path = "c0110a0202 0000fde9 fa56ea00";
    let attributes = format!("40010100 4002060202 fde9 5ba0 4003040a090002 {as4_path}");
    peer.handle(update("", &attributes, "10 1401"));
    let learnt = peer.learnt().clone();
    assert_eq!(learnt.routes[&"20.1.0.0/16".parse().unwrap()].attributes.as_path, [65001, 4_200_000_000]);
}

#[test]
fn route_refresh_sends_a_family_again() {
    let mut peer = peer(node());
    peer.originate(&addresses(&["10.1.0.1", "2001:db8:1::1"]), Some(NODE_V6));
    let first = sent(&peer.next_updates());
    assert_eq!(sent(&peer.next_updates()), [""; 0]);
    let refresh = RouteRefreshMessage::new(Afi::Ipv4, Safi::Unicast);
    peer.handle(Event::Received(Message::RouteRefresh(refresh)));
    assert_eq!(sent(&peer.next_updates()), first[..1]);
}
