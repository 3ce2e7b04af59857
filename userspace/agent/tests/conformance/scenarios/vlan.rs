//! VLAN networks between nodes.

use anyhow::{Result, ensure};
use netplugin::datapath::fake::{Origin, Target};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::Harness,
    topology::{Net, mac, pod, tagged, to_pod, udp, udp6},
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
