//! A node needs the networks on which it has endpoints, and their objects.

use std::collections::BTreeMap;

use contiv_model::{
    endpoint::Endpoint,
    key::Key,
    mac::Mac,
    network,
    service::Service,
    tag::{Encap, Vlan, Vni},
};

use super::{
    events::{endpoint, network as any_network, vtep},
    *,
};
use crate::state::ClusterObject;

const NETWORKS: u32 = 1000;
const ENDPOINTS_PER_NETWORK: u32 = 100;
const HOSTS: u32 = 100;
/// Networks with endpoints on the node.
const HERE: [u32; 3] = [7, 500, 999];

fn set(state: &mut State, key: Key, object: Option<ClusterObject>) -> DirtySet {
    state.set(&key, object)
}

fn id(net: u32) -> NetworkId {
    format!("net{net}.t").into()
}

fn set_network(state: &mut State, net: u32) {
    let encap = Encap::Vxlan {
        vni: Vni::try_from(10_000 + net).unwrap(),
        local: Vlan::try_from(1 + net as u16).unwrap(),
    };
    let name = format!("net{net}");
    let network = network::Network { id: id(net), name: name.parse().unwrap(), ..any_network(0, encap, 0) };
    set(state, Key::Network(id(net)), Some(ClusterObject::Network(network)));
}

fn set_endpoint(state: &mut State, net: u32, number: u32, host: Option<u32>) -> DirtySet {
    let name: EndpointId = format!("e{net}-{number}").into();
    let ip = [10, 0, 0, number as u8].into();
    let endpoint = host.map(|host| Endpoint {
        id: name.clone(),
        network: id(net),
        ip,
        mac: Mac::of_endpoint(ip),
        host: format!("h{host}").into(),
        ..endpoint(0, 0, 0, 0)
    });
    set(state, Key::Endpoint(name), endpoint.map(ClusterObject::Endpoint))
}

fn set_service(state: &mut State, net: u32) {
    let id_of_service: contiv_model::name::ServiceId = format!("web{net}:t").into();
    let service = Service {
        id: id_of_service.clone(),
        tenant: "t".parse().unwrap(),
        network: Some(id(net)),
        vip: [10, 0, 0, 250].into(),
        ports: vec!["80:8080:TCP".parse().unwrap()],
        affinity: None,
    };
    set(state, Key::ServiceLb(id_of_service), Some(ClusterObject::Service(service)));
}

/// 1,000 networks with 100 endpoints each on 99 other nodes, and a service on each.
fn cluster() -> State {
    let mut state = State::default();
    for host in 1..HOSTS {
        let address = host.to_string();
        let registration = ClusterObject::Registration(vtep(host as u8, host as u8, 4789, 0));
        let name = contiv_model::registry::VTEP.to_owned();
        set(&mut state, Key::Service { name, address }, Some(registration));
    }
    for net in 0..NETWORKS {
        set_network(&mut state, net);
        set_service(&mut state, net);
        for number in 1..=ENDPOINTS_PER_NETWORK {
            set_endpoint(&mut state, net, number, Some(1 + (net + number) % (HOSTS - 1)));
        }
    }
    state
}

fn counts(desired: &Desired) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (_, object) in desired.iter() {
        let kind = match object {
            Object::Peer(_) => "peers",
            Object::Network(_) => "networks",
            Object::Subnet(_) => "subnets",
            Object::Remote(_) => "remote endpoints",
            Object::Service(_) => "services",
            _ => "others",
        };
        *counts.entry(kind).or_default() += 1;
    }
    let members = desired.iter().map(|(_, object)| match object {
        Object::Peer(peer) => peer.networks.len(),
        _ => 0,
    });
    counts.insert("networks of peers", members.sum());
    counts
}

#[test]
fn a_node_with_three_of_a_thousand_networks_plans_these_three() {
    let mut state = cluster();
    let mut desired = full(&state, &node());
    let peers = ("peers", (HOSTS - 1) as usize);
    assert_eq!(counts(&desired), BTreeMap::from([peers, ("networks of peers", 0)]));
    let mut dirty = DirtySet::default();
    for number in 0..100 {
        dirty.merge(set_endpoint(&mut state, HERE[number as usize % 3], 101 + number, Some(0)));
    }
    let changed = update(&mut desired, &state, &node(), &dirty);
    let here = counts(&desired);
    println!("{} objects changed, of 100,000 endpoints and 1,000 networks: {here:?}", changed.len());
    let remotes = HERE.len() * ENDPOINTS_PER_NETWORK as usize;
    let expected = [
        peers,
        ("networks", 3),
        ("subnets", 3),
        ("services", 3),
        ("remote endpoints", remotes),
        // 99 nodes have the 100 endpoints of a network.
        ("networks of peers", 3 * 99),
    ];
    assert_eq!(here, BTreeMap::from(expected));
    assert_eq!(desired, full(&state, &node()));
    // A change elsewhere affects nothing here.
    let elsewhere = set_endpoint(&mut state, 8, 1, Some(50));
    let before = desired.clone();
    update(&mut desired, &state, &node(), &elsewhere);
    assert_eq!(desired, before);
    // With its last endpoint, a network is removed.
    let mut dirty = DirtySet::default();
    for number in (0..100).filter(|number| number % 3 == 0) {
        dirty.merge(set_endpoint(&mut state, HERE[0], 101 + number, None));
    }
    update(&mut desired, &state, &node(), &dirty);
    assert_eq!(counts(&desired)["networks"], 2);
    assert_eq!(counts(&desired)["networks of peers"], 2 * 99);
    assert_eq!(desired, full(&state, &node()));
}

#[test]
fn a_network_whose_tag_changes_changes_its_peers() {
    let mut state = State::default();
    let there = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    for event in [vxlan(1), local_endpoint(2, 0), there, registered] {
        apply_event(&mut state, event, 0);
    }
    let mut desired = full(&state, &node());
    let Event::Network { encap, .. } = vxlan(2) else { unreachable!() };
    let dirty = apply_event(&mut state, Event::Network { n: 1, encap, subnets: 0 }, 1);
    update(&mut desired, &state, &node(), &dirty);
    assert_eq!(desired, full(&state, &node()));
    let Some(Object::Peer(peer)) = desired.get(&ObjectId::Peer(vtep_address(1))) else { panic!("a peer") };
    assert_eq!(peer.networks.get(&network_id(1)).copied(), encap);
}

proptest! {
    /// Endpoints of networks that the node does not need change only the peers, which have no network in common with it.
    #[test]
    fn other_endpoints_are_not_needed(events in prop::collection::vec(event(), 1..60)) {
        let mut state = State::default();
        for (since, event) in events.into_iter().enumerate() {
            apply_event(&mut state, event, i64::try_from(since).unwrap());
        }
        let needed = state.reached_from(state.networks_on(&node().host));
        let others = state.endpoints().filter(|endpoint| !needed.contains(&endpoint.network));
        let others: Vec<EndpointId> = others.map(|endpoint| endpoint.id.clone()).collect();
        let mut reduced = state.clone();
        for id in others {
            set(&mut reduced, Key::Endpoint(id), None);
        }
        let planned = |state: &State| -> Vec<Object> {
            let desired = full(state, &node());
            let objects = desired.iter().map(|(_, object)| object.clone());
            objects.filter(|object| !matches!(object, Object::Peer(_))).collect()
        };
        prop_assert_eq!(planned(&state), planned(&reduced));
    }
}

#[test]
fn routed_networks_are_needed_together() {
    let mut state = State::default();
    let Event::Network { encap, .. } = vxlan(2) else { unreachable!() };
    // The subnets of the third network overlap those of the first one.
    let other = Event::Network { n: 2, encap, subnets: 2 };
    for event in [vxlan(1), other, vxlan(3), local_endpoint(2, 0)] {
        apply_event(&mut state, event, 0);
    }
    let names = |state: &State| -> Vec<String> {
        let needed = state.reached_from(state.networks_on(&node().host));
        needed.into_iter().map(|network| network.to_string()).collect()
    };
    assert_eq!(names(&state), ["n1.t"]);
    apply_event(&mut state, Event::Config { flood: false, routing: true }, 0);
    assert_eq!(names(&state), ["n1.t", "n2.t"]);
    assert_eq!(planned_networks(&state), ["n1.t", "n2.t"]);
}

/// Otherwise the network would be needed again as soon as its endpoints are removed from the state.
#[test]
fn the_network_of_an_interface_is_needed_wherever_its_endpoint_is() {
    let mut state = State::default();
    for event in [vxlan(1), Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 }] {
        apply_event(&mut state, event, 0);
    }
    let needed = |state: &State| state.needed(&node().host, []);
    assert_eq!(needed(&state), BTreeSet::new());
    apply_event(&mut state, Event::Attachment { n: 1, port: Some(3) }, 0);
    assert_eq!(needed(&state), BTreeSet::from([network_id(1)]));
}

fn planned_networks(state: &State) -> Vec<String> {
    let desired = full(state, &node());
    let network = |object: &Object| match object {
        Object::Network(network) => Some(network.id.to_string()),
        _ => None,
    };
    desired.iter().filter_map(|(_, object)| network(object)).collect()
}
