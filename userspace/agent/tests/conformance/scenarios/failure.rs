//! Failure of a single op.

use std::time::Duration;

use anyhow::{Result, ensure};
use contiv_model::{
    mac::Mac,
    route::{NextHop, NextHops},
};
use netplugin::datapath::{Gateway, Object, Op, Remote, Route, RouteId, Subnet};
use testkit::wait_until;

use crate::{
    harness::Harness,
    topology::{Net, ip, mac, peers, pod, to_pod, udp},
    world::World,
};

const SOON: Duration = Duration::from_secs(10);

/// A pod without its interface fails its own op only, and is installed when the interface exists.
pub(crate) fn missing_interface_fails_alone<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = World::<H>::new(peers().into_iter().chain([net.network(), net.local("pa", 1)]))?;
        world.node.plug("pc")?;
        let ops = [Op::Set(net.local("ghost", 2)), Op::Set(net.local("pc", 3)), Op::Set(net.remote(0, 11))];
        let failures = world.try_apply(&ops)?;
        let which: Vec<usize> = failures.iter().map(|failed| failed.index).collect();
        ensure!(which == [0], "ops that failed: {which:?}");
        let said = format!("{}: {}", failures[0].error, failures[0].error.source);
        ensure!(said.contains("ghost"), "the message does not name the interface: {said}");

        for (frame, expected) in [
            (udp(1, 3, "pc"), to_pod("pc", &udp(1, 3, "pc"))),
            (udp(1, 11, "far"), net.to_node(0, &udp(1, 11, "far"))),
        ] {
            world.sends(&pod("pa"), &frame, [expected])?;
        }
        // The object is desired, so its parts are no orphans.
        let mut desired = world.installed().clone();
        desired.insert(net.local("ghost", 2));
        let observed = world.node.observe(&desired)?;
        ensure!(observed.orphans == 0, "{} orphans", observed.orphans);
        ensure!(observed.in_sync.len() == desired.len() - 1, "expected all but one in sync: {observed:?}");
        ensure!(!observed.in_sync.contains(&net.local_id("ghost")), "a ghost is in place");

        world.node.plug("ghost")?;
        // As the agent retries: a switch on a busy machine may not have seen the interface yet.
        let set = [Op::Set(net.local("ghost", 2))];
        let attach = || Ok(world.try_apply(&set)?.is_empty().then_some(()));
        wait_until(SOON, "the interface to attach", attach)?;
        let frame = udp(1, 2, "here at last");
        world.sends(&pod("pa"), &frame, [to_pod("ghost", &frame)])?;
        world.check_in_sync()?;
    }
    Ok(())
}

/// A subnet whose gateway is a router on the network needs no writes. What needs routing fails alone as
/// unsupported.
pub(crate) fn unsupported_values_fail_alone<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let network = net.plain();
        let subnet = |mac| {
            let gateway = Some(Gateway { ip: ip(254).into(), mac });
            let vrf = network.vrf.clone();
            Ok::<_, anyhow::Error>(Object::Subnet(Subnet {
                network: network.id.clone(),
                vrf,
                encap: network.encap,
                prefix: "10.7.0.0/24".parse()?,
                gateway,
            }))
        };
        let objects = [net.network(), subnet(None)?, net.local("pa", 1), net.remote(0, 11)];
        let mut world = World::<H>::new(peers().into_iter().chain(objects))?;
        let next_hop = NextHop::Local { endpoint: "elsewhere".into() };
        let id = RouteId { vrf: network.vrf.clone(), prefix: "0.0.0.0/0".parse()? };
        let route = Route { id, next_hops: NextHops::from(next_hop.clone()) };
        let Object::Remote(far) = net.remote(0, 12) else { unreachable!() };
        let ops = [
            Op::Set(subnet(Some(Mac(mac(254))))?),
            Op::Set(Object::Route(route)),
            Op::Set(Object::Remote(Remote { next_hop, ..far })),
            Op::Set(net.remote(0, 13)),
        ];
        let failures = world.try_apply(&ops)?;
        let which: Vec<usize> = failures.iter().map(|failed| failed.index).collect();
        ensure!(which == [0, 1, 2], "ops that failed: {which:?}");
        ensure!(failures.iter().all(|failed| failed.error.is_unsupported()), "{failures:?}");
        let frame = udp(1, 13, "far");
        world.sends(&pod("pa"), &frame, [net.to_node(0, &frame)])?;
        world.check_in_sync()?;
    }
    Ok(())
}
