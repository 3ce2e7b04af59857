use std::net::IpAddr;

use contiv_model::{
    endpoint::Endpoint,
    global::Config,
    group,
    key::Key,
    mac::Mac,
    name::{HostName, NetworkId, ServiceId},
    network::{self, Kind},
    policy::{Action, Direction, Peer, Policy, Rule},
    service,
    tag::{Encap, Vlan, Vni},
};
use proptest::prelude::*;

use super::*;
use crate::state::{Attachment, ClusterObject, Vtep};

pub(crate) fn node() -> Node {
    Node { host: "h0".into(), vtep: vtep_address(0) }
}

fn vtep_address(n: u8) -> IpAddr {
    [192, 168, 0, 10 + n].into()
}

/// A change of the state. There are few names, so that changes of one object are frequent.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Arp { flood: bool },
    Network { n: u8, encap: Option<Encap> },
    Endpoint { n: u8, at: Option<(u8, u8, u8)>, group: u8 },
    Group { n: u8, profile: Option<(u8, u8)> },
    Policy { n: u8, on: Option<(u8, u8)> },
    InvalidPolicy { n: u8 },
    Service { n: u8, at: Option<(u8, u8)> },
    Providers { n: u8, last: Option<Vec<u8>> },
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
        5 => (0..4u8, prop::option::weighted(0.8, (0..3u8, 0..3u8, 1..4u8)), 0..3u8)
            .prop_map(|(n, at, group)| Event::Endpoint { n, at, group }),
        2 => (0..3u8, prop::option::weighted(0.8, (1..3u8, 0..3u8)))
            .prop_map(|(n, profile)| Event::Group { n, profile }),
        3 => (0..3u8, prop::option::weighted(0.7, (1..3u8, 0..3u8))).prop_map(|(n, on)| Event::Policy { n, on }),
        1 => (0..3u8).prop_map(|n| Event::InvalidPolicy { n }),
        2 => (0..2u8, prop::option::weighted(0.7, (0..3u8, 1..4u8)))
            .prop_map(|(n, at)| Event::Service { n, at }),
        2 => (0..2u8, prop::option::weighted(0.7, prop::collection::vec(1..9u8, 0..3)))
            .prop_map(|(n, last)| Event::Providers { n, last }),
        3 => (0..4u8, prop::option::weighted(0.7, (0..3u8, 0..4u8, 4789..4791u16)))
            .prop_map(|(key, at)| Event::Registration { key, at }),
        2 => (0..3u8, prop::option::weighted(0.7, (0..4u8, 4789..4791u16)))
            .prop_map(|(host, at)| Event::Node { host, at }),
        2 => (0..4u8, prop::option::weighted(0.7, 0..3u8))
            .prop_map(|(n, port)| Event::Attachment { n, port }),
    ]
}

pub(crate) fn apply_event(state: &mut State, event: Event, since: i64) -> DirtySet {
    match event {
        Event::Arp { flood } => {
            let arp_mode = if flood { "flood" } else { "proxy" }.to_owned();
            let config = Config { arp_mode, ..Config::default() };
            state.set(&Key::MasterConfig, Some(ClusterObject::Config(config)))
        }
        Event::Network { n, encap } => {
            let network = encap.map(|encap| ClusterObject::Network(network(n, encap)));
            state.set(&Key::Network(network_id(n)), network)
        }
        Event::Endpoint { n, at, group } => {
            let endpoint = at.map(|(net, host, ip)| {
                let group_number = number(group);
                ClusterObject::Endpoint(Endpoint { group_number, ..endpoint(n, net, host, ip) })
            });
            state.set(&Key::Endpoint(endpoint_id(n)), endpoint)
        }
        Event::Group { n, profile } => {
            let key: contiv_model::name::GroupKey = format!("g{n}:t").into();
            let group = profile.and_then(|(numbered, dscp)| {
                let dscp = dscp.try_into().ok();
                Some(ClusterObject::Group(group::Group {
                    key: key.clone(),
                    number: number(numbered)?,
                    dscp,
                    rate: None,
                }))
            });
            state.set(&Key::Group(key), group)
        }
        Event::Policy { n, on } => {
            let id = policy_id(n);
            let policy = on.and_then(|(group, rules)| {
                let rules = (0..rules).map(|rule| self::rule(&format!("p{n}:{rule}"))).collect();
                Some(ClusterObject::Policy(Policy { id: id.clone(), group: number(group)?, rules }))
            });
            state.set(&Key::Policy(id), policy)
        }
        Event::InvalidPolicy { n } => state.reject(&Key::Policy(policy_id(n))),
        Event::Service { n, at } => {
            let service = at.map(|(net, last)| ClusterObject::Service(service(n, net, last)));
            state.set(&Key::ServiceLb(service_id(n)), service)
        }
        Event::Providers { n, last } => {
            let address = |last| IpAddr::from([10, 0, last % 2, last]);
            let providers =
                last.map(|list| ClusterObject::Providers(list.into_iter().map(address).collect()));
            state.set(&Key::Providers(service_id(n)), providers)
        }
        Event::Registration { key, at } => {
            let name = contiv_model::registry::VTEP.to_owned();
            let vtep =
                at.map(|(host, address, port)| ClusterObject::Registration(vtep(host, address, port, since)));
            state.set(&Key::Service { name, address: key.to_string() }, vtep)
        }
        Event::Node { host, at } => {
            let vtep = at.map(|(address, port)| ClusterObject::Node(vtep(host, address, port, since)));
            state.set(&Key::NodeStatus(host_name(host)), vtep)
        }
        Event::Attachment { n, port } => {
            let attachment = port.map(|port| Attachment::of_pod(format!("vvport{port}")));
            state.set_attachment(&endpoint_id(n), attachment)
        }
    }
}

fn number(n: u8) -> Option<GroupNumber> {
    GroupNumber::try_from(u32::from(n)).ok()
}

fn policy_id(n: u8) -> PolicyId {
    format!("t:g{n}:t:p").into()
}

fn rule(id: &str) -> Rule {
    Rule {
        id: id.into(),
        direction: Direction::In,
        peer: Peer::default(),
        own: None,
        protocol: None,
        port: None,
        action: Action::Deny,
        priority: 1.try_into().unwrap(),
    }
}

fn service_id(n: u8) -> ServiceId {
    format!("s{n}:t").into()
}

fn service(n: u8, net: u8, last: u8) -> service::Service {
    service::Service {
        id: service_id(n),
        tenant: "t".parse().unwrap(),
        network: Some(network_id(net)),
        vip: [10, 0, 0, 100 + last].into(),
        ports: vec!["80:8080:TCP".parse().unwrap()],
        affinity: None,
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
    /// The incremental plan equals the full plan after any changes in any batches.
    #[test]
    fn incremental_plan_equals_full_plan(events in prop::collection::vec((event(), any::<bool>()), 1..60)) {
        let (mut state, mut desired, mut dirty) = (State::default(), Desired::default(), DirtySet::default());
        for (since, (event, look)) in events.into_iter().enumerate() {
            dirty.merge(apply_event(&mut state, event, i64::try_from(since).unwrap()));
            if look {
                update(&mut desired, &state, &node(), &std::mem::take(&mut dirty));
                prop_assert_eq!(&desired, &full(&state, &node()));
            }
        }
    }

    /// Two networks of one node never share a tag of one kind.
    #[test]
    fn tags_are_unique(events in prop::collection::vec(event(), 1..40)) {
        let mut state = State::default();
        for event in events {
            apply_event(&mut state, event, 0);
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
        apply_event(&mut state, event, i64::try_from(since).unwrap());
    }
    full(&state, &node()).iter().map(|(id, _)| id.to_string()).collect()
}

#[test]
fn remote_endpoint_needs_its_nodes_vtep() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t"]);
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let with = ["peer 192.168.0.11", "network n1.t", "remote endpoint e1"];
    assert_eq!(planned(vec![vxlan(1), endpoint.clone(), registered]), with);
    // The agent's lease has expired, but its switch still forwards.
    let left = Event::Node { host: 1, at: Some((1, 4789)) };
    assert_eq!(planned(vec![vxlan(1), endpoint, left.clone()]), with);
    assert_eq!(planned(vec![vxlan(1), left]), ["network n1.t"]);
}

#[test]
fn remote_endpoint_on_a_vlan_needs_no_vtep() {
    let network = Event::Network { n: 1, encap: Some(Encap::Vlan(5.try_into().unwrap())) };
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    assert_eq!(planned(vec![network, endpoint]), ["network n1.t", "remote endpoint e1"]);
}

#[test]
fn local_endpoint_needs_its_interface() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 0, 7)), group: 0 };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t"]);
    let attached = Event::Attachment { n: 1, port: Some(3) };
    assert_eq!(planned(vec![attached.clone(), vxlan(1), endpoint]), ["network n1.t", "local endpoint e1"]);
    assert_eq!(planned(vec![attached, vxlan(1)]), ["network n1.t"]);
}

#[test]
fn later_registration_applies() {
    let old = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let new = Event::Registration { key: 2, at: Some((1, 2, 4789)) };
    assert_eq!(planned(vec![old, new]), ["peer 192.168.0.12"]);
}

fn local_endpoint(n: u8, group: u8) -> Event {
    Event::Endpoint { n, at: Some((1, 0, n)), group }
}

#[test]
fn group_is_planned_with_local_endpoints_and_settings() {
    let policy = Event::Policy { n: 1, on: Some((1, 2)) };
    let remote = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 1 };
    assert_eq!(planned(vec![policy.clone(), remote]), [""; 0]);
    // Planned before the interface and the network exist.
    assert_eq!(planned(vec![policy.clone(), local_endpoint(1, 1)]), ["group 1"]);
    assert_eq!(
        planned(vec![local_endpoint(1, 1), policy.clone(), Event::Policy { n: 1, on: None }]),
        [""; 0]
    );
    assert_eq!(planned(vec![policy, local_endpoint(1, 1), local_endpoint(1, 2)]), [""; 0]);
    let with_dscp = |dscp| Event::Group { n: 1, profile: Some((1, dscp)) };
    assert_eq!(planned(vec![with_dscp(0), local_endpoint(1, 1)]), [""; 0]);
    assert_eq!(planned(vec![with_dscp(46), local_endpoint(1, 1)]), ["group 1"]);
}

#[test]
fn group_has_the_rules_of_all_its_policies() {
    let mut state = State::default();
    let events = [
        local_endpoint(1, 1),
        Event::Policy { n: 2, on: Some((1, 2)) },
        Event::Policy { n: 1, on: Some((1, 1)) },
    ];
    for event in events {
        apply_event(&mut state, event, 0);
    }
    let id = ObjectId::Group(number(1).unwrap());
    let Some(Object::Group(group)) = object(&state, &node(), &id) else { panic!("a group") };
    let ids: Vec<_> = group.rules.iter().map(|rule| rule.id.to_string()).collect();
    assert_eq!(ids, ["p1:0", "p2:0", "p2:1"]);
}

#[test]
fn backends_are_in_a_network_of_the_tenant() {
    let mut state = State::default();
    let providers = Event::Providers { n: 1, last: Some(vec![2, 3, 4]) };
    let service = Event::Service { n: 1, at: Some((1, 1)) };
    for event in [providers, service, vxlan(1)] {
        apply_event(&mut state, event, 0);
    }
    let id = ObjectId::Service(service_id(1));
    let Some(Object::Service(service)) = object(&state, &node(), &id) else { panic!("a service") };
    // 10.0.1.3 is in no subnet.
    let backends: Vec<_> = service.backends.iter().map(|backend| backend.ip.to_string()).collect();
    assert_eq!(backends, ["10.0.0.2", "10.0.0.4"]);
    assert_eq!(service.scope.map(|scope| scope.network), Some(network_id(1)));
    apply_event(&mut state, Event::Network { n: 1, encap: None }, 0);
    assert_eq!(object(&state, &node(), &id), None);
}
