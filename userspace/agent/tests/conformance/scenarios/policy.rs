//! Policies and net profiles: what the model's oracle says of a connection is what happens to its packets.

use anyhow::Result;
use contiv_model::{
    group::GroupNumber,
    policy::{Action, Direction, ICMP, Peer, Priority, Rule, UDP},
};
use netplugin::datapath::{Group, Object, ObjectId};
use testkit::packet::Packet;

use crate::{
    harness::Harness,
    scenarios::neighbours::question_and_answer,
    topology::{Net, ip, ip6, mac, peers, pod, to_pod, udp, udp6},
    world::World,
};

/// The groups of the pods 1 and 2 here, and of 11 elsewhere. 12, elsewhere too, is in none.
const ONE: u32 = 1;
const TWO: u32 = 2;
const ELEVEN: u32 = 11;

pub(crate) fn number(n: u32) -> Result<GroupNumber> {
    Ok(n.try_into()?)
}

pub(crate) fn in_group(object: Object, n: u32) -> Result<Object> {
    let group = Some(number(n)?);
    Ok(match object {
        Object::Local(local) => Object::Local(netplugin::datapath::Local { group, ..local }),
        Object::Remote(remote) => Object::Remote(netplugin::datapath::Remote { group, ..remote }),
        other => other,
    })
}

pub(crate) fn group(n: u32, rules: impl IntoIterator<Item = Rule>) -> Result<Object> {
    let rules = rules.into_iter().collect();
    Ok(Object::Group(Group { number: number(n)?, dscp: None, rate: None, rules }))
}

/// About everything.
pub(crate) fn rule(direction: Direction, action: Action, priority: u8) -> Result<Rule> {
    Ok(Rule {
        id: format!("{direction} {action} {priority}").as_str().into(),
        direction,
        peer: Peer::default(),
        own: None,
        protocol: None,
        port: None,
        action,
        priority: Priority::try_from(priority)?,
    })
}

fn world<H: Harness>(net: &Net) -> Result<World<H>> {
    World::new(peers().into_iter().chain([
        net.network(),
        in_group(net.local("pa", 1), ONE)?,
        in_group(net.local("pb", 2), TWO)?,
        in_group(net.remote(0, 11), ELEVEN)?,
        net.remote(0, 12),
    ]))
}

/// From one endpoint's port to another's, in both families.
fn from_to(from: (u8, u16), to: (u8, u16)) -> [Packet; 2] {
    let eth = || Packet::eth(mac(to.0), mac(from.0));
    let text = b"policies";
    [
        eth().ipv4(ip(from.0), ip(to.0)).udp(from.1, to.1).payload(text),
        eth().ipv6(ip6(from.0), ip6(to.0)).udp(from.1, to.1).payload(text),
    ]
}

impl<H: Harness> World<H> {
    fn passes(&mut self, from: (&str, u8, u16), to: (&str, u8, u16)) -> Result<()> {
        for frame in from_to((from.1, from.2), (to.1, to.2)) {
            self.sends(&pod(from.0), &frame, [to_pod(to.0, &frame)])?;
        }
        Ok(())
    }

    fn is_dropped(&mut self, from: (&str, u8, u16), to: (u8, u16)) -> Result<()> {
        from_to((from.1, from.2), to).iter().try_for_each(|frame| self.sends(&pod(from.0), frame, []))
    }
}

/// Rules out are enforced where the source lives, whether the destination is here or not; only what they are about is
/// dropped.
pub(crate) fn rules_out_hold_at_the_source<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let about = |peer, port| -> Result<Rule> {
            let deny = rule(Direction::Out, Action::Deny, 1)?;
            Ok(Rule {
                id: format!("port {port}").as_str().into(),
                peer: Peer { group: Some(number(peer)?), subnet: None },
                protocol: Some(UDP),
                port: Some(port),
                ..deny
            })
        };
        world.set(group(ONE, [about(TWO, 5000)?, about(ELEVEN, 5001)?])?)?;
        world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        world.passes(("pa", 1, 4001), ("pb", 2, 5001))?;
        world.is_dropped(("pa", 1, 4002), (11, 5001))?;
        for frame in from_to((1, 4003), (11, 5000)) {
            world.sends(&pod("pa"), &frame, [net.to_node(0, &frame)])?;
        }
        // The other group is free.
        world.passes(("pb", 2, 4000), ("pa", 1, 5000))?;
        world.in_place()?;
    }
    Ok(())
}

/// Rules in are enforced where the destination lives, also for what comes from other nodes and from nobody.
pub(crate) fn rules_in_hold_at_the_destination<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let friends = Rule {
            peer: Peer { group: Some(number(ELEVEN)?), subnet: None },
            ..rule(Direction::In, Action::Allow, 2)?
        };
        world.set(group(ONE, [rule(Direction::In, Action::Deny, 1)?, friends])?)?;
        world.is_dropped(("pb", 2, 4000), (1, 5000))?;
        for (from, passes) in [(11, true), (12, false), (99, false)] {
            for frame in from_to((from, 4000), (1, 5000)) {
                let expected = passes.then(|| to_pod("pa", &frame));
                world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), expected)?;
            }
        }
        let frame = udp(12, 2, "to a group without rules");
        world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), [to_pod("pb", &frame)])?;
    }
    Ok(())
}

/// Who may ask is answered, by the one who was asked and at the port that asked.
pub(crate) fn answers_pass<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(group(ONE, [rule(Direction::In, Action::Deny, 100)?])?)?;
        world.set(group(TWO, [rule(Direction::Out, Action::Deny, 100)?])?)?;
        world.is_dropped(("pb", 2, 5000), (1, 4000))?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.passes(("pb", 2, 5000), ("pa", 1, 4000))?;
        world.is_dropped(("pb", 2, 5000), (1, 4001))?;
        world.is_dropped(("pb", 2, 5001), (1, 4000))?;
        for frame in from_to((1, 4000), (11, 5000)) {
            world.sends(&pod("pa"), &frame, [net.to_node(0, &frame)])?;
        }
        for frame in from_to((11, 5000), (1, 4000)) {
            world.sends_bytes(&net.outside(0), &net.on_wire(&frame.build()), [to_pod("pa", &frame)])?;
        }
    }
    Ok(())
}

/// A change of the rules is in force at once, for connections that are there as for new ones; and when the rules are gone,
/// everything passes.
pub(crate) fn a_change_is_in_force_at_once<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        let deny = rule(Direction::In, Action::Deny, 5)?;
        world.set(group(TWO, [deny.clone()])?)?;
        world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        let allow = Rule { port: Some(5000), protocol: Some(UDP), ..rule(Direction::In, Action::Allow, 6)? };
        world.set(group(TWO, [deny.clone(), allow])?)?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.is_dropped(("pa", 1, 4000), (2, 5001))?;
        world.set(group(TWO, [deny])?)?;
        world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        world.delete(ObjectId::Group(number(TWO)?))?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.in_place()?;
    }
    Ok(())
}

/// Of several rules that match, the highest priority decides; at one priority, what denies.
pub(crate) fn the_highest_priority_decides<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let of = |action, priority| rule(Direction::In, action, priority);
    for (rules, passes) in [
        ([of(Action::Allow, 2)?, of(Action::Deny, 1)?], true),
        ([of(Action::Allow, 1)?, of(Action::Deny, 2)?], false),
        ([of(Action::Allow, 3)?, of(Action::Deny, 3)?], false),
        ([of(Action::Deny, 99)?, of(Action::Allow, 100)?], true),
    ] {
        world.set(group(TWO, rules)?)?;
        if passes {
            world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        } else {
            world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        }
    }
    Ok(())
}

/// Rules about subnets and about single endpoints of the group, in both families.
pub(crate) fn addresses_count<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let deny = rule(Direction::In, Action::Deny, 1)?;
    let from = |subnet: &str| -> Result<Rule> {
        let peer = Peer { group: None, subnet: Some(subnet.parse()?) };
        Ok(Rule { id: subnet.into(), peer, ..deny.clone() })
    };
    world.set(group(TWO, [from("10.7.0.0/31")?, from("2001:db8:7::/127")?])?)?;
    world.is_dropped(("pa", 1, 4000), (2, 5000))?;
    world.set(group(TWO, [from("10.7.0.2/31")?, from("2001:db8:7::2/127")?])?)?;
    world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
    // Only one family.
    world.set(group(TWO, [from("10.7.0.0/24")?])?)?;
    world.sends(&pod("pa"), &udp(1, 2, "four"), [])?;
    let six = udp6(1, 2, "six");
    world.sends(&pod("pa"), &six, [to_pod("pb", &six)])?;
    let mine = |address: &str| -> Result<Rule> {
        Ok(Rule { id: address.into(), own: Some(address.parse()?), ..deny.clone() })
    };
    world.set(group(TWO, [mine("10.7.0.3/32")?, mine("2001:db8:7::3/128")?])?)?;
    world.passes(("pa", 1, 4100), ("pb", 2, 5000))?;
    world.set(group(TWO, [mine("10.7.0.2/32")?, mine("2001:db8:7::2/128")?])?)?;
    world.is_dropped(("pa", 1, 4200), (2, 5000))
}

/// A rule about ICMP is about that of both families.
pub(crate) fn icmp_is_of_both_families<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let eth = || Packet::eth(mac(2), mac(1));
    let pings = [
        eth().ipv4(ip(1), ip(2)).icmp_echo_request(7, 1).payload(b"ping"),
        eth().ipv6(ip6(1), ip6(2)).icmpv6_echo_request(7, 1).payload(b"ping"),
    ];
    let icmp = Rule { protocol: Some(ICMP), ..rule(Direction::Out, Action::Deny, 1)? };
    world.set(group(ONE, [icmp])?)?;
    for ping in &pings {
        world.sends(&pod("pa"), ping, [])?;
    }
    world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
    world.delete(ObjectId::Group(number(ONE)?))?;
    for ping in &pings {
        world.sends(&pod("pa"), ping, [to_pod("pb", ping)])?;
    }
    Ok(())
}

/// A pod that may talk to nobody is still told where everybody is; and what goes to an Ethernet address of many is no
/// way round a policy.
pub(crate) fn neighbours_are_found_whatever_the_policy<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let shut = [rule(Direction::In, Action::Deny, 1)?, rule(Direction::Out, Action::Deny, 1)?];
    world.set(group(ONE, shut)?)?;
    let (question, answer) = question_and_answer(1, 2);
    world.sends(&pod("pa"), &question, [to_pod("pa", &answer)])?;
    let (question, answer) = question_and_answer(2, 1);
    world.sends(&pod("pb"), &question, [to_pod("pb", &answer)])?;
    let round = Packet::eth(testkit::packet::BROADCAST, mac(2)).ipv4(ip(2), ip(1)).udp(4000, 5000);
    world.sends(&pod("pb"), &round, [])
}

/// Packets of a group are marked with its class, of both families and in the outer header; those of others are as they
/// were.
pub(crate) fn packets_are_marked<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let Object::Group(plain) = group(ONE, [])? else { unreachable!() };
        world.set(Object::Group(Group { dscp: Some(46.try_into()?), ..plain }))?;
        for (frame, marked) in from_to((1, 4000), (2, 5000)).into_iter().zip(from_to((1, 4000), (2, 5000))) {
            world.sends(&pod("pa"), &frame, [to_pod("pb", &marked.dscp(46))])?;
        }
        for frame in from_to((1, 4000), (11, 5000)) {
            let marked = frame.clone().dscp(46);
            world.sends(&pod("pa"), &frame.dscp(8), [net.to_node_with(0, &marked, 46)])?;
        }
        for frame in from_to((2, 5000), (1, 4000)) {
            let eight = frame.dscp(8);
            world.sends(&pod("pb"), &eight, [to_pod("pa", &eight)])?;
        }
        world.in_place()?;
    }
    Ok(())
}
