//! Random input: the peer does not panic, keeps its limit, and two peers agree.

use std::{collections::BTreeSet, net::IpAddr};

use bytes::{Bytes, BytesMut};
use contiv_bgp::{Event, Peer, State, Stop, Timer};
use proptest::prelude::*;
use rustbgpd_wire::{MAX_MESSAGE_LEN, decode_message};

use crate::memory::{Pair, leaf, node};

/// A body with a correct header, often an UPDATE.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(2_u8), 1 => 0..7_u8];
    // Values that occur in messages: types of attributes, lengths, flags.
    let byte = prop_oneof![0..20_u8, Just(0x40), Just(0x80), Just(0x90), Just(0xc0), any::<u8>()];
    (kind, prop::collection::vec(byte, 0..200)).prop_map(|(kind, body)| {
        let mut bytes = vec![0xff; 16];
        bytes.extend(u16::try_from(19 + body.len()).unwrap().to_be_bytes());
        bytes.push(kind);
        bytes.extend(body);
        bytes
    })
}

/// A valid UPDATE with some bytes changed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((23..77_usize, any::<u8>()), 1..4).prop_map(|changes| {
        let mut bytes = vec![0xff; 16];
        bytes.extend([0, 77, 2, 0, 0, 0, 0x36, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xe9]);
        bytes.extend([
            0x80, 0x0e, 0x26, 0, 2, 1, 16, 0x20, 1, 0xd, 0xb8, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0,
        ]);
        bytes.extend([0x80, 0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        for (index, value) in changes {
            bytes[index] = value;
        }
        bytes
    })
}

fn event() -> impl Strategy<Value = Event> {
    let timers =
        [Timer::IdleHold, Timer::ConnectRetry, Timer::Hold, Timer::Keepalive, Timer::Stale, Timer::Deferral];
    prop_oneof![
        20 => prop_oneof![message(), mutated()].prop_map(|bytes| {
            match decode_message(&mut Bytes::from(bytes), MAX_MESSAGE_LEN) {
                Ok(message) => Event::Received(message),
                Err(error) => Event::Malformed(error),
            }
        }),
        1 => prop::sample::select(timers.to_vec()).prop_map(Event::Expired),
        1 => Just(Event::Connected),
        1 => Just(Event::Start),
        1 => Just(Event::Disconnected("cut".into())),
        1 => Just(Event::Stop(Stop::Restart)),
    ]
}

fn addresses() -> impl Strategy<Value = BTreeSet<IpAddr>> {
    let address = prop_oneof![
        (0..50_u32).prop_map(|n| IpAddr::from((0x0a01_0000 + n).to_be_bytes())),
        (0..50_u128).prop_map(|n| IpAddr::from(((0x2001_0db8_u128 << 96) + n).to_be_bytes())),
    ];
    prop::collection::btree_set(address, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn random_events_do_not_panic(events in prop::collection::vec(event(), 1..60)) {
        let mut config = node();
        config.max_prefixes = 20;
        let [mut peer, _] = Pair::established(config, leaf()).peers;
        for event in events {
            peer.handle(event);
            peer.next_updates();
            let status = peer.status();
            prop_assert!(status.received <= 20);
            prop_assert_eq!(status.failure.is_none(), status.state == State::Established || status.counters.established == 0);
            prop_assert!(peer.learnt().routes.len() <= status.received);
        }
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), valid in message()) {
        let mut input = BytesMut::from(&valid[..]);
        input.extend_from_slice(&bytes);
        let mut peer = Peer::new(node());
        peer.handle(Event::Start);
        peer.handle(Event::Connected);
        if let Ok(message) = decode_message(&mut input.freeze(), MAX_MESSAGE_LEN) {
            peer.handle(Event::Received(message));
        }
    }

    /// Whatever changes, and whenever the connection is cut, both end up with the routes of the other.
    #[test]
    fn peers_agree(steps in prop::collection::vec((0..2_usize, addresses(), prop::bool::weighted(0.2)), 1..8)) {
        let mut pair = Pair::established(node(), leaf());
        let mut own = [BTreeSet::new(), BTreeSet::new()];
        for (index, addresses, cut) in steps {
            pair.originate(index, &addresses);
            own[index] = addresses;
            if cut {
                pair.cut();
                pair.connect();
            }
        }
        for (index, other) in [(0, 1), (1, 0)] {
            pair.originate(other, &own[other]);
            let expected: BTreeSet<IpAddr> = own[other].difference(&own[index]).copied().collect();
            let learnt: BTreeSet<IpAddr> = pair.peers[index].learnt().routes.keys().map(|net| net.addr()).collect();
            prop_assert_eq!(learnt, expected);
            prop_assert_eq!(pair.peers[index].status().stale, 0);
        }
    }
}
