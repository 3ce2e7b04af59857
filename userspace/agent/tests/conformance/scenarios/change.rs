//! Objects that change: the new way works, the old one is gone.

use anyhow::{Result, ensure};
use contiv_model::{global::ArpMode, tag::Encap};
use netplugin::datapath::{Desired, Object, ObjectId, Op};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::{Difference, Harness},
    scenarios::neighbours::{endpoints, question_and_answer},
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
        let (question, answer) = question_and_answer(2, 11);
        world.sends(&pod("pb"), &question, [to_pod("pb", &answer)])?;
        world.in_place()?;
    }
    Ok(())
}

/// The same endpoint on the same port with another address: the old one is nobody's.
pub(crate) fn pod_changes_its_address<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(net.local("pb", 5))?;
        world.in_place()?;
        for frame in [udp(1, 5, "new"), udp6(1, 5, "new")] {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        }
        let (question, answer) = question_and_answer(1, 5);
        world.sends(&pod("pa"), &question, [to_pod("pa", &answer)])?;
        // Nobody answers for the old one: the question is carried on, to b as well.
        let (question, _) = question_and_answer(1, 2);
        let expected = net.to_other_nodes(&question).into_iter().chain([to_pod("pb", &question)]);
        world.sends(&pod("pa"), &question, expected)?;
        // And its frames go where those of unknown addresses go, to other nodes too.
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

/// The endpoint keeps its addresses; first it is here, then elsewhere, then here again.
pub(crate) fn pod_moves_to_another_node<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let frame = udp(1, 2, "where are you?");
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        world.apply([Op::Delete(net.local_id("pb")), Op::Set(net.remote(1, 2))])?;
        world.sends(&pod("pa"), &frame, [net.to_node(1, &frame)])?;
        world.in_place()?;
        world.apply([Op::Delete(net.remote_id(2)), Op::Set(net.local("pb", 2))])?;
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
        // Make before break, as the agent does it: set first, then delete.
        world.apply([Op::Set(net.remote(0, 2)), Op::Delete(net.local_id("pb"))])?;
        world.sends(&pod("pa"), &frame, [net.to_node(0, &frame)])?;
        let (question, answer) = question_and_answer(1, 2);
        world.sends(&pod("pa"), &question, [to_pod("pa", &answer)])?;
        world.in_place()?;
    }
    Ok(())
}

pub(crate) fn peer_leaves_and_comes<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let frame = Packet::eth(BROADCAST, mac(1)).payload(b"who is there?");
    let from_there = udp(12, 1, "I am");
    world.apply([Op::Delete(net.remote_id(12)), Op::Delete(peer_id(1))])?;
    world.sends(&pod("pa"), &frame, [to_pod("pb", &frame), net.to_node(0, &frame)])?;
    world.sends(&net.outside(1), &from_there, [])?;
    world.in_place()?;
    let [_, peer] = peers();
    world.apply([Op::Set(peer), Op::Set(net.remote(1, 12))])?;
    world.sends(&pod("pa"), &frame, net.to_other_nodes(&frame).into_iter().chain([to_pod("pb", &frame)]))?;
    world.sends(&net.outside(1), &from_there, [to_pod("pa", &from_there)])?;
    world.in_place()
}

pub(crate) fn arp_mode_changes<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let (question, answer) = question_and_answer(1, 2);
        for arp in [ArpMode::Proxy, ArpMode::Flood, ArpMode::Proxy] {
            world.set(net.network_with(arp))?;
            world.in_place()?;
            match arp {
                ArpMode::Proxy => world.sends(&pod("pa"), &question, [to_pod("pa", &answer)])?,
                ArpMode::Flood => {
                    let everybody =
                        net.to_other_nodes(&question).into_iter().chain([to_pod("pb", &question)]);
                    world.sends(&pod("pa"), &question, everybody)?;
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
        let told = world.told().clone();
        world.apply(told.iter().map(|(_, object)| Op::Set(object.clone())))?;
        world.apply([
            Op::Delete(ObjectId::Local("nobody".into())),
            Op::Delete(net.remote_id(99)),
            Op::GarbageCollect,
        ])?;
        ensure!(world.node.writes() == writes, "{} writes to change nothing", world.node.writes() - writes);
        // Sent in another order, it is still the same.
        world.apply(
            told.iter().map(|(_, object)| Op::Set(object.clone())).collect::<Vec<_>>().into_iter().rev(),
        )?;
        ensure!(world.node.writes() == writes, "{} writes to change nothing", world.node.writes() - writes);
    }
    Ok(())
}

/// One by one, in the order of removal: with each the traffic that it carried stops, and at the end nothing is left.
pub(crate) fn removal_stops_traffic_and_leaves_nothing<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        // Another network stays to the end.
        let witness = Net::vxlan(8)?;
        let witnesses = [witness.network(), witness.local("w1", 1), witness.local("w2", 2)];
        let objects = endpoints(&net).into_iter().chain([net.network()]).chain(witnesses);
        let mut world = World::<H>::new(objects)?;
        world.delete(net.local_id("pb"))?;
        world.sends(&pod("pb"), &udp(2, 1, "from who is gone"), [])?;
        let frame = Packet::eth(BROADCAST, mac(1)).payload(b"who is left?");
        world.sends(&pod("pa"), &frame, net.to_other_nodes(&frame))?;
        world.delete(net.remote_id(11))?;
        let (question, _) = question_and_answer(1, 11);
        world.sends(&pod("pa"), &question, net.to_other_nodes(&question))?;
        world.delete(net.local_id("pa"))?;
        world.sends(&pod("pa"), &udp(1, 12, "from who is gone"), [])?;
        let inbound = udp(12, 1, "to who is gone");
        world.sends_bytes(&net.outside(1), &net.on_wire(&inbound.build()), [])?;
        world.apply([Op::Delete(net.remote_id(12)), Op::Delete(net.network_id())])?;
        let inbound = Packet::eth(BROADCAST, mac(12)).payload(b"to a network that is gone");
        world.sends_bytes(&net.outside(1), &net.on_wire(&inbound.build()), [])?;
        world.in_place()?;

        // The rest at one stroke, as strays.
        let observed = world.reconcile(&Desired::default())?;
        ensure!(observed.in_sync.is_empty() && observed.orphans > 0, "{observed:?}");
        let everything_again: Vec<Object> = endpoints(&net).into_iter().chain([net.network()]).collect();
        world.reconcile(&everything_again.into_iter().collect())?;
        let frame = udp(1, 2, "and back");
        world.sends(&pod("pa"), &frame, [to_pod("pb", &frame)])?;
    }
    Ok(())
}
