//! A restarted agent adopts the existing state.

use anyhow::{Result, ensure};
use netplugin::{
    datapath::{Desired, Object},
    reconcile::diff,
};

use crate::{
    harness::Harness,
    scenarios::neighbours::{endpoints, request_and_reply},
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
        let (request, reply) = request_and_reply(1, 11);
        world.sends(&pod(a), &request, [to_pod(a, &reply)])?;
    }
    Ok(())
}

pub(crate) fn restart_writes_nothing<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    for _ in 0..2 {
        world.node.restart()?;
        // Forwarding works before the first observation.
        forwards(&mut world)?;
        world.check_in_sync()?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
        // Setting all objects again writes nothing.
        let installed = world.installed().clone();
        world.reconcile(&installed)?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
    }
    forwards(&mut world)
}

/// Cleanup removes the state of earlier instances too; afterwards everything can be installed again.
pub(crate) fn cleanup_leaves_nothing<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    let installed = world.installed().clone();
    world.node.restart()?;
    world.node.cleanup()?;
    let observed = world.node.observe(&installed)?;
    ensure!(observed.in_sync.is_empty() && observed.orphans == 0, "left: {observed:?}");
    world.reconcile(&installed)?;
    forwards(&mut world)
}

/// Objects are deleted, changed and added while the agent is stopped.
pub(crate) fn restart_finds_orphans<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    let [tunnelled, tagged] = Net::kinds()?;
    let mut desired: Desired = world.installed().clone();
    for id in [tagged.local_id("pc"), tagged.local_id("pd"), tagged.remote_id(11), tagged.network_id()] {
        desired.remove(&id);
    }
    desired.remove(&tunnelled.remote_id(11));
    desired.insert(tunnelled.remote(0, 12));
    desired.insert(tunnelled.remote(1, 13));
    world.node.restart()?;
    let observed = world.reconcile(&desired)?;
    ensure!(observed.orphans > 0, "no orphans");
    ensure!(!observed.in_sync.contains(&tunnelled.remote_id(12)), "the moved endpoint passes for unchanged");
    ensure!(observed.in_sync.contains(&tunnelled.local_id("pa")), "an unchanged endpoint passes for changed");

    let frame = udp(1, 12, "moved");
    world.sends(&pod("pa"), &frame, [tunnelled.to_node(0, &frame)])?;
    let frame = udp(1, 13, "new");
    world.sends(&pod("pa"), &frame, [tunnelled.to_node(1, &frame)])?;
    let (request, _) = request_and_reply(1, 11);
    let flooded = tunnelled.to_other_nodes(&request).into_iter().chain([to_pod("pb", &request)]);
    world.sends(&pod("pa"), &request, flooded)?;
    world.sends(&pod("pc"), &udp(1, 2, "gone"), [])
}

/// The restarted agent cannot read the records of a network, and of some endpoints of another one.
pub(crate) fn restart_retains_orphans<H: Harness>() -> Result<()> {
    let mut world = World::<H>::new(both_kinds()?)?;
    let [tunnelled, tagged] = Net::kinds()?;
    let mut readable: Desired = world.installed().clone();
    for id in [tagged.local_id("pc"), tagged.local_id("pd"), tagged.remote_id(11), tagged.network_id()] {
        readable.remove(&id);
    }
    readable.remove(&tunnelled.local_id("pb"));
    readable.remove(&tunnelled.remote_id(11));
    world.node.restart()?;
    world.node.retain_orphans(true);
    for round in 0..2 {
        let observed = world.node.observe(&readable)?;
        ensure!(observed.orphans == 0 && observed.retained > 0, "{observed:?}");
        ensure!(round == 0 || observed.in_sync.len() == readable.len(), "{observed:?}");
        let failures = world.node.apply(&diff(&readable, &observed))?;
        ensure!(failures.is_empty(), "{failures:?}");
        forwards(&mut world)?;
    }
    // What is sent to all reaches them, also beside a new pod.
    world.node.plug("pe")?;
    world.set(tunnelled.local("pe", 5))?;
    let (request, _) = request_and_reply(1, 77);
    let pods = ["pb", "pe"].map(|port| to_pod(port, &request));
    world.sends(&pod("pa"), &request, tunnelled.to_other_nodes(&request).into_iter().chain(pods))?;
    // The records are readable again.
    world.node.retain_orphans(false);
    let installed = world.installed().clone();
    let observed = world.reconcile(&installed)?;
    ensure!(observed.orphans == 0, "{observed:?}");
    forwards(&mut world)
}
