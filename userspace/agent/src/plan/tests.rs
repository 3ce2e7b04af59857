mod events;
mod interest;
mod separation;

use std::{collections::BTreeSet, net::IpAddr};

use contiv_model::{endpoint::Endpoint, key::Key, mac::Mac, name::NetworkId, network, tag::Encap, vrf::Vrf};
use proptest::prelude::*;

use super::*;
use crate::{
    datapath::{Gateway, Subnet},
    state::{Attachment, BgpSpeaker, ClusterObject, Surroundings},
};
use events::{Event, network_id, number, service_id, vtep_address};
pub(crate) use events::{apply_event, event, node};

proptest! {
    /// The incremental plan equals the full plan after any changes in any batches.
    #[test]
    fn incremental_plan_equals_full_plan(
        events in prop::collection::vec((event(), any::<bool>()), 1..60), routes_vlans in any::<bool>()
    ) {
        let (mut state, mut desired, mut dirty) = (State::default(), Desired::default(), DirtySet::default());
        state.allow_host_access();
        if routes_vlans {
            state.route_vlans();
        }
        for (since, (event, look)) in events.into_iter().enumerate() {
            dirty.merge(apply_event(&mut state, event, i64::try_from(since).unwrap()));
            if look {
                update(&mut desired, &state, &node(), &std::mem::take(&mut dirty));
                prop_assert_eq!(&desired, &full(&state, &node()));
            }
        }
    }

    /// Subnets of one VRF never overlap, and the objects of a network are in its VRF. Only a node that routes VLANs has
    /// subnets of networks that it does not need: it drops packets to them.
    #[test]
    fn subnets_of_a_vrf_are_disjoint(
        events in prop::collection::vec(event(), 1..40), routes_vlans in any::<bool>()
    ) {
        let mut state = State::default();
        if routes_vlans {
            state.route_vlans();
        }
        for event in events {
            apply_event(&mut state, event, 0);
        }
        let desired = full(&state, &node());
        let vrf = |network: &NetworkId| match desired.get(&ObjectId::Network(network.clone())) {
            Some(Object::Network(network)) => Some(network.vrf.clone()),
            _ => None,
        };
        let mut subnets: Vec<&Subnet> = vec![];
        for (_, object) in desired.iter() {
            match object {
                Object::Subnet(subnet) => {
                    let overlaps = |other: &&Subnet| {
                        other.vrf == subnet.vrf
                            && (other.prefix.contains(&subnet.prefix) || subnet.prefix.contains(&other.prefix))
                    };
                    prop_assert_eq!(subnets.iter().find(|other| overlaps(other)), None);
                    match vrf(&subnet.network) {
                        Some(vrf) => prop_assert_eq!(&vrf, &subnet.vrf),
                        None => prop_assert!(routes_vlans, "{subnet:?}"),
                    }
                    subnets.push(subnet);
                }
                Object::Remote(remote) => prop_assert_eq!(vrf(&remote.network), Some(remote.vrf.clone())),
                Object::Local(local) => prop_assert_eq!(vrf(&local.network), Some(local.vrf.clone())),
                Object::Service(service) => {
                    let network = service.scope.network.as_ref().map(|network| &network.id);
                    prop_assert_eq!(network.and_then(vrf), Some(service.scope.vrf.clone()));
                }
                _ => {}
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

/// Each routed VRF in which the node has endpoints has a route through the node.
#[test]
fn pods_reach_other_addresses_by_their_node() {
    let (attached, elsewhere) = (Event::Endpoint { n: 1, at: Some((1, 0, 1)), group: 0 }, vxlan(2));
    let mut state = State::default();
    let routes = |state: &State| -> Vec<String> {
        let desired = full(state, &node());
        let routes = desired.iter().filter_map(|(id, object)| match object {
            Object::Route(route) => Some(format!("{id}: {}", route.private_subnet()?)),
            _ => None,
        });
        routes.collect()
    };
    for event in [vxlan(1), elsewhere, attached, Event::Config { flood: false, routing: true }] {
        apply_event(&mut state, event, 0);
    }
    assert_eq!(routes(&state), [""; 0], "not for every datapath");
    state.allow_host_access();
    assert_eq!(routes(&state), ["route 0.0.0.0/0 of tenant t: 172.19.0.0/16"]);
    assert_eq!(state.host_access(&node().host), Some("172.19.0.0/16".parse().unwrap()));
    assert_eq!(state.host_access_ports().next(), None);
    for (n, port) in [(1, Some(1)), (3, Some(2))] {
        apply_event(&mut state, Event::Attachment { n, port }, 0);
    }
    assert_eq!(state.host_access_ports().collect::<Vec<_>>(), ["vvport1"]);
    apply_event(&mut state, Event::Config { flood: true, routing: true }, 0);
    assert_eq!(routes(&state), ["route 0.0.0.0/0 of tenant t: 172.20.0.0/16"]);
    apply_event(&mut state, Event::Config { flood: true, routing: false }, 0);
    assert_eq!(routes(&state), [""; 0]);
}

#[test]
fn services_lack_what_unreadable_records_say() {
    let mut state = State::default();
    let incomplete = |state: &State| incomplete_services(state).map(|id| id.to_string()).collect::<Vec<_>>();
    let providers = |last: &[u8]| Event::Providers { n: 0, last: Some(last.to_vec()) };
    let vlan = Event::Network { n: 2, encap: Some(Encap::Vlan(7.try_into().unwrap())), subnets: 2 };
    let services = [Event::Service { n: 0, at: Some((1, 1)) }, Event::Service { n: 1, at: Some((2, 1)) }];
    for event in [vxlan(1), vlan, providers(&[2])].into_iter().chain(services) {
        apply_event(&mut state, event, 0);
    }
    assert_eq!(incomplete(&state), [""; 0]);
    // The record is a list of providers.
    let list = Key::Providers("s0:t/1".into());
    state.reject(&list);
    assert_eq!(incomplete(&state), ["service s0:t"]);
    state.set(&list, None);
    // The record is a network of the tenant; a provider is on no readable network.
    state.reject(&Key::Network("n9.t".into()));
    assert_eq!(incomplete(&state), [""; 0]);
    apply_event(&mut state, providers(&[2, 3]), 0);
    assert_eq!(incomplete(&state), ["service s0:t"]);
    state.set(&Key::Network("n9.t".into()), None);
    state.reject(&Key::Network("n9.u".into()));
    assert_eq!(incomplete(&state), [""; 0]);
    // The record is an endpoint on this node for which it answers on a VLAN.
    state.reject(&Key::Endpoint("n2.t-e".into()));
    assert_eq!(incomplete(&state), [""; 0]);
    state.set_attachment(&"n2.t-e".into(), Some(Attachment::of_pod("vvport1")));
    assert_eq!(incomplete(&state), ["service s1:t"]);
}

/// The guards drop datagrams to DHCP clients before and after address translation.
#[test]
fn services_do_not_forward_to_dhcp_clients() {
    let mut state = State::default();
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 0, 1)), group: 0 };
    for event in [vxlan(1), endpoint, Event::Service { n: 0, at: Some((1, 1)) }] {
        apply_event(&mut state, event, 0);
    }
    let mut service = state.service(&service_id(0)).unwrap().clone();
    let all = ["67:68:UDP", "68:68:TCP", "67:546:TCP", "53:546:UDP", "80:8080:TCP"];
    service.ports = all.map(|port| port.parse().unwrap()).into();
    let mut ports = |vip: IpAddr| {
        let service = contiv_model::service::Service { vip, ..service.clone() };
        state.set(&Key::ServiceLb(service_id(0)), Some(ClusterObject::Service(service)));
        match full(&state, &node()).get(&ObjectId::Service(service_id(0))) {
            Some(Object::Service(service)) => {
                service.ports.iter().map(ToString::to_string).collect::<Vec<_>>()
            }
            _ => vec![],
        }
    };
    assert_eq!(ports("10.0.0.101".parse().unwrap()), all[1..]);
    assert_eq!(ports("2001:db8::1".parse().unwrap()), [all[0], all[1], all[2], all[4]]);
}

/// The interface belongs to a pod whose record is unreadable.
#[test]
fn an_interface_keeps_its_network_and_what_belongs_to_it() {
    let mut state = State::default();
    let remote = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    for event in [vxlan(1), remote, registered] {
        apply_event(&mut state, event, 0);
    }
    let ids = |state: &State| full(state, &node()).iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>();
    assert_eq!(ids(&state), ["peer 192.168.0.11"]);
    state.reject(&Key::Endpoint("n1.t-e".into()));
    let dirty = state.set_attachment(&"n1.t-e".into(), Some(Attachment::of_pod("vvport1")));
    assert!(dirty.unreadable);
    let all = ["peer 192.168.0.11", "network n1.t", "subnet n1.t ipv4", "remote endpoint e1"];
    assert_eq!(ids(&state), all);
    let peer = ObjectId::Peer(vtep_address(1));
    let Some(Object::Peer(peer)) = object(&state, &node(), &peer) else { panic!("a peer") };
    assert_eq!(peer.networks.len(), 1);
    state.set_attachment(&"n1.t-e".into(), None);
    assert_eq!(ids(&state), ["peer 192.168.0.11"]);
}

fn vxlan(n: u8) -> Event {
    let encap =
        Encap::Vxlan { vni: u32::from(n).try_into().unwrap(), local: u16::from(n).try_into().unwrap() };
    Event::Network { n, encap: Some(encap), subnets: 0 }
}

/// The node has endpoints without an interface on all networks of the events.
fn desired(events: Vec<Event>) -> Desired {
    let mut state = State::default();
    for net in 0..4 {
        apply_event(&mut state, Event::Endpoint { n: 200 + net, at: Some((net, 0, 200 + net)), group: 0 }, 0);
    }
    for (since, event) in events.into_iter().enumerate() {
        apply_event(&mut state, event, i64::try_from(since).unwrap());
    }
    full(&state, &node())
}

fn planned(events: Vec<Event>) -> Vec<String> {
    desired(events).iter().map(|(id, _)| id.to_string()).collect()
}

#[test]
fn a_bridged_network_has_a_vrf_of_its_own() {
    let routing = |routing| Event::Config { flood: false, routing };
    let vrfs = |events| -> Vec<Vrf> {
        let vrf = |(_, object): (&ObjectId, &Object)| match object {
            Object::Network(network) => Some(network.vrf.clone()),
            Object::Subnet(subnet) => Some(subnet.vrf.clone()),
            _ => None,
        };
        desired(events).iter().filter_map(vrf).collect()
    };
    let tenant = Vrf::Tenant("t".parse().unwrap());
    for events in [vec![vxlan(1)], vec![routing(true), vxlan(1), routing(false)]] {
        let bridged = vrfs(events);
        assert!(bridged.len() >= 2, "{bridged:?}");
        assert!(bridged.iter().all(|vrf| *vrf == Vrf::Network(network_id(1))), "{bridged:?}");
    }
    // The same beside a routed network of its tenant: the nodes are not the gateway between the two.
    let vlan = Event::Network { n: 1, encap: Some(Encap::Vlan(100.try_into().unwrap())), subnets: 2 };
    let both = vrfs(vec![routing(true), vlan, vxlan(2)]);
    assert!(both.contains(&Vrf::Network(network_id(1))) && both.contains(&tenant), "{both:?}");
    let routed = vrfs(vec![vxlan(1), routing(true)]);
    assert!(routed.len() >= 2 && routed.iter().all(|vrf| *vrf == tenant), "{routed:?}");
}

#[test]
fn routed_networks_share_the_vrf_of_their_tenant_if_their_subnets_are_disjoint() {
    // Subnets 0, 1 and 2 of tenant t: subnet 0 is part of subnet 1.
    let network = |n, subnets| {
        let Event::Network { encap, .. } = vxlan(n) else { unreachable!() };
        Event::Network { n, encap, subnets }
    };
    let vrfs = |events| -> Vec<String> {
        let of_network = |(_, object): (&ObjectId, &Object)| match object {
            Object::Network(network) => Some(network.vrf.to_string()),
            _ => None,
        };
        let events = [Event::Config { flood: false, routing: true }].into_iter().chain(events).collect();
        desired(events).iter().filter_map(of_network).collect()
    };
    assert_eq!(vrfs(vec![network(1, 0), network(2, 2)]), ["tenant t", "tenant t"]);
    assert_eq!(vrfs(vec![network(1, 0), network(2, 1)]), ["tenant t", "network n2.t"]);
    // The order of the changes does not matter.
    assert_eq!(vrfs(vec![network(2, 1), network(1, 0)]), ["tenant t", "network n2.t"]);
    assert_eq!(vrfs(vec![network(1, 0), network(2, 1), network(1, 2)]), ["tenant t", "tenant t"]);
    // IPv6 subnets matter, too.
    assert_eq!(vrfs(vec![network(1, 3), network(2, 5)]), ["tenant t", "network n2.t"]);
}

#[test]
fn subnet_has_the_gateway_of_its_network() {
    let Event::Network { encap, .. } = vxlan(1) else { unreachable!() };
    let desired = desired(vec![Event::Network { n: 1, encap, subnets: 3 }]);
    let subnet = |family| match desired.get(&ObjectId::Subnet(SubnetId { network: network_id(1), family })) {
        Some(Object::Subnet(subnet)) => subnet.clone(),
        other => panic!("{other:?}"),
    };
    let (v4, v6) = (subnet(Family::V4), subnet(Family::V6));
    assert_eq!(
        (v4.prefix.to_string().as_str(), v6.prefix.to_string().as_str()),
        ("10.0.0.0/24", "2001:db8::/64")
    );
    assert_eq!(v4.gateway, Some(Gateway { ip: [10, 0, 0, 254].into(), mac: None }));
    assert_eq!(v6.gateway, None);
}

/// Returns the networks of the peer at the first address of other nodes, and its UDP port.
fn networks_of_peer(events: Vec<Event>) -> (Vec<String>, u16) {
    let desired = desired(events);
    let Some(Object::Peer(peer)) = desired.get(&ObjectId::Peer(vtep_address(1))) else { panic!("a peer") };
    (peer.networks.keys().map(NetworkId::to_string).collect(), peer.port)
}

/// The switch of a renamed node serves the endpoints of both names.
#[test]
fn peer_has_the_networks_of_all_nodes_at_its_address() {
    let endpoint = |n, net, host| Event::Endpoint { n, at: Some((net, host, 7)), group: 0 };
    let renamed = vec![
        vxlan(1),
        vxlan(2),
        Event::Node { host: 1, at: Some((1, 4789)) },
        endpoint(1, 1, 1),
        Event::Registration { key: 2, at: Some((2, 1, 4790)) },
        endpoint(2, 2, 2),
    ];
    assert_eq!(networks_of_peer(renamed.clone()), (vec!["n1.t".to_owned(), "n2.t".to_owned()], 4790));
    // The order of the names does not matter.
    let back = vec![Event::Node { host: 2, at: Some((1, 4790)) }, Event::Registration { key: 2, at: None }];
    let again = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let both = [renamed.clone(), back, vec![again]].concat();
    assert_eq!(networks_of_peer(both), (vec!["n1.t".to_owned(), "n2.t".to_owned()], 4789));
    let drained = [renamed, vec![Event::Endpoint { n: 1, at: None, group: 0 }]].concat();
    assert_eq!(networks_of_peer(drained), (vec!["n2.t".to_owned()], 4790));
}

#[test]
fn peer_has_the_networks_of_its_endpoints() {
    let networks = |events| networks_of_peer(events).0;
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let endpoint = |n, net, host| Event::Endpoint { n, at: Some((net, host, 7)), group: 0 };
    assert_eq!(networks(vec![registered.clone()]), [""; 0]);
    let there = vec![
        vxlan(1),
        vxlan(2),
        registered,
        endpoint(1, 1, 1),
        endpoint(2, 1, 1),
        endpoint(3, 2, 1),
        endpoint(0, 0, 2),
    ];
    assert_eq!(networks(there.clone()), ["n1.t", "n2.t"]);
    let moved = [there, vec![endpoint(1, 1, 2), endpoint(3, 2, 2)]].concat();
    assert_eq!(networks(moved.clone()), ["n1.t"]);
    assert_eq!(networks([moved, vec![Event::Endpoint { n: 2, at: None, group: 0 }]].concat()), [""; 0]);
}

/// The cost of an endpoint does not grow with the size of its node: the peer changes only with the first and last
/// endpoint of a network.
#[test]
fn only_the_first_endpoint_of_a_network_affects_the_peer() {
    let mut state = State::default();
    apply_event(&mut state, Event::Registration { key: 1, at: Some((1, 1, 4789)) }, 0);
    let mut vteps = |n, at: Option<(u8, u8, u8)>| {
        apply_event(&mut state, Event::Endpoint { n, at, group: 0 }, 0).vteps.len()
    };
    assert_eq!((vteps(1, Some((1, 1, 7))), vteps(2, Some((1, 1, 8)))), (1, 0));
    assert_eq!((vteps(1, None), vteps(2, None)), (0, 1));
}

#[test]
fn remote_endpoint_needs_its_nodes_vtep() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t", "subnet n1.t ipv4"]);
    let registered = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let with = ["peer 192.168.0.11", "network n1.t", "subnet n1.t ipv4", "remote endpoint e1"];
    assert_eq!(planned(vec![vxlan(1), endpoint.clone(), registered]), with);
    // The agent's lease has expired, but its switch still forwards.
    let left = Event::Node { host: 1, at: Some((1, 4789)) };
    assert_eq!(planned(vec![vxlan(1), endpoint, left.clone()]), with);
    assert_eq!(planned(vec![vxlan(1), left]), ["network n1.t", "subnet n1.t ipv4"]);
}

#[test]
fn remote_endpoint_on_a_vlan_needs_no_vtep() {
    let encap = Some(Encap::Vlan(5.try_into().unwrap()));
    let network = Event::Network { n: 1, encap, subnets: 0 };
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 1, 7)), group: 0 };
    assert_eq!(planned(vec![network, endpoint]), ["network n1.t", "subnet n1.t ipv4", "remote endpoint e1"]);
}

#[test]
fn local_endpoint_needs_its_interface() {
    let endpoint = Event::Endpoint { n: 1, at: Some((1, 0, 7)), group: 0 };
    assert_eq!(planned(vec![vxlan(1), endpoint.clone()]), ["network n1.t", "subnet n1.t ipv4"]);
    let attached = Event::Attachment { n: 1, port: Some(3) };
    assert_eq!(
        planned(vec![attached.clone(), vxlan(1), endpoint]),
        ["network n1.t", "subnet n1.t ipv4", "local endpoint e1"]
    );
    assert_eq!(planned(vec![attached, vxlan(1)]), ["network n1.t", "subnet n1.t ipv4"]);
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
    let id = ObjectId::Group(number(1).unwrap().into());
    let Some(Object::Group(group)) = object(&state, &node(), &id) else { panic!("a group") };
    let ids: Vec<_> = group.rules.iter().map(|rule| rule.id.to_string()).collect();
    assert_eq!(ids, ["p1:0", "p2:0", "p2:1"]);
}

#[test]
fn backends_are_in_a_network_of_the_tenant() {
    let mut state = State::default();
    let providers = Event::Providers { n: 1, last: Some(vec![2, 3, 4]) };
    let service = Event::Service { n: 1, at: Some((1, 1)) };
    for event in [local_endpoint(1, 0), providers, service, vxlan(1)] {
        apply_event(&mut state, event, 0);
    }
    let id = ObjectId::Service(service_id(1));
    let planned = |state: &State| match object(state, &node(), &id) {
        Some(Object::Service(service)) => service,
        other => panic!("{other:?}"),
    };
    let backends = |service: &crate::datapath::Service| -> Vec<_> {
        service.backends.iter().map(|backend| backend.ip.to_string()).collect()
    };
    // 10.0.1.3 is in no subnet.
    let service = planned(&state);
    assert_eq!(backends(&service), ["10.0.0.2", "10.0.0.4"]);
    // Or the address is in a network that clients of the service do not reach.
    let Event::Network { encap, .. } = vxlan(2) else { unreachable!() };
    apply_event(&mut state, Event::Network { n: 2, encap, subnets: 1 }, 0);
    assert_eq!(backends(&planned(&state)), ["10.0.0.2", "10.0.0.4"]);
    assert_eq!(service.scope.network.map(|network| network.id), Some(network_id(1)));
    assert_eq!(service.scope.vrf, Vrf::Network(network_id(1)));
    apply_event(&mut state, Event::Network { n: 1, encap: None, subnets: 0 }, 0);
    assert_eq!(object(&state, &node(), &id), None);
}

/// Networks of the tenant that are routed to a network with endpoints on this node are planned, with their endpoints on
/// other nodes.
#[test]
fn routed_networks_reach_the_networks_of_their_tenant() {
    let network = |n, subnets| {
        let Event::Network { encap, .. } = vxlan(n) else { unreachable!() };
        Event::Network { n, encap, subnets }
    };
    let endpoint = |n, net, host| Event::Endpoint { n, at: Some((net, host, n)), group: 0 };
    let routing = |routing| Event::Config { flood: false, routing };
    let peer = Event::Registration { key: 1, at: Some((1, 1, 4789)) };
    let mut state = State::default();
    let mut plan = |event| -> Vec<String> {
        apply_event(&mut state, event, 0);
        full(&state, &node()).iter().map(|(id, _)| id.to_string()).collect()
    };
    let own = ["peer 192.168.0.11", "network n1.t", "subnet n1.t ipv4"];
    let all = [
        "peer 192.168.0.11",
        "network n1.t",
        "network n2.t",
        "subnet n1.t ipv4",
        "subnet n2.t ipv4",
        "remote endpoint e2",
    ];
    for event in [peer, network(1, 0), network(2, 2), endpoint(2, 2, 1)] {
        plan(event);
    }
    assert_eq!(plan(endpoint(1, 1, 0)), own);
    assert_eq!(plan(routing(true)), all);
    // Overlapping subnets are not routed to each other; the physical network routes VLANs.
    assert_eq!(plan(network(2, 1)), own);
    assert_eq!(plan(network(2, 2)), all);
    assert_eq!(
        plan(Event::Network { n: 2, encap: Some(Encap::Vlan(7.try_into().unwrap())), subnets: 2 }),
        own
    );
    assert_eq!(plan(network(2, 2)), all);
    assert_eq!(plan(Event::Endpoint { n: 1, at: None, group: 0 }), own[..1]);
    plan(endpoint(1, 1, 0));
    assert_eq!(plan(routing(false)), own);
}

#[test]
fn the_node_is_the_gateway_of_routed_networks() {
    let gateways = |encap, routing| -> Vec<Option<Mac>> {
        let events =
            vec![Event::Network { n: 1, encap, subnets: 0 }, Event::Config { flood: false, routing }];
        let of_subnet = |(_, object): (&ObjectId, &Object)| match object {
            Object::Subnet(subnet) => Some(subnet.gateway.and_then(|gateway| gateway.mac)),
            _ => None,
        };
        desired(events).iter().filter_map(of_subnet).collect()
    };
    let Event::Network { encap: vxlan, .. } = vxlan(1) else { unreachable!() };
    let vlan = Some(Encap::Vlan(5.try_into().unwrap()));
    assert_eq!(gateways(vxlan, true), [Some(Mac::ROUTER)]);
    assert_eq!(gateways(vxlan, false), [None]);
    assert_eq!(gateways(vlan, true), [None]);
}

/// If the nodes route VLANs, they are the gateways, and the physical network has one route per address. If two tenants
/// use the same subnet, the first network by name is routed, and the other one is not planned on any node.
#[test]
fn routed_vlans_share_the_addresses_of_the_fabric() {
    let vlan = |tenant: &str, tag: u16, subnet: &str| network::Network {
        id: format!("n{tag}.{tenant}").as_str().into(),
        tenant: tenant.parse().unwrap(),
        subnet: subnet.parse().unwrap(),
        gateway: Some([10, 0, 0, 254].into()),
        ..events::network(1, Encap::Vlan(tag.try_into().unwrap()), 0)
    };
    let infra = network::Network { kind: network::Kind::Infra, ..vlan("t", 9, "10.0.0.0/24") };
    let infra_interface = infra.name.to_string();
    let mut state = State::default();
    state.route_vlans();
    let mut set = |network: network::Network| {
        let key = Key::Network(network.id.clone());
        state.set(&key, Some(ClusterObject::Network(network)));
    };
    [vlan("t", 1, "10.0.0.0/24"), vlan("u", 2, "10.0.0.128/25"), vlan("u", 3, "10.3.0.0/24"), infra]
        .into_iter()
        .for_each(&mut set);
    for (n, network) in [(1, "n1.t"), (2, "n2.u")] {
        let at = Endpoint { network: network.into(), ..events::endpoint(n, 1, 0, n) };
        state.set(&Key::Endpoint(at.id.clone()), Some(ClusterObject::Endpoint(at)));
        apply_event(&mut state, Event::Attachment { n, port: Some(n) }, 0);
    }
    let planned = |state: &State| -> Vec<String> {
        full(state, &node()).iter().map(|(id, _)| id.to_string()).collect()
    };
    let bridged = ["network n1.t", "network n2.u", "subnet n1.t ipv4", "subnet n2.u ipv4"];
    assert_eq!(planned(&state)[..4], bridged);
    apply_event(&mut state, Event::Config { flood: true, routing: true }, 0);
    // The subnet of another tenant is planned so that packets to it are dropped.
    let routed = ["network n1.t", "subnet n1.t ipv4", "subnet n3.u ipv4", "local endpoint e1"];
    assert_eq!(planned(&state), routed);
    let refused: Vec<_> =
        state.ambiguous_networks().map(|(id, first)| (id.to_string(), first.to_string())).collect();
    assert_eq!(refused, [("n2.u".to_owned(), "n1.t".to_owned())]);
    let own: BTreeSet<IpAddr> = [[10, 0, 0, 1].into()].into();
    assert_eq!(state.routed_vlan_addresses(&node().host), own);
    // Addresses that nodes use to reach a leaf switch must not be routed to a pod.
    let speaker = BgpSpeaker {
        router: "50.1.1.1/24".parse().unwrap(),
        asn: 65_000,
        neighbor: [10, 0, 0, 1].into(),
        neighbor_as: 65_001,
    };
    let leaf = Key::Bgp("other".into());
    state.set(&leaf, Some(ClusterObject::Bgp(speaker)));
    assert_eq!(state.routed_vlan_addresses(&node().host), [].into());
    assert_eq!(state.refused_vlan_addresses(&node().host), own);
    state.set(&leaf, None);
    // The same holds for this node's gateway and for the networks of its interfaces, except those on infra networks.
    let network = |link: &str| {
        let networks = [(link.to_owned(), "10.0.0.0/29".parse().unwrap())].into();
        Surroundings { networks, ..Surroundings::default() }
    };
    let server = Surroundings { addresses: own.clone(), ..Surroundings::default() };
    for (around, is_refused) in [(server, true), (network("eth1"), true), (network(&infra_interface), false)]
    {
        state.surround(around);
        assert_eq!(state.routed_vlan_addresses(&node().host).is_empty(), is_refused);
        assert_eq!(state.refused_vlan_addresses(&node().host) == own, is_refused);
    }
    let Some(Object::Network(network)) = object(&state, &node(), &ObjectId::Network("n1.t".into())) else {
        panic!("a network")
    };
    assert_eq!(network.arp, contiv_model::global::ArpMode::Proxy);
    // Without the first network, the other one is routed.
    state.set(&Key::Network("n1.t".into()), None);
    let routed =
        ["network n2.u", "network n3.u", "subnet n2.u ipv4", "subnet n3.u ipv4", "local endpoint e2"];
    assert_eq!(planned(&state), routed);
}
