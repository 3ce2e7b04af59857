use contiv_model::{
    endpoint::Endpoint,
    global::Config,
    key::Key,
    mac::Mac,
    network::{self, Kind},
    tag::{Vlan, Vni},
};
use proptest::prelude::*;

use super::*;
use crate::state::{self, Attachment, Vtep};

pub(crate) fn node() -> Node {
    Node { host: "h0".into(), vtep: vtep_address(0) }
}

fn vtep_address(n: u8) -> IpAddr {
    [192, 168, 0, 10 + n].into()
}

/// One thing that can happen, over so few names that they meet often.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Arp { flood: bool },
    Network { n: u8, encap: Option<Encap> },
    Endpoint { n: u8, at: Option<(u8, u8, u8)> },
    Registration { key: u8, at: Option<(u8, u8, u16)> },
    Node { host: u8, at: Option<(u8, u16)> },
    Attachment { n: u8, port: Option<u8> },
}

fn encap() -> impl Strategy<Value = Encap> {
    let vlan = |n: u16| Vlan::try_from(n).unwrap();
    prop_oneof![
        (1..3u16).prop_map(move |n| Encap::Vlan(vlan(n))),
        (1..3u32, 1..3u16).prop_map(move |(vni, local)| Encap::Vxlan {
            vni: Vni::try_from(vni).unwrap(),
            local: vlan(local)
        }),
    ]
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => any::<bool>().prop_map(|flood| Event::Arp { flood }),
        3 => (0..3u8, prop::option::weighted(0.8, encap())).prop_map(|(n, encap)| Event::Network { n, encap }),
        5 => (0..4u8, prop::option::weighted(0.8, (0..3u8, 0..3u8, 1..4u8)))
            .prop_map(|(n, at)| Event::Endpoint { n, at }),
        3 => (0..4u8, prop::option::weighted(0.7, (0..3u8, 0..4u8, 4789..4791u16)))
            .prop_map(|(key, at)| Event::Registration { key, at }),
        2 => (0..3u8, prop::option::weighted(0.7, (0..4u8, 4789..4791u16)))
            .prop_map(|(host, at)| Event::Node { host, at }),
        2 => (0..4u8, prop::option::weighted(0.7, 0..3u8))
            .prop_map(|(n, port)| Event::Attachment { n, port }),
    ]
}

pub(crate) fn happen(state: &mut State, event: Event, since: i64) -> Touched {
    match event {
        Event::Arp { flood } => {
            let arp_mode = if flood { "flood" } else { "proxy" }.to_owned();
            let config = Config { arp_mode, ..Config::default() };
            state.set(&Key::MasterConfig, Some(state::Object::Config(config)))
        }
        Event::Network { n, encap } => {
            let network = encap.map(|encap| state::Object::Network(network(n, encap)));
            state.set(&Key::Network(network_id(n)), network)
        }
        Event::Endpoint { n, at } => {
            let endpoint = at.map(|(net, host, ip)| state::Object::Endpoint(endpoint(n, net, host, ip)));
            state.set(&Key::Endpoint(endpoint_id(n)), endpoint)
        }
        Event::Registration { key, at } => {
            let name = contiv_model::registry::VTEP.to_owned();
            let vtep =
                at.map(|(host, address, port)| state::Object::Registration(vtep(host, address, port, since)));
            state.set(&Key::Service { name, address: key.to_string() }, vtep)
        }
        Event::Node { host, at } => {
            let vtep = at.map(|(address, port)| state::Object::Node(vtep(host, address, port, since)));
            state.set(&Key::NodeStatus(host_name(host)), vtep)
        }
        Event::Attachment { n, port } => {
            let attachment = port.map(|port| Attachment { port: format!("vvport{port}") });
            state.set_attachment(&endpoint_id(n), attachment)
        }
    }
}

fn host_name(n: u8) -> HostName {
    format!("h{n}").into()
}

fn network_id(n: u8) -> NetworkId {
    format!("n{n}.t").into()
}

fn endpoint_id(n: u8) -> EndpointId {
    format!("e{n}").into()
}

fn vtep(host: u8, address: u8, port: u16, since: i64) -> Vtep {
    Vtep { host: host_name(host), address: vtep_address(address), port, since }
}

fn network(n: u8, encap: Encap) -> network::Network {
    network::Network {
        id: network_id(n),
        tenant: "t".parse().unwrap(),
        name: format!("n{n}").parse().unwrap(),
        kind: Kind::Data,
        encap,
        subnet: "10.0.0.0/24".parse().unwrap(),
        gateway: None,
        subnet_v6: None,
        gateway_v6: None,
    }
}

fn endpoint(n: u8, net: u8, host: u8, ip: u8) -> Endpoint {
    let ip = [10, 0, 0, ip].into();
    Endpoint {
        id: endpoint_id(n),
        network: network_id(net),
        group: None,
        group_number: None,
        ip,
        ip6: None,
        mac: Mac::of_endpoint(ip),
        host: host_name(host),
        vtep: None,
    }
}

proptest! {
    /// Whatever happens, and however it is batched, the incremental plan is the full one.
    #[test]
    fn incremental_is_full(events in prop::collection::vec((event(), any::<bool>()), 1..60)) {
        let (mut state, mut desired, mut touched) = (State::default(), Desired::default(), Touched::default());
        for (since, (event, look)) in events.into_iter().enumerate() {
            touched.merge(happen(&mut state, event, i64::try_from(since).unwrap()));
            if look {
                update(&mut desired, &state, &node(), &std::mem::take(&mut touched));
                prop_assert_eq!(&desired, &full(&state, &node()));
            }
        }
    }

    /// Two networks of one node never share a tag of one kind.
    #[test]
    fn tags_tell_networks_apart(events in prop::collection::vec(event(), 1..40)) {
        let mut state = State::default();
        for event in events {
            happen(&mut state, event, 0);
        }
        let desired = full(&state, &node());
        let encaps: Vec<_> = desired
            .iter()
            .filter_map(|(_, object)| match object { Object::Network(n) => Some(n.encap), _ => None })
            .collect();
        let mut vlans: Vec<_> = encaps.iter().filter_map(|e| match e { Encap::Vlan(v) => Some(*v), _ => None }).collect();
        let mut vnis: Vec<_> = encaps.iter().filter_map(|e| match e { Encap::Vxlan { vni, .. } => Some(*vni), _ => None }).collect();
        let mut locals: Vec<_> = encaps.iter().filter_map(|e| match e { Encap::Vxlan { local, .. } => Some(*local), _ => None }).collect();
        for list in [&mut vlans, &mut locals] {
            list.sort();
            prop_assert!(list.windows(2).all(|w| w[0] != w[1]), "{list:?}");
        }
        vnis.sort();
        prop_assert!(vnis.windows(2).all(|w| w[0] != w[1]), "{vnis:?}");
    }
}

fn vxlan(n: u8) -> Event {
    let encap =
        Encap::Vxlan { vni: u32::from(n).try_into().unwrap(), local: u16::from(n).try_into().unwrap() };
    Event::Network { n, encap: Some(encap) }
}

fn planned(events: Vec<Event>) -> Vec<String> {
    let mut state = State::default();
    for (since, event) in events.into_iter().enumerate() {
        happen(&mut state, event, i64::try_from(since).unwrap());
    }
    full(&state, &node()).iter().map(|(id, _)| id.to_string()).collect()
}

#[test]
fn a_remote_endpoint_needs_its_nodes_vtep() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)) };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t"]);
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let with = ["peer 192.168.0.11", "network n1.t", "remote endpoint e1"];
    assert_eq!(planned(vec![vxlan(1), endpoint.clone(), registered]), with);
    // Its agent is dead for longer than its lease, its switch is not.
    let left = Event::Node { host: 1, at: Some((1, 4789)) };
    assert_eq!(planned(vec![vxlan(1), endpoint, left.clone()]), with);
    assert_eq!(planned(vec![vxlan(1), left]), ["network n1.t"]);
}

#[test]
fn on_a_vlan_the_tag_is_enough() {
    let network = Event::Network { n: 1, encap: Some(Encap::Vlan(5.try_into().unwrap())) };
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)) };
    assert_eq!(planned(vec![network, endpoint]), ["network n1.t", "remote endpoint e1"]);
}

#[test]
fn an_endpoint_here_needs_its_interface() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 0, 7)) };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t"]);
    let attached = Event::Attachment { n: 1, port: Some(3) };
    assert_eq!(planned(vec![attached.clone(), vxlan(1), endpoint]), ["network n1.t", "local endpoint e1"]);
    assert_eq!(planned(vec![attached, vxlan(1)]), ["network n1.t"]);
}

#[test]
fn the_later_of_two_registrations_is_right() {
    let old = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let new = Event::Registration { key: 2, at: Some((1, 2, 4789)) };
    assert_eq!(planned(vec![old, new]), ["peer 192.168.0.12"]);
}
