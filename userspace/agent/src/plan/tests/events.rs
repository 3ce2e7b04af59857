//! Changes of the state.

use std::net::IpAddr;

use contiv_model::{
    endpoint::Endpoint,
    global::Config,
    group::{self, GroupNumber},
    key::Key,
    mac::Mac,
    name::{EndpointId, HostName, NetworkId, PolicyId, ServiceId},
    network::{self, Kind},
    policy::{Action, Direction, Policy, Rule},
    service,
    tag::{Encap, Vlan, Vni},
};
use proptest::prelude::*;

use crate::{
    plan::Node,
    state::{Attachment, ClusterObject, DirtySet, State, Vtep},
};

pub(crate) fn node() -> Node {
    Node { host: "h0".into(), vtep: vtep_address(0) }
}

pub(super) fn vtep_address(n: u8) -> IpAddr {
    [192, 168, 0, 10 + n].into()
}

/// A change of the state. There are few names, so that changes of one object are frequent.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Config { flood: bool, routing: bool },
    Network { n: u8, encap: Option<Encap>, subnets: u8 },
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
        1 => any::<(bool, bool)>().prop_map(|(flood, routing)| Event::Config { flood, routing }),
        3 => (0..3u8, prop::option::weighted(0.8, encap()), 0..6u8)
            .prop_map(|(n, encap, subnets)| Event::Network { n, encap, subnets }),
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
        Event::Config { flood, routing } => {
            let fwd_mode = if routing { "routing" } else { "bridge" }.to_owned();
            let arp_mode = if flood { "flood" } else { "proxy" }.to_owned();
            let pvt_subnet = if flood { "172.20.0.0/16" } else { "172.19.0.0/16" }.to_owned();
            let config = Config { arp_mode, fwd_mode, pvt_subnet, ..Config::default() };
            state.set(&Key::MasterConfig, Some(ClusterObject::Config(config)))
        }
        Event::Network { n, encap, subnets } => {
            let network = encap.map(|encap| ClusterObject::Network(network(n, encap, subnets)));
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
            state.set(&Key::NodeVtep(host_name(host)), vtep)
        }
        Event::Attachment { n, port } => {
            let attachment = port.map(|port| Attachment::of_pod(format!("vvport{port}")));
            state.set_attachment(&endpoint_id(n), attachment)
        }
    }
}

pub(super) fn number(n: u8) -> Option<GroupNumber> {
    GroupNumber::try_from(u32::from(n)).ok()
}

pub(super) fn policy_id(n: u8) -> PolicyId {
    format!("t:g{n}:t:p").into()
}

fn rule(id: &str) -> Rule {
    Rule::new(id, Direction::In, Action::Deny, 1.try_into().unwrap())
}

pub(super) fn service_id(n: u8) -> ServiceId {
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

pub(super) fn network_id(n: u8) -> NetworkId {
    format!("n{n}.t").into()
}

pub(super) fn endpoint_id(n: u8) -> EndpointId {
    format!("e{n}").into()
}

pub(super) fn vtep(host: u8, address: u8, port: u16, since: i64) -> Vtep {
    Vtep { host: host_name(host), address: vtep_address(address), port, since }
}

/// The subnets are one of six combinations: equal, nested and distinct IPv4 ones, with and without an IPv6 one.
pub(super) fn network(n: u8, encap: Encap, subnets: u8) -> network::Network {
    let subnet = ["10.0.0.0/24", "10.0.0.0/16", "10.1.0.0/24"][usize::from(subnets % 3)];
    let subnet_v6 = (subnets / 3 == 1).then(|| "2001:db8::/64".parse().unwrap());
    network::Network {
        id: network_id(n),
        tenant: "t".parse().unwrap(),
        name: format!("n{n}").parse().unwrap(),
        kind: Kind::Data,
        encap,
        subnet: subnet.parse().unwrap(),
        gateway: (n > 0).then(|| [10, 0, 0, 254].into()),
        subnet_v6,
        gateway_v6: None,
    }
}

pub(super) fn endpoint(n: u8, net: u8, host: u8, ip: u8) -> Endpoint {
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
