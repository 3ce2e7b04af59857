//! Routing domains: networks of one VRF share addresses, services and flows; what is in different domains stays apart, also with
//! equal addresses.

use std::net::IpAddr;

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{
    ABI_VERSION, Domain, DomainName, DropReason, Flow, PortSlot, Segment, SegmentEntry, ServiceEntry,
    ServiceKey,
    maps::{DOMAINS, FROM_POD, SEGMENTS, SERVICES},
};
use contiv_model::{mac::Mac, service::Readiness, vrf::Vrf};
use netplugin::datapath::{
    Backend, Datapath as _, Local, Network, Object, ObjectId, Op, Remote, Scope, Service,
};
use testkit::{
    needs,
    packet::{Packet, nd_flags, tcp_flags},
};

use crate::{
    flow_table::{change, flows},
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Code, Outcome, run},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const THIRD: Endpoint = Endpoint(4);
const VIP: Endpoint = Endpoint(250);
const SYN: u8 = tcp_flags::SYN;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const ACK: u8 = tcp_flags::ACK;

fn tenant(name: &str) -> Vrf {
    Vrf::Tenant(name.parse().unwrap())
}

/// A network with the VNI 10000 + `n` in the VRF of a tenant.
fn routed(n: u8, of: &str) -> Network {
    Network { vrf: tenant(of), ..network(&format!("n{n}.{of}"), vxlan(10_000 + u32::from(n))) }
}

/// The service of a whole VRF, with backends on these networks.
fn whole(vrf: Vrf, backends: &[(&Network, Endpoint)]) -> Service {
    let backend = |(network, endpoint): &(&Network, Endpoint)| Backend::on(network.encap, endpoint.ip());
    let backends = backends.iter().map(backend).collect();
    Service { backends, scope: Scope::vrf(vrf), ..service(VIP.ip().into(), &[]) }
}

fn from(node: &Node, pod: &Pod, frame: &Packet) -> Result<Outcome> {
    run(node, FROM_POD, &pod.local.port, &frame.build())
}

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

fn hash_map<K: aya::Pod, V: aya::Pod>(node: &Node, name: &str) -> Result<HashMap<MapData, K, V>> {
    let data = MapData::from_pin(node.datapath.maps_directory().join(name))?;
    Ok(Map::from_map_data(data)?.try_into()?)
}

/// The domain of the network with the VNI 10000 + `n`, as the programs find it.
fn domain(node: &Node, n: u8) -> Result<Domain> {
    let segments = hash_map::<Segment, SegmentEntry>(node, SEGMENTS)?;
    Ok(segments.get(&Segment::vxlan(10_000 + u32::from(n)), 0)?.domain)
}

fn domains(flows: &[Flow]) -> Vec<Domain> {
    let mut domains: Vec<_> = flows.iter().map(|flow| Domain::from_number(flow.head.domain)).collect();
    domains.sort_unstable();
    domains
}

#[test]
fn networks_of_one_domain_have_one_neighbour_table() -> Result<()> {
    needs!(root());
    for (label, vrfs) in [("dom-neigh", true), ("dom-alone", false)] {
        let mut node = Node::new(label)?;
        let [n1, n2] = [1, 2].map(|n| {
            let routed = routed(n, "t");
            if vrfs { routed } else { network(routed.id.as_str(), routed.encap) }
        });
        node.want_network(&n1).want_network(&n2).want_peer(2);
        node.want(Object::Remote(FAR.remote(&n2, Some(vtep(2)))));
        let here = node.pod(&n1, HERE)?;
        let _other = node.pod(&n2, OTHER)?;
        node.converge()?;
        for owner in [OTHER, FAR] {
            let arp = from(&node, &here, &Packet::arp_request(HERE.mac(), HERE.ip(), owner.ip()))?;
            let nd = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), owner.ip6());
            let nd = from(&node, &here, &nd)?;
            if !vrfs {
                arp.assert_flooded();
                nd.assert_flooded();
                continue;
            }
            arp.assert_answered(&Packet::arp_reply(owner.mac(), owner.ip(), HERE.mac(), HERE.ip()).build());
            let answer = Packet::neighbour_advertisement(
                (HERE.mac(), HERE.ip6()),
                (owner.mac(), owner.ip6()),
                owner.mac(),
                nd_flags::SOLICITED | nd_flags::OVERRIDE,
            );
            nd.assert_answered(&answer.build());
        }
        assert_eq!(domain(&node, 1)? == domain(&node, 2)?, vrfs);
    }
    Ok(())
}

#[test]
fn a_service_of_a_vrf_is_one_entry_for_all_networks() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-svc")?;
    let [n1, n2] = [1, 2].map(|n| routed(n, "t"));
    node.want_network(&n1).want_network(&n2);
    let (here, other, third) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?, node.pod(&n2, THIRD)?);
    node.want(Object::Service(whole(tenant("t"), &[(&n1, OTHER)])));
    node.converge()?;
    let services = hash_map::<ServiceKey, ServiceEntry>(&node, SERVICES)?;
    let keys: Vec<ServiceKey> = services.keys().collect::<Result<_, _>>()?;
    let shared = domain(&node, 1)?;
    assert_eq!(keys.len(), 2, "one for each protocol");
    assert!(shared.vrf().is_some() && keys.iter().all(|key| key.domain == shared));
    // A client on the backend's network.
    let outcome = from(&node, &here, &between(HERE, VIP).tcp(4000, 80, SYN))?;
    assert_eq!(
        (outcome.code, outcome.bytes),
        (Code::Redirect, between(HERE, OTHER).tcp(4000, 8080, SYN).build())
    );
    let outcome = from(&node, &other, &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK))?;
    let reply = Packet::eth(HERE.mac(), OTHER.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(80, 4000, SYN_ACK);
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, reply.build()));
    // A client on the other one has the same service and the same backend. Frames are not bridged to the backend's network.
    from(&node, &third, &between(THIRD, VIP).tcp(4000, 80, SYN))?.assert_flooded();
    let flows = flows(&node)?;
    assert_eq!(domains(&flows), [shared, shared]);
    assert!(flows.iter().all(|flow| flow.backend == IpAddr::from(OTHER.ip()).into()));
    let address = Packet::arp_request(THIRD.mac(), THIRD.ip(), VIP.ip());
    let answer = Packet::arp_reply(Mac::of_endpoint(VIP.ip()).0, VIP.ip(), THIRD.mac(), THIRD.ip());
    from(&node, &third, &address)?.assert_answered(&answer.build());
    Ok(())
}

#[test]
fn a_service_of_a_vrf_needs_a_routed_network() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-none")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    node.converge()?;
    let failed = node.apply(&[Op::Set(Object::Service(whole(tenant("t"), &[(&n1, OTHER)])))])?;
    let [failed] = &failed[..] else { panic!("{failed:?}") };
    let error = format!("{:#}", anyhow::anyhow!(failed.error.source.to_string()));
    assert!(error.contains("no network that is routed in the tenant t"), "{error}");
    Ok(())
}

/// Two tenants whose networks have the same addresses, and whose services have the same address.
#[test]
fn equal_addresses_in_two_domains_stay_apart() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-apart")?;
    let nets = [routed(1, "t"), routed(2, "u")];
    let mut pods = vec![];
    for (net, backend) in nets.iter().zip([OTHER, THIRD]) {
        node.want_network(net);
        pods.push([node.pod(net, HERE)?, node.pod(net, backend)?]);
        let id = format!("web:{}", net.vrf).as_str().into();
        node.want(Object::Service(Service { id, ..whole(net.vrf.clone(), &[(net, backend)]) }));
    }
    node.want_peer(2);
    // The same address, with another owner in each.
    let strangers = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
    for (net, mac) in nets.iter().zip(strangers) {
        node.want(Object::Remote(Remote { mac: Mac(mac), ..FAR.remote(net, Some(vtep(2))) }));
    }
    node.converge()?;
    let fragment = |offset, more| {
        let packet = between(HERE, FAR).udp(4000, 53).payload(&[0; 64]);
        packet.fragment(7, offset, more)
    };
    for ((n, [here, _]), (backend, mac)) in pods.iter().enumerate().zip([OTHER, THIRD].iter().zip(strangers))
    {
        let arp = from(&node, here, &Packet::arp_request(HERE.mac(), HERE.ip(), FAR.ip()))?;
        arp.assert_answered(&Packet::arp_reply(mac, FAR.ip(), HERE.mac(), HERE.ip()).build());
        let nd = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), FAR.ip6());
        let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
        let ends = ((HERE.mac(), HERE.ip6()), (mac, FAR.ip6()));
        let answer = Packet::neighbour_advertisement(ends.0, ends.1, mac, flags);
        from(&node, here, &nd)?.assert_answered(&answer.build());
        // The backend of the other tenant is no endpoint here.
        let absent = if *backend == OTHER { THIRD } else { OTHER };
        from(&node, here, &Packet::arp_request(HERE.mac(), HERE.ip(), absent.ip()))?.assert_flooded();
        // The same connection in both: two flows, each with its own backend.
        let outcome = from(&node, here, &between(HERE, VIP).tcp(4000, 80, SYN))?;
        let translated = between(HERE, *backend).tcp(4000, 8080, SYN).build();
        assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, translated));
        assert_eq!(flows(&node)?.len(), n + 1);
        // A later fragment belongs to the first one of its own domain.
        let to_far = |packet: Packet| {
            let mut bytes = packet.build();
            bytes[..6].copy_from_slice(&mac);
            run(&node, FROM_POD, &here.local.port, &bytes)
        };
        to_far(fragment(64, false))?.assert_dropped(DropReason::UnknownFragment);
    }
    let first = |bytes: &mut Vec<u8>| bytes[..6].copy_from_slice(&strangers[0]);
    let mut begins = fragment(0, true).build();
    first(&mut begins);
    run(&node, FROM_POD, &pods[0][0].local.port, &begins)?.assert_sent_on(&begins);
    let mut goes_on = fragment(64, false).build();
    first(&mut goes_on);
    run(&node, FROM_POD, &pods[0][0].local.port, &goes_on)?.assert_sent_on(&goes_on);
    goes_on[..6].copy_from_slice(&strangers[1]);
    run(&node, FROM_POD, &pods[1][0].local.port, &goes_on)?.assert_dropped(DropReason::UnknownFragment);
    // A reply in one domain does not establish the flow of the other.
    from(&node, &pods[0][1], &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK))?;
    let mut services: Vec<Flow> =
        flows(&node)?.into_iter().filter(|flow| flow.halves[0].service != 0).collect();
    services.sort_unstable_by_key(|flow| flow.head.domain);
    let replied: Vec<bool> = services.iter().map(Flow::is_replied).collect();
    assert_eq!(
        (domains(&services), replied),
        (vec![domain(&node, 1)?, domain(&node, 2)?], vec![true, false])
    );
    Ok(())
}

/// The addresses of a domain are those of several networks, and frames are bridged within one only: what is for a port of another
/// network is not forwarded to it, also if its flow names the port.
#[test]
fn frames_do_not_cross_from_one_network_of_a_domain_to_another() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-cross")?;
    let [n1, n2] = [1, 2].map(|n| routed(n, "t"));
    node.want_network(&n1).want_network(&n2);
    let (here, other) = (node.pod(&n1, HERE)?, node.pod(&n2, OTHER)?);
    node.converge()?;
    let there = between(HERE, OTHER).tcp(4000, 80, ACK);
    from(&node, &here, &between(HERE, OTHER).tcp(4000, 80, SYN))?.assert_flooded();
    from(&node, &other, &between(OTHER, HERE).tcp(80, 4000, SYN_ACK))?.assert_flooded();
    from(&node, &here, &there)?.assert_flooded();
    assert_eq!(domains(&flows(&node)?), [domain(&node, 1)?]);
    let [here_slot, other_slot] =
        [&here, &other].map(|pod| PortSlot::number(node.ifindex(&pod.local.port).unwrap()) as u16 + 1);
    change(&node, |flow| {
        flow.halves[0].receiver = other_slot;
        flow.halves[1].receiver = here_slot;
    })?;
    from(&node, &here, &there)?.assert_flooded();
    from(&node, &other, &between(OTHER, HERE).tcp(80, 4000, ACK))?.assert_flooded();
    Ok(())
}

#[test]
fn the_number_of_a_vrf_stays() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-number")?;
    let nets = [routed(1, "t"), routed(2, "u"), routed(3, "t"), network("n4.u", vxlan(10_004))];
    nets.iter().for_each(|net| {
        node.want_network(net);
    });
    node.converge()?;
    let numbers = |node: &Node| (1..=4).map(|n| domain(node, n)).collect::<Result<Vec<_>>>();
    let before = numbers(&node)?;
    let [t, u] = [Domain::of_vrf(1), Domain::of_vrf(2)];
    assert_eq!(before, [t, u, t, Domain::of_segment(Segment::vxlan(10_004))]);
    // A restart writes nothing; an upgrade, and the way back, keep the numbers.
    node.restart();
    assert_eq!((node.observe()?.in_sync.len(), node.datapath.writes()), (nets.len(), 0));
    for version in [ABI_VERSION + 1, ABI_VERSION] {
        node.options.abi_version = version;
        drop(node.restart());
        node.converge()?;
        assert_eq!(numbers(&node)?, before);
    }
    // Another tenant has never had the number, although the networks of `u` are gone for a while.
    node.desired.remove(&ObjectId::Network(nets[1].id.clone()));
    node.converge()?;
    node.want_network(&routed(5, "v"));
    node.converge()?;
    assert_eq!(domain(&node, 5)?, Domain::of_vrf(3));
    node.want_network(&nets[1]);
    node.converge()?;
    assert_eq!(numbers(&node)?, before);
    let names = hash_map::<DomainName, u32>(&node, DOMAINS)?;
    let number = |name: &str| names.get(&DomainName::new(name).unwrap(), 0);
    assert_eq!([number("t")?, number("u")?, number("v")?], [1, 2, 3]);
    Ok(())
}

/// In the other version each network was a domain of its own; in this one it is in the domain of a VRF.
#[test]
fn flows_of_a_network_become_flows_of_its_domain_in_an_upgrade() -> Result<()> {
    needs!(root());
    let mut node = Node::new("dom-upgrade")?;
    let alone = network("n1.t", vxlan(10_001));
    node.want_network(&alone);
    let (here, other) = (node.pod(&alone, HERE)?, node.pod(&alone, OTHER)?);
    let web = service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)]);
    node.want(Object::Service(web.clone()));
    node.converge()?;
    let translated = |flags| between(HERE, OTHER).tcp(4000, 8080, flags).build();
    let reply =
        |flags| Packet::eth(HERE.mac(), OTHER.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(80, 4000, flags).build();
    let outcome = from(&node, &here, &between(HERE, VIP).tcp(4000, 80, SYN))?;
    assert_eq!(outcome.bytes, translated(SYN));
    assert_eq!(domains(&flows(&node)?), [Domain::of_segment(Segment::vxlan(10_001))]);
    let vrf = tenant("t");
    let scope = Scope { vrf: vrf.clone(), ..web.scope.clone() };
    node.want_network(&Network { vrf: vrf.clone(), ..alone });
    node.want(Object::Service(Service { scope, ..web }));
    for pod in [&here, &other] {
        node.want(Object::Local(Local { vrf: vrf.clone(), ..pod.local.clone() }));
    }
    node.options.abi_version = ABI_VERSION + 1;
    drop(node.restart());
    node.converge()?;
    assert_eq!(domains(&flows(&node)?), [Domain::of_vrf(1)]);
    // The connection continues with the backend's packet.
    let outcome = from(&node, &other, &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK))?;
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, reply(SYN_ACK)));
    let outcome = from(&node, &here, &between(HERE, VIP).tcp(4000, 80, ACK))?;
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, translated(ACK)));
    assert_eq!(flows(&node)?.len(), 1);
    Ok(())
}
