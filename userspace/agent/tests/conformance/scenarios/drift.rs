//! Drift is found and repaired by a resync.

use anyhow::{Result, ensure};
use testkit::packet::{BROADCAST, Packet};

use crate::{
    harness::{Damage, Harness},
    scenarios::neighbours::endpoints,
    topology::{Net, mac, pod, to_pod, udp},
    world::World,
};

/// Causes drift, resyncs, and checks that forwarding is restored; then again with a restarted agent.
fn repaired<H: Harness>(damage: Damage) -> Result<()> {
    let [tunnelled, tagged] = Net::kinds()?;
    let more = [tagged.network(), tagged.local("pc", 1), tagged.local("pd", 2), tagged.remote(0, 11)];
    let objects = endpoints(&tunnelled).into_iter().chain([tunnelled.network()]).chain(more);
    let mut world = World::<H>::new(objects)?;
    for restarted in [false, true] {
        world.node.damage(damage)?;
        if restarted {
            world.node.restart()?;
        }
        let installed = world.installed().clone();
        let observed = world.reconcile(&installed)?;
        let lost = installed.len() - observed.in_sync.len();
        ensure!(lost > 0 || observed.orphans > 0, "{damage:?} was not noticed");
        match damage {
            Damage::ForeignItem => ensure!(lost == 0, "{lost} objects pass for lost"),
            Damage::Port(_) => ensure!(lost < installed.len(), "every object is out of sync"),
            Damage::Forwarding => {}
        }
        for (net, a, b) in [(&tunnelled, "pa", "pb"), (&tagged, "pc", "pd")] {
            let frame = udp(1, 2, "here");
            world.sends(&pod(a), &frame, [to_pod(b, &frame)])?;
            let frame = udp(1, 11, "there");
            world.sends(&pod(a), &frame, [net.to_node(0, &frame)])?;
            let frame = udp(11, 1, "from there");
            world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), [to_pod(a, &frame)])?;
            let frame = Packet::eth(BROADCAST, mac(2)).payload(b"flooded");
            let flooded = net.to_other_nodes(&frame).into_iter().chain([to_pod(a, &frame)]);
            world.sends(&pod(b), &frame, flooded)?;
        }
    }
    Ok(())
}

pub(crate) fn lost_forwarding_is_repaired<H: Harness>() -> Result<()> {
    repaired::<H>(Damage::Forwarding)
}

pub(crate) fn lost_port_is_repaired<H: Harness>() -> Result<()> {
    repaired::<H>(Damage::Port("pb"))?;
    repaired::<H>(Damage::Port("pd"))
}

pub(crate) fn orphans_are_removed<H: Harness>() -> Result<()> {
    repaired::<H>(Damage::ForeignItem)
}
