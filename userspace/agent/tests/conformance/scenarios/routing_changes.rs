//! Changes of routed networks, and restarts of the agent.

use anyhow::{Result, ensure};
use contiv_model::{
    policy::{Action, Direction, Rule, UDP},
    vrf::Vrf,
};
use netplugin::datapath::{Backend, Desired, Object, Scope, Service, Subnet};
use testkit::packet::Packet;

use crate::{
    harness::Harness,
    scenarios::{
        policy::{group, in_group, rule},
        routed::{A, B, End, GATEWAY, Pair, ROUTER, Routed, TTL, VIP, datagrams, routed, sent},
    },
    topology::{pod, to_pod},
    world::World,
};

/// A network that is routed no more is bridged, and the other way round, without a restart.
pub(crate) fn the_forward_mode_changes<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let bridged = pair.bridged()?;
    let request = Packet::arp_request(B.mac(), B.ip(), End(2, GATEWAY).ip());
    for _ in 0..2 {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        world.reconcile(&bridged.iter().cloned().collect())?;
        world.sends(&pod("pb"), &request, [0, 1].map(|node| pair.two.to_node(node, &request, 0)))?;
        // No endpoint of the network: a frame to an unknown address.
        for there in sent(A, B) {
            let copies = [0, 1].map(|node| pair.one.to_node(node, &there, 0));
            world.sends(&pod("pa"), &there, copies.into_iter().chain([to_pod("pa2", &there)]))?;
        }
        world.reconcile(&pair.objects()?.into_iter().collect())?;
        let reply = Packet::arp_reply(ROUTER, End(2, GATEWAY).ip(), B.mac(), B.ip());
        world.sends(&pod("pb"), &request, [to_pod("pb", &reply)])?;
    }
    Ok(())
}

/// A subnet that is routed no more leaves the others, and is routed again, without a change of its endpoints.
pub(crate) fn routed_subnets_come_and_go<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let mut world = pair.world::<H>()?;
    let [v4, v6] = pair.two.subnets()?;
    let Object::Subnet(six) = &v6 else { unreachable!("a network has subnets") };
    let without = Object::Subnet(Subnet { gateway: None, ..six.clone() });
    for _ in 0..2 {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        world.set(without.clone())?;
        let ([there4, there6], [arrives4, _]) = (sent(A, B), routed(A, B));
        world.sends(&pod("pa"), &there4, [to_pod("pb", &arrives4)])?;
        world.sends(&pod("pa"), &there6, [])?;
        world.delete(v4.id())?;
        world.sends(&pod("pa"), &there4, [])?;
        world.check_in_sync()?;
        world.set(v4.clone())?;
        world.set(v6.clone())?;
    }
    Ok(())
}

/// A new agent finds the routes, rules and services of several tenants, and changes nothing.
pub(crate) fn restart_of_a_routing_node_writes_nothing<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let others = [Routed::new("u", 3, 2)?, Routed::new("v", 4, 4)?];
    let service = Service {
        ports: vec!["53:5353:UDP".parse()?],
        backends: vec![Backend::on(pair.two.network.encap, B.ip())],
        ..Service::new("dns:t", Scope::vrf(pair.one.network.vrf.clone()), VIP.ip())
    };
    let mut objects = pair.objects()?;
    for (n, other) in others.iter().enumerate() {
        objects.extend(other.objects()?);
        objects.extend([other.local(&format!("o{n}"), 1), other.remote(1, 11)]);
    }
    objects.extend([in_group(pair.one.local("pa", A.1), 1)?, Object::Service(service)]);
    let denied =
        Rule { protocol: Some(UDP), ports: Some(9.into()), ..rule(Direction::Out, Action::Deny, 1)? };
    objects.push(group(1, [denied])?);
    let mut world = World::<H>::new(objects)?;
    let talk = |world: &mut World<H>| -> Result<()> {
        for (there, arrives) in sent(A, B).iter().zip(&routed(A, B)) {
            world.sends(&pod("pa"), there, [to_pod("pb", arrives)])?;
        }
        let [asks, _] = datagrams((ROUTER, A.mac()), (A, 4000), (VIP, 53), TTL);
        let [asked, _] = datagrams((B.mac(), ROUTER), (A, 4000), (B, 5353), TTL - 1);
        world.sends(&pod("pa"), &asks, [to_pod("pb", &asked)])
    };
    talk(&mut world)?;
    for _ in 0..2 {
        world.node.restart()?;
        talk(&mut world)?;
        let installed = world.installed().clone();
        world.reconcile(&installed)?;
        ensure!(world.node.writes() == 0, "{} writes", world.node.writes());
        // Without one of the tenants the others keep their numbers.
        if world.installed().get(&others[0].local("o0", 1).id()).is_some() {
            let left: Desired = installed
                .iter()
                .map(|(_, object)| object.clone())
                .filter(|object| !belongs_to(object, &others[0].network.vrf))
                .collect();
            world.reconcile(&left)?;
        }
    }
    talk(&mut world)
}

fn belongs_to(object: &Object, vrf: &Vrf) -> bool {
    match object {
        Object::Network(network) => network.vrf == *vrf,
        Object::Subnet(subnet) => subnet.vrf == *vrf,
        Object::Remote(remote) => remote.vrf == *vrf,
        Object::Local(local) => local.vrf == *vrf,
        _ => false,
    }
}
