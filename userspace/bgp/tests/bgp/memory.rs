//! Two peers that are connected in memory: every message is encoded and decoded.

use std::{
    collections::{BTreeSet, VecDeque},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use contiv_bgp::{Action, Config, Event, Failure, Peer, State, Timer};
use ipnet::IpNet;
use rustbgpd_wire::{MAX_MESSAGE_LEN, Message, decode_message, encode_message};

pub(crate) const NODE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
pub(crate) const LEAF: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Next hops of IPv6 routes.
pub(crate) const NODE_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1);
pub(crate) const LEAF_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 2);

pub(crate) fn node() -> Config {
    Config::new(65000, NODE, LEAF.into(), 65001)
}

pub(crate) fn leaf() -> Config {
    Config::new(65001, LEAF, NODE.into(), 65000)
}

/// The message after it has been on the wire.
pub(crate) fn transfer(message: &Message) -> Message {
    let mut bytes = encode_message(message).unwrap().freeze();
    assert!(bytes.len() <= MAX_MESSAGE_LEN.into());
    decode_message(&mut bytes, MAX_MESSAGE_LEN).unwrap()
}

pub(crate) fn addresses(texts: &[&str]) -> BTreeSet<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

pub(crate) fn learnt(peer: &mut Peer) -> Vec<String> {
    peer.learnt().routes.keys().map(ToString::to_string).collect()
}

pub(crate) struct Pair {
    pub(crate) peers: [Peer; 2],
    /// Next hops of the IPv6 routes of each.
    pub(crate) next_hops: [Option<Ipv6Addr>; 2],
    /// Actions of each, without messages.
    pub(crate) log: [Vec<Action>; 2],
    queue: VecDeque<(usize, Event)>,
}

impl Pair {
    pub(crate) fn new(node: Config, leaf: Config) -> Pair {
        let peers = [Peer::new(node), Peer::new(leaf)];
        let next_hops = [NODE_V6, LEAF_V6].map(Some);
        Pair { peers, next_hops, log: [vec![], vec![]], queue: VecDeque::new() }
    }

    /// Connects both.
    pub(crate) fn established(node: Config, leaf: Config) -> Pair {
        let mut pair = Pair::new(node, leaf);
        pair.connect();
        for peer in &pair.peers {
            assert_eq!(peer.status().state, State::Established, "{:?}", peer.status().failure);
        }
        pair
    }

    pub(crate) fn connect(&mut self) {
        for index in [0, 1] {
            self.queue.push_back((index, Event::Start));
            self.queue.push_back((index, Event::Expired(Timer::IdleHold)));
            self.queue.push_back((index, Event::Expired(Timer::ConnectRetry)));
        }
        self.run();
        self.queue.extend([(0, Event::Connected), (1, Event::Connected)]);
        self.run();
    }

    /// The connection ends without a NOTIFICATION.
    pub(crate) fn cut(&mut self) {
        for index in [0, 1] {
            self.queue.push_back((index, Event::Disconnected("cut".into())));
        }
        self.run();
    }

    pub(crate) fn event(&mut self, index: usize, event: Event) {
        self.queue.push_back((index, event));
        self.run();
    }

    pub(crate) fn originate(&mut self, index: usize, addresses: &BTreeSet<IpAddr>) {
        self.peers[index].originate(addresses, self.next_hops[index]);
        self.run();
    }

    pub(crate) fn failure(&self, index: usize) -> Option<Failure> {
        self.peers[index].status().failure
    }

    /// Handles events and messages until there are none.
    fn run(&mut self) {
        loop {
            let (index, actions) = if let Some((index, event)) = self.queue.pop_front() {
                (index, self.peers[index].handle(event))
            } else {
                let mut updates = [0, 1].map(|index| (index, self.peers[index].next_updates()));
                match updates.iter_mut().find(|(_, actions)| !actions.is_empty()) {
                    None => return,
                    Some(_) => {
                        for (index, actions) in updates {
                            self.follow(index, actions);
                        }
                        continue;
                    }
                }
            };
            self.follow(index, actions);
        }
    }

    fn follow(&mut self, index: usize, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send(message) => {
                    self.queue.push_back((1 - index, Event::Received(transfer(&message))));
                }
                action => self.log[index].push(action),
            }
        }
    }
}

#[test]
fn routes_go_both_ways_and_are_withdrawn() {
    let mut pair = Pair::established(node(), leaf());
    pair.originate(0, &addresses(&["10.1.0.1", "10.1.0.2", "2001:db8:1::1"]));
    pair.originate(1, &addresses(&["10.2.0.1", "2001:db8:2::1"]));
    assert_eq!(learnt(&mut pair.peers[1]), ["10.1.0.1/32", "10.1.0.2/32", "2001:db8:1::1/128"]);
    assert_eq!(learnt(&mut pair.peers[0]), ["10.2.0.1/32", "2001:db8:2::1/128"]);
    let learnt_by_node = pair.peers[0].learnt().clone();
    assert!(learnt_by_node.complete);
    let route = &learnt_by_node.routes[&"10.2.0.1/32".parse().unwrap()];
    assert_eq!((route.next_hop, &route.attributes.as_path[..]), (LEAF.into(), &[65001][..]));

    let sent = pair.peers[0].status().counters.updates_sent;
    pair.originate(0, &addresses(&["10.1.0.2", "10.1.0.3"]));
    assert_eq!(learnt(&mut pair.peers[1]), ["10.1.0.2/32", "10.1.0.3/32"]);
    // One withdrawal and one announcement for IPv4, one withdrawal for IPv6: nothing that did not change.
    assert_eq!(pair.peers[0].status().counters.updates_sent - sent, 3);
}

#[test]
fn route_of_the_neighbor_to_an_own_address_is_not_selected() {
    let mut pair = Pair::established(node(), leaf());
    pair.originate(0, &addresses(&["10.1.0.1"]));
    pair.originate(1, &addresses(&["10.1.0.1", "10.2.0.1"]));
    assert_eq!(pair.peers[0].status().received, 2);
    assert_eq!(learnt(&mut pair.peers[0]), ["10.2.0.1/32"]);
    pair.originate(0, &addresses(&[]));
    assert_eq!(learnt(&mut pair.peers[0]), ["10.1.0.1/32", "10.2.0.1/32"]);
}

#[test]
fn ipv6_routes_need_a_next_hop() {
    let mut pair = Pair::established(node(), leaf());
    pair.next_hops[0] = None;
    pair.originate(0, &addresses(&["10.1.0.1", "2001:db8:1::1"]));
    pair.originate(1, &addresses(&["2001:db8:2::1"]));
    assert_eq!(learnt(&mut pair.peers[1]), ["10.1.0.1/32"]);
    assert_eq!(pair.peers[0].status().advertised, 1);
    assert_eq!(learnt(&mut pair.peers[0]), ["2001:db8:2::1/128"]);
}

#[test]
fn another_next_hop_replaces_ipv6_routes_within_the_session() {
    let mut pair = Pair::established(node(), leaf());
    let own = addresses(&["10.1.0.1", "2001:db8:1::1"]);
    pair.originate(0, &own);
    let other = "2001:db8:9::11".parse::<Ipv6Addr>().unwrap();
    let sent = |pair: &Pair| pair.peers[0].status().counters.updates_sent;
    for (next_hop, updates) in [(Some(other), 1), (Some(other), 0), (None, 1), (Some(NODE_V6), 1)] {
        let before = sent(&pair);
        pair.next_hops[0] = next_hop;
        pair.originate(0, &own);
        assert_eq!(sent(&pair) - before, updates, "only IPv6: {next_hop:?}");
        let learnt = pair.peers[1].learnt().clone();
        assert_eq!(learnt.routes[&"10.1.0.1/32".parse().unwrap()].next_hop, IpAddr::from(NODE));
        let route = learnt.routes.get(&"2001:db8:1::1/128".parse::<IpNet>().unwrap());
        assert_eq!(route.map(|route| route.next_hop), next_hop.map(IpAddr::from));
    }
    assert_eq!(pair.peers.map(|peer| peer.status().counters.established), [1, 1]);
}

#[test]
fn internal_neighbors_exchange_routes() {
    let (mut node, mut leaf) = (node(), leaf());
    (node.neighbor_as, leaf.local_as) = (65000, 65000);
    let mut pair = Pair::established(node, leaf);
    pair.originate(1, &addresses(&["10.2.0.1"]));
    let learnt = pair.peers[0].learnt().clone();
    let attributes = &learnt.routes[&"10.2.0.1/32".parse().unwrap()].attributes;
    assert_eq!((attributes.local_pref, &attributes.as_path[..]), (Some(100), &[][..]));
}

#[test]
fn as_numbers_of_four_octets_are_exchanged() {
    let (mut node, mut leaf) = (node(), leaf());
    (node.local_as, leaf.neighbor_as) = (4_200_000_000, 4_200_000_000);
    let mut pair = Pair::established(node, leaf);
    pair.originate(0, &addresses(&["10.1.0.1"]));
    let learnt = pair.peers[1].learnt().clone();
    assert_eq!(learnt.routes[&"10.1.0.1/32".parse().unwrap()].attributes.as_path, [4_200_000_000]);
}

#[test]
fn too_many_prefixes_close_the_session() {
    let mut small = node();
    small.max_prefixes = 3;
    let mut pair = Pair::established(small, leaf());
    pair.originate(1, &addresses(&["10.2.0.1", "10.2.0.2", "10.2.0.3"]));
    assert_eq!(pair.peers[0].status().state, State::Established);
    pair.originate(1, &addresses(&["10.2.0.1", "10.2.0.2", "10.2.0.3", "10.2.0.4"]));
    assert_eq!(pair.peers[0].status().state, State::Idle);
    assert_eq!(learnt(&mut pair.peers[0]), [""; 0]);
    assert_eq!(
        pair.failure(0).unwrap().to_string(),
        "BGP neighbor 10.9.0.2 announced more than 3 prefixes; filter the routes that it sends to this node: a \
         default route is enough"
    );
    assert_eq!(
        pair.failure(1).unwrap().to_string(),
        "BGP neighbor 10.9.0.1 closed the session: Maximum Number of Prefixes Reached"
    );
}

#[test]
fn ten_thousand_routes_are_packed_into_few_messages() {
    let many: BTreeSet<IpAddr> = (0..10_000_u32).map(|n| Ipv4Addr::from(0x0a01_0000 + n).into()).collect();
    let mut pair = Pair::established(node(), leaf());
    pair.originate(0, &many);
    assert_eq!(pair.peers[1].status().received, 10_000);
    // 50 messages of 200 prefixes, and two End-of-RIB markers.
    assert_eq!(pair.peers[0].status().counters.updates_sent, 52);
}
