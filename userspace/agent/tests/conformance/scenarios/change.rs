//! Changes of objects: the new state forwards, the old one does not.

use anyhow::{Result, ensure};
use contiv_model::{global::ArpMode, tag::Encap};
use netplugin::datapath::{Desired, Object, ObjectId, Op};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::{Difference, Harness},
    scenarios::neighbours::{endpoints, request_and_reply},
    topology::{Net, mac, peer_id, peers, pod, to_pod, udp, udp6},
    world::World,
};

fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    World::new(endpoints(net).into_iter().chain([net.network()]))
}

pub(crate) fn remote_moves_to_another_node<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    for node in [0, 1, 0] {
        world.set(net.remote(node, 11))?;
        for frame in [udp(1, 11, "moving"), udp6(1, 11, "moving")] {
            world.sends(&pod("pa"), &frame, [net.to_node(node, &frame)])?;
        }
        let (request, reply) = request_and_reply(2, 11);
        world.sends(&pod("pb"), &request, [to_pod("pb", &reply)])?;
        world.check_in_sync()?;
    }
    Ok(())
}

/// An endpoint changes its address on the same port; the old address becomes unknown.
pub(crate) fn pod_changes_its_address<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(net.local("pb", 5))?;
        world.check_in_sync()?;
        for frame in [udp(1, 5, "new"), udp6(1, 5, "new")] {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
        let (request, reply) = request_and_reply(1, 5);
        world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
        // Requests for the old address are flooded, also to b.
        let (request, _) = request_and_reply(1, 2);
        let expected = net.to_other_nodes(&request).into_iter().chain([to_pod("pb", &request)]);
        world.sends(&pod("pa"), &request, expected)?;
        // Frames to the old address are treated as unknown unicast, also to other nodes.
        let frame = udp(1, 2, "old");
        let learned = matches!(net.encap, Encap::Vlan(_)) && world.differs(Difference::LearnsOnVlan);
        let expected = match net.encap {
            Encap::Vlan(_) if learned => vec![to_pod("pb", &frame)],
            Encap::Vlan(_) => net.to_other_nodes(&frame),
            Encap::Vxlan { .. } => [net.to_other_nodes(&frame), vec![to_pod("pb", &frame)]].concat(),
        };
        world.sends(&pod("pa"), &frame, expected)?;
    }
    Ok(())
}

/// An endpoint moves to another node and back, and keeps its addresses.
pub(crate) fn pod_moves_to_another_node<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let frame = udp(1, 2, "where are you?");
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        world.apply([Op::Delete(net.local_id("pb")), Op::Set(net.remote(1, 2))])?;
        world.sends(&pod("pa"), &frame, [net.to_node(1, &frame)])?;
        world.check_in_sync()?;
        world.apply([Op::Delete(net.remote_id(2)), Op::Set(net.local("pb", 2))])?;
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        // Set before delete, as the agent does.
        world.apply([Op::Set(net.remote(0, 2)), Op::Delete(net.local_id("pb"))])?;
        world.sends(&pod("pa"), &frame, [net.to_node(0, &frame)])?;
        let (request, reply) = request_and_reply(1, 2);
        world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
        world.check_in_sync()?;
    }
    Ok(())
}

pub(crate) fn peer_leaves_and_comes<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let frame = Packet::eth(BROADCAST, mac(1)).payload(b"to all");
    let from_there = udp(12, 1, "I am");
    world.apply([Op::Delete(net.remote_id(12)), Op::Delete(peer_id(1))])?;
    world.sends(&pod("pa"), &frame, [to_pod("pb", &frame), net.to_node(0, &frame)])?;
    world.sends(&net.outside(1), &from_there, [])?;
    world.check_in_sync()?;
    let [_, peer] = peers();
    world.apply([Op::Set(peer), Op::Set(net.remote(1, 12))])?;
    world.sends(&pod("pa"), &frame, net.to_other_nodes(&frame).into_iter().chain([to_pod("pb", &frame)]))?;
    world.sends(&net.outside(1), &from_there, [to_pod("pa", &from_there)])?;
    world.check_in_sync()
}

pub(crate) fn arp_mode_changes<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let (request, reply) = request_and_reply(1, 2);
        for arp in [ArpMode::Proxy, ArpMode::Flood, ArpMode::Proxy] {
            world.set(net.network_with(arp))?;
            world.check_in_sync()?;
            match arp {
                ArpMode::Proxy => world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?,
                ArpMode::Flood => {
                    let flooded = net.to_other_nodes(&request).into_iter().chain([to_pod("pb", &request)]);
                    world.sends(&pod("pa"), &request, flooded)?;
                }
            }
        }
    }
    Ok(())
}

pub(crate) fn set_twice_writes_once<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let writes = world.node.writes();
        ensure!(writes > 0, "made all of it without a write");
        let installed = world.installed().clone();
        world.apply(installed.iter().map(|(_, object)| Op::Set(object.clone())))?;
        world.apply([
            Op::Delete(ObjectId::Local("absent".into())),
            Op::Delete(net.remote_id(99)),
            Op::GarbageCollect,
        ])?;
        ensure!(world.node.writes() == writes, "{} writes to change nothing", world.node.writes() - writes);
        // The order of services and members does not matter.
        world.apply(
            installed.iter().map(|(_, object)| Op::Set(object.clone())).collect::<Vec<_>>().into_iter().rev(),
        )?;
        ensure!(world.node.writes() == writes, "{} writes to change nothing", world.node.writes() - writes);
    }
    Ok(())
}

/// Objects are deleted one by one in the order of removal: the traffic of each stops, and nothing remains at the end.
pub(crate) fn removal_stops_traffic_and_leaves_nothing<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        // The other network is removed last.
        let witness = Net::vxlan(8)?;
        let witnesses = [witness.network(), witness.local("w1", 1), witness.local("w2", 2)];
        let objects = endpoints(&net).into_iter().chain([net.network()]).chain(witnesses);
        let mut world = World::<H>::new(objects)?;
        world.delete(net.local_id("pb"))?;
        world.sends(&pod("pb"), &udp(2, 1, "from a deleted pod"), [])?;
        let frame = Packet::eth(BROADCAST, mac(1)).payload(b"to the remaining");
        world.sends(&pod("pa"), &frame, net.to_other_nodes(&frame))?;
        world.delete(net.remote_id(11))?;
        let (request, _) = request_and_reply(1, 11);
        world.sends(&pod("pa"), &request, net.to_other_nodes(&request))?;
        world.delete(net.local_id("pa"))?;
        world.sends(&pod("pa"), &udp(1, 12, "from a deleted pod"), [])?;
        let inbound = udp(12, 1, "to a deleted pod");
        world.sends_bytes(&net.outside(1), &net.on_wire(&inbound.build()), [])?;
        world.apply([Op::Delete(net.remote_id(12)), Op::Delete(net.network_id())])?;
        let inbound = Packet::eth(BROADCAST, mac(12)).payload(b"to a network that is gone");
        world.sends_bytes(&net.outside(1), &net.on_wire(&inbound.build()), [])?;
        world.check_in_sync()?;

        // The remaining objects are removed together, as orphans.
        let observed = world.reconcile(&Desired::default())?;
        ensure!(observed.in_sync.is_empty() && observed.orphans > 0, "{observed:?}");
        let everything_again: Vec<Object> = endpoints(&net).into_iter().chain([net.network()]).collect();
        world.reconcile(&everything_again.into_iter().collect())?;
        let frame = udp(1, 2, "and back");
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
    }
    Ok(())
}
