//! Isolation of networks.

use anyhow::Result;
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::{Difference, Harness},
    scenarios::neighbours::request_and_reply,
    topology::{Net, mac, peers, pod, tagged, to_pod, udp, udp6},
    world::World,
};

/// Four networks with the same addresses, each with local and remote pods.
struct Quartet {
    nets: [Net; 4],
    ports: [[&'static str; 2]; 4],
}

impl Quartet {
    fn new() -> Result<Quartet> {
        Ok(Quartet {
            nets: [Net::vxlan(1)?, Net::vxlan(2)?, Net::vlan(100)?, Net::vlan(200)?],
            ports: [["a1", "b1"], ["a2", "b2"], ["a3", "b3"], ["a4", "b4"]],
        })
    }

    fn world<H: Harness>(&self) -> Result<World<H>> {
        let objects =
            self.nets.iter().zip(self.ports).flat_map(|(net, [a, b])| {
                [net.network(), net.local(a, 1), net.local(b, 2), net.remote(0, 11)]
            });
        World::new(peers().into_iter().chain(objects))
    }
}

pub(crate) fn networks_with_the_same_addresses<H: Harness>() -> Result<()> {
    let quartet = Quartet::new()?;
    let mut world = quartet.world::<H>()?;
    for (net, [a, b]) in quartet.nets.iter().zip(quartet.ports) {
        for frame in [udp(1, 2, a), udp6(1, 2, a)] {
            world.sends(&pod(a), &frame, [to_pod(b, &frame)])?;
        }
        for frame in [udp(2, 11, b), udp6(2, 11, b)] {
            world.sends(&pod(b), &frame, [net.to_node(0, &frame)])?;
        }
        let frame = Packet::eth(BROADCAST, mac(1)).payload(a.as_bytes());
        let expected = net.to_other_nodes(&frame).into_iter().chain([to_pod(b, &frame)]);
        world.sends(&pod(a), &frame, expected)?;
        let (request, reply) = request_and_reply(1, 2);
        world.sends(&pod(a), &request, [to_pod(a, &reply)])?;
    }
    Ok(())
}

pub(crate) fn the_outside_stays_in_its_network<H: Harness>() -> Result<()> {
    let quartet = Quartet::new()?;
    let mut world = quartet.world::<H>()?;
    for (net, [a, b]) in quartet.nets.iter().zip(quartet.ports) {
        let frame = udp(11, 2, b);
        world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), [to_pod(b, &frame)])?;
        let frame = Packet::eth(BROADCAST, mac(11)).payload(b.as_bytes());
        let expected = [a, b].map(|port| to_pod(port, &frame));
        world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), expected)?;
        let (request, reply) = request_and_reply(11, 2);
        let expected = if world.differs(Difference::LetsPodsAnswerOutside) {
            [a, b].map(|port| to_pod(port, &request)).to_vec()
        } else {
            vec![net.to_node(0, &reply)]
        };
        world.sends_bytes(&net.outside(0), &net.on_wire(&request.build()), expected)?;
    }
    Ok(())
}

/// Frames that a pod tags are dropped: they reach neither the network of that tag nor the wire.
pub(crate) fn pods_cannot_choose_their_network<H: Harness>() -> Result<()> {
    let quartet = Quartet::new()?;
    let mut world = quartet.world::<H>()?;
    for [a, _] in quartet.ports {
        for frame in
            [udp(1, 2, "tagged"), udp(1, 11, "tagged"), Packet::eth(BROADCAST, mac(1)).payload(b"tagged")]
        {
            for tag in [1, 2, 100, 200, 0] {
                world.sends_bytes(&pod(a), &tagged(&frame.build(), tag), [])?;
            }
        }
    }
    Ok(())
}
