//! A VLAN and a VXLAN network of one tenant, for both of which the nodes are the gateway.

use anyhow::Result;
use netplugin::datapath::{
    Backend, KERNEL_MAC, Object, Scope, Service,
    fake::{Delivery, Origin, Target},
};

use crate::{
    harness::Harness,
    scenarios::routed::{
        A, A2, B, End, FAR_A, FAR_B, GATEWAY, Pair, ROUTER, Routed, TTL, datagrams, ping, pong, routed, sent,
    },
    topology::{pod, to_pod},
    world::World,
};

const KERNEL: [u8; 6] = KERNEL_MAC.0;

/// Network 1 is the VLAN, network 2 the VXLAN.
fn world<H: Harness>() -> Result<World<H>> {
    Pair { one: Routed::vlan("t", 1, 1)?, two: Routed::new("t", 2, 2)? }.world()
}

/// Packets to the other network are dropped, also those to addresses without an endpoint, which the physical network may have.
pub(crate) fn networks_of_two_kinds_are_separate<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let vlan = [A, FAR_A, End(1, 77), End(1, GATEWAY)];
    let vxlan = [B, FAR_B, End(2, 77), End(2, GATEWAY)];
    for (from, port, others) in [(A, "pa", vxlan), (B, "pb", vlan)] {
        for packet in others.into_iter().flat_map(|to| sent(from, to)) {
            world.sends(&pod(port), &packet, [])?;
        }
    }
    // Each reaches its own network.
    for there in sent(A, FAR_A) {
        let frame = [&KERNEL, &there.build()[6..]].concat();
        world.sends(&pod("pa"), &there, [Delivery { to: Target::Kernel, frame }])?;
    }
    let two = Routed::new("t", 2, 2)?;
    for (there, leaves) in sent(B, FAR_B).iter().zip(&routed(B, FAR_B)) {
        world.sends(&pod("pb"), there, [two.to_node(0, leaves, 0)])?;
    }
    Ok(())
}

/// Neither the kernel nor the router of another node sends packets from the other network.
pub(crate) fn routers_speak_for_networks_of_their_kind<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let forwarded = |from| datagrams((KERNEL, KERNEL), (from, 4000), (A, 5000), TTL - 3);
    for from in [B, FAR_B, End(2, 77), End(2, GATEWAY)] {
        for packet in forwarded(from) {
            world.sends(&Origin::Kernel, &packet, [])?;
        }
    }
    let arriving = datagrams((A.mac(), ROUTER), (FAR_A, 4000), (A, 5000), TTL - 3);
    for (packet, arrives) in forwarded(FAR_A).iter().zip(&arriving) {
        world.sends(&Origin::Kernel, packet, [to_pod("pa", arrives)])?;
    }
    let node = Routed::new("t", 2, 2)?.outside(0);
    for from in [A, FAR_A, End(1, 77), End(1, GATEWAY)] {
        for packet in routed(from, B) {
            world.sends(&node, &packet, [])?;
        }
    }
    for packet in routed(End(2, 77), B) {
        world.sends(&node, &packet, [to_pod("pb", &packet)])?;
    }
    Ok(())
}

/// All gateways of the tenant answer pings, and nothing else.
pub(crate) fn gateways_of_both_kinds_answer_pings<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    for (from, port) in [(A, "pa"), (B, "pb")] {
        for gateway in [End(1, GATEWAY), End(2, GATEWAY)] {
            for (ping, pong) in ping(from, gateway, 64).iter().zip(&pong(gateway, from)) {
                world.sends(&pod(port), ping, [to_pod(port, pong)])?;
            }
            for other in sent(from, gateway) {
                world.sends(&pod(port), &other, [])?;
            }
        }
    }
    Ok(())
}

/// The clients of a service get the backends on networks of the service's kind, whichever others it has.
pub(crate) fn services_have_backends_of_their_own_kind<H: Harness>() -> Result<()> {
    let pair = Pair { one: Routed::vlan("t", 1, 1)?, two: Routed::new("t", 2, 2)? };
    let service = |net: &Routed, vip: End| -> Result<Object> {
        let backends = [(&pair.one, A2), (&pair.two, FAR_B)];
        Ok(Object::Service(Service {
            ports: vec!["53:5353:UDP".parse()?],
            backends: backends.map(|(net, backend)| Backend::on(net.network.encap, backend.ip())).into(),
            ..Service::new(format!("dns{}:t", net.n), Scope::network(&net.network), vip.ip())
        }))
    };
    let (on_vlan, on_vxlan) = (End(1, 200), End(2, 200));
    let services = [service(&pair.one, on_vlan)?, service(&pair.two, on_vxlan)?];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(services))?;
    for port in 4000..4020 {
        let [asks, _] = datagrams((on_vlan.mac(), A.mac()), (A, port), (on_vlan, 53), TTL);
        let [asked, _] = datagrams((A2.mac(), A.mac()), (A, port), (A2, 5353), TTL);
        world.sends(&pod("pa"), &asks, [to_pod("pa2", &asked)])?;
        let [asks, _] = datagrams((on_vxlan.mac(), B.mac()), (B, port), (on_vxlan, 53), TTL);
        let [asked, _] = datagrams((FAR_B.mac(), B.mac()), (B, port), (FAR_B, 5353), TTL);
        world.sends(&pod("pb"), &asks, [pair.two.to_node(0, &asked, 0)])?;
    }
    world.check_in_sync()
}
