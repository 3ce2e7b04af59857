//! VLAN networks between nodes.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Result, ensure};
use netplugin::datapath::fake::{Origin, Target};
use testkit::packet::{BROADCAST, Packet};

use super::policy::from_to;
use crate::{
    harness::Harness,
    topology::{Net, ip, ip6, mac, pod, tagged, to_pod, udp, udp6},
    world::World,
};

fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    World::new([net.network(), net.local("pa", 1), net.local("pb", 2), net.remote(0, 11)])
}

/// Tagged on the wire, untagged at the pods, bytes unchanged.
pub(crate) fn vlan_unicast<H: Harness>() -> Result<()> {
    let net = Net::vlan(100)?;
    let mut world = world::<H>(&net)?;
    for (port, here) in [("pa", 1), ("pb", 2)] {
        for frame in [udp(here, 11, "out"), udp6(here, 11, "out")] {
            world.sends(&pod(port), &frame, [net.to_node(0, &frame)])?;
        }
        for frame in [udp(11, here, "in"), udp6(11, here, "in")] {
            world.sends_bytes(&Origin::Uplink, &net.on_wire(&frame.build()), [to_pod(port, &frame)])?;
        }
    }
    // The priority of the tag is ignored.
    let frame = udp(11, 1, "urgent");
    world.sends_bytes(&Origin::Uplink, &tagged(&frame.build(), 100 | 5 << 13), [to_pod("pa", &frame)])
}

/// Untagged frames, and frames with other tags, reach no pod.
pub(crate) fn foreign_tags<H: Harness>() -> Result<()> {
    let net = Net::vlan(100)?;
    let mut world = world::<H>(&net)?;
    for frame in [udp(11, 1, "in"), udp6(11, 1, "in"), Packet::eth(BROADCAST, mac(11)).payload(b"in")] {
        world.sends(&Origin::Uplink, &frame, [])?;
        for tag in [0, 1, 101, 4094] {
            world.sends_bytes(&Origin::Uplink, &tagged(&frame.build(), tag), [])?;
        }
        let nested = tagged(&tagged(&frame.build(), 100), 101);
        world.sends_bytes(&Origin::Uplink, &nested, [])?;
    }
    Ok(())
}

const GATEWAY: u8 = 254;
const ROUTER: u8 = 253;

/// A network with its subnets, whose gateway is a router on it.
fn routed_by_others<H: Harness>(net: &Net) -> Result<World<H>> {
    let endpoints = [net.network(), net.local("pa", 1), net.remote(0, 11), net.remote(0, 12)];
    World::new(endpoints.into_iter().chain(net.subnets()?))
}

fn to_gateway() -> Packet {
    Packet::eth(mac(GATEWAY), mac(1))
}

fn from_router() -> Packet {
    Packet::eth(mac(1), mac(ROUTER))
}

/// Errors of a router to the first pod, about a packet of each family.
fn too_big(quoted: &[Packet; 2]) -> [Packet; 2] {
    let [v4, v6] = quoted.each_ref().map(|packet| packet.build()[14..].to_vec());
    [
        from_router().ipv4(ip(ROUTER), ip(1)).icmp(3, 4, [0, 0, 2, 64]).payload(&v4),
        from_router().ipv6(ip6(ROUTER), ip6(1)).icmpv6(2, 0, [0, 0, 5, 0]).payload(&v6),
    ]
}

/// The gateway may be a virtual address of several routers (RFC 5798), which send ICMP errors from addresses of their own in the
/// subnet: about connections that leave it, and no others.
pub(crate) fn routers_send_errors_from_their_own_addresses<H: Harness>() -> Result<()> {
    let net = Net::vlan(100)?;
    let mut world: World<H> = routed_by_others(&net)?;
    let outside = (Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1));
    let sent = [
        to_gateway().ipv4(ip(1), outside.0).udp(4000, 53).payload(b"question"),
        to_gateway().ipv6(ip6(1), outside.1).udp(4000, 53).payload(b"question"),
    ];
    for (packet, error) in sent.iter().zip(too_big(&sent)) {
        let came = world.outcome(&pod("pa"), &packet.build())?;
        ensure!(came.contains(&net.to_node(0, packet)), "came {came:?}");
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&error.build()), [to_pod("pa", &error)])?;
    }
    let within = [udp(1, 11, "on the link"), udp6(1, 11, "on the link")];
    for (packet, error) in within.iter().zip(too_big(&within)) {
        world.sends(&pod("pa"), packet, [net.to_node(0, packet)])?;
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&error.build()), [])?;
    }
    Ok(())
}

/// The same of replies.
pub(crate) fn routers_send_errors_about_replies<H: Harness>() -> Result<()> {
    let net = Net::vlan(100)?;
    let mut world: World<H> = routed_by_others(&net)?;
    // The end of the IPv6 prefix is that of the subnet.
    let client = (Ipv4Addr::new(192, 0, 2, 1), Ipv6Addr::new(0x2001, 0xdb9, 7, 0, 0, 0, 0, 1));
    let asked = [
        from_router().ipv4(client.0, ip(1)).udp(5000, 53).payload(b"question"),
        from_router().ipv6(client.1, ip6(1)).udp(5000, 53).payload(b"question"),
    ];
    let answered = [
        to_gateway().ipv4(ip(1), client.0).udp(53, 5000).payload(b"answer"),
        to_gateway().ipv6(ip6(1), client.1).udp(53, 5000).payload(b"answer"),
    ];
    for ((question, answer), error) in asked.iter().zip(&answered).zip(too_big(&answered)) {
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&question.build()), [to_pod("pa", question)])?;
        let came = world.outcome(&pod("pa"), &answer.build())?;
        ensure!(came.contains(&net.to_node(0, answer)), "came {came:?}");
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&error.build()), [to_pod("pa", &error)])?;
    }
    let (asked, answered) = (from_to((12, 4000), (1, 5000)), from_to((1, 5000), (12, 4000)));
    for ((question, answer), error) in asked.iter().zip(&answered).zip(too_big(&answered)) {
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&question.build()), [to_pod("pa", question)])?;
        world.sends(&pod("pa"), answer, [net.to_node(0, answer)])?;
        world.sends_bytes(&Origin::Uplink, &net.on_wire(&error.build()), [])?;
    }
    Ok(())
}

/// Unknown unicast goes to the uplink. A learning bridge also floods it to local pods.
pub(crate) fn unknown_unicast_on_vlan<H: Harness>() -> Result<()> {
    let net = Net::vlan(100)?;
    let mut world = world::<H>(&net)?;
    let frame = udp(1, 99, "anybody?");
    let mut came = world.outcome(&pod("pa"), &frame.build())?;
    came.retain(|copy| *copy != to_pod("pb", &frame));
    ensure!(came == [net.to_node(0, &frame)], "came {came:?}");

    let frame = udp(11, 99, "anybody?");
    let came = world.outcome(&Origin::Uplink, &net.on_wire(&frame.build()))?;
    let to_pods = came.iter().all(|copy| matches!(copy.to, Target::Pod(_)));
    ensure!(to_pods && came.len() <= 2, "came {came:?}");
    Ok(())
}
