use contiv_model::{route::NextHop, trace::TcpFlags};
use testkit::packet::verify;

use super::*;
use crate::datapath::{Network, Peer, Scope};

fn encap() -> Encap {
    Encap::Vxlan { vni: 10_001.try_into().unwrap(), local: 1.try_into().unwrap() }
}

fn objects() -> Desired {
    let network = Network::new("n.default", encap());
    let [here, there] = [2, 3].map(|last| Ipv4Addr::new(10, 1, 1, last));
    let vtep: IpAddr = [192, 168, 0, 2].into();
    let next_hop = NextHop::Vtep { address: vtep, vni: 10_001.try_into().unwrap() };
    [
        Object::Local(Local::new("n.default-a", &network, "vvport1", Mac::of_endpoint(here), here)),
        Object::Remote(Remote::new("n.default-b", &network, next_hop, Mac::of_endpoint(there), there)),
        Object::Service(Service::new("web:default", Scope::network(&network), [10, 1, 1, 9])),
        Object::Network(network),
        Object::Peer(Peer::new(vtep, 4789)),
    ]
    .into_iter()
    .collect()
}

fn query(endpoint: &str, destination: &str, protocol: u8) -> Query {
    Query {
        ingress: trace::Ingress::Endpoint(endpoint.into()),
        source: None,
        destination: destination.parse().unwrap(),
        protocol,
        source_port: 40_000,
        destination_port: 80,
        tcp_flags: TcpFlags::SYN,
        dscp: 0,
        source_mac: None,
        destination_mac: None,
    }
}

#[test]
fn addresses_are_completed_as_the_pod_would() {
    let objects = objects();
    for (destination, mac) in [
        ("10.1.1.3", Mac([2, 2, 10, 1, 1, 3])),
        ("10.1.1.9", Mac([2, 2, 10, 1, 1, 9])),
        ("192.0.2.1", UNKNOWN_ROUTER),
        ("224.0.0.251", Mac([1, 0, 0x5e, 0, 0, 0xfb])),
        ("255.255.255.255", Mac([0xff; 6])),
    ] {
        let probe = Probe::resolve(&objects, &query("n.default-a", destination, 6)).unwrap();
        assert_eq!(probe.header.destination_mac, mac, "{destination}");
        assert_eq!(probe.header.source, IpAddr::from([10, 1, 1, 2]));
        assert_eq!(probe.service.is_some(), destination == "10.1.1.9");
    }
}

#[test]
fn unresolved_queries_name_the_object() {
    let objects = objects();
    for (query, what) in [
        (query("n.default-b", "10.1.1.3", 6), "endpoint n.default-b is not on this node"),
        (query("n.default-a", "2001:db8::1", 6), "with an IPv6 address"),
        (query("n.default-a", "10.1.1.3", 58), "use 1"),
        (
            Query { source: Some("2001:db8::1".parse().unwrap()), ..query("n.default-a", "10.1.1.3", 6) },
            "different families",
        ),
        (
            Query {
                ingress: trace::Ingress::Uplink { vlan: 7.try_into().unwrap() },
                ..query("", "10.1.1.3", 6)
            },
            "vlan 7",
        ),
    ] {
        let error = Probe::resolve(&objects, &query).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn frames_are_valid_and_read_back() {
    for (source, destination) in [("10.1.1.2", "10.1.1.3"), ("2001:db8::2", "2001:db8::3")] {
        for protocol in [6, 17, 1, 58, 132] {
            if [1, 58].contains(&protocol) && (protocol == 1) != destination.contains('.') {
                continue;
            }
            let header = Header {
                source_mac: Mac([2; 6]),
                destination_mac: Mac([4; 6]),
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                protocol,
                source_port: if protocol == 132 { 0 } else { 40_000 },
                destination_port: if [6, 17].contains(&protocol) { 80 } else { 0 },
                tcp_flags: if protocol == 6 { TcpFlags::SYN } else { TcpFlags::default() },
                dscp: 46,
            };
            let frame = frame::build(&header);
            verify(&frame).unwrap();
            assert_eq!(read_header(&frame), Some(header));
        }
    }
}
