//! Routing: every node is the gateway of its pods, and forwards between the networks of a tenant.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, bail, ensure};
use contiv_model::{
    global::ArpMode,
    group::Dscp,
    mac::Mac,
    name::{EndpointId, NetworkId},
    policy::{Action, Direction, Rule, UDP},
    route::NextHop,
    tag::{Encap, Vlan, Vni},
    vrf::Vrf,
};
use netplugin::datapath::{
    Backend, Desired, Gateway, Group, Local, Network, Object, Peer, Remote, Scope, Service, Subnet,
    fake::{Delivery, Origin, Target},
};
use testkit::packet::{BROADCAST, Packet, nd_flags};

use crate::{
    harness::{Difference, Harness},
    scenarios::{
        neighbours::is_defence,
        policy::{group, in_group, number, rule},
    },
    topology::{VTEPS, VXLAN_PORT, pod, to_pod},
    world::World,
};

const ROUTER: [u8; 6] = Mac::ROUTER.0;
const GATEWAY: u8 = 254;
/// TTL with which the packets of `Packet` begin.
const TTL: u8 = 64;

/// A network with the subnets 10.`n`.0.0/24 and 2001:db8:`n`::/64.
#[derive(Clone)]
struct Routed {
    n: u8,
    network: Network,
}

/// The address of an endpoint or gateway of a network.
#[derive(Clone, Copy, Debug, PartialEq)]
struct End(u8, u8);

impl End {
    fn ip(self) -> Ipv4Addr {
        [10, self.0, 0, self.1].into()
    }

    fn ip6(self) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, self.0.into(), 0, 0, 0, 0, self.1.into())
    }

    fn mac(self) -> [u8; 6] {
        Mac::of_endpoint(self.ip()).0
    }
}

impl Routed {
    /// The network with the VNI 10000 + `tag` of a tenant, and the subnets `n`.
    fn new(tenant: &str, tag: u16, n: u8) -> Result<Routed> {
        let (vni, local) = (Vni::try_from(10_000 + u32::from(tag))?, Vlan::try_from(tag)?);
        let id: NetworkId = format!("net{n}.{tenant}").as_str().into();
        let vrf = Vrf::Tenant(tenant.parse()?);
        Ok(Routed { n, network: Network { vrf, ..Network::new(id, Encap::Vxlan { vni, local }) } })
    }

    fn subnets(&self) -> Result<[Object; 2]> {
        let end = End(self.n, GATEWAY);
        let subnet = |prefix: String, ip: IpAddr| -> Result<Object> {
            let Network { id: network, vrf, encap, .. } = self.network.clone();
            let gateway = Some(Gateway { ip, mac: Some(Mac::ROUTER) });
            Ok(Object::Subnet(Subnet { network, vrf, encap, prefix: prefix.parse()?, gateway }))
        };
        let n = self.n;
        Ok([
            subnet(format!("10.{n}.0.0/24"), end.ip().into())?,
            subnet(format!("2001:db8:{n:x}::/64"), end.ip6().into())?,
        ])
    }

    fn objects(&self) -> Result<impl Iterator<Item = Object> + use<>> {
        Ok([Object::Network(self.network.clone())].into_iter().chain(self.subnets()?))
    }

    fn local(&self, port: &str, last: u8) -> Object {
        let (end, id) = (End(self.n, last), EndpointId::new(&self.network.id, port));
        Object::Local(Local::new(id, &self.network, port, Mac(end.mac()), (end.ip(), Some(end.ip6()))))
    }

    fn remote(&self, node: usize, last: u8) -> Object {
        let (end, id) = (End(self.n, last), EndpointId::new(&self.network.id, &format!("far{last}")));
        let next_hop = NextHop::Vtep { address: VTEPS[node].into(), vni: self.vni() };
        let addresses = (end.ip(), Some(end.ip6()));
        Object::Remote(Remote::new(id, &self.network, next_hop, Mac(end.mac()), addresses))
    }

    fn vni(&self) -> Vni {
        match self.network.encap {
            Encap::Vxlan { vni, .. } => vni,
            Encap::Vlan(_) => unreachable!("networks of these scenarios are VXLAN networks"),
        }
    }

    fn outside(&self, node: usize) -> Origin {
        Origin::Tunnel { vtep: VTEPS[node].into(), vni: self.vni() }
    }

    fn to_node(&self, node: usize, packet: &Packet, dscp: u8) -> Delivery {
        let to = Target::Tunnel { vtep: VTEPS[node].into(), port: VXLAN_PORT, vni: self.vni(), dscp };
        Delivery { to, frame: packet.build() }
    }
}

/// Networks 1 and 2 of one tenant, with two local pods and a remote one each.
struct Pair {
    one: Routed,
    two: Routed,
}

const A: End = End(1, 1);
const A2: End = End(1, 2);
const B: End = End(2, 1);
const FAR_A: End = End(1, 11);
const FAR_B: End = End(2, 11);

impl Pair {
    fn new() -> Result<Pair> {
        Ok(Pair { one: Routed::new("t", 1, 1)?, two: Routed::new("t", 2, 2)? })
    }

    fn objects(&self) -> Result<Vec<Object>> {
        let endpoints = [
            self.one.local("pa", A.1),
            self.one.local("pa2", A2.1),
            self.two.local("pb", B.1),
            self.one.remote(0, FAR_A.1),
            self.two.remote(0, FAR_B.1),
        ];
        Ok(self.one.objects()?.chain(self.two.objects()?).chain(endpoints).chain(self.peers()).collect())
    }

    fn peers(&self) -> [Object; 2] {
        let networks = [&self.one.network, &self.two.network];
        VTEPS.map(|vtep| Object::Peer(Peer::new(vtep, VXLAN_PORT).with_networks(networks)))
    }

    fn world<H: Harness>(&self) -> Result<World<H>> {
        World::new(self.objects()?)
    }
}

/// Datagrams between two ends, of both families, with these Ethernet addresses (destination, source) and TTL.
fn datagrams(macs: ([u8; 6], [u8; 6]), from: (End, u16), to: (End, u16), ttl: u8) -> [Packet; 2] {
    let eth = || Packet::eth(macs.0, macs.1);
    [eth().ipv4(from.0.ip(), to.0.ip()), eth().ipv6(from.0.ip6(), to.0.ip6())]
        .map(|packet| packet.ttl(ttl).udp(from.1, to.1).payload(b"routing"))
}

/// As a pod sends them to its gateway.
fn sent(from: End, to: End) -> [Packet; 2] {
    datagrams((ROUTER, from.mac()), (from, 4000), (to, 5000), TTL)
}

/// As they arrive from the gateway.
fn routed(from: End, to: End) -> [Packet; 2] {
    datagrams((to.mac(), ROUTER), (from, 4000), (to, 5000), TTL - 1)
}

fn answers(from: End, to: End) -> [Packet; 2] {
    datagrams((ROUTER, from.mac()), (from, 5000), (to, 4000), TTL)
}

fn answers_routed(from: End, to: End) -> [Packet; 2] {
    datagrams((to.mac(), ROUTER), (from, 5000), (to, 4000), TTL - 1)
}

fn solicitation(from: End, target: Ipv6Addr) -> Packet {
    Packet::neighbour_solicitation(from.mac(), from.ip6(), target)
}

fn advertisement(to: End, target: Ipv6Addr) -> Packet {
    let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
    Packet::neighbour_advertisement((to.mac(), to.ip6()), (ROUTER, target), ROUTER, flags)
}

/// The node answers ARP and ND of its pods for the gateway of their network, in both modes.
pub(crate) fn gateways_answer_arp_and_nd<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let gateway = End(1, GATEWAY);
    for arp in [ArpMode::Proxy, ArpMode::Flood] {
        world.set(Object::Network(Network { arp, ..pair.one.network.clone() }))?;
        for (port, end) in [("pa", A), ("pa2", A2)] {
            let request = Packet::arp_request(end.mac(), end.ip(), gateway.ip());
            let reply = Packet::arp_reply(ROUTER, gateway.ip(), end.mac(), end.ip());
            world.sends(&pod(port), &request, [to_pod(port, &reply)])?;
            let reply = advertisement(end, gateway.ip6());
            world.sends(&pod(port), &solicitation(end, gateway.ip6()), [to_pod(port, &reply)])?;
        }
        // Duplicate address detection.
        let probe = Packet::neighbour_solicitation(A.mac(), Ipv6Addr::UNSPECIFIED, gateway.ip6());
        let came = world.outcome(&pod("pa"), &probe.build())?;
        let [defence] = &came[..] else { bail!("expected one reply, came {came:?}") };
        ensure!(defence.to == Target::Pod("pa".to_owned()), "the reply went to {:?}", defence.to);
        is_defence(&defence.frame, (ROUTER, gateway.ip6()))?;
    }
    // Other nodes answer their pods.
    let request = Packet::arp_request(FAR_A.mac(), FAR_A.ip(), gateway.ip());
    world.sends(&pair.one.outside(0), &request, ["pa", "pa2"].map(|port| to_pod(port, &request)))?;
    // The gateway of another network is not on the link.
    let request = Packet::arp_request(B.mac(), B.ip(), gateway.ip());
    let copies = [0, 1].map(|node| pair.two.to_node(node, &request, 0));
    world.sends(&pod("pb"), &request, copies)
}

/// Pods that take all addresses of the tenant for neighbours get the router's address for those of other networks.
pub(crate) fn the_router_answers_for_other_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    for target in [B, FAR_B] {
        let request = Packet::arp_request(A.mac(), A.ip(), target.ip());
        let reply = Packet::arp_reply(ROUTER, target.ip(), A.mac(), A.ip());
        world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
        let reply = advertisement(A, target.ip6());
        world.sends(&pod("pa"), &solicitation(A, target.ip6()), [to_pod("pa", &reply)])?;
    }
    let request = Packet::arp_request(A.mac(), A.ip(), A2.ip());
    let reply = Packet::arp_reply(A2.mac(), A2.ip(), A.mac(), A.ip());
    world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])
}

fn ping(from: End, to: End, ttl: u8) -> [Packet; 2] {
    let eth = || Packet::eth(ROUTER, from.mac());
    [
        eth().ipv4(from.ip(), to.ip()).ttl(ttl).icmp_echo_request(7, 1).payload(b"ping"),
        eth().ipv6(from.ip6(), to.ip6()).ttl(ttl).icmpv6_echo_request(7, 1).payload(b"ping"),
    ]
}

fn pong(from: End, to: End) -> [Packet; 2] {
    let eth = || Packet::eth(to.mac(), ROUTER);
    [
        eth().ipv4(from.ip(), to.ip()).ttl(64).icmp_echo_reply(7, 1).payload(b"ping"),
        eth().ipv6(from.ip6(), to.ip6()).ttl(64).icmpv6_echo_reply(7, 1).payload(b"ping"),
    ]
}

/// All gateways of the tenant answer pings, if the rules of the pod allow that, and nothing else.
pub(crate) fn gateways_answer_pings<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let objects = pair.objects()?.into_iter().chain([in_group(pair.one.local("pa", A.1), 1)?]);
    let mut world = World::<H>::new(objects)?;
    for gateway in [End(1, GATEWAY), End(2, GATEWAY)] {
        for ttl in [64, 1] {
            for (ping, pong) in ping(A, gateway, ttl).iter().zip(&pong(gateway, A)) {
                world.sends(&pod("pa"), ping, [to_pod("pa", pong)])?;
            }
        }
        for other in sent(A, gateway) {
            world.sends(&pod("pa"), &other, [])?;
        }
    }
    // The gateway is an address outside: the rule names it by its address.
    let gateway = End(1, GATEWAY);
    let network = contiv_model::policy::Peer::prefix(format!("{}/32", gateway.ip()).parse()?);
    let deny = Rule { peer: network, ..rule(Direction::Out, Action::Deny, 1)? };
    world.set(group(1, [deny])?)?;
    let ([ping4, ping6], [_, pong6]) = (ping(A, gateway, 64), pong(gateway, A));
    world.sends(&pod("pa"), &ping4, [])?;
    world.sends(&pod("pa"), &ping6, [to_pod("pa", &pong6)])?;
    for (ping, pong) in ping(A2, gateway, 64).iter().zip(&pong(gateway, A2)) {
        world.sends(&pod("pa2"), ping, [to_pod("pa2", pong)])?;
    }
    Ok(())
}

/// Pods of the node reach each other over networks, and within a network by way of the gateway.
pub(crate) fn local_pods_on_two_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    for ((from, to), (port, other)) in
        [((A, B), ("pa", "pb")), ((B, A), ("pb", "pa")), ((A, A2), ("pa", "pa2"))]
    {
        for _ in 0..2 {
            for (there, arrives) in sent(from, to).iter().zip(&routed(from, to)) {
                world.sends(&pod(port), there, [to_pod(other, arrives)])?;
            }
            for (back, arrives) in answers(to, from).iter().zip(&answers_routed(to, from)) {
                world.sends(&pod(other), back, [to_pod(port, arrives)])?;
            }
        }
    }
    // Within a network nothing has changed.
    for packet in datagrams((A2.mac(), A.mac()), (A, 4000), (A2, 5001), 1) {
        world.sends(&pod("pa"), &packet, [to_pod("pa2", &packet)])?;
    }
    Ok(())
}

/// Packets to pods of other nodes leave by the network of their destination, and those of other nodes arrive so.
pub(crate) fn pods_of_other_nodes<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    for (net, from, port, to) in [(&pair.two, A, "pa", FAR_B), (&pair.one, B, "pb", FAR_A)] {
        let own = if net.n == 1 { &pair.two } else { &pair.one };
        for _ in 0..2 {
            for (there, leaves) in sent(from, to).iter().zip(&routed(from, to)) {
                world.sends(&pod(port), there, [net.to_node(0, leaves, 0)])?;
            }
            // The other node has routed it.
            for back in answers_routed(to, from) {
                world.sends(&own.outside(0), &back, [to_pod(port, &back)])?;
            }
        }
    }
    // The other node begins.
    for there in routed(FAR_B, A) {
        world.sends(&pair.one.outside(0), &there, [to_pod("pa", &there)])?;
    }
    for (back, leaves) in answers(A, FAR_B).iter().zip(&answers_routed(A, FAR_B)) {
        world.sends(&pod("pa"), back, [pair.two.to_node(0, leaves, 0)])?;
    }
    Ok(())
}

/// Of the router of another node, packets from endpoints behind that node are accepted, and nothing else.
pub(crate) fn routers_speak_for_their_own_pods<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let (node, other) = (pair.one.outside(0), pair.one.outside(1));
    for foreign in routed(FAR_B, A) {
        world.sends(&other, &foreign, [])?;
    }
    for local in routed(B, A).into_iter().chain(routed(A2, A)) {
        world.sends(&node, &local, [])?;
    }
    for gateway in routed(End(2, GATEWAY), A) {
        world.sends(&node, &gateway, [])?;
    }
    let request = Packet::eth(BROADCAST, ROUTER).arp(1, (ROUTER, End(1, GATEWAY).ip()), ([0; 6], A.ip()));
    world.sends(&node, &request, [])?;
    let claim = Packet::arp_reply(FAR_A.mac(), End(1, GATEWAY).ip(), A.mac(), A.ip());
    world.sends(&node, &claim, [])?;
    // Pods cannot use the router's address.
    for spoofed in datagrams((A2.mac(), ROUTER), (A, 4000), (A2, 5000), 64) {
        world.sends(&pod("pa"), &spoofed, [])?;
    }
    Ok(())
}

/// Networks of another tenant are unreachable, also with equal addresses.
pub(crate) fn tenants_are_not_routed_to_each_other<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    // The same subnet as network 2 of the first tenant, and one that the first tenant does not have.
    let [same, other] = [Routed::new("u", 3, 2)?, Routed::new("u", 4, 4)?];
    let theirs = [same.local("ub", B.1), other.local("uc", 1), other.remote(1, 11)];
    let objects = pair.objects()?.into_iter().chain(same.objects()?).chain(other.objects()?).chain(theirs);
    let mut world = World::<H>::new(objects)?;
    for to in [End(4, 1), End(4, 11), End(4, GATEWAY)] {
        for packet in sent(A, to).into_iter().chain(ping(A, to, 64)) {
            world.sends(&pod("pa"), &packet, [])?;
        }
    }
    for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
        world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
    }
    for (there, arrives) in sent(End(4, 1), B).iter().zip(&routed(End(4, 1), B)) {
        world.sends(&pod("uc"), there, [to_pod("ub", arrives)])?;
    }
    Ok(())
}

/// What no endpoint of the tenant has is dropped, also in the sender's own subnet.
pub(crate) fn unknown_destinations_are_dropped<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    for to in [End(1, 77), End(2, 77), End(2, 255), End(9, 1)] {
        for packet in sent(A, to).into_iter().chain(ping(A, to, 64)) {
            world.sends(&pod("pa"), &packet, [])?;
        }
    }
    // Link-local addresses are not routed.
    let link_local = |end: End| Mac(end.mac()).link_local();
    let eth = || Packet::eth(ROUTER, A.mac());
    for (from, to) in [(link_local(A), B.ip6()), (A.ip6(), link_local(B)), (A.ip6(), link_local(A2))] {
        world.sends(&pod("pa"), &eth().ipv6(from, to).udp(4000, 5000), [])?;
    }
    Ok(())
}

/// The rules of both ends apply as they do within a network, and groups are known across networks.
pub(crate) fn policies_apply_between_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let grouped = [
        in_group(pair.one.local("pa", A.1), 1)?,
        in_group(pair.two.local("pb", B.1), 2)?,
        in_group(pair.two.remote(0, FAR_B.1), 3)?,
    ];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(grouped))?;
    let about = |direction, peer: u32| -> Result<Rule> {
        let peer = contiv_model::policy::Peer::identity(number(peer)?);
        Ok(Rule { peer, protocol: Some(UDP), ports: Some(5000.into()), ..rule(direction, Action::Deny, 1)? })
    };
    // Established before.
    world.sends(&pod("pa"), &sent(A, B)[0], [to_pod("pb", &routed(A, B)[0])])?;
    for (out, into) in [(vec![about(Direction::Out, 2)?], vec![]), (vec![], vec![about(Direction::In, 1)?])] {
        world.set(group(1, out)?)?;
        world.set(group(2, into)?)?;
        for packet in sent(A, B) {
            world.sends(&pod("pa"), &packet, [])?;
        }
        // The other direction, and its answers.
        for (there, arrives) in sent(B, A).iter().zip(&routed(B, A)) {
            world.sends(&pod("pb"), there, [to_pod("pa", arrives)])?;
        }
        for (back, arrives) in answers(A, B).iter().zip(&answers_routed(A, B)) {
            world.sends(&pod("pa"), back, [to_pod("pb", arrives)])?;
        }
    }
    // A pod of another node, on another network, by its group.
    world.set(group(1, [about(Direction::Out, 3)?, about(Direction::In, 3)?])?)?;
    for packet in sent(A, FAR_B) {
        world.sends(&pod("pa"), &packet, [])?;
    }
    for packet in routed(FAR_B, A) {
        world.sends(&pair.one.outside(0), &packet, [])?;
    }
    world.set(group(1, [])?)?;
    for packet in routed(FAR_B, A) {
        world.sends(&pair.one.outside(0), &packet, [to_pod("pa", &packet)])?;
    }
    Ok(())
}

const VIP: End = End(5, 200);

/// A service of the tenant has backends on several networks. Clients reach it by the gateway, and by its own address.
pub(crate) fn services_have_backends_on_other_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    for (vip, to) in [(VIP, ROUTER), (End(1, 200), End(1, 200).mac())] {
        for (backend, port) in [(B, Some("pb")), (FAR_B, None), (A2, Some("pa2"))] {
            let net = if backend.0 == 1 { &pair.one } else { &pair.two };
            let service = Service {
                ports: vec!["53:5353:UDP".parse()?],
                backends: vec![Backend::on(net.network.encap, backend.ip())],
                ..Service::new("dns:t", Scope::vrf(pair.one.network.vrf.clone()), vip.ip())
            };
            let mut world = World::<H>::new(pair.objects()?.into_iter().chain([Object::Service(service)]))?;
            let is_bridged = backend.0 == 1 && to != ROUTER;
            let (source, ttl) = if is_bridged { (A.mac(), TTL) } else { (ROUTER, TTL - 1) };
            let [asks, _] = datagrams((to, A.mac()), (A, 4000), (vip, 53), TTL);
            let [asked, _] = datagrams((backend.mac(), source), (A, 4000), (backend, 5353), ttl);
            let arrival = match port {
                Some(port) => to_pod(port, &asked),
                None => net.to_node(0, &asked, 0),
            };
            // The reply is sent to the gateway, or to the neighbour.
            let (next, source, ttl) =
                if backend.0 == 1 { (A.mac(), backend.mac(), TTL) } else { (ROUTER, ROUTER, TTL - 1) };
            let [replies, _] = datagrams((next, backend.mac()), (backend, 5353), (A, 4000), TTL);
            let [replied, _] = datagrams((A.mac(), source), (vip, 53), (A, 4000), ttl);
            for _ in 0..2 {
                world.sends(&pod("pa"), &asks, [arrival.clone()])?;
                match port {
                    Some(port) => world.sends(&pod(port), &replies, [to_pod("pa", &replied)])?,
                    None => {
                        let [on_wire, _] = datagrams((A.mac(), ROUTER), (backend, 5353), (A, 4000), TTL - 1);
                        world.sends(&pair.one.outside(0), &on_wire, [to_pod("pa", &replied)])?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Routed packets have the DSCP of their sender's group, inside and outside.
pub(crate) fn routed_packets_get_a_dscp<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let marked = Group { dscp: Some(Dscp::try_from(46)?), ..Group::new(number(1)?, vec![]) };
    let grouped = [in_group(pair.one.local("pa", A.1), 1)?, Object::Group(marked)];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(grouped))?;
    for (there, leaves) in sent(A, FAR_B).iter().zip(routed(A, FAR_B)) {
        world.sends(&pod("pa"), there, [pair.two.to_node(0, &leaves.dscp(46), 46)])?;
    }
    Ok(())
}

/// Errors about routed packets are routed.
pub(crate) fn errors_are_routed<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let ([there, _], [arrives, _]) = (sent(A, B), routed(A, B));
    world.sends(&pod("pa"), &there, [to_pod("pb", &arrives)])?;
    let quoted = arrives.build()[14..].to_vec();
    let error = |macs: ([u8; 6], [u8; 6]), ttl| {
        Packet::eth(macs.0, macs.1).ipv4(B.ip(), A.ip()).ttl(ttl).icmp(3, 3, [0; 4]).payload(&quoted)
    };
    world.sends(
        &pod("pb"),
        &error((ROUTER, B.mac()), TTL),
        [to_pod("pa", &error((A.mac(), ROUTER), TTL - 1))],
    )?;
    // About no known connection.
    let other = datagrams((ROUTER, A.mac()), (A, 4001), (B, 5000), TTL)[0].build()[14..].to_vec();
    let stray = Packet::eth(ROUTER, B.mac()).ipv4(B.ip(), A.ip()).icmp(3, 3, [0; 4]).payload(&other);
    world.sends(&pod("pb"), &stray, [])
}

/// A packet that has come to the end of its TTL is answered by the gateway of its sender, and goes no further.
pub(crate) fn the_ttl_is_exceeded_at_the_gateway<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let gateway = End(1, GATEWAY);
    for to in [B, FAR_B, A2] {
        for _ in 0..2 {
            for expired in datagrams((ROUTER, A.mac()), (A, 4000), (to, 33434), 1) {
                let bytes = expired.build();
                let eth = || Packet::eth(A.mac(), ROUTER);
                let exceeded = if bytes[12] == 0x08 {
                    let header = eth().ipv4(gateway.ip(), A.ip()).icmp(11, 0, [0; 4]);
                    header.payload(&bytes[14..14 + 28])
                } else {
                    let header = eth().ipv6(gateway.ip6(), A.ip6()).icmpv6(3, 0, [0; 4]);
                    header.payload(&bytes[14..14 + 48])
                };
                let is_told = !H::DIFFERENCES.contains(&Difference::KeepsQuietAboutTtl);
                world.sends(&pod("pa"), &expired, is_told.then(|| to_pod("pa", &exceeded)))?;
            }
            // The next hop is the pod.
            let packets = datagrams((ROUTER, A.mac()), (A, 4000), (to, 33434), 2);
            let arrive = datagrams((to.mac(), ROUTER), (A, 4000), (to, 33434), 1);
            for (there, arrives) in packets.iter().zip(&arrive) {
                let expected = match to {
                    B => to_pod("pb", arrives),
                    A2 => to_pod("pa2", arrives),
                    _ => pair.two.to_node(0, arrives, 0),
                };
                world.sends(&pod("pa"), there, [expected])?;
            }
        }
    }
    Ok(())
}

/// A network that is routed no more is bridged, and the other way round, without a restart.
pub(crate) fn the_forward_mode_changes<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let bridged: Vec<Object> = pair
        .objects()?
        .into_iter()
        .map(|object| {
            let own = |network: &NetworkId| Vrf::from(network.clone());
            match object {
                Object::Network(it) => Object::Network(Network { vrf: own(&it.id), ..it }),
                Object::Subnet(it) => {
                    let gateway = it.gateway.map(|gateway| Gateway { mac: None, ..gateway });
                    Object::Subnet(Subnet { vrf: own(&it.network), gateway, ..it })
                }
                Object::Local(it) => Object::Local(Local { vrf: own(&it.network), ..it }),
                Object::Remote(it) => Object::Remote(Remote { vrf: own(&it.network), ..it }),
                other => other,
            }
        })
        .collect();
    let request = Packet::arp_request(B.mac(), B.ip(), End(2, GATEWAY).ip());
    for _ in 0..2 {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        world.reconcile(&bridged.iter().cloned().collect())?;
        world.sends(&pod("pb"), &request, [0, 1].map(|node| pair.two.to_node(node, &request, 0)))?;
        // No endpoint of the network: a frame to an unknown address.
        for there in sent(A, B) {
            let copies = [0, 1].map(|node| pair.one.to_node(node, &there, 0));
            world.sends(&pod("pa"), &there, copies.into_iter().chain([to_pod("pa2", &there)]))?;
        }
        world.reconcile(&pair.objects()?.into_iter().collect())?;
        let reply = Packet::arp_reply(ROUTER, End(2, GATEWAY).ip(), B.mac(), B.ip());
        world.sends(&pod("pb"), &request, [to_pod("pb", &reply)])?;
    }
    Ok(())
}

/// A subnet that is routed no more leaves the others, and is routed again, without a change of its endpoints.
pub(crate) fn routed_subnets_come_and_go<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let [v4, v6] = pair.two.subnets()?;
    let Object::Subnet(six) = &v6 else { unreachable!("a network has subnets") };
    let without = Object::Subnet(Subnet { gateway: None, ..six.clone() });
    for _ in 0..2 {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        world.set(without.clone())?;
        let ([there4, there6], [arrives4, _]) = (sent(A, B), routed(A, B));
        world.sends(&pod("pa"), &there4, [to_pod("pb", &arrives4)])?;
        world.sends(&pod("pa"), &there6, [])?;
        world.delete(v4.id())?;
        world.sends(&pod("pa"), &there4, [])?;
        world.check_in_sync()?;
        world.set(v4.clone())?;
        world.set(v6.clone())?;
    }
    Ok(())
}

/// A new agent finds the routes, rules and services of several tenants, and changes nothing.
pub(crate) fn restart_of_a_routing_node_writes_nothing<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let others = [Routed::new("u", 3, 2)?, Routed::new("v", 4, 4)?];
    let service = Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: vec![Backend::on(pair.two.network.encap, B.ip())],
        ..Service::new("dns:t", Scope::vrf(pair.one.network.vrf.clone()), VIP.ip())
    };
    let mut objects = pair.objects()?;
    for (n, other) in others.iter().enumerate() {
        objects.extend(other.objects()?);
        objects.extend([other.local(&format!("o{n}"), 1), other.remote(1, 11)]);
    }
    objects.extend([in_group(pair.one.local("pa", A.1), 1)?, Object::Service(service)]);
    let denied =
        Rule { protocol: Some(UDP), ports: Some(9.into()), ..rule(Direction::Out, Action::Deny, 1)? };
    objects.push(group(1, [denied])?);
    let mut world = World::<H>::new(objects)?;
    let talk = |world: &mut World<H>| -> Result<()> {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        let [asks, _] = datagrams((ROUTER, A.mac()), (A, 4000), (VIP, 53), TTL);
        let [asked, _] = datagrams((B.mac(), ROUTER), (A, 4000), (B, 5353), TTL - 1);
        world.sends(&pod("pa"), &asks, [to_pod("pb", &asked)])
    };
    talk(&mut world)?;
    for _ in 0..2 {
        world.node.restart()?;
        talk(&mut world)?;
        let installed = world.installed().clone();
        world.reconcile(&installed)?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
        // Without one of the tenants the others keep their numbers.
        if world.installed().get(&others[0].local("o0", 1).id()).is_some() {
            let left: Desired = installed
                .iter()
                .map(|(_, object)| object.clone())
                .filter(|object| !belongs_to(object, &others[0].network.vrf))
                .collect();
            world.reconcile(&left)?;
        }
    }
    talk(&mut world)
}

fn belongs_to(object: &Object, vrf: &Vrf) -> bool {
    match object {
        Object::Network(network) => network.vrf == *vrf,
        Object::Subnet(subnet) => subnet.vrf == *vrf,
        Object::Remote(remote) => remote.vrf == *vrf,
        Object::Local(local) => local.vrf == *vrf,
        _ => false,
    }
}
