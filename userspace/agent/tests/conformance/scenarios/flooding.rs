//! Broadcast, multicast and unknown unicast.

use std::net::Ipv6Addr;

use anyhow::Result;
use netplugin::datapath::{Network, Object, Peer};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::Harness,
    topology::{Net, VTEPS, VXLAN_PORT, ip, ip6, mac, peers, pod, to_pod, udp},
    world::World,
};

/// The pods of the other network must receive nothing.
fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    let others = [Net::vxlan(9)?, Net::vlan(900)?];
    let objects =
        [net.network(), net.local("pa", 1), net.local("pb", 2), net.local("pc", 3), net.remote(0, 11)];
    let others = [
        others[0].network(),
        others[0].local("px", 1),
        others[0].local("pxx", 2),
        others[1].network(),
        others[1].local("py", 1),
        others[1].local("pyy", 2),
    ];
    World::new(peers().into_iter().chain(objects).chain(others))
}

const MDNS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb);

fn group_frames(from: u8) -> [Packet; 4] {
    [
        Packet::eth(BROADCAST, mac(from)).ipv4(ip(from), [255; 4]).udp(68, 67).payload(b"broadcast"),
        Packet::eth([1, 0, 0x5e, 1, 2, 3], mac(from))
            .ipv4(ip(from), [239, 1, 2, 3])
            .udp(1, 2)
            .payload(b"multicast"),
        Packet::eth([0x33, 0x33, 0, 0, 0, 0xfb], mac(from))
            .ipv6(ip6(from), MDNS)
            .udp(5353, 5353)
            .payload(b"multicast"),
        Packet::eth(BROADCAST, mac(from)).payload(b"no IP at all"),
    ]
}

/// One copy for each other pod of the network and one for each other node; none for the sender.
pub(crate) fn broadcast_and_multicast<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        for frame in group_frames(2) {
            let pods = ["pa", "pc"].map(|port| to_pod(port, &frame));
            world.sends(&pod("pb"), &frame, net.to_other_nodes(&frame).into_iter().chain(pods))?;
        }
    }
    Ok(())
}

/// One copy for each pod, and none back to the wire.
pub(crate) fn flooding_from_outside<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        for frame in group_frames(11) {
            let pods = ["pa", "pb", "pc"].map(|port| to_pod(port, &frame));
            world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), pods)?;
        }
    }
    Ok(())
}

/// The address can be one that a pod has configured itself.
pub(crate) fn unknown_unicast_on_vxlan<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let frame = udp(1, 99, "anybody?");
    let pods = ["pb", "pc"].map(|port| to_pod(port, &frame));
    world.sends(&pod("pa"), &frame, net.to_other_nodes(&frame).into_iter().chain(pods))?;
    let frame = udp(11, 99, "anybody?");
    let pods = ["pa", "pb", "pc"].map(|port| to_pod(port, &frame));
    world.sends(&net.outside(0), &frame, pods)
}

/// Broadcasts, multicasts and unknown unicasts go to the nodes that have the network, while these come and go. OVS sends
/// them to all nodes.
pub(crate) fn copies_go_to_nodes_with_the_network<H: Harness>() -> Result<()> {
    let (net, other) = (Net::vxlan(1)?, Net::vxlan(9)?);
    let mut world = world::<H>(&net)?;
    let peer = |node: usize, networks: &[&Net]| {
        let networks: Vec<Network> = networks.iter().map(|net| net.plain()).collect();
        Object::Peer(Peer::new(VTEPS[node], VXLAN_PORT).with_networks(&networks))
    };
    let unknown = udp(2, 99, "anybody?");
    // Networks of the two nodes; nodes that have the network; nodes that have the other one.
    let (one, two, both, none) = (&[&net][..], &[&other][..], &[&net, &other][..], &[][..]);
    let steps = [
        ([both, one], &[0, 1][..], &[0][..]),
        ([two, one], &[1], &[0]),
        ([two, none], &[], &[0]),
        ([one, two], &[0], &[1]),
        ([both, both], &[0, 1], &[0, 1]),
    ];
    for (networks, members, members_of_other) in steps {
        for (node, networks) in networks.into_iter().enumerate() {
            world.set(peer(node, networks))?;
        }
        for frame in group_frames(2).iter().chain([&unknown]) {
            let pods = ["pa", "pc"].map(|port| to_pod(port, frame));
            let nodes = members.iter().map(|node| net.to_node(*node, frame));
            world.sends(&pod("pb"), frame, nodes.chain(pods))?;
        }
        let frame = &group_frames(1)[0];
        let nodes = members_of_other.iter().map(|node| other.to_node(*node, frame));
        world.sends(&pod("px"), frame, nodes.chain([to_pod("pxx", frame)]))?;
        // Known endpoints are reached in any case.
        let known = udp(2, 11, "known");
        world.sends(&pod("pb"), &known, [net.to_node(0, &known)])?;
        world.check_in_sync()?;
    }
    Ok(())
}
