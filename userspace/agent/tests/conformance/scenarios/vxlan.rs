//! VXLAN networks between nodes.

use anyhow::Result;
use contiv_model::tag::Encap;
use netplugin::datapath::fake::Origin;
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::{Difference, Harness},
    topology::{Net, STRANGER, ip, ip6, mac, peers, pod, to_pod, udp, udp6},
    world::World,
};

fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    let objects =
        [net.network(), net.local("pa", 1), net.local("pb", 2), net.remote(0, 11), net.remote(1, 12)];
    World::new(peers().into_iter().chain(objects))
}

/// Frames go to the node of the destination with the VNI of the network, and arrive unchanged.
pub(crate) fn vxlan_unicast<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    for (port, here, node, there) in [("pa", 1, 0, 11), ("pb", 2, 0, 11), ("pa", 1, 1, 12)] {
        for frame in [udp(here, there, "out"), udp6(here, there, "out")] {
            world.sends(&pod(port), &frame, [net.to_node(node, &frame)])?;
        }
        for frame in [udp(there, here, "in"), udp6(there, here, "in")] {
            world.sends(&net.outside(node), &frame, [to_pod(port, &frame)])?;
        }
    }
    // The longest frame that fits the wire with the outer headers.
    let long = udp(1, 11, &"x".repeat(1450 - 28));
    world.sends(&pod("pa"), &long, [net.to_node(0, &long)])?;
    let long = udp(11, 1, &"x".repeat(1450 - 28));
    world.sends(&net.outside(0), &long, [to_pod("pa", &long)])
}

/// Drops frames from unknown VTEPs and for unknown VNIs, and does not forward between tunnels.
pub(crate) fn unknown_vteps_and_networks<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let Encap::Vxlan { vni, .. } = net.encap else { anyhow::bail!("{net:?} has no number") };
    let stranger = Origin::Tunnel { vtep: STRANGER.into(), vni };
    let foreign = Net::vxlan(3)?.outside(0);
    for from in [stranger, foreign] {
        for frame in [udp(11, 1, "in"), udp6(11, 1, "in"), Packet::eth(BROADCAST, mac(11)).payload(b"in")] {
            world.sends(&from, &frame, [])?;
        }
    }
    let frame = udp(11, 12, "through");
    let expected = if world.differs(Difference::FloodsStrayUnicast) {
        ["pa", "pb"].map(|port| to_pod(port, &frame)).to_vec()
    } else {
        vec![]
    };
    world.sends(&net.outside(0), &frame, expected)
}

pub(crate) fn outer_dscp<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    for frame in [
        Packet::eth(mac(11), mac(1)).ipv4(ip(1), ip(11)).dscp(46).udp(1, 2).payload(b"four"),
        Packet::eth(mac(11), mac(1)).ipv6(ip6(1), ip6(11)).dscp(46).udp(1, 2).payload(b"six"),
    ] {
        world.sends(&pod("pa"), &frame, [net.to_node_with(0, &frame, 46)])?;
    }
    let frame = Packet::eth(BROADCAST, mac(1)).ipv4(ip(1), [255; 4]).dscp(10).udp(1, 2).payload(b"all");
    let copies = [0, 1].map(|node| net.to_node_with(node, &frame, 10));
    world.sends(&pod("pa"), &frame, copies.into_iter().chain([to_pod("pb", &frame)]))
}
