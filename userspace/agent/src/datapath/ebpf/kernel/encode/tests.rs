use contiv_model::{
    mac,
    route::{NextHop, NextHops},
    service::{Port, Protocol},
    tag::{Vlan, Vni},
};

use super::*;
use crate::datapath::{Backend, Gateway, Route, Scope};

const DEVICES: Devices = Devices { overlay: 7, overlay_port: 4789, host: 8, vlans: 9, uplinks: vec![] };

/// Domains of networks that are not routed.
fn alone(_: &Vrf, network: Option<Segment>) -> Option<Domain> {
    network.map(Domain::of_segment)
}

fn vxlan() -> Encap {
    Encap::Vxlan { vni: Vni::try_from(10_001).unwrap(), local: Vlan::try_from(1).unwrap() }
}

fn vlan() -> Encap {
    Encap::Vlan(Vlan::try_from(100).unwrap())
}

fn local() -> Local {
    let ip6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let addresses = (Ipv4Addr::new(10, 1, 1, 1), Some(ip6));
    let mac = mac::Mac([2, 2, 10, 1, 1, 1]);
    Local::new("n1.t-a", &Network::new("n1.t", vxlan()), "vvport1", mac, addresses)
}

fn remote(encap: Encap) -> Remote {
    let next_hop = NextHop::on(encap, Some(Ipv4Addr::new(192, 0, 2, 2).into())).unwrap();
    let mac = mac::Mac([2, 2, 10, 1, 1, 2]);
    Remote::new("n1.t-b", &Network::new("n1.t", encap), next_hop, mac, Ipv4Addr::new(10, 1, 1, 2))
}

#[test]
fn the_program_of_a_local_endpoint_is_attached_last() {
    let entries = encode(&Object::Local(local()), &DEVICES, alone, |_| Some(9)).unwrap();
    assert!(matches!(entries[0], Entry::Port { ifindex: 9, .. }));
    assert_eq!(entries.iter().filter(|e| matches!(e, Entry::Neigh(_, o) if o.ifindex == 9)).count(), 3);
    assert_eq!(entries.last(), Some(&Entry::Hook { ifindex: 9, interface: "vvport1".into() }));
}

#[test]
fn the_forwarding_entry_of_the_nodes_own_port_has_the_node_flag() {
    let local = Local { owner: Owner::Node, ..local() };
    let entries = encode(&Object::Local(local), &DEVICES, alone, |_| Some(9)).unwrap();
    assert!(matches!(entries[1], Entry::Fdb(_, FdbEntry { ifindex: 9, group: FdbEntry::NODE, .. })));
}

#[test]
fn a_missing_interface_is_named() {
    let error = encode(&Object::Local(local()), &DEVICES, alone, |_| None).unwrap_err();
    assert_eq!(error.to_string(), "no interface vvport1");
}

#[test]
fn remote_endpoints_have_a_vtep_on_vxlan_only() {
    for (encap, vtep) in [(vxlan(), Address::v4([192, 0, 2, 2])), (vlan(), Vtep::default())] {
        let entries = encode(&Object::Remote(remote(encap)), &DEVICES, alone, |_| None).unwrap();
        let expected = FdbEntry { vtep, ifindex: 0, group: 0 };
        assert!(matches!(
            &entries[..],
            [Entry::Fdb(_, entry), Entry::Neigh(..), Entry::Neigh(..)] if *entry == expected
        ));
    }
}

#[test]
fn what_is_not_implemented_is_refused() {
    let refused = |object| encode(&object, &DEVICES, alone, |_| Some(9)).unwrap_err();
    let address = Ipv4Addr::new(192, 0, 2, 2).into();
    for (encap, next_hop) in [
        (vxlan(), NextHop::on(vlan(), None).unwrap()),
        (vxlan(), NextHop::Vtep { address, vni: Vni::try_from(7).unwrap() }),
        (vxlan(), NextHop::Local { endpoint: "e".into() }),
        (vlan(), NextHop::Uplink { vlan: Vlan::try_from(100).unwrap(), link: Some("eth1".into()) }),
    ] {
        let remote = Remote { next_hop, ..remote(encap) };
        assert_eq!(refused(Object::Remote(remote)), Unsupported::NEXT_HOP.into());
    }
    let several: [IpAddr; 2] = [Ipv4Addr::new(10, 1, 1, 1).into(), Ipv4Addr::new(10, 1, 1, 2).into()];
    for addresses in [Addresses::new(several), Addresses::new([Ipv6Addr::LOCALHOST.into()])] {
        let local = Local { addresses: addresses.unwrap(), ..local() };
        assert_eq!(refused(Object::Local(local)), Unsupported::ADDRESSES.into());
    }
    let network = Network::new("n1.t", vxlan());
    let gateway = Gateway { ip: Ipv4Addr::new(10, 1, 1, 254).into(), mac: None };
    let prefix = "10.1.1.0/24".parse().unwrap();
    let subnet = |gateway| {
        let gateway = Some(gateway);
        Object::Subnet(Subnet {
            network: network.id.clone(),
            vrf: network.vrf.clone(),
            encap: network.encap,
            prefix,
            gateway,
        })
    };
    let entries = encode(&subnet(gateway), &DEVICES, alone, |_| None).unwrap();
    let [Entry::Subnet(key, value)] = entries[..] else { panic!("{entries:?}") };
    let ip = |last| Address::v4([10, 1, 1, last]);
    let domain = Domain::of_segment(Segment::vxlan(10_001));
    assert_eq!(key, DomainPrefix::new(domain, prefix));
    assert!(value.contains(&ip(1)) && !value.contains(&ip(254)) && value.is_last(&ip(255)));
    assert!(!value.contains(&Address::v4([10, 1, 2, 1])) && !value.is_last(&ip(254)));
    let routed = Gateway { mac: Some(mac::Mac([2; 6])), ..gateway };
    assert_eq!(refused(subnet(routed)), Unsupported::ROUTER.into());
    // The nodes are the gateway.
    assert_eq!((value.is_routed(), mac::Mac::ROUTER.0), (false, contiv_abi::ROUTER_MAC));
    let entries =
        encode(&subnet(Gateway { mac: Some(mac::Mac::ROUTER), ..gateway }), &DEVICES, alone, |_| None)
            .unwrap();
    let [Entry::Subnet(_, value)] = entries[..] else { panic!("{entries:?}") };
    assert!(value.routed == Segment::vxlan(10_001) && value.is_router(&ip(254)) && !value.is_router(&ip(1)));
    let service = Service::new("s:t", Scope::vrf(network.vrf.clone()), Ipv4Addr::new(10, 1, 1, 9));
    assert_eq!(refused(Object::Service(service.clone())), EncodeError::WholeVrf(network.vrf.clone()));
    let backend = Backend { encap: None, ..Backend::on(vxlan(), Ipv4Addr::new(192, 0, 2, 9)) };
    let elsewhere = Service { scope: Scope::network(&network), backends: vec![backend], ..service };
    assert_eq!(refused(Object::Service(elsewhere)), EncodeError::BackendElsewhere(backend.ip));
}

#[test]
fn a_route_by_the_kernel_has_exceptions() {
    let vrf = Vrf::Network("n1.t".into());
    let domain = Domain::of_segment(Segment::vxlan(10_001));
    let subnet = "172.19.0.0/16".parse().unwrap();
    let id = RouteId { vrf, prefix: "0.0.0.0/0".parse().unwrap() };
    let route = Object::Route(Route { id: id.clone(), next_hops: NextHops::from(NextHop::Host { subnet }) });
    let entries = encode(&route, &DEVICES, |_, _| Some(domain), |_| None).unwrap();
    let ways = entries.iter().map(|entry| match entry {
        Entry::Route(prefix, way) => {
            assert_eq!((prefix.domain, way.address(0x0107)), (domain, [172, 19, 1, 7]));
            let first = Ipv4Addr::from(prefix.first.low());
            (format!("{first}/{}", prefix.len - 96), way.out)
        }
        other => panic!("{other:?}"),
    });
    let ways: Vec<_> = ways.collect();
    let closed = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3", "172.19.0.0/16"];
    let open = [("172.19.255.254/32", 8), ("0.0.0.0/0", 8)];
    let expected = closed.map(|prefix| (prefix, 0)).into_iter().chain(open);
    assert_eq!(ways, expected.map(|(prefix, out)| (prefix.to_owned(), out)).collect::<Vec<_>>());
    let missing = Devices { host: 0, ..DEVICES };
    let error = encode(&route, &missing, |_, _| Some(domain), |_| None).unwrap_err();
    assert_eq!(error.to_string(), "no interface contivh0");
    // Only IPv4 is translated.
    let all = RouteId { prefix: "::/0".parse().unwrap(), ..id };
    let route = Object::Route(Route { id: all, next_hops: NextHops::from(NextHop::Host { subnet }) });
    let refused = encode(&route, &DEVICES, |_, _| Some(domain), |_| None).unwrap_err();
    assert_eq!(refused, Unsupported::Object.into());
}

#[test]
fn networks_on_vxlan_use_the_vxlan_device_and_others_the_active_uplink() {
    let network = |encap, arp| Object::Network(Network { arp, ..Network::new("n1.t", encap) });
    let segment = Segment::vlan(100);
    let entries = encode(&network(vlan(), ArpMode::Flood), &DEVICES, alone, |_| None).unwrap();
    assert_eq!(entries, [Entry::Segment { segment, out: 0, flags: 0, domain: Domain::of_segment(segment) }]);
    let entries = encode(&network(vxlan(), ArpMode::Proxy), &DEVICES, alone, |_| None).unwrap();
    let (segment, flags) = (Segment::vxlan(10_001), SegmentEntry::PROXY);
    let domain = Domain::of_segment(segment);
    assert_eq!(entries, [Entry::Segment { segment, out: 7, flags, domain }]);
}

#[test]
fn networks_of_one_vrf_have_one_domain() {
    let vrf = Vrf::Tenant("t".parse().unwrap());
    let domain = Domain::of_vrf(3);
    let routed = |of: &Vrf, _: Option<Segment>| (*of == vrf).then_some(domain);
    let encode = |object| encode(&object, &DEVICES, routed, |_| Some(9));
    let network = Network { vrf: vrf.clone(), ..Network::new("n1.t", vxlan()) };
    let entries = encode(Object::Network(network.clone())).unwrap();
    assert!(matches!(entries[..], [Entry::Segment { domain: of, .. }] if of == domain));
    let entries = encode(Object::Local(Local { vrf: vrf.clone(), ..local() })).unwrap();
    assert!(matches!(&entries[0], Entry::Port { port, .. } if port.domain == domain));
    let all = entries.iter().filter_map(|entry| match entry {
        Entry::Neigh(key, _) => Some(key.domain),
        _ => None,
    });
    assert_eq!(all.collect::<Vec<_>>(), [domain; 3]);
    let remote = Remote { vrf: vrf.clone(), ..remote(vlan()) };
    let entries = encode(Object::Remote(remote)).unwrap();
    assert!(matches!(entries[1], Entry::Neigh(key, _) if key.domain == domain));
    // Another VRF, which has no number.
    let other = Vrf::Tenant("u".parse().unwrap());
    let refused = encode(Object::Network(Network { vrf: other.clone(), ..network }));
    assert_eq!(refused, Err(EncodeError::NoDomain(other)));
}

#[test]
fn a_service_of_a_whole_vrf_is_one_entry() {
    let vrf = Vrf::Tenant("t".parse().unwrap());
    let domain = Domain::of_vrf(3);
    let encode = |service| encode(&Object::Service(service), &DEVICES, |_, _| Some(domain), |_| None);
    let port = Port { protocol: Protocol::Tcp, port: 80, target: 8080 };
    let backends = vec![
        Backend::on(vxlan(), Ipv4Addr::new(10, 1, 1, 1)),
        Backend::on(vlan(), Ipv4Addr::new(10, 2, 1, 1)),
    ];
    let ip = Ipv4Addr::new(10, 9, 0, 1);
    let service = Service { ports: vec![port], backends, ..Service::new("s:t", Scope::vrf(vrf.clone()), ip) };
    let entries = encode(service.clone()).unwrap();
    let [Entry::Service(key, target), Entry::Neigh(neighbour, _)] = &entries[..] else {
        panic!("{entries:?}")
    };
    let address = Address::v4(ip.octets());
    assert_eq!(*key, ServiceKey::new(domain, address, Be16::new(80), 6));
    assert_eq!(*neighbour, NeighKey::new(domain, address));
    assert_eq!(target.backends.len(), 2);
    let outside = Backend { encap: None, ..Backend::on(vxlan(), Ipv4Addr::new(192, 0, 2, 9)) };
    let refused = encode(Service { backends: vec![outside], ..service });
    assert_eq!(refused, Err(EncodeError::BackendOutside(outside.ip, vrf)));
}

/// Nodes do not route between VLAN and VXLAN networks.
#[test]
fn a_service_of_a_network_has_backends_of_its_kind() {
    let vrf = Vrf::Tenant("t".parse().unwrap());
    let port = Port { protocol: Protocol::Tcp, port: 80, target: 8080 };
    let [on_vxlan, on_vlan] = [[10, 1, 1, 1], [10, 2, 1, 1]];
    let backends = [(vxlan(), on_vxlan), (vlan(), on_vlan)];
    for (encap, own) in backends {
        let network = Network { vrf: vrf.clone(), ..Network::new("n1.t", encap) };
        let ip = Ipv4Addr::new(10, 9, 0, 1);
        let service = Service {
            ports: vec![port],
            backends: backends.map(|(encap, ip)| Backend::on(encap, Ipv4Addr::from(ip))).into(),
            ..Service::new("s:t", Scope::network(&network), ip)
        };
        let domain = Domain::of_vrf(3);
        let entries = encode(&Object::Service(service), &DEVICES, |_, _| Some(domain), |_| None).unwrap();
        let Entry::Service(_, target) = &entries[0] else { panic!("{entries:?}") };
        assert_eq!(target.backends, [contiv_abi::Backend::new(Address::v4(own), 8080)]);
    }
}

/// Other nodes forward packets to backends on a VLAN only.
#[test]
fn terminating_backends_on_a_vlan_have_an_entry_of_their_own() {
    let port = Port { protocol: Protocol::Tcp, port: 80, target: 8080 };
    let entries = |encap: Encap, states: [Readiness; 2]| {
        let network = Network::new("n1.t", encap);
        let backend =
            |(last, readiness)| Backend { readiness, ..Backend::on(encap, Ipv4Addr::new(10, 1, 1, last)) };
        let backends = (1..).zip(states).map(backend).collect();
        let ip = Ipv4Addr::new(10, 1, 1, 250);
        let service =
            Service { ports: vec![port], backends, ..Service::new("s:t", Scope::network(&network), ip) };
        let entries = encode(&Object::Service(service), &DEVICES, alone, |_| None).unwrap();
        let sets = entries.into_iter().filter_map(|entry| match entry {
            Entry::Service(key, target) => {
                let last = target.backends.iter().map(|backend| backend.ip.low()[3]);
                Some((key.terminating, last.collect::<Vec<u8>>()))
            }
            _ => None,
        });
        sets.collect::<Vec<_>>()
    };
    let [ready, terminating] = [Readiness::Ready, Readiness::Terminating];
    assert_eq!(entries(vlan(), [ready, terminating]), [(0, vec![1]), (1, vec![2])]);
    assert_eq!(entries(vlan(), [terminating; 2]), [(0, vec![]), (1, vec![1, 2])]);
    assert_eq!(entries(vlan(), [ready; 2]), [(0, vec![1, 2])]);
    assert_eq!(entries(vxlan(), [ready, terminating]), [(0, vec![1])]);
}

#[test]
fn unreachable_peers_are_refused() {
    let peer = |vtep: &str, port| Object::Peer(Peer::new(vtep.parse::<IpAddr>().unwrap(), port));
    assert_eq!(encode(&peer("192.0.2.2", 4789), &DEVICES, alone, |_| None).unwrap().len(), 1);
    let ip6 = Address::from("2001:db8::2".parse::<IpAddr>().unwrap());
    assert_eq!(encode(&peer("2001:db8::2", 4789), &DEVICES, alone, |_| None), Ok(vec![Entry::Peer(ip6)]));
    let error = EncodeError::OtherPort { theirs: 8472, ours: 4789 };
    assert_eq!(encode(&peer("192.0.2.2", 8472), &DEVICES, alone, |_| None), Err(error));
}
