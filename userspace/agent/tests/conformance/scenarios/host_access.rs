//! Host access: pods of routed networks reach addresses in no subnet by the node's kernel.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use contiv_model::{
    policy::{Action, Direction, Peer, Rule},
    route::{NextHop, NextHops},
};
use netplugin::datapath::{
    KERNEL_MAC, Network, Object, Op, Route, RouteId,
    fake::{Delivery, Origin, Target},
    host_access::HOST_PORT,
};
use testkit::packet::{Packet, tcp_flags};

use crate::{
    harness::Harness,
    scenarios::{
        policy::{group, in_group, rule},
        routed::{A, B, End, FAR_A, FAR_B, GATEWAY, Pair, ROUTER, Routed},
    },
    topology::{pod, to_pod},
    world::World,
};

/// A host outside, and a router on the way to it.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const HOP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(172, 19, 255, 254);

/// A pod with the port of its number.
#[derive(Clone, Copy)]
struct Member {
    end: End,
    port: &'static str,
    private: Ipv4Addr,
}

const ONE: Member = Member { end: A, port: "vvport7", private: Ipv4Addr::new(172, 19, 0, 7) };
const TWO: Member = Member { end: B, port: "vvport300", private: Ipv4Addr::new(172, 19, 1, 44) };

impl Member {
    fn sends(self, to: Ipv4Addr) -> Packet {
        Packet::eth(ROUTER, self.end.mac()).ipv4(self.end.ip(), to)
    }

    /// What it sends, as the kernel receives it.
    fn leaves(self, to: Ipv4Addr) -> Packet {
        Packet::eth(KERNEL_MAC.0, self.end.mac()).ipv4(self.private, to)
    }

    fn receives(self, from: Ipv4Addr) -> Packet {
        Packet::eth(self.end.mac(), ROUTER).ipv4(from, self.end.ip())
    }

    /// What it receives, as the kernel sends it.
    fn returns(self, from: Ipv4Addr) -> Packet {
        Packet::eth(KERNEL_MAC.0, KERNEL_MAC.0).ipv4(from, self.private)
    }
}

fn to_kernel(packet: &Packet) -> Delivery {
    Delivery { to: Target::Kernel, frame: packet.build() }
}

fn route(network: &Network) -> Result<Object> {
    let id = RouteId { vrf: network.vrf.clone(), prefix: "0.0.0.0/0".parse()? };
    let next_hop = NextHop::Host { subnet: "172.19.0.0/16".parse()? };
    Ok(Object::Route(Route { id, next_hops: NextHops::from(next_hop) }))
}

fn objects() -> Result<Vec<Object>> {
    let pair = Pair::new()?;
    let endpoints = [
        pair.one.local(ONE.port, ONE.end.1),
        pair.two.local(TWO.port, TWO.end.1),
        pair.one.remote(0, FAR_A.1),
        pair.two.remote(0, FAR_B.1),
        route(&pair.one.network)?,
    ];
    let networks = pair.one.objects()?.chain(pair.two.objects()?);
    Ok(networks.chain(endpoints).chain(pair.peers()).collect())
}

fn world<H: Harness>() -> Result<World<H>> {
    World::new(objects()?)
}

/// A connection and its replies, of each kind.
fn talks<H: Harness>(world: &mut World<H>, member: Member, to: Ipv4Addr) -> Result<()> {
    type Body = fn(Packet) -> Packet;
    let kinds: [[Body; 2]; 4] = [
        [|p| p.udp(4000, 53).payload(b"odd"), |p| p.udp(53, 4000).payload(b"reply")],
        [|p| p.udp_unchecked(4001, 53), |p| p.udp_unchecked(53, 4001)],
        [
            |p| p.tcp(4000, 80, tcp_flags::SYN),
            |p| p.tcp(80, 4000, tcp_flags::SYN | tcp_flags::ACK).sequence(1000, 0),
        ],
        [|p| p.icmp_echo_request(7, 1), |p| p.icmp_echo_reply(7, 1)],
    ];
    for [there, back] in kinds {
        world.sends(&pod(member.port), &there(member.sends(to)), [to_kernel(&there(member.leaves(to)))])?;
        let arrives = to_pod(member.port, &back(member.receives(to)));
        world.sends(&Origin::Kernel, &back(member.returns(to)), [arrives])?;
    }
    Ok(())
}

pub(crate) fn packets_leave_and_return_by_the_kernel<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    for member in [ONE, TWO] {
        for to in [OUTSIDE, KERNEL] {
            talks(&mut world, member, to)?;
        }
    }
    // The kernel begins.
    let ping = |packet: Packet| packet.icmp_echo_request(9, 1);
    world.sends(&Origin::Kernel, &ping(ONE.returns(KERNEL)), [to_pod(ONE.port, &ping(ONE.receives(KERNEL)))])
}

/// Two tenants have the same addresses.
pub(crate) fn tenants_have_host_access_of_their_own<H: Harness>() -> Result<()> {
    let other = Routed::new("u", 3, 1)?;
    let more = other.objects()?.chain([other.local(TWO.port, ONE.end.1), route(&other.network)?]);
    let without = objects()?
        .into_iter()
        .filter(|object| !matches!(object, Object::Local(local) if local.port == TWO.port));
    let mut world = World::<H>::new(without.chain(more))?;
    for member in [ONE, Member { end: ONE.end, ..TWO }] {
        talks(&mut world, member, OUTSIDE)?;
    }
    Ok(())
}

pub(crate) fn errors_are_about_the_packets_of_their_receiver<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let sent = |packet: Packet| packet.udp(4000, 53).payload(b"odd");
    world.sends(&pod(ONE.port), &sent(ONE.sends(OUTSIDE)), [to_kernel(&sent(ONE.leaves(OUTSIDE)))])?;
    for (from, kind, code) in [(OUTSIDE, 3, 3), (HOP, 3, 4), (HOP, 11, 0)] {
        let error = |packet: Packet, source: Ipv4Addr| {
            let quoted = sent(Packet::bare().ipv4(source, OUTSIDE)).build();
            packet.icmp(kind, code, [0, 0, 5, 0x14]).payload(&quoted)
        };
        let arrives = error(ONE.receives(from), ONE.end.ip());
        world.sends(&Origin::Kernel, &error(ONE.returns(from), ONE.private), [to_pod(ONE.port, &arrives)])?;
    }
    // What the pod says of a packet from outside.
    let reply = |packet: Packet| packet.udp(53, 4000).payload(b"reply");
    let arrives = to_pod(ONE.port, &reply(ONE.receives(OUTSIDE)));
    world.sends(&Origin::Kernel, &reply(ONE.returns(OUTSIDE)), [arrives])?;
    let error = |packet: Packet, to: Ipv4Addr| {
        packet.icmp(3, 3, [0; 4]).payload(&reply(Packet::bare().ipv4(OUTSIDE, to)).build())
    };
    let leaves = to_kernel(&error(ONE.leaves(OUTSIDE), ONE.private));
    world.sends(&pod(ONE.port), &error(ONE.sends(OUTSIDE), ONE.end.ip()), [leaves])?;
    Ok(())
}

/// The same of packets that the kernel has begun, to pods without a group and with one.
pub(crate) fn errors_are_about_the_packets_of_the_kernel<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    for (is_grouped, port) in [(false, 4000), (true, 4001)] {
        if is_grouped {
            world.set(group(1, [])?)?;
            world.set(in_group(Pair::new()?.one.local(ONE.port, ONE.end.1), 1)?)?;
        }
        let asked = |packet: Packet| packet.udp(port, 53).payload(b"odd");
        let arrives = to_pod(ONE.port, &asked(ONE.receives(OUTSIDE)));
        world.sends(&Origin::Kernel, &asked(ONE.returns(OUTSIDE)), [arrives])?;
        let error = |packet: Packet, to: Ipv4Addr| {
            packet.icmp(3, 3, [0; 4]).payload(&asked(Packet::bare().ipv4(OUTSIDE, to)).build())
        };
        let leaves = to_kernel(&error(ONE.leaves(OUTSIDE), ONE.private));
        world.sends(&pod(ONE.port), &error(ONE.sends(OUTSIDE), ONE.end.ip()), [leaves])?;
    }
    Ok(())
}

/// Neither pods and other addresses of the tenant, nor private ones, nor those of no host.
pub(crate) fn other_destinations_are_closed<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let closed = [
        End(1, 77).ip(),
        End(2, 77).ip(),
        TWO.private,
        ONE.private,
        [172, 19, 9, 9].into(),
        [169, 254, 169, 254].into(),
        [127, 0, 0, 1].into(),
        [0, 0, 0, 1].into(),
        [240, 0, 0, 1].into(),
    ];
    for to in closed {
        world.sends(&pod(ONE.port), &ONE.sends(to).udp(4000, 53), [])?;
    }
    // To the router of IPv6 there is no way out.
    let six = Packet::eth(ROUTER, ONE.end.mac())
        .ipv6(ONE.end.ip6(), "2001:db8:ffff::1".parse::<std::net::Ipv6Addr>()?);
    world.sends(&pod(ONE.port), &six.udp(4000, 53), [])?;
    // Of the tenant's own networks nothing has changed.
    let there = ONE.sends(B.ip()).udp(4000, 53);
    let arrives = Packet::eth(B.mac(), ROUTER).ipv4(A.ip(), B.ip()).ttl(63).udp(4000, 53);
    world.sends(&pod(ONE.port), &there, [to_pod(TWO.port, &arrives)])
}

pub(crate) fn the_kernel_speaks_for_no_endpoint<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let sources = [B, FAR_A, FAR_B, End(1, 77), End(1, GATEWAY)].map(End::ip);
    for from in sources {
        world.sends(&Origin::Kernel, &ONE.returns(from).udp(53, 4000), [])?;
    }
    for unused in [[172, 19, 0, 8].into(), KERNEL, ONE.end.ip(), OUTSIDE] {
        let packet = Packet::eth(KERNEL_MAC.0, KERNEL_MAC.0).ipv4(OUTSIDE, unused).udp(53, 4000);
        world.sends(&Origin::Kernel, &packet, [])?;
    }
    let request = Packet::arp_request(KERNEL_MAC.0, KERNEL, ONE.private);
    world.sends(&Origin::Kernel, &request, [])
}

/// Rules see the address of the pod and that of the host outside.
pub(crate) fn policies_apply_to_host_access<H: Harness>() -> Result<()> {
    let pair = Pair::new()?;
    let member = in_group(pair.one.local(ONE.port, ONE.end.1), 1)?;
    let mut world = World::<H>::new(objects()?.into_iter().chain([member]))?;
    let outside = Peer::prefix(format!("{OUTSIDE}/32").parse()?);
    let deny = |direction| rule(direction, Action::Deny, 1);
    let allow = Rule { peer: outside, ..rule(Direction::Out, Action::Allow, 9)? };
    world.set(group(1, [allow, deny(Direction::Out)?, deny(Direction::In)?])?)?;
    talks(&mut world, ONE, OUTSIDE)?;
    let udp = |packet: Packet| packet.udp(4000, 54);
    world.sends(&pod(ONE.port), &udp(ONE.sends(HOP)), [])?;
    world.sends(&Origin::Kernel, &udp(ONE.returns(OUTSIDE)), [])?;
    // The rules of another pod are its own.
    world.sends(&pod(TWO.port), &udp(TWO.sends(HOP)), [to_kernel(&udp(TWO.leaves(HOP)))])?;
    world.set(group(1, [deny(Direction::Out)?])?)?;
    let known = ONE.sends(OUTSIDE).udp(4000, 53).payload(b"odd");
    world.sends(&pod(ONE.port), &known, [])
}

pub(crate) fn the_route_comes_and_goes<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    let udp = |packet: Packet| packet.udp(4000, 54);
    let out = |world: &mut World<H>, is_open: bool| {
        let copies = is_open.then(|| to_kernel(&udp(ONE.leaves(OUTSIDE))));
        world.sends(&pod(ONE.port), &udp(ONE.sends(OUTSIDE)), copies)
    };
    let route = route(&Pair::new()?.one.network)?;
    for _ in 0..2 {
        out(&mut world, true)?;
        world.apply([Op::Delete(route.id())])?;
        out(&mut world, false)?;
        world.check_in_sync()?;
        world.set(route.clone())?;
    }
    out(&mut world, true)?;
    world.node.cleanup()
}

pub(crate) fn restart_with_host_access_writes_nothing<H: Harness>() -> Result<()> {
    let mut world = world::<H>()?;
    talks(&mut world, ONE, OUTSIDE)?;
    let udp = |packet: Packet| packet.udp(53, 4000).payload(b"reply");
    let arrives = [to_pod(ONE.port, &udp(ONE.receives(OUTSIDE)))];
    world.node.restart()?;
    world.sends(&Origin::Kernel, &udp(ONE.returns(OUTSIDE)), arrives.clone())?;
    let before = world.node.writes();
    world.check_in_sync()?;
    ensure!(world.node.writes() == before, "a restart writes to the node ({HOST_PORT})");
    world.sends(&Origin::Kernel, &udp(ONE.returns(OUTSIDE)), arrives)
}
