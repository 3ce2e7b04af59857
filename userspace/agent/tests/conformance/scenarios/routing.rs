//! Routing: every node is the gateway of its pods, and forwards between the networks of a tenant.

use std::net::Ipv6Addr;

use anyhow::{Result, bail, ensure};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Rule},
};
use netplugin::datapath::{Network, Object, fake::Target};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::Harness,
    scenarios::{
        neighbours::is_defence,
        policy::{group, in_group, rule},
        routed::{
            A, A2, B, End, FAR_A, FAR_B, GATEWAY, Pair, ROUTER, Routed, TTL, VIP, advertisement, answers,
            answers_routed, datagrams, ping, pong, routed, sent, solicitation,
        },
    },
    topology::{pod, to_pod},
    world::World,
};

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
    Pair::new()?.local_pods_talk::<H>()
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

/// Link-local addresses reach the backends of their own network, and no others.
pub(crate) fn services_do_not_route_link_local_addresses<H: Harness>() -> Result<()> {
    let macs = (Mac::of_service(VIP.ip6().into()).0, A.mac());
    let asks = |from: Ipv6Addr, port: u16| {
        Packet::eth(macs.0, macs.1).ipv6(from, VIP.ip6()).udp(port, 53).payload(b"routing")
    };
    let link_local = Mac(A.mac()).link_local();
    let near = [B, FAR_B];
    // What is elsewhere is behind the kernel, also on the same VLAN.
    let by_kernel = [B, FAR_B, FAR_A];
    for (pair, others) in [(Pair::new()?, &near[..]), (Pair::vlans()?, &by_kernel[..])] {
        let mut world = pair.world::<H>()?;
        for (backend, port) in others.iter().zip(4100..) {
            world.set(pair.service6(VIP, *backend)?)?;
            world.sends(&pod("pa"), &asks(link_local, port), [])?;
            world.sends(&pod("pa"), &asks(link_local, port + 100).ttl(1), [])?;
        }
        world.set(pair.service6(VIP, B)?)?;
        let [_, asked] = datagrams((B.mac(), ROUTER), (A, 4001), (B, 5353), TTL - 1);
        world.sends(&pod("pa"), &asks(A.ip6(), 4001), [to_pod("pb", &asked)])?;
        world.set(pair.service6(VIP, A2)?)?;
        let asked = Packet::eth(A2.mac(), A.mac()).ipv6(link_local, A2.ip6()).udp(4002, 5353);
        world.sends(&pod("pa"), &asks(link_local, 4002), [to_pod("pa2", &asked.payload(b"routing"))])?;
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
                world.sends(&pod("pa"), &expired, [to_pod("pa", &exceeded)])?;
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
