//! The agent dies; the next one adopts what it finds.

use anyhow::{Result, ensure};
use netplugin::datapath::{Desired, Object};

use crate::{
    harness::Harness,
    scenarios::neighbours::{endpoints, question_and_answer},
    topology::{Net, pod, to_pod, udp, udp6},
    world::World,
};

fn both_kinds() -> Result<Vec<Object>> {
    let [tunnelled, tagged] = Net::kinds()?;
    let more = [tagged.network(), tagged.local("pc", 1), tagged.local("pd", 2), tagged.remote(0, 11)];
    Ok(endpoints(&tunnelled).into_iter().chain([tunnelled.network()]).chain(more).collect())
}

fn forwards<H: Harness>(world: &mut World<H>) -> Result<()> {
    let [tunnelled, tagged] = Net::kinds()?;
    for (net, a, b) in [(tunnelled, "pa", "pb"), (tagged, "pc", "pd")] {
        for frame in [udp(1, 2, "here"), udp6(1, 2, "here")] {
            world.sends(&pod(a), &frame, [to_pod(b, &frame)])?;
        }
        for frame in [udp(2, 11, "there"), udp6(2, 11, "there")] {
            world.sends(&pod(b), &frame, [net.to_node(0, &frame)])?;
        }
        let (question, answer) = question_and_answer(1, 11);
        world.sends(&pod(a), &question, [to_pod(a, &answer)])?;
    }
    Ok(())
}

pub(crate) fn restart_writes_nothing<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    for _ in 0..2 {
        world.node.restart()?;
        // In force before anybody has looked at anything.
        forwards(&mut world)?;
        world.in_place()?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
        // What the agent would do if it did not trust the answer.
        let told = world.told().clone();
        world.reconcile(&told)?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
    }
    forwards(&mut world)
}

/// Also what a predecessor made; and from nothing all can be made again.
pub(crate) fn cleanup_leaves_nothing<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    let told = world.told().clone();
    world.node.restart()?;
    world.node.cleanup()?;
    let observed = world.node.observe(&told)?;
    ensure!(observed.in_sync.is_empty() && observed.orphans == 0, "left: {observed:?}");
    world.reconcile(&told)?;
    forwards(&mut world)
}

/// While the agent was away, things were deleted, others changed and others came.
pub(crate) fn restart_finds_what_is_not_wanted_any_more<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    let [tunnelled, tagged] = Net::kinds()?;
    let mut wanted: Desired = world.told().clone();
    for id in [tagged.local_id("pc"), tagged.local_id("pd"), tagged.remote_id(11), tagged.network_id()] {
        wanted.remove(&id);
    }
    wanted.remove(&tunnelled.remote_id(11));
    wanted.insert(tunnelled.remote(0, 12));
    wanted.insert(tunnelled.remote(1, 13));
    world.node.restart()?;
    let observed = world.reconcile(&wanted)?;
    ensure!(observed.orphans > 0, "no strays");
    ensure!(!observed.in_sync.contains(&tunnelled.remote_id(12)), "the moved endpoint passes for unchanged");
    ensure!(observed.in_sync.contains(&tunnelled.local_id("pa")), "an unchanged endpoint passes for changed");

    let frame = udp(1, 12, "moved");
    world.sends(&pod("pa"), &frame, [tunnelled.to_node(0, &frame)])?;
    let frame = udp(1, 13, "new");
    world.sends(&pod("pa"), &frame, [tunnelled.to_node(1, &frame)])?;
    let (question, _) = question_and_answer(1, 11);
    let everybody = tunnelled.to_other_nodes(&question).into_iter().chain([to_pod("pb", &question)]);
    world.sends(&pod("pa"), &question, everybody)?;
    world.sends(&pod("pc"), &udp(1, 2, "gone"), [])
}
