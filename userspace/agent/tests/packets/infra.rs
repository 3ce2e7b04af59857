//! The node itself as an endpoint of a network: frames to its port arrive on its own interface, and its frames are
//! processed like those of a pod.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{
    DropReason,
    maps::{FROM_POD, FROM_UPLINK},
};
use contiv_model::{
    policy::{Action, Direction, Peer, Rule},
    service::Readiness,
};
use netplugin::datapath::{Object, Op, Scope};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{Packet, tcp_flags},
    patience,
};

use crate::{
    from_overlay,
    node::{Endpoint, Node, OWN, Pod, network, vlan, vxlan},
    policy::{group, number, pod, rule},
    run::{Code, Outcome, Target, run},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
/// The node.
const OWNER: Endpoint = Endpoint(9);
const VIP: Endpoint = Endpoint(250);
const TAG: u16 = 100;
const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A pod of group 1, the node in group 2, and a service with the pod as backend.
struct Rig {
    node: Node,
    pod: Pod,
    own: Pod,
    outside: Option<Netns>,
}

impl Rig {
    fn new(label: &str, vip: IpAddr, backend: IpAddr) -> Result<Rig> {
        Rig::on(Node::new(label)?, None, vxlan(10_001), (vip, backend))
    }

    fn v4(label: &str) -> Result<Rig> {
        Rig::new(label, VIP.ip().into(), HERE.ip().into())
    }

    fn on_wire(label: &str) -> Result<Rig> {
        let (node, outside) = Node::on_wire(label)?;
        Rig::on(node, Some(outside), vlan(TAG), (VIP.ip().into(), HERE.ip().into()))
    }

    fn on(
        mut node: Node,
        outside: Option<Netns>,
        encap: contiv_model::tag::Encap,
        (vip, backend): (IpAddr, IpAddr),
    ) -> Result<Rig> {
        let n1 = network("n1.t", encap);
        let mut served = service(vip, &[(backend, Readiness::Ready)]);
        served.scope = Scope::network(&n1);
        served.backends[0].encap = Some(encap);
        node.want_network(&n1).want(Object::Service(served));
        let pod = pod(&mut node, &n1, HERE, 1)?;
        let mut own = node.own(&n1, OWNER)?;
        own.local.identity = Some(number(2));
        node.want(Object::Local(own.local.clone()));
        node.converge()?;
        Ok(Rig { node, pod, own, outside })
    }

    fn from(&self, sender: &Pod, packet: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_POD, &sender.local.port, &packet.build())
    }

    #[track_caller]
    fn becomes(&self, sender: &Pod, sent: &Packet, arrives: &Packet) {
        self.from(sender, sent).unwrap().assert_sent_on(&arrives.build());
    }

    fn set(&mut self, object: Object) -> Result<()> {
        self.node.want(object.clone());
        let failed = self.node.apply(&[Op::Set(object)])?;
        ensure!(failed.is_empty(), "{failed:?}");
        Ok(())
    }
}

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

fn between6(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv6(from.ip6(), to.ip6())
}

#[test]
fn pods_reach_the_node_and_it_reaches_them() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("own-pod")?;
    let (own, pod) = (Tap::open(&rig.node.ns, OWN)?, Tap::open(&rig.pod.ns, "eth0")?);
    let ways = [(&rig.pod, HERE, OWNER, &pod, &own), (&rig.own, OWNER, HERE, &own, &pod)];
    for (sender, from, to, here, there) in ways {
        for packet in [
            between(from, to).udp(4000, 53).payload(b"query"),
            between(from, to).tcp(4000, 80, SYN),
            between(from, to).icmp_echo_request(7, 1),
            between6(from, to).udp(4000, 53).payload(b"query"),
            between6(from, to).tcp(4000, 80, SYN),
        ] {
            rig.becomes(sender, &packet, &packet);
            here.send(&packet.build())?;
            let frame = packet.build();
            there.expect(TIMEOUT, "the packet", |bytes| (bytes == frame).then_some(()))?;
        }
    }
    // Spoofed addresses are dropped.
    rig.from(&rig.own, &between(THERE, HERE).udp(1, 2))?.assert_dropped(DropReason::SpoofedMac);
    let spoofed = Packet::eth(HERE.mac(), OWNER.mac()).ipv4(THERE.ip(), HERE.ip()).udp(1, 2);
    rig.from(&rig.own, &spoofed)?.assert_dropped(DropReason::SpoofedIp);
    Ok(())
}

#[test]
fn requests_for_the_node_are_answered() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("own-arp")?;
    let request = Packet::arp_request(HERE.mac(), HERE.ip(), OWNER.ip());
    let reply = Packet::arp_reply(OWNER.mac(), OWNER.ip(), HERE.mac(), HERE.ip());
    rig.from(&rig.pod, &request)?.assert_answered(&reply.build());
    let request = Packet::arp_request(OWNER.mac(), OWNER.ip(), VIP.ip());
    let reply = Packet::arp_reply(VIP.mac(), VIP.ip(), OWNER.mac(), OWNER.ip());
    rig.from(&rig.own, &request)?.assert_answered(&reply.build());
    Ok(())
}

#[test]
fn the_node_uses_services() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("own-svc")?;
    let answer_of = Packet::eth(OWNER.mac(), HERE.mac()).ipv4(VIP.ip(), OWNER.ip());
    rig.becomes(
        &rig.own,
        &between(OWNER, VIP).tcp(4000, 80, SYN),
        &between(OWNER, HERE).tcp(4000, 8080, SYN),
    );
    let answer = between(HERE, OWNER).tcp(8080, 4000, SYN | ACK);
    rig.becomes(&rig.pod, &answer, &answer_of.clone().tcp(80, 4000, SYN | ACK));
    rig.becomes(&rig.own, &between(OWNER, VIP).udp(4000, 80), &between(OWNER, HERE).udp(4000, 8080));
    rig.becomes(&rig.pod, &between(HERE, OWNER).udp(8080, 4000), &answer_of.udp(80, 4000));
    let outcome = rig.from(&rig.own, &between(OWNER, VIP).tcp(4000, 81, SYN))?;
    assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![DropReason::NoService]));

    let rig = Rig::new("own-svc6", VIP.ip6().into(), HERE.ip6().into())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let to_vip = Packet::eth([2, 2, a, b, c, d], OWNER.mac()).ipv6(OWNER.ip6(), VIP.ip6());
    let from_vip = Packet::eth(OWNER.mac(), HERE.mac()).ipv6(VIP.ip6(), OWNER.ip6());
    rig.becomes(&rig.own, &to_vip.tcp(4000, 80, SYN), &between6(OWNER, HERE).tcp(4000, 8080, SYN));
    let answer = between6(HERE, OWNER).tcp(8080, 4000, SYN | ACK);
    rig.becomes(&rig.pod, &answer, &from_vip.tcp(80, 4000, SYN | ACK));
    Ok(())
}

#[test]
fn rules_apply_between_the_node_and_pods() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("own-rules")?;
    let of_group = |n| Peer::identity(number(n));
    let deny = |direction, peer| Rule { peer, ..rule("deny", direction, Action::Deny, 10) };
    // Rules of the pod for the node's group, and of the node for the pod's address; the other direction is open each
    // time.
    let subnet = Some(format!("{}/32", HERE.ip()).parse()?);
    for (number, direction, peer, denied) in [
        (1, Direction::Out, of_group(2), HERE),
        (1, Direction::In, of_group(2), OWNER),
        (2, Direction::Out, Peer::new(None, subnet), OWNER),
        (2, Direction::In, Peer::new(None, subnet), HERE),
    ] {
        rig.set(Object::Group(group(number, vec![deny(direction, peer)])))?;
        for (from, to, sender) in [(HERE, OWNER, &rig.pod), (OWNER, HERE, &rig.own)] {
            let packet = between(from, to).udp(5000 + u16::from(number as u8), 53);
            let outcome = rig.from(sender, &packet)?;
            if from == denied {
                outcome.assert_dropped(DropReason::Policy);
            } else {
                outcome.assert_sent_on(&packet.build());
            }
        }
        rig.set(Object::Group(group(number, vec![])))?;
    }
    Ok(())
}

#[test]
fn the_node_receives_frames_from_tunnels() -> Result<()> {
    needs!(root());
    let mut rig = from_overlay::Rig::new("own-ovl")?;
    let n1 = network("n1.t", vxlan(from_overlay::VNI));
    let mut own = rig.node.own(&n1, OWNER)?;
    own.local.identity = Some(number(2));
    rig.node.want(Object::Local(own.local.clone()));
    rig.node.converge()?;
    let tap = Tap::open(&rig.node.ns, OWN)?;
    for packet in [
        between(THERE, OWNER).udp(4000, 53).payload(b"query"),
        between6(THERE, OWNER).udp(4000, 53).payload(b"query"),
    ] {
        rig.send(from_overlay::VNI, &packet)?;
        let frame = packet.build();
        tap.expect(TIMEOUT, "the packet", |bytes| (bytes == frame).then_some(()))?;
    }
    // A rule of the node may drop them.
    let denying = Object::Group(group(2, vec![rule("deny", Direction::In, Action::Deny, 10)]));
    rig.node.want(denying.clone());
    ensure!(rig.node.apply(&[Op::Set(denying)])?.is_empty());
    rig.send(from_overlay::VNI, &between(THERE, OWNER).udp(4000, 53))?;
    rig.expect_drop(DropReason::Policy)
}

#[test]
fn the_node_receives_frames_from_the_uplink() -> Result<()> {
    needs!(root());
    let rig = Rig::on_wire("own-wire")?;
    let outside = rig.outside.as_ref().context("no wire")?;
    let (wire, own) = (Tap::open(outside, "wire")?, Tap::open(&rig.node.ns, OWN)?);
    let eth = || Packet::eth(OWNER.mac(), THERE.mac());
    let v4 = |eth: Packet| eth.ipv4(THERE.ip(), OWNER.ip()).udp(4000, 53).payload(b"query");
    let v6 = |eth: Packet| eth.ipv6(THERE.ip6(), OWNER.ip6()).tcp(4000, 80, SYN);
    for (sent, arrives) in [(v4(eth().vlan(TAG)), v4(eth())), (v6(eth().vlan(TAG)), v6(eth()))] {
        run(&rig.node, FROM_UPLINK, "trunk", &sent.build())?.assert_sent_on(&arrives.build());
        wire.send(&sent.build())?;
        let frame = arrives.build();
        own.expect(TIMEOUT, "the packet", |bytes| (bytes == frame).then_some(()))?;
    }
    // In the other direction, with the tag.
    let answer = |eth: Packet| eth.ipv4(OWNER.ip(), THERE.ip()).udp(53, 4000).payload(b"answer").build();
    own.send(&answer(Packet::eth(THERE.mac(), OWNER.mac())))?;
    let frame = answer(Packet::eth(THERE.mac(), OWNER.mac()).vlan(TAG));
    wire.expect(TIMEOUT, "the answer", |bytes| (bytes == frame).then_some(()))?;
    Ok(())
}

/// Packets to the node leave by the TX path of the host's interface, and arrive.
#[test]
fn packets_of_a_flow_to_the_node_arrive() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("own-cut")?;
    let target = Target::new(&rig.node, FROM_POD, &rig.pod.local.port)?;
    let sent = between(HERE, OWNER).tcp(8080, 4000, ACK);
    let shown = Packet::eth(OWNER.mac(), HERE.mac()).ipv4(VIP.ip(), OWNER.ip()).tcp(80, 4000, ACK);
    rig.becomes(
        &rig.own,
        &between(OWNER, VIP).tcp(4000, 80, SYN),
        &between(OWNER, HERE).tcp(4000, 8080, SYN),
    );
    for _ in 0..8 {
        assert_eq!(rig.node.ns.run(|| target.give(&sent.build()))?, (Code::Redirect, shown.build()));
    }
    let server = rig.node.ns.run(|| Ok(UdpSocket::bind((OWNER.ip(), 7000))?))?;
    let client = rig.pod.ns.run(|| Ok(UdpSocket::bind((HERE.ip(), 0))?))?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(TIMEOUT * patience()))?;
    }
    client.connect(SocketAddr::from((OWNER.ip(), 7000)))?;
    let mut buffer = [0; 64];
    for n in 0..200_u32 {
        client.send(&n.to_be_bytes())?;
        let (len, from) = server.recv_from(&mut buffer).with_context(|| format!("datagram {n}"))?;
        ensure!(buffer[..len] == n.to_be_bytes());
        server.send_to(&buffer[..len], from)?;
        let len = client.recv(&mut buffer).with_context(|| format!("answer {n}"))?;
        ensure!(buffer[..len] == n.to_be_bytes());
    }
    Ok(())
}
