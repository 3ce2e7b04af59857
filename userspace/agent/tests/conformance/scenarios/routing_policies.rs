//! Policies, services and DSCP of routed packets.

use anyhow::Result;
use contiv_model::{
    group::Dscp,
    policy::{Action, Direction, Rule, UDP},
    service::Readiness,
};
use netplugin::datapath::{Backend, Group, Object, Service};

use crate::{
    harness::Harness,
    scenarios::{
        policy::{group, in_group, number, rule},
        routed::{
            A, A2, B, End, FAR_B, Pair, ROUTER, TTL, VIP, answers, answers_routed, datagrams, routed, sent,
        },
    },
    topology::{pod, to_pod},
    world::World,
};

/// The rules of both ends apply as they do within a network, and groups are known across networks.
pub(crate) fn policies_apply_between_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let grouped = [
        in_group(pair.one.local("pa", A.1), 1)?,
        in_group(pair.two.local("pb", B.1), 2)?,
        in_group(pair.two.remote(0, FAR_B.1), 3)?,
    ];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(grouped))?;
    let about = |direction, peer: u32| -> Result<Rule> {
        let peer = contiv_model::policy::Peer::identity(number(peer)?);
        Ok(Rule { peer, protocol: Some(UDP), ports: Some(5000.into()), ..rule(direction, Action::Deny, 1)? })
    };
    // Established before.
    world.sends(&pod("pa"), &sent(A, B)[0], [to_pod("pb", &routed(A, B)[0])])?;
    for (out, into) in [(vec![about(Direction::Out, 2)?], vec![]), (vec![], vec![about(Direction::In, 1)?])] {
        world.set(group(1, out)?)?;
        world.set(group(2, into)?)?;
        for packet in sent(A, B) {
            world.sends(&pod("pa"), &packet, [])?;
        }
        // The other direction, and its answers.
        for (there, arrives) in sent(B, A).iter().zip(&routed(B, A)) {
            world.sends(&pod("pb"), there, [to_pod("pa", arrives)])?;
        }
        for (back, arrives) in answers(A, B).iter().zip(&answers_routed(A, B)) {
            world.sends(&pod("pa"), back, [to_pod("pb", arrives)])?;
        }
    }
    // A pod of another node, on another network, by its group.
    world.set(group(1, [about(Direction::Out, 3)?, about(Direction::In, 3)?])?)?;
    for packet in sent(A, FAR_B) {
        world.sends(&pod("pa"), &packet, [])?;
    }
    for packet in routed(FAR_B, A) {
        world.sends(&pair.one.outside(0), &packet, [])?;
    }
    world.set(group(1, [])?)?;
    for packet in routed(FAR_B, A) {
        world.sends(&pair.one.outside(0), &packet, [to_pod("pa", &packet)])?;
    }
    Ok(())
}

/// A service of the tenant has backends on several networks. Clients reach it by the gateway, and by its own address.
pub(crate) fn services_have_backends_on_other_networks<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    for (vip, to) in [(VIP, ROUTER), (End(1, 200), End(1, 200).mac())] {
        for (backend, port) in [(B, Some("pb")), (FAR_B, None), (A2, Some("pa2"))] {
            let net = if backend.0 == 1 { &pair.one } else { &pair.two };
            let service = pair.service(vip, backend)?;
            let mut world = World::<H>::new(pair.objects()?.into_iter().chain([service]))?;
            let is_bridged = backend.0 == 1 && to != ROUTER;
            let (source, ttl) = if is_bridged { (A.mac(), TTL) } else { (ROUTER, TTL - 1) };
            let [asks, _] = datagrams((to, A.mac()), (A, 4000), (vip, 53), TTL);
            let [asked, _] = datagrams((backend.mac(), source), (A, 4000), (backend, 5353), ttl);
            let arrival = match port {
                Some(port) => to_pod(port, &asked),
                None => net.to_node(0, &asked, 0),
            };
            // The reply is sent to the gateway, or to the neighbour.
            let (next, source, ttl) =
                if backend.0 == 1 { (A.mac(), backend.mac(), TTL) } else { (ROUTER, ROUTER, TTL - 1) };
            let [replies, _] = datagrams((next, backend.mac()), (backend, 5353), (A, 4000), TTL);
            let [replied, _] = datagrams((A.mac(), source), (vip, 53), (A, 4000), ttl);
            for _ in 0..2 {
                world.sends(&pod("pa"), &asks, [arrival.clone()])?;
                match port {
                    Some(port) => world.sends(&pod(port), &replies, [to_pod("pa", &replied)])?,
                    None => {
                        let [on_wire, _] = datagrams((A.mac(), ROUTER), (backend, 5353), (A, 4000), TTL - 1);
                        world.sends(&pair.one.outside(0), &on_wire, [to_pod("pa", &replied)])?;
                    }
                }
            }
        }
    }
    Ok(())
}

/// Routed packets have the DSCP of their sender's group, inside and outside.
pub(crate) fn routed_packets_get_a_dscp<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let marked = Group { dscp: Some(Dscp::try_from(46)?), ..Group::new(number(1)?, vec![]) };
    let grouped = [in_group(pair.one.local("pa", A.1), 1)?, Object::Group(marked)];
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain(grouped))?;
    for (there, leaves) in sent(A, FAR_B).iter().zip(routed(A, FAR_B)) {
        world.sends(&pod("pa"), there, [pair.two.to_node(0, &leaves.dscp(46), 46)])?;
    }
    Ok(())
}

/// A packet to a service whose TTL does not last to the backend begins a connection with that backend: after the service has lost it,
/// the client is not refused.
pub(crate) fn expired_packets_to_services_choose_a_backend<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let Object::Service(service) = pair.service(VIP, B)? else { unreachable!() };
    let mut world = World::<H>::new(pair.objects()?.into_iter().chain([Object::Service(service.clone())]))?;
    let packet = |port: u16, ttl: u8| datagrams((VIP.mac(), A.mac()), (A, port), (VIP, 53), ttl)[0].clone();
    world.sends(&pod("pa"), &packet(4000, 1), [])?;
    let backends =
        service.backends.iter().map(|backend| Backend { readiness: Readiness::Terminating, ..*backend });
    world.set(Object::Service(Service { backends: backends.collect(), ..service }))?;
    world.sends(&pod("pa"), &packet(4000, 1), [])?;
    let [arrives, _] = datagrams((B.mac(), ROUTER), (A, 4000), (B, 5353), TTL - 1);
    world.sends(&pod("pa"), &packet(4000, TTL), [to_pod("pb", &arrives)])
}
