//! VLAN networks for which the nodes are the gateway. Their frames stay on the node, whose kernel forwards their packets.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use anyhow::{Result, ensure};
use contiv_model::{
    mac::Mac,
    policy::{Action, Direction, Peer, Rule, UDP},
};
use netplugin::datapath::{
    Backend, KERNEL_MAC, Network, Object, Op, Scope, Service,
    fake::{Delivery, Origin, Target},
};
use testkit::{
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::{
    harness::Harness,
    scenarios::{
        policy::{group, in_group, number, rule},
        routed::{
            A, A2, B, End, FAR_A, FAR_B, GATEWAY, Pair, ROUTER, Routed, TTL, VIP, advertisement, answers,
            datagrams, ping, pong, routed, sent, solicitation,
        },
    },
    topology::{pod, tagged, to_pod},
    world::World,
};

/// Outside of all networks.
const OUTSIDE: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(203, 0, 113, 9), Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 9));

const KERNEL: [u8; 6] = KERNEL_MAC.0;

/// A packet for the router, as it arrives at the kernel.
fn to_kernel(packet: &Packet) -> Delivery {
    let sent = packet.build();
    Delivery { to: Target::Kernel, frame: [&KERNEL, &sent[6..]].concat() }
}

/// Datagrams that leave the node: the kernel decrements the TTL.
fn leaving(from: (End, u16), to: (End, u16)) -> [Packet; 2] {
    datagrams((ROUTER, from.0.mac()), from, to, TTL)
}

/// Datagrams that the kernel forwards to the node.
fn forwarded(from: (End, u16), to: (End, u16)) -> [Packet; 2] {
    datagrams((KERNEL, KERNEL), from, to, TTL - 3)
}

/// As they arrive at the pod.
fn arriving(from: (End, u16), to: (End, u16)) -> [Packet; 2] {
    datagrams((to.0.mac(), ROUTER), from, to, TTL - 3)
}

/// The gateway answers ARP, ND and pings. The router answers for endpoints of other nodes and networks.
pub(crate) fn gateways_of_vlans_answer<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    for target in [End(1, GATEWAY), FAR_A, B, FAR_B] {
        let request = Packet::arp_request(A.mac(), A.ip(), target.ip());
        let reply = Packet::arp_reply(ROUTER, target.ip(), A.mac(), A.ip());
        world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
        let reply = advertisement(A, target.ip6());
        world.sends(&pod("pa"), &solicitation(A, target.ip6()), [to_pod("pa", &reply)])?;
    }
    let request = Packet::arp_request(A.mac(), A.ip(), A2.ip());
    let reply = Packet::arp_reply(A2.mac(), A2.ip(), A.mac(), A.ip());
    world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
    for gateway in [End(1, GATEWAY), End(2, GATEWAY)] {
        for (ping, pong) in ping(A, gateway, 64).iter().zip(&pong(gateway, A)) {
            world.sends(&pod("pa"), ping, [to_pod("pa", pong)])?;
        }
        // An operator may have assigned the address of the gateway to the kernel.
        for ttl in [TTL, 1] {
            for other in datagrams((ROUTER, A.mac()), (A, 4000), (gateway, 22), ttl) {
                world.sends(&pod("pa"), &other, [])?;
            }
        }
    }
    Ok(())
}

/// No frame of a routed VLAN goes to the uplink, to the kernel or to another VLAN, and none from the uplink is accepted.
pub(crate) fn frames_stay_on_the_node<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    let unknown = Packet::eth([2, 2, 9, 9, 9, 9], A.mac()).ipv4(A.ip(), OUTSIDE.0).udp(1, 2);
    let to_all = Packet::eth(BROADCAST, A.mac()).ipv4(A.ip(), Ipv4Addr::BROADCAST).udp(1, 2);
    let asks = Packet::arp_request(A.mac(), A.ip(), End(1, 77).ip());
    let other = Packet::eth(ROUTER, A.mac()).payload(b"no packet");
    for frame in [unknown, to_all, asks, other] {
        world.sends(&pod("pa"), &frame, [to_pod("pa2", &frame)])?;
        // The only pod of its network.
        let frame = Packet::eth(BROADCAST, B.mac()).payload(b"alone");
        world.sends(&pod("pb"), &frame, [])?;
    }
    let [known, _] = datagrams((A.mac(), FAR_A.mac()), (FAR_A, 4000), (A, 5000), TTL);
    let [from_router, _] = arriving((FAR_A, 4000), (A, 5000));
    let hello = Packet::eth(BROADCAST, FAR_A.mac()).payload(b"hello");
    let request = Packet::arp_request(FAR_A.mac(), FAR_A.ip(), A.ip());
    for frame in [known, from_router, hello, request] {
        world.sends_bytes(&Origin::Uplink, &tagged(&frame.build(), 101), [])?;
    }
    Ok(())
}

/// Rules do not apply to it, and no router forwards it.
pub(crate) fn discovery_does_not_leave<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    let advertisement = Packet::neighbour_advertisement((ROUTER, OUTSIDE.1), (A.mac(), A.ip6()), A.mac(), 0);
    world.node.emit(&pod("pa"), &advertisement.build())?;
    let [_, later] = leaving((A, 4000), (FAR_A, 5000));
    world.node.emit(&pod("pa"), &later.build())?;
    let mut came = vec![];
    wait_until(Duration::from_secs(5), "the packet behind it", || {
        came.extend(world.node.arrivals()?);
        Ok(came.contains(&to_kernel(&later)).then_some(()))
    })?;
    came.retain(|delivery| delivery.to == Target::Kernel && *delivery != to_kernel(&later));
    ensure!(came.is_empty(), "the kernel gets {came:?}");
    Ok(())
}

/// The node routes between its own pods: the kernel sees nothing of it.
pub(crate) fn pods_of_routed_vlans_on_one_node<H: Harness>() -> Result<()> {
    Pair::vlans()?.local_pods_talk::<H>()
}

/// What is for no endpoint of the node goes to the kernel as the pod has sent it, and so does what has reached the end of its TTL.
pub(crate) fn packets_leave_by_the_kernel<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    for to in [FAR_A, FAR_B, End(1, 77), End(2, 77), End(9, 1)] {
        for _ in 0..2 {
            for there in leaving((A, 4000), (to, 5000)) {
                world.sends(&pod("pa"), &there, [to_kernel(&there)])?;
            }
            for back in answers(A, to) {
                world.sends(&pod("pa"), &back, [to_kernel(&back)])?;
            }
        }
    }
    for to in [B, A2, FAR_A, End(9, 1)] {
        for expired in datagrams((ROUTER, A.mac()), (A, 4000), (to, 33434), 1) {
            world.sends(&pod("pa"), &expired, [to_kernel(&expired)])?;
        }
    }
    // What the kernel would take for its own.
    for to in [[0, 0, 0, 1], [127, 0, 0, 1], [169, 254, 169, 254]].map(Ipv4Addr::from) {
        for ttl in [TTL, 1] {
            let packet = Packet::eth(ROUTER, A.mac()).ipv4(A.ip(), to).ttl(ttl).udp(4000, 5000);
            world.sends(&pod("pa"), &packet, [])?;
        }
    }
    // Those of its own link, or of an endpoint's.
    for to in
        [Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), Mac(FAR_A.mac()).link_local(), Mac(B.mac()).link_local()]
    {
        for ttl in [TTL, 1] {
            let packet = Packet::eth(ROUTER, A.mac()).ipv6(A.ip6(), to).ttl(ttl).udp(4000, 5000);
            world.sends(&pod("pa"), &packet, [])?;
        }
    }
    // Link-local addresses are not routed, and other pods cannot be named as the source.
    let link_local = Mac(A.mac()).link_local();
    world.sends(&pod("pa"), &Packet::eth(ROUTER, A.mac()).ipv6(link_local, FAR_B.ip6()).udp(1, 2), [])?;
    for spoofed in datagrams((ROUTER, A.mac()), (FAR_A, 4000), (FAR_B, 5000), TTL) {
        world.sends(&pod("pa"), &spoofed, [])?;
    }
    Ok(())
}

/// Packets of the kernel arrive at the pods of the node, from endpoints of other nodes and from outside.
pub(crate) fn the_kernel_reaches_pods<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    for from in [FAR_A, FAR_B, End(1, 77), End(9, 1)] {
        for (to, port) in [(A, "pa"), (A2, "pa2"), (B, "pb")] {
            for (there, arrives) in
                forwarded((from, 4000), (to, 5000)).iter().zip(&arriving((from, 4000), (to, 5000)))
            {
                world.sends(&Origin::Kernel, there, [to_pod(port, arrives)])?;
            }
            for back in datagrams((ROUTER, to.mac()), (to, 5000), (from, 4000), TTL) {
                world.sends(&pod(port), &back, [to_kernel(&back)])?;
            }
        }
    }
    // Nothing goes back to the kernel.
    for to in [FAR_A, FAR_B, End(1, 77), End(9, 1), End(1, GATEWAY), End(1, 255)] {
        for there in forwarded((End(9, 1), 4000), (to, 5000)) {
            world.sends(&Origin::Kernel, &there, [])?;
        }
    }
    Ok(())
}

/// The kernel sends packets of others, to the router, and nothing else.
pub(crate) fn the_kernel_speaks_for_no_pod_of_the_node<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    for from in [A2, B, End(1, GATEWAY), End(2, GATEWAY), End(1, 255)] {
        let [v4, v6] = forwarded((from, 4000), (A, 5000));
        world.sends(&Origin::Kernel, &v4, [])?;
        if from != End(1, 255) {
            world.sends(&Origin::Kernel, &v6, [])?;
        }
    }
    for macs in [(A.mac(), KERNEL), (KERNEL, FAR_A.mac()), (BROADCAST, KERNEL), (ROUTER, ROUTER)] {
        for frame in datagrams(macs, (FAR_A, 4000), (A, 5000), TTL) {
            world.sends(&Origin::Kernel, &frame, [])?;
        }
    }
    let [plain, _] = forwarded((FAR_A, 4000), (A, 5000));
    world.sends_bytes(&Origin::Kernel, &tagged(&plain.build(), 101), [])?;
    let request = Packet::arp_request(KERNEL, End(1, GATEWAY).ip(), A.ip());
    world.sends(&Origin::Kernel, &request, [])?;
    world.sends(&Origin::Kernel, &Packet::eth(KERNEL, KERNEL).payload(b"hello"), [])
}

/// Packets between the networks of two tenants are dropped, on the way to the kernel and from it.
pub(crate) fn tenants_on_vlans_are_separate<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let other = Routed::vlan("u", 4, 4)?;
    let theirs = [other.local("uc", 1), other.remote(1, 11)];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(other.objects()?).chain(theirs))?;
    let (c, far_c) = (End(4, 1), End(4, 11));
    for to in [c, far_c, End(4, 77), End(4, GATEWAY)] {
        for packet in sent(A, to) {
            world.sends(&pod("pa"), &packet, [])?;
        }
    }
    for (from, to) in [(far_c, A), (End(4, 77), B), (FAR_A, c)] {
        for packet in forwarded((from, 4000), (to, 5000)) {
            world.sends(&Origin::Kernel, &packet, [])?;
        }
    }
    for (from, to, port) in [(far_c, c, "uc"), (FAR_A, B, "pb")] {
        for (there, arrives) in
            forwarded((from, 4000), (to, 5000)).iter().zip(&arriving((from, 4000), (to, 5000)))
        {
            world.sends(&Origin::Kernel, there, [to_pod(port, arrives)])?;
        }
    }
    for there in leaving((c, 4000), (far_c, 5000)) {
        world.sends(&pod("uc"), &there, [to_kernel(&there)])?;
    }
    // Of a tenant that has no pods here, the node has the subnets only.
    let elsewhere = Routed::vlan("w", 5, 5)?;
    for subnet in elsewhere.subnets()? {
        world.set(subnet)?;
    }
    for there in sent(A, End(5, 11)) {
        world.sends(&pod("pa"), &there, [])?;
    }
    for back in forwarded((End(5, 11), 4000), (A, 5000)) {
        world.sends(&Origin::Kernel, &back, [])?;
    }
    world.check_in_sync()
}

/// A network whose addresses overlap those of a VXLAN network of the tenant has a VRF of its own. It is routed as others.
pub(crate) fn a_vlan_has_a_vrf_of_its_own<H: Harness>() -> Result<()> {
    let Routed { network, n } = Routed::vlan("t", 1, A.0)?;
    let own = Routed { network: Network { vrf: network.id.clone().into(), ..network }, n };
    let overlapping = Routed { n, ..Routed::new("t", 2, 9)? };
    let endpoints = [own.local("pa", A.1), own.local("pa2", A2.1), own.remote(0, FAR_A.1)];
    let others = overlapping.objects()?.chain([overlapping.local("pv", 101)]);
    let mut world = World::<H>::new(own.objects()?.chain(endpoints).chain(others))?;
    for _ in 0..2 {
        let to_all = Packet::eth(BROADCAST, A.mac()).payload(b"to all");
        world.sends(&pod("pa"), &to_all, [to_pod("pa2", &to_all)])?;
        let [known, _] = datagrams((A.mac(), FAR_A.mac()), (FAR_A, 4000), (A, 5000), TTL);
        world.sends_bytes(&Origin::Uplink, &tagged(&known.build(), 101), [])?;
        for (there, arrives) in sent(A, A2).iter().zip(&routed(A, A2)) {
            world.sends(&pod("pa"), there, [to_pod("pa2", arrives)])?;
        }
        for to in [FAR_A, End(9, 1)] {
            for there in leaving((A, 4000), (to, 5000)) {
                world.sends(&pod("pa"), &there, [to_kernel(&there)])?;
            }
            let (back, arrives) = (forwarded((to, 6000), (A, 7000)), arriving((to, 6000), (A, 7000)));
            for (back, arrives) in back.iter().zip(&arrives) {
                world.sends(&Origin::Kernel, back, [to_pod("pa", arrives)])?;
            }
        }
        world.node.restart()?;
        let installed = world.installed().clone();
        world.reconcile(&installed)?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
    }
    Ok(())
}

/// Rules see the endpoints of other nodes behind the kernel, in both directions.
pub(crate) fn policies_apply_to_the_kernel<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let grouped = [in_group(pair.one.local("pa", A.1), 1)?, in_group(pair.two.remote(0, FAR_B.1), 3)?];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(grouped))?;
    let about = |direction, peer: Peer| -> Result<Rule> {
        Ok(Rule { peer, protocol: Some(UDP), ports: Some(5000.into()), ..rule(direction, Action::Deny, 1)? })
    };
    let by_group = Peer::identity(number(3)?);
    let by_address = |ip: IpAddr| Peer::prefix(ip.into());
    for (peer, from) in [(by_group, FAR_B), (by_address(End(9, 1).ip().into()), End(9, 1))] {
        let outgoing = &leaving((A, 4000), (from, 5000))[0];
        let (incoming, arrives) =
            (&forwarded((from, 4000), (A, 5000))[0], &arriving((from, 4000), (A, 5000))[0]);
        world.set(group(1, [])?)?;
        world.sends(&pod("pa"), outgoing, [to_kernel(outgoing)])?;
        world.sends(&Origin::Kernel, incoming, [to_pod("pa", arrives)])?;
        world.set(group(1, [about(Direction::Out, peer.clone())?])?)?;
        world.sends(&pod("pa"), outgoing, [])?;
        world.sends(&Origin::Kernel, incoming, [to_pod("pa", arrives)])?;
        let answer = &leaving((A, 5000), (from, 4000))[0];
        world.sends(&pod("pa"), answer, [to_kernel(answer)])?;
        world.set(group(1, [about(Direction::In, peer)?])?)?;
        world.sends(&Origin::Kernel, incoming, [])?;
        world.sends(&pod("pa"), outgoing, [to_kernel(outgoing)])?;
        // Another endpoint, and a pod without a group.
        let (there, arrives) =
            (&forwarded((FAR_A, 4000), (A, 5000))[0], &arriving((FAR_A, 4000), (A, 5000))[0]);
        world.sends(&Origin::Kernel, there, [to_pod("pa", arrives)])?;
    }
    Ok(())
}

/// A packet that the rules of a pod on this node deny does not reach the kernel, also if its TTL has expired.
pub(crate) fn policies_apply_to_expired_packets<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let closed = in_group(pair.two.local("pb", B.1), 1)?;
    let denied = Rule { protocol: Some(UDP), ..rule(Direction::In, Action::Deny, 1)? };
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain([closed, group(1, [denied])?]))?;
    for ttl in [1, TTL] {
        for there in datagrams((ROUTER, A.mac()), (A, 4000), (B, 33434), ttl) {
            world.sends(&pod("pa"), &there, [])?;
        }
    }
    for open in datagrams((ROUTER, A.mac()), (A, 4000), (A2, 33434), 1) {
        world.sends(&pod("pa"), &open, [to_kernel(&open)])?;
    }
    Ok(())
}

/// A service has a backend on another node. Clients reach it by the gateway, and by its own address.
pub(crate) fn services_have_backends_behind_the_kernel<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    for (vip, to) in [(VIP, ROUTER), (End(1, 200), End(1, 200).mac())] {
        let near = pair.service(vip, B)?;
        let mut world = World::<H>::new(pair.objects()?.into_iter().chain([near]))?;
        let [asks, _] = datagrams((ROUTER, A.mac()), (A, 4000), (vip, 53), 1);
        let [expired, _] = datagrams((ROUTER, A.mac()), (A, 4000), (B, 5353), 1);
        world.sends(&pod("pa"), &asks, [to_kernel(&expired)])?;
        for backend in [FAR_A, FAR_B] {
            let service = pair.service(vip, backend)?;
            let mut world = World::<H>::new(pair.objects()?.into_iter().chain([service]))?;
            for _ in 0..2 {
                let [asks, _] = datagrams((to, A.mac()), (A, 4000), (vip, 53), TTL);
                let [asked, _] = leaving((A, 4000), (backend, 5353));
                world.sends(&pod("pa"), &asks, [to_kernel(&asked)])?;
                let [replies, _] = forwarded((backend, 5353), (A, 4000));
                let [replied, _] = arriving((vip, 53), (A, 4000));
                world.sends(&Origin::Kernel, &replies, [to_pod("pa", &replied)])?;
            }
            let [asks, _] = datagrams((to, A.mac()), (A, 4001), (vip, 53), 1);
            let [expired, _] = datagrams((ROUTER, A.mac()), (A, 4001), (backend, 5353), 1);
            world.sends(&pod("pa"), &asks, [to_kernel(&expired)])?;
            // While the endpoint's record is missing, rules would not know it.
            let without_record = pair.service(vip, End(backend.0, 77))?;
            let mut world = World::<H>::new(pair.objects()?.into_iter().chain([without_record]))?;
            let [asks, _] = datagrams((to, A.mac()), (A, 4000), (vip, 53), TTL);
            world.sends(&pod("pa"), &asks, [])?;
        }
    }
    Ok(())
}

/// A router on the way reports what happened to a packet, and only to its sender.
pub(crate) fn errors_about_packets_to_the_kernel<H: Harness>() -> Result<()> {
    let mut world = Pair::vlans()?.world::<H>()?;
    let [there, _] = leaving((A, 4000), (FAR_B, 5000));
    world.sends(&pod("pa"), &there, [to_kernel(&there)])?;
    let quoted = there.build()[14..].to_vec();
    let error = |macs: ([u8; 6], [u8; 6]), to: End| {
        Packet::eth(macs.0, macs.1).ipv4(OUTSIDE.0, to.ip()).icmp(11, 0, [0; 4]).payload(&quoted)
    };
    let arrives = to_pod("pa", &error((A.mac(), ROUTER), A));
    world.sends(&Origin::Kernel, &error((KERNEL, KERNEL), A), [arrives])?;
    world.sends(&Origin::Kernel, &error((KERNEL, KERNEL), A2), [])
}

/// Pods do not ask again at once for an endpoint that moves to another node: they send to its Ethernet address.
pub(crate) fn pods_move_behind_the_kernel<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let witness = pair.one.local("pa3", 3);
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain([witness]))?;
    let bridged = |ttl| datagrams((A2.mac(), A.mac()), (A, 4000), (A2, 5000), ttl);
    for there in bridged(TTL) {
        world.sends(&pod("pa"), &there, [to_pod("pa2", &there)])?;
    }
    world.apply([Op::Set(pair.one.remote(0, A2.1)), Op::Delete(pair.one.local("pa2", A2.1).id())])?;
    for there in bridged(TTL).iter().chain(&bridged(1)) {
        world.sends(&pod("pa"), there, [to_kernel(there)])?;
    }
    for (back, arrives) in forwarded((A2, 5000), (A, 4000)).iter().zip(&arriving((A2, 5000), (A, 4000))) {
        world.sends(&Origin::Kernel, back, [to_pod("pa", arrives)])?;
    }
    // Link-local addresses are not routed.
    for ttl in [TTL, 1] {
        let packet = Packet::eth(A2.mac(), A.mac()).ipv6(Mac(A.mac()).link_local(), A2.ip6());
        world.sends(&pod("pa"), &packet.ttl(ttl).udp(1, 2), [])?;
    }
    // It has not been on this network.
    for there in datagrams((A2.mac(), B.mac()), (B, 4000), (A2, 5000), TTL) {
        world.sends(&pod("pb"), &there, [])?;
    }
    let other = Packet::eth(A2.mac(), A.mac()).payload(b"no packet");
    world.sends(&pod("pa"), &other, [to_pod("pa3", &other)])?;
    world.check_in_sync()
}

/// A network that the nodes route no more is bridged to the uplink, and the other way round.
pub(crate) fn vlans_are_bridged_again<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let mut world = pair.world::<H>()?;
    let bridged = pair.bridged()?;
    let to_all = Packet::eth(BROADCAST, A.mac()).payload(b"to all");
    let on_wire = Delivery { to: Target::Uplink, frame: tagged(&to_all.build(), 101) };
    let [there, _] = leaving((A, 4000), (FAR_B, 5000));
    for _ in 0..2 {
        world.sends(&pod("pa"), &to_all, [to_pod("pa2", &to_all)])?;
        world.sends(&pod("pa"), &there, [to_kernel(&there)])?;
        world.reconcile(&bridged.iter().cloned().collect())?;
        world.sends(&pod("pa"), &to_all, [to_pod("pa2", &to_all), on_wire.clone()])?;
        let [known, _] = datagrams((A.mac(), FAR_A.mac()), (FAR_A, 4000), (A, 5000), TTL);
        world.sends_bytes(&Origin::Uplink, &tagged(&known.build(), 101), [to_pod("pa", &known)])?;
        world.reconcile(&pair.objects()?.into_iter().collect())?;
    }
    // Without the last routed subnet the kernel has no port.
    for subnet in pair.one.subnets()?.into_iter().chain(pair.two.subnets()?) {
        world.delete(subnet.id())?;
    }
    world.check_in_sync()
}

/// A new agent finds the flows and the port of the kernel, and changes nothing.
pub(crate) fn restart_with_routed_vlans_writes_nothing<H: Harness>() -> Result<()> {
    let pair = Pair::vlans()?;
    let other = Routed::vlan("u", 4, 4)?;
    let service = Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: vec![Backend::on(pair.two.network.encap, B.ip())],
        ..Service::new("dns:t", Scope::vrf(pair.one.network.vrf.clone()), VIP.ip())
    };
    let more = [other.local("uc", 1), in_group(pair.one.local("pa", A.1), 1)?, Object::Service(service)];
    let denied =
        Rule { protocol: Some(UDP), ports: Some(9.into()), ..rule(Direction::Out, Action::Deny, 1)? };
    let objects = pair.objects()?.into_iter().chain(other.objects()?).chain(more);
    let mut world = World::<H>::new(objects.chain([group(1, [denied])?]))?;
    let talk = |world: &mut World<H>| -> Result<()> {
        let [there, _] = leaving((A, 4000), (FAR_B, 5000));
        world.sends(&pod("pa"), &there, [to_kernel(&there)])?;
        let ([there, _], [arrives, _]) =
            (forwarded((FAR_B, 4000), (B, 5000)), arriving((FAR_B, 4000), (B, 5000)));
        world.sends(&Origin::Kernel, &there, [to_pod("pb", &arrives)])?;
        let [asks, _] = datagrams((ROUTER, A.mac()), (A, 4000), (VIP, 53), TTL);
        let [asked, _] = datagrams((B.mac(), ROUTER), (A, 4000), (B, 5353), TTL - 1);
        world.sends(&pod("pa"), &asks, [to_pod("pb", &asked)])
    };
    talk(&mut world)?;
    world.node.restart()?;
    talk(&mut world)?;
    let installed = world.installed().clone();
    world.reconcile(&installed)?;
    ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
    talk(&mut world)
}
