//! Unicast between pods on one node.

use anyhow::Result;

use crate::{
    harness::Harness,
    topology::{Net, mac, peers, pod, to_pod, udp, udp6},
    world::World,
};
use testkit::packet::Packet;

/// Both directions, IPv4, IPv6 and another EtherType; a third pod and the wire receive nothing.
pub(crate) fn local_unicast<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let pods = [net.local("pa", 1), net.local("pb", 2), net.local("pc", 3)];
        let mut world = World::<H>::new(peers().into_iter().chain([net.network()]).chain(pods))?;
        for (from, to) in [(("pa", 1), ("pb", 2)), (("pb", 2), ("pa", 1)), (("pc", 3), ("pa", 1))] {
            let other = Packet::eth(mac(to.1), mac(from.1)).payload(b"neither version of IP");
            for frame in [udp(from.1, to.1, "four"), udp6(from.1, to.1, "six"), other] {
                world.sends(&pod(from.0), &frame, [to_pod(to.0, &frame)])?;
            }
        }
    }
    Ok(())
}

/// A frame to the address of its sender is dropped.
pub(crate) fn frames_to_the_own_mac_are_dropped<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = World::<H>::new(peers().into_iter().chain([
            net.network(),
            net.local("pa", 1),
            net.local("pb", 2),
        ]))?;
        world.sends(&pod("pa"), &udp(1, 1, "to myself"), [])?;
    }
    Ok(())
}
