//! Services, packet by packet: what a client sends arrives at a backend, and what the backend answers seems to
//! come from the service. Every checksum is made anew by the kit.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use contiv_abi::{DropReason, maps::FROM_POD};
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
    node::{Node, Pod, Who, network, vtep, vxlan},
    run::{Code, Outcome, Target, run},
};

const HERE: Who = Who(1);
const OTHER: Who = Who(2);
const FAR: Who = Who(3);
const VIP: Who = Who(250);
const SYN: u8 = tcp_flags::SYN;
const SYN_ACK: u8 = tcp_flags::SYN | tcp_flags::ACK;
const ACK: u8 = tcp_flags::ACK;
const RST: u8 = tcp_flags::RST | tcp_flags::ACK;

/// The service, on port 80 for 8080, TCP and UDP.
pub(crate) fn service(vip: IpAddr, backends: &[(IpAddr, Readiness)]) -> Service {
    let encap = vxlan(10_001);
    let backends =
        backends.iter().map(|(ip, readiness)| Backend { ip: *ip, encap, readiness: *readiness }).collect();
    Service {
        id: "web:t".into(),
        scope: Some(Scope { network: "n1.t".into(), encap }),
        vip,
        ports: ["80:8080:TCP", "80:8080:UDP"].map(|port| port.parse::<Port>().unwrap()).into(),
        backends,
        affinity: None,
    }
}

struct Rig {
    node: Node,
    first: Pod,
    second: Pod,
}

impl Rig {
    fn new(label: &str, backends: &[Who]) -> Result<Rig> {
        let ready: Vec<_> = backends.iter().map(|who| (who.ip().into(), Readiness::Ready)).collect();
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

    fn set(&mut self, backends: &[(Who, Readiness)]) -> Result<()> {
        let backends: Vec<_> =
            backends.iter().map(|(who, readiness)| (who.ip().into(), *readiness)).collect();
        let object = Object::Service(service(VIP.ip().into(), &backends));
        self.node.want(object.clone());
        assert!(self.node.apply(&[Op::Set(object)])?.is_empty());
        Ok(())
    }

    fn target(&self, pod: Who) -> Result<Target> {
        let Local { port, .. } = if pod.0 == HERE.0 { &self.first.local } else { &self.second.local };
        Target::new(&self.node, FROM_POD, port)
    }

    /// What becomes of a frame from one of the pods.
    fn from(&self, pod: Who, frame: &Packet) -> Result<Outcome> {
        let Local { port, .. } = if pod.0 == HERE.0 { &self.first.local } else { &self.second.local };
        run(&self.node, FROM_POD, port, &frame.build())
    }

    #[track_caller]
    fn becomes(&self, from: Who, sent: &Packet, arrives: &Packet) {
        let outcome = self.from(from, sent).unwrap();
        assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]));
        assert_eq!(outcome.bytes, arrives.build(), "left: what came, right: what should have");
    }
}

#[test]
fn a_connection_goes_on_when_the_table_of_flows_has_no_room_for_all_of_it() -> Result<()> {
    needs!(root());
    for room in [1, 2, 3] {
        let mut rig = Rig::with_options(
            "svc-full",
            service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)]),
            |options| options.flows = room,
        )?;
        for port in [4000, 4001] {
            let there = |flags| between(HERE, VIP).tcp(port, 80, flags);
            let arrives = |flags| {
                Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip()).tcp(port, 8080, flags)
            };
            let back = between(OTHER, HERE).tcp(8080, port, SYN_ACK);
            rig.becomes(HERE, &there(SYN), &arrives(SYN));
            rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, port, SYN_ACK));
            rig.becomes(HERE, &there(ACK), &arrives(ACK));
        }
        // Whatever is chosen for new ones: these are known.
        rig.set(&[(FAR, Readiness::Ready)])?;
        for port in [4000, 4001] {
            let arrives = Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip());
            rig.becomes(HERE, &between(HERE, VIP).tcp(port, 80, ACK), &arrives.tcp(port, 8080, ACK));
        }
        assert_eq!(rig.node.datapath.inspect()["flows"]["made"], 2);
    }
    Ok(())
}

/// A packet of IPv4 between two.
fn between(from: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

/// What the client gets of an answer: from the service, and by Ethernet from the backend.
fn answer_of(backend: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), backend.mac()).ipv4(VIP.ip(), to.ip())
}

fn between6(from: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv6(from.ip6(), to.ip6())
}

#[test]
fn a_connection_goes_to_the_backend_and_its_answers_come_from_the_service() -> Result<()> {
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
fn udp_has_its_checksum_or_does_without() -> Result<()> {
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
fn ipv6_is_served_alike() -> Result<()> {
    needs!(root());
    let backends = [(OTHER.ip6().into(), Readiness::Ready)];
    let rig = Rig::with("svc-v6", service(VIP.ip6().into(), &backends))?;
    // An IPv6 service has an address of Ethernet by the same rule.
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let to_vip = |f| Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).tcp(4000, 80, f);
    let from_vip = |f| Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6()).tcp(80, 4000, f);
    rig.becomes(HERE, &to_vip(SYN), &between6(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(OTHER, &between6(OTHER, HERE).tcp(8080, 4000, SYN_ACK), &from_vip(SYN_ACK));
    rig.becomes(HERE, &to_vip(ACK), &between6(HERE, OTHER).tcp(4000, 8080, ACK));
    // Behind an extension header (destination options, nothing in them).
    let hidden = |mac, ip: Ipv6Addr, port| {
        let udp = Packet::bare().ipv6(HERE.ip6(), ip).udp(4000, port).build();
        let options = [&[17, 0, 1, 4, 0, 0, 0, 0], &udp[40..]].concat();
        Packet::eth(mac, HERE.mac()).ipv6(HERE.ip6(), ip).protocol(60).payload(&options)
    };
    rig.becomes(HERE, &hidden(vip_mac, VIP.ip6(), 80), &hidden(OTHER.mac(), OTHER.ip6(), 8080));
    Ok(())
}

#[test]
fn nobody_waits_for_a_service_without_backends() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-none", &[])?;
    let refused = |outcome: Outcome, reason, answer: &Packet| {
        assert_eq!((outcome.code, &outcome.dropped[..]), (Code::Redirect, &[reason][..]));
        assert_eq!(outcome.bytes, answer.build());
    };
    let syn = between(HERE, VIP).tcp(4000, 80, SYN).sequence(u32::MAX, 0);
    let reset = |flags| between(VIP, HERE).ip_id(0).tcp(80, 4000, flags).window(0);
    let reset_ack = tcp_flags::RST | tcp_flags::ACK;
    refused(rig.from(HERE, &syn)?, DropReason::NoBackend, &reset(reset_ack).sequence(0, 0));
    // Data beyond a SYN is counted; what has an acknowledgement is answered from there.
    let data = between(HERE, VIP).tcp(4000, 80, SYN).sequence(10, 0).payload(b"four");
    refused(rig.from(HERE, &data)?, DropReason::NoBackend, &reset(reset_ack).sequence(0, 15));
    let ack = between(HERE, VIP).tcp(4000, 80, ACK).sequence(10, 20).tcp_options(&[1, 1, 1, 1]);
    refused(rig.from(HERE, &ack)?, DropReason::NoBackend, &reset(tcp_flags::RST).sequence(20, 0));
    // A reset is not answered.
    rig.from(HERE, &between(HERE, VIP).tcp(4000, 80, tcp_flags::RST))?.assert_dropped(DropReason::NoBackend);

    let query = between(HERE, VIP).udp(4000, 80).payload(b"a query that is long enough");
    let quoted = &query.build()[14..14 + 28];
    let unreachable = between(VIP, HERE).ip_id(0).icmp(3, 3, [0; 4]).payload(quoted);
    refused(rig.from(HERE, &query)?, DropReason::NoBackend, &unreachable);
    // Another port, and another protocol.
    let query = between(HERE, VIP).udp(4000, 81).payload(b"q");
    let unreachable = between(VIP, HERE).ip_id(0).icmp(3, 3, [0; 4]).payload(&query.build()[14..14 + 28]);
    refused(rig.from(HERE, &query)?, DropReason::NoService, &unreachable);
    rig.from(HERE, &between(HERE, VIP).icmp_echo_request(1, 1))?.assert_dropped(DropReason::NoService);
    Ok(())
}

#[test]
fn nobody_waits_over_ipv6_either() -> Result<()> {
    needs!(root());
    let rig = Rig::with("svc-none6", service(VIP.ip6().into(), &[]))?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let to_vip = || Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
    let from_vip = || Packet::eth(HERE.mac(), vip_mac).ipv6(VIP.ip6(), HERE.ip6());
    let outcome = rig.from(HERE, &to_vip().tcp(4000, 80, SYN).sequence(41, 0))?;
    let reset = from_vip().tcp(80, 4000, tcp_flags::RST | tcp_flags::ACK).window(0).sequence(0, 42);
    assert_eq!((outcome.bytes, &outcome.dropped[..]), (reset.build(), &[DropReason::NoBackend][..]));
    let query = to_vip().udp(4000, 80).payload(b"a query that is long enough");
    let outcome = rig.from(HERE, &query)?;
    let unreachable = from_vip().icmpv6(1, 4, [0; 4]).payload(&query.build()[14..14 + 48]);
    assert_eq!((outcome.bytes, &outcome.dropped[..]), (unreachable.build(), &[DropReason::NoBackend][..]));
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
fn a_backend_is_reached_beside_its_service_from_the_same_port() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-beside", &[OTHER])?;
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK),
    );
    // Directly, which the backend could not tell from the other: it gets to see another port.
    let outcome = rig.from(HERE, &between(HERE, OTHER).tcp(4000, 8080, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4000);
    assert_eq!(outcome.bytes, between(HERE, OTHER).tcp(port, 8080, SYN).build());
    let answer = between(OTHER, HERE).tcp(8080, port, SYN_ACK);
    rig.becomes(OTHER, &answer, &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK));
    rig.becomes(HERE, &between(HERE, OTHER).tcp(4000, 8080, ACK), &between(HERE, OTHER).tcp(port, 8080, ACK));
    // And the service as before.
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, ACK), &between(HERE, OTHER).tcp(4000, 8080, ACK));
    // The other way about: first directly, then by the service.
    let direct = between(HERE, OTHER).tcp(4001, 8080, SYN);
    rig.becomes(HERE, &direct, &direct);
    let outcome = rig.from(HERE, &between(HERE, VIP).tcp(4001, 80, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4001);
    assert_eq!(outcome.bytes, between(HERE, OTHER).tcp(port, 8080, SYN).build());
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, port, SYN_ACK),
        &answer_of(OTHER, HERE).tcp(80, 4001, SYN_ACK),
    );
    let answer = between(OTHER, HERE).tcp(8080, 4001, SYN_ACK);
    rig.becomes(OTHER, &answer, &answer);
    Ok(())
}

#[test]
fn connections_that_look_alike_to_a_backend_get_other_ports() -> Result<()> {
    needs!(root());
    // Two ports with one target and one backend: from the same ports of the client they would all collide.
    // Together fewer than nine of ten ports: with more, now and then one finds none (`TRIES` in the programs).
    const CLIENTS: u16 = 19_000;
    let mut both = service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)]);
    both.ports =
        ["80:8080:TCP", "81:8080:TCP", "82:8080:TCP"].map(|port| port.parse::<Port>().unwrap()).into();
    let rig = Rig::with("svc-collide", both)?;
    let (first, second) = (rig.target(HERE)?, rig.target(OTHER)?);
    rig.node.ns.run(|| {
        for port in [80, 81, 82] {
            for client in 40_000..40_000 + CLIENTS {
                let (code, bytes) = first.give(&between(HERE, VIP).tcp(client, port, SYN).build())?;
                assert_eq!(code, Code::Redirect, "{client} to {port}");
                let seen = u16::from_be_bytes([bytes[34], bytes[35]]);
                assert!(seen >= 1024 && (port != 80 || seen == client));
                let answer = between(OTHER, HERE).tcp(8080, seen, SYN_ACK).build();
                let (code, bytes) = second.give(&answer)?;
                let expected = answer_of(OTHER, HERE).tcp(port, client, SYN_ACK).build();
                assert_eq!((code, bytes), (Code::Redirect, expected));
            }
        }
        Ok(())
    })?;
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

#[test]
fn a_syn_that_is_sent_again_has_the_same_port_and_makes_nothing_new() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-again", &[OTHER])?;
    let direct = between(HERE, OTHER).tcp(4000, 8080, SYN);
    rig.becomes(HERE, &direct, &direct);
    let outcome = rig.from(HERE, &between(HERE, VIP).tcp(4000, 80, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4000);
    for _ in 0..3 {
        rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, SYN), &between(HERE, OTHER).tcp(port, 8080, SYN));
    }
    assert_eq!(rig.node.datapath.inspect()["flows"]["made"], 2);
    let back = between(OTHER, HERE).tcp(8080, port, SYN_ACK);
    rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK));
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, ACK), &between(HERE, OTHER).tcp(port, 8080, ACK));
    Ok(())
}

#[test]
fn the_backend_that_answers_first_has_the_connection() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-first", &[OTHER])?;
    let there = |flags| between(HERE, VIP).tcp(4000, 80, flags);
    rig.becomes(HERE, &there(SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
    // Before the first answer the service changes; the client tries again.
    rig.set(&[(HERE, Readiness::Ready)])?;
    let own = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip());
    let arrives = |outcome: Outcome| (outcome.code, outcome.bytes[12..].to_vec());
    let expected = |packet: Packet| (Code::Redirect, packet.build()[12..].to_vec());
    let own = |flags| own.clone().tcp(4000, 8080, flags);
    assert_eq!(arrives(rig.from(HERE, &there(SYN))?), expected(own(SYN)));
    let back = between(HERE, VIP).tcp(8080, 4000, SYN_ACK);
    let heard = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(80, 4000, SYN_ACK);
    assert_eq!(arrives(rig.from(HERE, &back)?), expected(heard));
    // What the other one answers then is nobody's, and changes nothing.
    let late = between(OTHER, HERE).tcp(8080, 4000, SYN_ACK);
    assert_eq!(rig.from(OTHER, &late)?.dropped, [DropReason::NotTracked]);
    assert_eq!(arrives(rig.from(HERE, &there(ACK))?), expected(own(ACK)));
    Ok(())
}

#[test]
fn ports_that_are_used_again_go_by_the_service_as_it_is_then() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-reuse", &[OTHER])?;
    let there = |flags| between(HERE, VIP).tcp(4000, 80, flags);
    let connect = |rig: &Rig| {
        rig.becomes(HERE, &there(SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
        let back = between(OTHER, HERE).tcp(8080, 4000, SYN_ACK);
        rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK));
        rig.becomes(HERE, &there(ACK), &between(HERE, OTHER).tcp(4000, 8080, ACK));
        rig.becomes(HERE, &there(RST), &between(HERE, OTHER).tcp(4000, 8080, RST));
    };
    for _ in 0..3 {
        connect(&rig);
    }
    let flows = |rig: &Rig| rig.node.datapath.inspect()["flows"].clone();
    let counts = flows(&rig);
    assert_eq!((&counts["made"], &counts["answered"], &counts["reused"]), (&3.into(), &3.into(), &2.into()));
    let connections = rig.node.datapath.telemetry().context("no watcher")?.connections()?;
    let [connection] = &connections[..] else { panic!("{connections:?}") };
    assert_eq!((connection.to_backend.packets, connection.to_client.packets), (3, 1), "the last one's");
    // From the backend, it is another connection, and none of the service.
    let (direct, back) =
        (between(OTHER, HERE).tcp(8080, 4000, SYN), between(HERE, OTHER).tcp(4000, 8080, SYN_ACK));
    rig.becomes(OTHER, &direct, &direct);
    rig.becomes(HERE, &back, &back);
    let reset = between(OTHER, HERE).tcp(8080, 4000, RST);
    rig.becomes(OTHER, &reset, &reset);
    // To somebody else: nothing of what was there leads the client's packets astray.
    rig.set(&[(FAR, Readiness::Ready)])?;
    rig.becomes(HERE, &there(SYN), &between(HERE, FAR).tcp(4000, 8080, SYN));
    rig.becomes(HERE, &there(ACK), &between(HERE, FAR).tcp(4000, 8080, ACK));
    rig.set(&[])?;
    assert_eq!(rig.from(HERE, &between(HERE, VIP).tcp(4001, 80, SYN))?.dropped, [DropReason::NoBackend]);
    assert!(rig.node.datapath.telemetry().context("no watcher")?.connections()?.len() == 1);
    Ok(())
}

/// An IP packet without its Ethernet header, as an ICMP error quotes it.
fn quote(packet: &Packet, len: usize) -> Vec<u8> {
    let frame = packet.build();
    frame[14..frame.len().min(14 + len)].to_vec()
}

#[test]
fn errors_about_translated_packets_are_translated_inside() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-icmp", &[OTHER])?;
    let (sent, arrived) = (
        between(HERE, VIP).udp(4000, 80).payload(b"query"),
        between(HERE, OTHER).udp(4000, 8080).payload(b"query"),
    );
    rig.becomes(HERE, &sent, &arrived);
    // From the backend: nobody listens; and from a router on the way: too big.
    for (kind, code, rest) in [(3, 3, [0; 4]), (3, 4, [0, 0, 5, 0x78])] {
        for len in [28, 200] {
            let error = between(OTHER, HERE).icmp(kind, code, rest).payload(&quote(&arrived, len));
            let shown = answer_of(OTHER, HERE).icmp(kind, code, rest).payload(&quote(&sent, len));
            rig.becomes(OTHER, &error, &shown);
        }
    }
    // From the client, about an answer.
    let (answer, shown) = (between(OTHER, HERE).udp(8080, 4000), answer_of(OTHER, HERE).udp(80, 4000));
    rig.becomes(OTHER, &answer, &shown);
    let error = between(HERE, VIP).icmp(3, 3, [0; 4]).payload(&quote(&shown, 28));
    let arrives = between(HERE, OTHER).icmp(3, 3, [0; 4]).payload(&quote(&answer, 28));
    rig.becomes(HERE, &error, &arrives);
    // TCP, with and without its checksum in the quotation.
    let (sent, arrived) = (between(HERE, VIP).tcp(4000, 80, SYN), between(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(HERE, &sent, &arrived);
    for len in [28, 40] {
        let error = between(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&arrived, len));
        rig.becomes(OTHER, &error, &answer_of(OTHER, HERE).icmp(3, 1, [0; 4]).payload(&quote(&sent, len)));
    }
    // About a flow that nobody knows: as it is.
    let stray = between(OTHER, HERE).icmp(3, 3, [0; 4]).payload(&quote(&between(HERE, OTHER).udp(1, 2), 28));
    rig.becomes(OTHER, &stray, &stray);
    Ok(())
}

#[test]
fn errors_of_ipv6_are_translated_inside() -> Result<()> {
    needs!(root());
    let rig = Rig::with("svc-icmp6", service(VIP.ip6().into(), &[(OTHER.ip6().into(), Readiness::Ready)]))?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let vip_mac = [2, 2, a, b, c, d];
    let sent = Packet::eth(vip_mac, HERE.mac()).ipv6(HERE.ip6(), VIP.ip6()).udp(4000, 80).payload(b"query");
    let arrived = between6(HERE, OTHER).udp(4000, 8080).payload(b"query");
    rig.becomes(HERE, &sent, &arrived);
    // Unreachable, and packet too big.
    for (kind, code, rest) in [(1, 4, [0; 4]), (2, 0, [0, 0, 5, 0])] {
        let error = between6(OTHER, HERE).icmpv6(kind, code, rest).payload(&quote(&arrived, 100));
        let shown = Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6());
        rig.becomes(OTHER, &error, &shown.icmpv6(kind, code, rest).payload(&quote(&sent, 100)));
    }
    Ok(())
}

#[test]
fn every_fragment_goes_to_the_same_backend() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-frag", &[OTHER])?;
    // The checksum is over all of the packet: what is translated in the first fragment has to fit it.
    let whole = |from: Who, to: Who, port| between(from, to).udp(4000, port).payload(&[7; 48]).build();
    let (sent, arrives) = (whole(HERE, VIP, 80), whole(HERE, OTHER, 8080));
    let first = |to: Who, whole: &[u8]| {
        between(HERE, to).fragment(9, 0, true).protocol(17).payload(&whole[34..34 + 32])
    };
    let last = |to: Who, whole: &[u8]| {
        between(HERE, to).fragment(9, 4, false).protocol(17).payload(&whole[34 + 32..])
    };
    rig.from(HERE, &last(VIP, &sent))?.assert_dropped(DropReason::UnknownFragment);
    rig.becomes(HERE, &first(VIP, &sent), &first(OTHER, &arrives));
    rig.becomes(HERE, &last(VIP, &sent), &last(OTHER, &arrives));
    let other = between(HERE, VIP).fragment(10, 4, false).protocol(17).payload(b"anything");
    rig.from(HERE, &other)?.assert_dropped(DropReason::UnknownFragment);
    Ok(())
}

#[test]
fn a_backend_that_ends_keeps_what_it_has_and_gets_no_more() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-drain", &[OTHER])?;
    let to = |port, who: Who, at| between(HERE, who).tcp(port, at, ACK);
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, ACK),
    );
    rig.set(&[(OTHER, Readiness::Terminating), (FAR, Readiness::Ready)])?;
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, ACK),
    );
    for port in 4001..4020 {
        rig.becomes(HERE, &to(port, VIP, 80), &to(port, FAR, 8080));
    }
    rig.set(&[(OTHER, Readiness::Terminating)])?;
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    assert_eq!(rig.from(HERE, &to(4999, VIP, 80))?.dropped, [DropReason::NoBackend]);
    Ok(())
}

/// Whom connections from these ports go to.
fn spread(rig: &Rig, ports: std::ops::Range<u16>) -> Result<BTreeMap<Ipv4Addr, usize>> {
    let mut counts = BTreeMap::new();
    for port in ports {
        let outcome = rig.from(HERE, &between(HERE, VIP).tcp(port, 80, SYN))?;
        let address: [u8; 4] = outcome.bytes[30..34].try_into()?;
        *counts.entry(Ipv4Addr::from(address)).or_default() += 1;
    }
    Ok(counts)
}

#[test]
fn connections_are_spread_over_the_backends() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-spread", &[OTHER, FAR])?;
    let counts = spread(&rig, 5000..5200)?;
    // A fair coin falls outside of this once in 10^12 times.
    assert!(counts.values().all(|count| (50..=150).contains(count)) && counts.len() == 2, "{counts:?}");
    Ok(())
}

#[test]
fn a_client_stays_with_its_backend_when_the_service_says_so() -> Result<()> {
    needs!(root());
    let ready = |who: Who| (who.ip().into(), Readiness::Ready);
    let sticky = |backends: &[_]| Service {
        affinity: Some(Duration::from_secs(600)),
        ..service(VIP.ip().into(), backends)
    };
    let mut rig = Rig::with("svc-sticky", sticky(&[ready(OTHER)]))?;
    assert_eq!(spread(&rig, 5000..5003)?, BTreeMap::from([(OTHER.ip(), 3)]));
    // Another one is no reason to leave.
    let object = Object::Service(sticky(&[ready(OTHER), ready(FAR)]));
    assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
    assert_eq!(spread(&rig, 5010..5050)?, BTreeMap::from([(OTHER.ip(), 40)]));
    // Its own going is; and its coming back is none to return.
    for backends in [&[ready(FAR)][..], &[ready(OTHER), ready(FAR)]] {
        assert!(rig.node.apply(&[Op::Set(Object::Service(sticky(backends)))])?.is_empty());
        let base = 6000 + 100 * backends.len() as u16;
        assert_eq!(spread(&rig, base..base + 40)?, BTreeMap::from([(FAR.ip(), 40)]));
    }
    Ok(())
}

/// Twelve backends on another node: too many for the entry of the port.
fn many(node: &mut Node) -> Vec<Who> {
    let n1 = network("n1.t", vxlan(10_001));
    let many: Vec<Who> = (20..32).map(Who).collect();
    for who in &many {
        node.want(Object::Remote(who.remote(&n1, Some(vtep(2)))));
    }
    many
}

#[test]
fn a_large_set_has_a_ring_that_keeps_its_clients() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-ring", &[])?;
    let all = many(&mut rig.node);
    rig.node.converge()?;
    let set = |rig: &mut Rig, backends: &[Who], affinity| -> Result<()> {
        let ready: Vec<_> = backends.iter().map(|who| (who.ip().into(), Readiness::Ready)).collect();
        let object = Object::Service(Service { affinity, ..service(VIP.ip().into(), &ready) });
        rig.node.want(object.clone());
        assert!(rig.node.apply(&[Op::Set(object)])?.is_empty());
        Ok(())
    };
    set(&mut rig, &all, None)?;
    let counts = spread(&rig, 5000..6200)?;
    assert!(counts.len() == 12 && counts.values().all(|count| (40..=180).contains(count)), "{counts:?}");
    // One client: all of its connections are with one, whatever becomes of the others.
    let hour = Some(Duration::from_secs(3600));
    set(&mut rig, &all, hour)?;
    let with = spread(&rig, 7000..7003)?;
    assert_eq!(with.len(), 1, "{with:?}");
    let mine = *with.keys().next().unwrap();
    for left in (1..12).rev() {
        let others = all.iter().filter(|who| who.ip() != mine).take(left - 1);
        let rest: Vec<Who> = all.iter().filter(|who| who.ip() == mine).chain(others).copied().collect();
        set(&mut rig, &rest, hour)?;
        let base = 7010 + 10 * left as u16;
        assert_eq!(spread(&rig, base..base + 3)?, BTreeMap::from([(mine, 3)]), "of {left}");
    }
    // Until it goes itself, from a ring or from an entry.
    for size in [10, 5] {
        set(&mut rig, &all, hour)?;
        let mine = *spread(&rig, 8000..8001)?.keys().next().unwrap();
        let rest: Vec<Who> = all.iter().filter(|who| who.ip() != mine).take(size).copied().collect();
        set(&mut rig, &rest, hour)?;
        let base = 8100 + 10 * size as u16;
        let other = spread(&rig, base..base + 3)?;
        assert!(other.len() == 1 && !other.contains_key(&mine), "{other:?}");
    }
    Ok(())
}

#[test]
fn sets_of_all_forms_are_found_again() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-forms", &[OTHER])?;
    let all = many(&mut rig.node);
    let sets: [Vec<IpAddr>; 5] = [
        vec![],
        all[..8].iter().map(|who| who.ip().into()).collect(),
        all[..9].iter().map(|who| who.ip().into()).collect(),
        all[..8].iter().map(|who| who.ip6().into()).collect(),
        all.iter().map(|who| who.ip6().into()).collect(),
    ];
    for (place, set) in sets.iter().enumerate() {
        let ready: Vec<_> = set.iter().map(|ip| (*ip, Readiness::Ready)).collect();
        let who = Who(200 + place as u8);
        let vip = if set.iter().any(IpAddr::is_ipv6) { who.ip6().into() } else { who.ip().into() };
        let service = Service { id: format!("s{place}:t").into(), ..service(vip, &ready) };
        // And one that shares the set.
        let other = Service { id: format!("also{place}:t").into(), vip: next(vip), ..service.clone() };
        rig.node.want(Object::Service(service)).want(Object::Service(other));
    }
    rig.node.converge()?;
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (rig.node.desired.len(), 0));
    assert_eq!(rig.node.datapath.writes(), 0);
    // What it read is true: everything can go, and all of it is free then.
    let services: Vec<ObjectId> = rig
        .node
        .desired
        .iter()
        .filter(|(_, o)| matches!(o, Object::Service(_)))
        .map(|(id, _)| id.clone())
        .collect();
    for id in services {
        rig.node.desired.remove(&id);
        assert!(rig.node.apply(&[Op::Delete(id)])?.is_empty());
    }
    let entries = rig.node.datapath.inspect()["entries"].clone();
    assert_eq!((&entries["ctv_svc"], rig.node.observe()?.orphans), (&0.into(), 0), "{entries}");
    rig.node.restart();
    rig.node.observe()?;
    let entries = rig.node.datapath.inspect()["entries"].clone();
    assert_eq!((&entries["ctv_ring"], &entries["ctv_backends"]), (&0.into(), &0.into()), "{entries}");
    Ok(())
}

fn next(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + 16).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + 16).into(),
    }
}

#[test]
fn the_address_is_told_to_who_asks_here() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-arp", &[OTHER])?;
    let question = Packet::arp_request(HERE.mac(), HERE.ip(), VIP.ip());
    let answer = Packet::arp_reply(Mac::of_endpoint(VIP.ip()).0, VIP.ip(), HERE.mac(), HERE.ip()).build();
    rig.from(HERE, &question)?.assert_answered(&answer);
    Ok(())
}

#[test]
fn a_restart_finds_services_as_they_are() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-restart", &[OTHER, FAR])?;
    let before = spread(&rig, 5000..5050)?;
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!((observed.in_sync.len(), observed.orphans), (rig.node.desired.len(), 0));
    let ops: Vec<Op> = rig.node.desired.iter().map(|(_, object)| Op::Set(object.clone())).collect();
    assert!(rig.node.apply(&ops)?.is_empty());
    assert_eq!(rig.node.datapath.writes(), 0);
    assert_eq!(spread(&rig, 5000..5050)?, before);
    // What nobody wants any more is a stray, and goes.
    rig.node.desired.remove(&ObjectId::Service("web:t".into()));
    rig.node.restart();
    let observed = rig.node.observe()?;
    assert_eq!(observed.orphans, 3);
    rig.node.converge()?;
    let inspected = rig.node.datapath.inspect();
    assert_eq!(inspected["entries"]["ctv_svc"], 0);
    Ok(())
}

#[test]
fn a_backend_elsewhere_is_refused_with_a_reason() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-where", &[OTHER])?;
    let mut service = service(VIP.ip().into(), &[(FAR.ip().into(), Readiness::Ready)]);
    service.backends[0].encap = vxlan(10_002);
    let failed = rig.node.apply(&[Op::Set(Object::Service(service))])?;
    let text = format!("{:#}", anyhow::Error::from(failed.into_iter().next().unwrap().error));
    assert!(text.contains("the backend 10.1.1.3 is on another network than the service"), "{text}");
    Ok(())
}
