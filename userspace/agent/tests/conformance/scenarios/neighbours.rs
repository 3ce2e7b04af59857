//! ARP and neighbour discovery.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context as _, Result, ensure};
use contiv_model::{global::ArpMode, tag::Encap};
use netplugin::datapath::{Object, fake::Target};
use testkit::packet::{Packet, nd_flags, verify};

use crate::{
    harness::{Difference, Harness},
    topology::{Net, ip, ip6, mac, peers, pod, to_pod},
    world::World,
};

const NOBODY: u8 = 77;

/// Two pods here, one on each other node.
fn world<H: Harness>(net: &Net, arp: ArpMode) -> Result<World<H>> {
    let objects =
        [net.network_with(arp), net.local("pa", 1), net.local("pb", 2), net.remote(0, 11), net.remote(1, 12)];
    World::new(peers().into_iter().chain(objects))
}

fn asks(from: u8, target: u8) -> [Packet; 2] {
    [
        Packet::arp_request(mac(from), ip(from), ip(target)),
        Packet::neighbour_solicitation(mac(from), ip6(from), ip6(target)),
    ]
}

fn answers(from: u8, target: u8) -> [Packet; 2] {
    let flags = nd_flags::SOLICITED | nd_flags::OVERRIDE;
    let owner = (mac(target), ip6(target));
    [
        Packet::arp_reply(mac(target), ip(target), mac(from), ip(from)),
        Packet::neighbour_advertisement((mac(from), ip6(from)), owner, mac(target), flags),
    ]
}

/// The asker hears the answer, and nobody hears the question.
pub(crate) fn questions_are_answered_in_place<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for (port, from, target) in [("pa", 1, 2), ("pb", 2, 1), ("pa", 1, 11), ("pb", 2, 12)] {
            for (question, answer) in asks(from, target).iter().zip(&answers(from, target)) {
                world.sends(&pod(port), question, [to_pod(port, answer)])?;
            }
        }
        // A kernel that renews what it knows asks the one address directly.
        let renewal = Packet::eth(mac(11), mac(1)).arp(1, (mac(1), ip(1)), ([0; 6], ip(11)));
        let [answer, _] = answers(1, 11);
        world.sends(&pod("pa"), &renewal, [to_pod("pa", &answer)])?;
        // One that looks whether the address is taken has none itself.
        let probe = Packet::arp_request(mac(1), Ipv4Addr::UNSPECIFIED, ip(2));
        let answer = Packet::arp_reply(mac(2), ip(2), mac(1), Ipv4Addr::UNSPECIFIED);
        world.sends(&pod("pa"), &probe, [to_pod("pa", &answer)])?;
    }
    Ok(())
}

/// A pod that announces itself, or looks whether its own address is taken, must not hear that it is. Everybody else may
/// want to know: other pods' caches, the switches between VLAN nodes.
pub(crate) fn own_addresses_are_not_answered<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        let announcement = Packet::arp_request(mac(1), ip(1), ip(1));
        let probe = Packet::arp_request(mac(1), Ipv4Addr::UNSPECIFIED, ip(1));
        let detection = Packet::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, ip6(1));
        for frame in [announcement, probe, detection] {
            let hidden = matches!(net.encap, Encap::Vxlan { .. })
                && world.differs(Difference::HidesAnnouncementsOnVxlan);
            let expected = if hidden {
                vec![]
            } else {
                [net.to_other_nodes(&frame), vec![to_pod("pb", &frame)]].concat()
            };
            world.sends(&pod("pa"), &frame, expected)?;
        }
    }
    Ok(())
}

/// Duplicate address detection for an address that is somebody else's: all nodes hear whose it is.
pub(crate) fn duplicates_are_detected<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for owner in [2, 11] {
            let question = Packet::neighbour_solicitation(mac(1), Ipv6Addr::UNSPECIFIED, ip6(owner));
            let came = world.outcome(&pod("pa"), &question.build())?;
            let [defence] = &came[..] else { anyhow::bail!("expected one answer, came {came:?}") };
            ensure!(defence.to == Target::Pod("pa".to_owned()), "the answer went to {:?}", defence.to);
            is_defence(&defence.frame, owner).with_context(|| format!("{net:?}: {:02x?}", defence.frame))?;
        }
    }
    Ok(())
}

/// An advertisement to all nodes that `owner` has its address. Its option, which the receiver does not need to know that
/// its address is taken, may be missing: a switch cannot add one to a solicitation that has none.
fn is_defence(frame: &[u8], owner: u8) -> Result<()> {
    verify(frame).map_err(anyhow::Error::msg)?;
    ensure!(frame.len() == 78 || frame.len() == 86, "{} bytes", frame.len());
    let all_nodes = (([0x33, 0x33, 0, 0, 0, 1]), "ff02::1".parse::<Ipv6Addr>()?);
    let full =
        Packet::neighbour_advertisement(all_nodes, (mac(owner), ip6(owner)), mac(owner), nd_flags::OVERRIDE)
            .build();
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

/// Somebody may answer of whom nobody told us.
pub(crate) fn unknown_addresses_are_asked_everywhere<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for question in asks(1, NOBODY) {
            let expected = net.to_other_nodes(&question).into_iter().chain([to_pod("pb", &question)]);
            world.sends(&pod("pa"), &question, expected)?;
        }
    }
    Ok(())
}

/// For pods here the node answers; for others their nodes do, and here they are heard as what they are.
pub(crate) fn the_outside_is_answered_for_local_pods<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Proxy)?;
        for (question, answer) in asks(12, 2).iter().zip(&answers(12, 2)) {
            let frame = net.on_wire(&question.build());
            let expected = if world.differs(Difference::LetsPodsAnswerOutside) {
                ["pa", "pb"].map(|port| to_pod(port, question)).to_vec()
            } else {
                vec![net.to_node(1, answer)]
            };
            world.sends_bytes(&net.outside(1), &frame, expected)?;
        }
        for target in [11, NOBODY] {
            for question in asks(12, target) {
                let frame = net.on_wire(&question.build());
                let expected = ["pa", "pb"].map(|port| to_pod(port, &question));
                world.sends_bytes(&net.outside(1), &frame, expected)?;
            }
        }
    }
    Ok(())
}

/// Without proxy everybody is asked, as on a cable.
pub(crate) fn questions_are_flooded_in_flood_mode<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net, ArpMode::Flood)?;
        for target in [1, 2, 11, NOBODY] {
            for question in asks(1, target) {
                let expected = net.to_other_nodes(&question).into_iter().chain([to_pod("pb", &question)]);
                world.sends(&pod("pa"), &question, expected)?;
            }
        }
        for question in asks(11, 1) {
            let frame = net.on_wire(&question.build());
            let expected = ["pa", "pb"].map(|port| to_pod(port, &question));
            world.sends_bytes(&net.outside(0), &frame, expected)?;
        }
        // The answers are ordinary frames.
        let [reply, advertisement] = answers(1, 2);
        for answer in [reply, advertisement] {
            world.sends(&pod("pb"), &answer, [to_pod("pa", &answer)])?;
        }
    }
    Ok(())
}

/// For other scenarios: what tells the two modes apart.
pub(crate) fn question_and_answer(from: u8, target: u8) -> (Packet, Packet) {
    let ([question, _], [answer, _]) = (asks(from, target), answers(from, target));
    (question, answer)
}

/// For other scenarios: the objects of [`world`] without the network.
pub(crate) fn endpoints(net: &Net) -> Vec<Object> {
    let objects = [net.local("pa", 1), net.local("pb", 2), net.remote(0, 11), net.remote(1, 12)];
    peers().into_iter().chain(objects).collect()
}
