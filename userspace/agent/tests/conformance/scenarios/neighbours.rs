//! ARP and neighbour discovery.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use contiv_model::global::ArpMode;
use netplugin::datapath::{Object, fake::Target};
use testkit::packet::{Packet, nd_flags, verify};

use crate::{
    harness::{Difference, Harness},
    topology::{Net, ip, ip6, mac, peers, pod, to_pod},
    world::World,
};

const UNKNOWN: u8 = 77;

/// Creates a node with two local pods and one pod on each other node.
fn world<H: Harness>(net: &Net, arp: ArpMode) -> Result<World<H>> {
    let objects =
        [net.network_with(arp), net.local("pa", 1), net.local("pb", 2), net.remote(0, 11), net.remote(1, 12)];
    World::new(peers().into_iter().chain(objects))
}

fn requests(from: u8, target: u8) -> [Packet; 2] {
    [
        Packet::arp_request(mac(from), ip(from), ip(target)),
        Packet::neighbour_solicitation(mac(from), ip6(from), ip6(target)),
    ]
}

fn replies(from: u8, target: u8) -> [Packet; 2] {
    let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
    let owner = (mac(target), ip6(target));
    [
        Packet::arp_reply(mac(target), ip(target), mac(from), ip(from)),
        Packet::neighbour_advertisement((mac(from), ip6(from)), owner, mac(target), flags),
    ]
}

/// The sender receives the reply, and no other pod or node receives the request.
pub(crate) fn requests_are_answered_locally<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for (port, from, target) in [("pa", 1, 2), ("pb", 2, 1), ("pa", 1, 11), ("pb", 2, 12)] {
            for (request, reply) in requests(from, target).iter().zip(&replies(from, target)) {
                world.sends(&pod(port), request, [to_pod(port, reply)])?;
            }
        }
        // A kernel refreshes an entry with a unicast request.
        let renewal = Packet::eth(mac(11), mac(1)).arp(1, (mac(1), ip(1)), ([0; 6], ip(11)));
        let [reply, _] = replies(1, 11);
        world.sends(&pod("pa"), &renewal, [to_pod("pa", &reply)])?;
        // Duplicate address detection has the unspecified source.
        let probe = Packet::arp_request(mac(1), Ipv4Addr::UNSPECIFIED, ip(2));
        let reply = Packet::arp_reply(mac(2), ip(2), mac(1), Ipv4Addr::UNSPECIFIED);
        world.sends(&pod("pa"), &probe, [to_pod("pa", &reply)])?;
    }
    Ok(())
}

/// Gratuitous ARP and duplicate address detection of a pod for its own address get no reply. They are flooded: they update
/// the caches of other pods and the switches between VLAN nodes.
pub(crate) fn own_addresses_are_not_answered<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        let announcement = Packet::arp_request(mac(1), ip(1), ip(1));
        let probe = Packet::arp_request(mac(1), Ipv4Addr::UNSPECIFIED, ip(1));
        let detection = Packet::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, ip6(1));
        for frame in [announcement, probe, detection] {
            let expected = net.to_other_nodes(&frame).into_iter().chain([to_pod("pb", &frame)]);
            world.sends(&pod("pa"), &frame, expected)?;
        }
    }
    Ok(())
}

/// Duplicate address detection for the address of another endpoint gets an advertisement to all nodes.
pub(crate) fn duplicates_are_detected<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for owner in [2, 11] {
            let request = Packet::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, ip6(owner));
            let came = world.outcome(&pod("pa"), &request.build())?;
            let [defence] = &came[..] else { anyhow::bail!("expected one reply, came {came:?}") };
            ensure!(defence.to == Target::Pod("pa".to_owned()), "the reply went to {:?}", defence.to);
            is_defence(&defence.frame, (mac(owner), ip6(owner)))
                .with_context(|| format!("{net:?}: {:02x?}", defence.frame))?;
        }
    }
    Ok(())
}

/// Checks for an advertisement to all nodes that `owner` has its address. The link-layer address option can be missing: OVS
/// cannot add it to a solicitation without options, and duplicate address detection does not need it.
pub(crate) fn is_defence(frame: &[u8], owner: ([u8; 6], Ipv6Addr)) -> Result<()> {
    verify(frame).map_err(anyhow::Error::msg)?;
    ensure!(frame.len() == 78 || frame.len() == 86, "{} bytes", frame.len());
    let all_nodes = (([0x33, 0x33, 0, 0, 0, 1]), "ff02::1".parse::<Ipv6Addr>()?);
    let full = Packet::neighbour_advertisement(all_nodes, owner, owner.0, nd_flags::OVERRIDE).build();
    if frame.len() == full.len() {
        ensure!(frame == full, "not {full:02x?}");
        return Ok(());
    }
    // Addresses; hop limit and IP addresses; type and code; flags and target.
    for part in [0..14, 21..54, 54..56, 58..78] {
        ensure!(
            frame[part.clone()] == full[part.clone()],
            "bytes {part:?} are not {:02x?}",
            &full[part.clone()]
        );
    }
    Ok(())
}

/// An unknown station can own the address.
pub(crate) fn requests_for_unknown_addresses_are_flooded<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for request in requests(1, UNKNOWN) {
            let expected = net.to_other_nodes(&request).into_iter().chain([to_pod("pb", &request)]);
            world.sends(&pod("pa"), &request, expected)?;
        }
    }
    Ok(())
}

/// The node replies for local pods. Requests for other endpoints are flooded to local pods; their own nodes reply.
pub(crate) fn the_outside_gets_replies_for_local_pods<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for (request, reply) in requests(12, 2).iter().zip(&replies(12, 2)) {
            let frame = net.on_wire(&request.build());
            let expected = if world.differs(Difference::LetsPodsAnswerOutside) {
                ["pa", "pb"].map(|port| to_pod(port, request)).to_vec()
            } else {
                vec![net.to_node(1, reply)]
            };
            world.sends_bytes(&net.outside(1), &frame, expected)?;
        }
        for target in [11, UNKNOWN] {
            for request in requests(12, target) {
                let frame = net.on_wire(&request.build());
                let expected = ["pa", "pb"].map(|port| to_pod(port, &request));
                world.sends_bytes(&net.outside(1), &frame, expected)?;
            }
        }
    }
    Ok(())
}

/// Without the ARP proxy requests are flooded.
pub(crate) fn requests_are_flooded_in_flood_mode<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Flood)?;
        for target in [1, 2, 11, UNKNOWN] {
            for request in requests(1, target) {
                let expected = net.to_other_nodes(&request).into_iter().chain([to_pod("pb", &request)]);
                world.sends(&pod("pa"), &request, expected)?;
            }
        }
        for request in requests(11, 1) {
            let frame = net.on_wire(&request.build());
            let expected = ["pa", "pb"].map(|port| to_pod(port, &request));
            world.sends_bytes(&net.outside(0), &frame, expected)?;
        }
        // Replies are forwarded as unicast.
        let [reply, advertisement] = replies(1, 2);
        for reply in [reply, advertisement] {
            world.sends(&pod("pb"), &reply, [to_pod("pa", &reply)])?;
        }
    }
    Ok(())
}

/// Request and proxy reply, for scenarios that distinguish the two ARP modes.
pub(crate) fn request_and_reply(from: u8, target: u8) -> (Packet, Packet) {
    let ([request, _], [reply, _]) = (requests(from, target), replies(from, target));
    (request, reply)
}

/// Objects of [`world`] without the network.
pub(crate) fn endpoints(net: &Net) -> Vec<Object> {
    let objects = [net.local("pa", 1), net.local("pb", 2), net.remote(0, 11), net.remote(1, 12)];
    peers().into_iter().chain(objects).collect()
}
