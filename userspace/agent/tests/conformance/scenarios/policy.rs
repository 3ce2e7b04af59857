//! Policies and net profiles: packets are treated as the oracle of the model decides.

use std::net::{IpAddr, Ipv6Addr};

use anyhow::{Result, ensure};
use contiv_model::{
    mac::Mac,
    policy::{Action, Direction, ICMP, Identity, Peer, Rule, UDP},
    tag::Encap,
};
use ipnet::IpNet;
use netplugin::datapath::{Group, Object, ObjectId};
use testkit::packet::Packet;

use crate::{
    harness::Harness,
    scenarios::neighbours::request_and_reply,
    topology::{Net, ip, ip6, mac, peers, pod, to_pod, udp, udp6},
    world::World,
};

/// Groups of the local pods 1 and 2, and of the remote pod 11. The remote pod 12 has no group.
const ONE: u32 = 1;
const TWO: u32 = 2;
const ELEVEN: u32 = 11;

pub(crate) fn number(n: u32) -> Result<Identity> {
    Ok(n.try_into()?)
}

pub(crate) fn in_group(object: Object, n: u32) -> Result<Object> {
    let identity = Some(number(n)?);
    Ok(match object {
        Object::Local(local) => Object::Local(netplugin::datapath::Local { identity, ..local }),
        Object::Remote(remote) => Object::Remote(netplugin::datapath::Remote { identity, ..remote }),
        other => other,
    })
}

pub(crate) fn group(n: u32, rules: impl IntoIterator<Item = Rule>) -> Result<Object> {
    Ok(Object::Group(Group::new(number(n)?, rules.into_iter().collect::<Vec<_>>())))
}

/// Returns a rule that matches all traffic.
pub(crate) fn rule(direction: Direction, action: Action, priority: u8) -> Result<Rule> {
    let id = format!("{direction} {action} {priority}");
    Ok(Rule::new(id, direction, action, priority.try_into()?))
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

/// Datagrams from one endpoint and port to another, IPv4 and IPv6.
pub(crate) fn from_to(from: (u8, u16), to: (u8, u16)) -> [Packet; 2] {
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

/// Outgoing rules are enforced at the source, for local and remote destinations. Other traffic passes.
pub(crate) fn rules_out_hold_at_the_source<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let about = |peer, port: u16| -> Result<Rule> {
            let deny = rule(Direction::Out, Action::Deny, 1)?;
            Ok(Rule {
                id: format!("port {port}").as_str().into(),
                peer: Peer::identity(number(peer)?),
                protocol: Some(UDP),
                ports: Some(port.into()),
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
        // The other group has no rules.
        world.passes(("pb", 2, 4000), ("pa", 1, 5000))?;
        world.check_in_sync()?;
    }
    Ok(())
}

/// A flow to an address without a record goes on to no endpoint whose Ethernet address the sender puts in.
pub(crate) fn flows_to_strangers_reach_no_endpoint<H: Harness>() -> Result<()> {
    const STRANGER: u8 = 99;
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let about = |peer: u32| -> Result<Rule> {
            Ok(Rule { peer: Peer::identity(number(peer)?), ..rule(Direction::Out, Action::Deny, 1)? })
        };
        world.set(group(ONE, [about(TWO)?, about(ELEVEN)?])?)?;
        let to = |station: u8, port: u16| {
            let eth = || Packet::eth(mac(station), mac(1));
            let v4 = eth().ipv4(ip(1), ip(STRANGER)).udp(port, 5000).payload(b"to a stranger");
            let v6 = eth().ipv6(ip6(1), ip6(STRANGER)).udp(port, 5000).payload(b"to a stranger");
            [v4, v6]
        };
        for (station, port) in [(2, 4000), (11, 4001)] {
            for frame in to(station, port) {
                world.sends(&pod("pa"), &frame, [])?;
            }
            for (opening, frame) in to(STRANGER, port + 10).iter().zip(to(station, port + 10)) {
                let came = world.outcome(&pod("pa"), &opening.build())?;
                // Tunnels get no copy, since the rules name groups.
                let is_sent = came.contains(&net.to_node(0, opening));
                ensure!(is_sent == matches!(net.encap, Encap::Vlan(_)), "{net:?}: {came:?}");
                world.sends(&pod("pa"), &frame, [])?;
                world.sends(&pod("pa"), &frame, [])?;
            }
        }
    }
    Ok(())
}

/// A flow that may go to an endpoint goes on to no other station whose Ethernet address the sender puts in.
pub(crate) fn flows_of_endpoints_reach_no_strangers<H: Harness>() -> Result<()> {
    const STRANGER: u8 = 99;
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let to = |peer: u32| -> Result<Rule> {
            Ok(Rule { peer: Peer::identity(number(peer)?), ..rule(Direction::Out, Action::Allow, 2)? })
        };
        world.set(group(ONE, [to(TWO)?, to(ELEVEN)?, rule(Direction::Out, Action::Deny, 1)?])?)?;
        for (station, port) in [(2, 4000), (11, 4001)] {
            let by = |station: u8, port: u16| {
                let eth = || Packet::eth(mac(station), mac(1));
                let v4 = eth().ipv4(ip(1), ip(STRANGER)).udp(port, 5000).payload(b"to a stranger");
                let v6 = eth().ipv6(ip6(1), ip6(STRANGER)).udp(port, 5000).payload(b"to a stranger");
                [v4, v6]
            };
            for (to_endpoint, to_stranger) in by(station, port).iter().zip(by(STRANGER, port)) {
                world.sends(&pod("pa"), &to_stranger, [])?;
                let arrives =
                    if station == 2 { to_pod("pb", to_endpoint) } else { net.to_node(0, to_endpoint) };
                world.sends(&pod("pa"), to_endpoint, [arrives])?;
                world.sends(&pod("pa"), &to_stranger, [])?;
                world.sends(&pod("pa"), &to_stranger, [])?;
            }
        }
    }
    Ok(())
}

/// An address passes from an endpoint on another node to a pod without a group: what rules allow the first one is denied to it.
pub(crate) fn an_address_comes_without_its_group<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let friends =
            Rule { peer: Peer::identity(number(ELEVEN)?), ..rule(Direction::In, Action::Allow, 2)? };
        let only_to_friends =
            Rule { peer: Peer::identity(number(ELEVEN)?), ..rule(Direction::Out, Action::Allow, 2)? };
        let rules = [
            rule(Direction::In, Action::Deny, 1)?,
            friends,
            rule(Direction::Out, Action::Deny, 1)?,
            only_to_friends,
        ];
        world.set(group(ONE, rules)?)?;
        let (from, to) = (from_to((11, 4000), (1, 5000)), from_to((1, 4001), (11, 5000)));
        for (from, to) in from.iter().zip(&to) {
            world.sends_bytes(&net.outside(0), &net.on_wire(&from.build()), [to_pod("pa", from)])?;
            world.sends(&pod("pa"), to, [net.to_node(0, to)])?;
        }
        world.delete(net.remote(0, 11).id())?;
        world.node.plug("pc")?;
        world.set(net.local("pc", 11))?;
        for (from, to) in from.iter().zip(&to) {
            for _ in 0..2 {
                world.sends(&pod("pc"), from, [])?;
                world.sends(&pod("pa"), to, [])?;
            }
        }
    }
    Ok(())
}

/// Incoming rules are enforced at the destination, also for traffic from other nodes and from unknown addresses.
pub(crate) fn rules_in_hold_at_the_destination<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        let friends =
            Rule { peer: Peer::identity(number(ELEVEN)?), ..rule(Direction::In, Action::Allow, 2)? };
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

/// Replies of an allowed connection pass, and only those.
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

/// An ICMP error from one endpoint to another about a packet.
fn error(from: u8, to: u8, quoted: &Packet) -> Packet {
    let (bytes, eth) = (quoted.build(), Packet::eth(mac(to), mac(from)));
    let error = match bytes[12] {
        0x08 => eth.ipv4(ip(from), ip(to)).icmp(3, 3, [0; 4]),
        _ => eth.ipv6(ip6(from), ip6(to)).icmpv6(1, 4, [0; 4]),
    };
    error.payload(&bytes[14..])
}

/// ICMP errors about packets of a connection and about replies pass between its ends, as long as the connection does.
pub(crate) fn errors_belong_to_their_connection<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(group(ONE, [rule(Direction::In, Action::Deny, 100)?])?)?;
        world.set(group(TWO, [rule(Direction::Out, Action::Deny, 100)?])?)?;
        let (there, back) = (from_to((1, 4000), (2, 5000)), from_to((2, 5000), (1, 4000)));
        for error in back.iter().map(|reply| error(1, 2, reply)) {
            world.sends(&pod("pa"), &error, [])?;
        }
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.passes(("pb", 2, 5000), ("pa", 1, 4000))?;
        for (packet, reply) in there.iter().zip(&back) {
            let (about_packet, about_reply) = (error(2, 1, packet), error(1, 2, reply));
            world.sends(&pod("pb"), &about_packet, [to_pod("pa", &about_packet)])?;
            world.sends(&pod("pa"), &about_reply, [to_pod("pb", &about_reply)])?;
            // Neither end has sent what these quote to the third endpoint.
            for foreign in [error(11, 2, reply), error(11, 1, packet)] {
                world.sends_bytes(&net.outside(0), &net.on_wire(&foreign.build()), [])?;
            }
        }
        let port =
            Rule { protocol: Some(UDP), ports: Some(5000.into()), ..rule(Direction::In, Action::Deny, 100)? };
        world.set(group(TWO, [port])?)?;
        for error in back.iter().map(|reply| error(1, 2, reply)) {
            world.sends(&pod("pa"), &error, [])?;
        }
        for error in there.iter().map(|packet| error(2, 1, packet)) {
            world.sends(&pod("pb"), &error, [])?;
        }
    }
    Ok(())
}

/// A change of the rules applies at once, to established and new connections. Without rules everything passes.
pub(crate) fn a_change_is_in_force_at_once<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        let deny = rule(Direction::In, Action::Deny, 5)?;
        world.set(group(TWO, [deny.clone()])?)?;
        world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        let allow =
            Rule { ports: Some(5000.into()), protocol: Some(UDP), ..rule(Direction::In, Action::Allow, 6)? };
        world.set(group(TWO, [deny.clone(), allow])?)?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.is_dropped(("pa", 1, 4000), (2, 5001))?;
        world.set(group(TWO, [deny])?)?;
        world.is_dropped(("pa", 1, 4000), (2, 5000))?;
        world.delete(ObjectId::Group(number(TWO)?))?;
        world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
        world.check_in_sync()?;
    }
    Ok(())
}

/// The matching rule with the highest priority decides; at equal priority deny wins.
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

/// Rules with subnets and single addresses, IPv4 and IPv6.
pub(crate) fn rules_match_addresses<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let deny = rule(Direction::In, Action::Deny, 1)?;
    let from = |subnet: &str| -> Result<Rule> {
        let peer = Peer::prefix(subnet.parse()?);
        Ok(Rule { id: subnet.into(), peer, ..deny.clone() })
    };
    world.set(group(TWO, [from("10.7.0.0/31")?, from("2001:db8:7::/127")?])?)?;
    world.is_dropped(("pa", 1, 4000), (2, 5000))?;
    world.set(group(TWO, [from("10.7.0.2/31")?, from("2001:db8:7::2/127")?])?)?;
    world.passes(("pa", 1, 4000), ("pb", 2, 5000))?;
    // A subnet of one family.
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

/// Rules about addresses apply to what a pod without an IPv6 address receives by IPv6: by its link-local address.
pub(crate) fn rules_match_link_local_addresses_in_groups<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let here = match in_group(net.local("pb", 2), TWO)? {
            Object::Local(local) => {
                Object::Local(netplugin::datapath::Local { addresses: ip(2).into(), ..local })
            }
            other => other,
        };
        let pods = [in_group(net.local("pa", 1), ONE)?, here, net.local("pc", 3)];
        let mut world: World<H> = World::new(peers().into_iter().chain([net.network()]).chain(pods))?;
        let link_local = IpNet::from(IpAddr::from(Mac(mac(2)).link_local()));
        let frame = Packet::eth([0x33, 0x33, 0, 0, 0, 0xfb], mac(1))
            .ipv6(ip6(1), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xfb))
            .udp(5353, 5353)
            .payload(b"multicast");
        let elsewhere = || net.to_other_nodes(&frame).into_iter();
        let to = |port: &str| to_pod(port, &frame);
        world.sends(&pod("pa"), &frame, elsewhere().chain([to("pb"), to("pc")]))?;

        let mine = Rule { own: Some(link_local), ..rule(Direction::In, Action::Deny, 1)? };
        world.set(group(TWO, [mine])?)?;
        world.sends(&pod("pa"), &frame, elsewhere().chain([to("pc")]))?;

        world.set(group(TWO, [])?)?;
        let peer = Peer::prefix(link_local);
        // The receivers on other nodes are not known.
        world.set(group(ONE, [Rule { peer, ..rule(Direction::Out, Action::Deny, 1)? }])?)?;
        world.sends(&pod("pa"), &frame, [to("pc")])?;
    }
    Ok(())
}

/// A rule for ICMP applies to ICMP and ICMPv6.
pub(crate) fn icmp_rules_match_both_families<H: Harness>() -> Result<()> {
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

/// A pod whose rules deny all traffic still gets ARP and ND replies. Policies apply to multicast Ethernet destinations.
pub(crate) fn policies_do_not_apply_to_neighbour_discovery<H: Harness>() -> Result<()> {
    let net = Net::vxlan(1)?;
    let mut world = world::<H>(&net)?;
    let shut = [rule(Direction::In, Action::Deny, 1)?, rule(Direction::Out, Action::Deny, 1)?];
    world.set(group(ONE, shut)?)?;
    let (request, reply) = request_and_reply(1, 2);
    world.sends(&pod("pa"), &request, [to_pod("pa", &reply)])?;
    let (request, reply) = request_and_reply(2, 1);
    world.sends(&pod("pb"), &request, [to_pod("pb", &reply)])?;
    let round = Packet::eth(testkit::packet::BROADCAST, mac(2)).ipv4(ip(2), ip(1)).udp(4000, 5000);
    world.sends(&pod("pb"), &round, [])
}

/// A solicitation that routers would have forwarded is none (RFC 4861, section 7.1.1), and rules apply to it as to other ICMP.
pub(crate) fn rules_apply_to_solicitations_from_afar<H: Harness>() -> Result<()> {
    for net in Net::kinds()? {
        let mut world = world::<H>(&net)?;
        world.set(group(ONE, [rule(Direction::Out, Action::Deny, 1)?])?)?;
        for target in [2, 99] {
            let packet = Packet::eth(mac(2), mac(1)).ipv6(ip6(1), ip6(2)).ttl(64);
            let solicitation = packet.icmpv6(135, 0, [0; 4]).payload(&ip6(target).octets());
            world.sends(&pod("pa"), &solicitation, [])?;
        }
    }
    Ok(())
}

/// Packets of a group get its DSCP, IPv4 and IPv6, also in the outer header. Packets of other groups, and neighbour discovery, are
/// unchanged.
pub(crate) fn packets_get_the_dscp_of_their_group<H: Harness>() -> Result<()> {
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
        let solicitation = Packet::neighbour_solicitation(mac(1), ip6(1), ip6(99));
        let copies = net.to_other_nodes(&solicitation).into_iter().chain([to_pod("pb", &solicitation)]);
        world.sends(&pod("pa"), &solicitation, copies)?;
        world.check_in_sync()?;
    }
    Ok(())
}
