//! Services, with single frames: translation to a backend, and of replies to the service. The kit computes every
//! expected checksum.

mod affinity;
mod backends;
mod collision;
mod icmp;
mod rejection;
mod slots;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use contiv_abi::{
    DropReason, RingBlock,
    maps::{FROM_POD, RING_CAPACITY},
};
use contiv_model::{
    mac::Mac,
    service::{Port, Readiness},
};
use netplugin::datapath::{
    Backend, Datapath as _, Local, Object, ObjectId, Op, Scope, Service, ebpf::Options,
};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::{Code, Outcome, Target, run},
};

const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const VIP: Endpoint = Endpoint(250);
const SYN: u8 = tcp_flags::SYN;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const ACK: u8 = tcp_flags::ACK;
const RST: u8 = tcp_flags::RST | tcp_flags::ACK;

/// A service with port 80 and target port 8080, for TCP and UDP.
pub(crate) fn service(vip: IpAddr, backends: &[(IpAddr, Readiness)]) -> Service {
    let encap = vxlan(10_001);
    let backend =
        |(ip, readiness): &(IpAddr, Readiness)| Backend { readiness: *readiness, ..Backend::on(encap, *ip) };
    Service {
        ports: ["80:8080:TCP", "80:8080:UDP"].map(|port| port.parse::<Port>().unwrap()).into(),
        backends: backends.iter().map(backend).collect(),
        ..Service::new("web:t", Scope::network(&network("n1.t", encap)), vip)
    }
}

struct Rig {
    node: Node,
    first: Pod,
    second: Pod,
}

impl Rig {
    fn new(label: &str, backends: &[Endpoint]) -> Result<Rig> {
        let ready: Vec<_> =
            backends.iter().map(|endpoint| (endpoint.ip().into(), Readiness::Ready)).collect();
        Rig::with(label, service(VIP.ip().into(), &ready))
    }

    fn with(label: &str, service: Service) -> Result<Rig> {
        Rig::with_options(label, service, |_| {})
    }

    fn with_options(label: &str, service: Service, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
        let mut node = Node::with(label, adjust)?;
        let n1 = network("n1.t", vxlan(10_001));
        node.want_network(&n1).want_peer(2).want(Object::Remote(FAR.remote(&n1, Some(vtep(2)))));
        node.want(Object::Service(service));
        let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
        node.converge()?;
        Ok(Rig { node, first, second })
    }

    fn set(&mut self, backends: &[(Endpoint, Readiness)]) -> Result<()> {
        let backends: Vec<_> =
            backends.iter().map(|(endpoint, readiness)| (endpoint.ip().into(), *readiness)).collect();
        let object = Object::Service(service(VIP.ip().into(), &backends));
        self.node.want(object.clone());
        assert!(self.node.apply(&[Op::Set(object)])?.is_empty());
        Ok(())
    }

    fn target(&self, pod: Endpoint) -> Result<Target> {
        let Local { port, .. } = if pod.0 == HERE.0 { &self.first.local } else { &self.second.local };
        Target::new(&self.node, FROM_POD, port)
    }

    /// Runs the program of a pod on a frame.
    fn from(&self, pod: Endpoint, frame: &Packet) -> Result<Outcome> {
        let Local { port, .. } = if pod.0 == HERE.0 { &self.first.local } else { &self.second.local };
        run(&self.node, FROM_POD, port, &frame.build())
    }

    #[track_caller]
    fn becomes(&self, from: Endpoint, sent: &Packet, arrives: &Packet) {
        let outcome = self.from(from, sent).unwrap();
        assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]));
        assert_eq!(outcome.bytes, arrives.build(), "left: received, right: expected");
    }
}

#[test]
fn a_connection_continues_when_the_flow_table_is_full() -> Result<()> {
    needs!(root());
    let mut rig = Rig::with_options(
        "svc-full",
        service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)]),
        |options| options.flows = 1,
    )?;
    let there = |port, flags| between(HERE, VIP).tcp(port, 80, flags);
    let arrives = |port, flags| between(HERE, OTHER).tcp(port, 8080, flags);
    let back = between(OTHER, HERE).tcp(8080, 4000, SYN_ACK);
    rig.becomes(HERE, &there(4000, SYN), &arrives(4000, SYN));
    rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK));
    rig.becomes(HERE, &there(4000, ACK), &arrives(4000, ACK));
    // A translated connection needs an entry.
    rig.from(HERE, &there(4001, SYN))?.assert_dropped(DropReason::NotTracked);
    // A change of the backends does not affect the established connection.
    rig.set(&[(FAR, Readiness::Ready)])?;
    rig.becomes(HERE, &there(4000, ACK), &arrives(4000, ACK));
    assert_eq!(rig.node.datapath.inspect()["flows"]["made"], 1);
    Ok(())
}

/// An IPv4 packet between two endpoints.
fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

/// A reply as the client receives it: from the service address, with the backend's MAC address.
fn answer_of(backend: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), backend.mac()).ipv4(VIP.ip(), to.ip())
}

fn between6(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv6(from.ip6(), to.ip6())
}

#[test]
fn connections_are_translated_to_the_backend_and_replies_to_the_service() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-tcp", &[OTHER])?;
    let to_vip = |flags| between(HERE, VIP).tcp(4000, 80, flags).sequence(7, 9).payload(b"odd");
    let to_backend = |flags| between(HERE, OTHER).tcp(4000, 8080, flags).sequence(7, 9).payload(b"odd");
    let from_backend = |flags| between(OTHER, HERE).tcp(8080, 4000, flags).payload(b"answer");
    let from_vip = |flags| answer_of(OTHER, HERE).tcp(80, 4000, flags).payload(b"answer");
    rig.becomes(HERE, &to_vip(SYN), &to_backend(SYN));
    rig.becomes(HERE, &to_vip(SYN), &to_backend(SYN));
    rig.becomes(OTHER, &from_backend(SYN_ACK), &from_vip(SYN_ACK));
    for _ in 0..3 {
        rig.becomes(HERE, &to_vip(ACK), &to_backend(ACK));
        rig.becomes(OTHER, &from_backend(ACK), &from_vip(ACK));
    }
    Ok(())
}

#[test]
fn udp_checksums_are_updated_unless_absent() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-udp", &[OTHER])?;
    rig.becomes(
        HERE,
        &between(HERE, VIP).udp(53, 80).payload(b"q"),
        &between(HERE, OTHER).udp(53, 8080).payload(b"q"),
    );
    rig.becomes(OTHER, &between(OTHER, HERE).udp(8080, 53), &answer_of(OTHER, HERE).udp(80, 53));
    let (sent, arrives) =
        (between(HERE, VIP).udp_unchecked(54, 80), between(HERE, OTHER).udp_unchecked(54, 8080));
    rig.becomes(HERE, &sent, &arrives);
    Ok(())
}

#[test]
fn ipv6_connections_are_translated() -> Result<()> {
    needs!(root());
    let backends = [(OTHER.ip6().into(), Readiness::Ready)];
    let rig = Rig::with("svc-v6", service(VIP.ip6().into(), &backends))?;
    // The MAC address of an IPv6 service is derived in the same way.
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let to_vip = |f| Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).tcp(4000, 80, f);
    let from_vip = |f| Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6()).tcp(80, 4000, f);
    rig.becomes(HERE, &to_vip(SYN), &between6(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(OTHER, &between6(OTHER, HERE).tcp(8080, 4000, SYN_ACK), &from_vip(SYN_ACK));
    rig.becomes(HERE, &to_vip(ACK), &between6(HERE, OTHER).tcp(4000, 8080, ACK));
    // Behind an extension header: empty destination options.
    let hidden = |mac, ip: Ipv6Addr, port| {
        let udp = Packet::bare().ipv6(HERE.ip6(), ip).udp(4000, port).build();
        let options = [&[17, 0, 1, 4, 0, 0, 0, 0], &udp[40..]].concat();
        Packet::eth(mac, HERE.mac()).ipv6(HERE.ip6(), ip).protocol(60).payload(&options)
    };
    rig.becomes(HERE, &hidden(vip_mac, VIP.ip6(), 80), &hidden(OTHER.mac(), OTHER.ip6(), 8080));
    Ok(())
}

#[test]
fn a_pod_reaches_itself_through_its_service() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-self", &[HERE])?;
    for port in [4000, 8080] {
        let sent = between(HERE, VIP).tcp(port, 80, SYN);
        let arrives = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(port, 8080, SYN);
        rig.becomes(HERE, &sent, &arrives);
        let answered = between(HERE, VIP).tcp(8080, port, SYN_ACK);
        let comes_back = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(80, port, SYN_ACK);
        rig.becomes(HERE, &answered, &comes_back);
    }
    Ok(())
}

#[test]
fn arp_requests_for_a_service_are_answered() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-arp", &[OTHER])?;
    let question = Packet::arp_request(HERE.mac(), HERE.ip(), VIP.ip());
    let answer = Packet::arp_reply(Mac::of_endpoint(VIP.ip()).0, VIP.ip(), HERE.mac(), HERE.ip()).build();
    rig.from(HERE, &question)?.assert_answered(&answer);
    Ok(())
}
