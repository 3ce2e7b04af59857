//! Host access: pods reach addresses outside of the cluster by the node's kernel, and only those.

use std::net::Ipv4Addr;

use anyhow::{Result, ensure};
use contiv_abi::{
    DropReason, Flow, KERNEL_MAC,
    maps::{FROM_HOST, FROM_POD},
};
use contiv_model::{
    policy::{Action, Direction, Peer, Rule, TCP},
    route::{NextHop, NextHops},
};
use ipnet::IpNet;
use netplugin::datapath::{
    Backend, Datapath as _, Local, Object, Op, Route, RouteId, Scope, Service, ebpf::Options,
    host_access::HOST_PORT,
};
use nix::errno::Errno;
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
};

use crate::{
    flow_table::flows,
    node::Endpoint,
    policy::{group, number, rule},
    routing::{HERE, OTHER, ROUTER, Rig, TTL, UNUSED, sent},
    run::{Code, Outcome, Target, run},
    services::service,
};

/// A host outside, and a router on the way to it.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 9);
const HOP: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// Of the pod at `vvport1`.
const PRIVATE: Ipv4Addr = Ipv4Addr::new(172, 19, 0, 1);
const PEER: &str = "contivh0-peer";

fn route(rig: &Rig) -> Route {
    let id = RouteId { vrf: rig.networks[0].vrf.clone(), prefix: "0.0.0.0/0".parse().unwrap() };
    let subnet = "172.19.0.0/16".parse().unwrap();
    Route { id, next_hops: NextHops::from(NextHop::Host { subnet }) }
}

fn rig(label: &str) -> Result<Rig> {
    rig_with(label, |_| {})
}

fn rig_with(label: &str, adjust: impl FnOnce(&mut Options)) -> Result<Rig> {
    let mut rig = Rig::with(label, adjust)?;
    let route = route(&rig);
    rig.node.want(Object::Route(route));
    rig.node.converge()?;
    assert_eq!(rig.here.local.port, "vvport1");
    Ok(rig)
}

fn by_kernel(rig: &Rig, frame: &Packet) -> Result<Outcome> {
    run(&rig.node, FROM_HOST, PEER, &frame.build())
}

/// As the kernel receives it.
fn leaves(to: Ipv4Addr) -> Packet {
    Packet::eth(KERNEL_MAC, HERE.mac()).ipv4(PRIVATE, to)
}

/// As the kernel sends it.
fn returns(from: Ipv4Addr) -> Packet {
    Packet::eth(KERNEL_MAC, KERNEL_MAC).ipv4(from, PRIVATE)
}

fn arrives(from: Ipv4Addr) -> Packet {
    Packet::eth(HERE.mac(), ROUTER).ipv4(from, HERE.ip())
}

#[track_caller]
fn assert_becomes(outcome: Outcome, frame: &Packet) {
    assert_eq!((outcome.code, outcome.bytes), (Code::Redirect, frame.build()));
    assert_eq!(outcome.dropped, []);
}

#[test]
fn a_connection_leaves_by_the_kernel_and_is_one_flow() -> Result<()> {
    needs!(root());
    let rig = rig("ha-flow")?;
    const SYN: u8 = tcp_flags::SYN;
    const ACK: u8 = tcp_flags::ACK;
    for flags in [SYN, ACK, ACK] {
        let outcome = rig.by_here(&sent(HERE, OUTSIDE).tcp(4000, 80, flags))?;
        assert_becomes(outcome, &leaves(OUTSIDE).tcp(4000, 80, flags));
        let answer = flags & SYN | ACK;
        let outcome = by_kernel(&rig, &returns(OUTSIDE).ttl(TTL - 2).tcp(80, 4000, answer))?;
        assert_becomes(outcome, &arrives(OUTSIDE).ttl(TTL - 2).tcp(80, 4000, answer));
    }
    let flows = flows(&rig.node)?;
    assert!(flows.len() == 1 && flows.iter().all(Flow::is_replied), "{flows:?}");
    Ok(())
}

/// The kernel would keep a connection that no flow counts.
#[test]
fn a_connection_over_the_quota_does_not_leave_by_the_kernel() -> Result<()> {
    needs!(root());
    let rig = rig_with("ha-quota", |options| options.flows = 1)?;
    let connection = |from, flags| {
        let outcome = rig.by_here(&sent(HERE, OUTSIDE).tcp(from, 80, flags))?;
        anyhow::Ok((outcome, leaves(OUTSIDE).tcp(from, 80, flags)))
    };
    let (opened, expected) = connection(4000, tcp_flags::SYN)?;
    assert_becomes(opened, &expected);
    let answer = tcp_flags::SYN | tcp_flags::ACK;
    by_kernel(&rig, &returns(OUTSIDE).tcp(80, 4000, answer))?;
    let (acknowledged, expected) = connection(4000, tcp_flags::ACK)?;
    assert_becomes(acknowledged, &expected);
    for flags in [tcp_flags::SYN, tcp_flags::ACK] {
        connection(4001, flags)?.0.assert_dropped(DropReason::NotTracked);
    }
    rig.by_here(&sent(HERE, OUTSIDE).udp(4000, 53))?.assert_dropped(DropReason::NotTracked);
    let (continued, expected) = connection(4000, tcp_flags::ACK)?;
    assert_becomes(continued, &expected);
    // What goes to another pod needs no flow.
    let there = Packet::eth(OTHER.mac(), ROUTER).ipv4(HERE.ip(), OTHER.ip()).ttl(TTL - 1);
    assert_becomes(rig.by_here(&sent(HERE, OTHER.ip()).udp(4000, 53))?, &there.udp(4000, 53));
    Ok(())
}

/// With and without ports and checksums, with options and in pieces.
#[test]
fn packets_of_all_kinds_leave_and_return() -> Result<()> {
    needs!(root());
    let rig = rig("ha-kinds")?;
    let kinds: [fn(Packet) -> Packet; 6] = [
        |packet| packet.udp(4000, 53).payload(b"odd"),
        |packet| packet.udp_unchecked(4000, 54),
        |packet| packet.icmp_echo_request(1, 1).payload(b"ping"),
        |packet| packet.ip_options(&[1, 1, 1, 1]).tcp(4000, 80, tcp_flags::SYN),
        |packet| packet.protocol(132).payload(&[0x0f, 0xa0, 0, 80, 1, 2, 3, 4, 5, 6, 7, 8]),
        |packet| packet.udp(4000, 53).payload(&[1; 64]).fragment(7, 0, true),
    ];
    let later = |packet: Packet| packet.protocol(17).payload(&[2; 64]).fragment(7, 72, false);
    for kind in kinds.iter().copied().chain([later as fn(Packet) -> Packet]) {
        assert_becomes(rig.by_here(&kind(sent(HERE, OUTSIDE)))?, &kind(leaves(OUTSIDE)));
        assert_becomes(by_kernel(&rig, &kind(returns(OUTSIDE)))?, &kind(arrives(OUTSIDE)));
    }
    Ok(())
}

/// The kernel itself reaches pods, too.
#[test]
fn the_kernel_reaches_pods_by_their_private_addresses() -> Result<()> {
    needs!(root());
    let rig = rig("ha-kernel")?;
    let kernel = Ipv4Addr::new(172, 19, 255, 254);
    let outcome = by_kernel(&rig, &returns(kernel).icmp_echo_request(1, 1))?;
    assert_becomes(outcome, &arrives(kernel).icmp_echo_request(1, 1));
    let outcome = rig.by_here(&sent(HERE, kernel).icmp_echo_reply(1, 1))?;
    assert_becomes(outcome, &leaves(kernel).icmp_echo_reply(1, 1));
    Ok(())
}

#[test]
fn errors_from_outside_quote_the_own_address() -> Result<()> {
    needs!(root());
    let rig = rig("ha-errors")?;
    rig.by_here(&sent(HERE, OUTSIDE).udp(4000, 53).payload(b"odd"))?;
    let quote = |from: Ipv4Addr| Packet::bare().ipv4(from, OUTSIDE).ttl(1).udp(4000, 53).payload(b"odd");
    for (from, kind, code) in [(OUTSIDE, 3, 3), (HOP, 3, 4), (HOP, 11, 0)] {
        let error = |packet: Packet, quoted: Ipv4Addr| {
            packet.icmp(kind, code, [0, 0, 5, 0x14]).payload(&quote(quoted).build())
        };
        let outcome = by_kernel(&rig, &error(returns(from), PRIVATE))?;
        assert_becomes(outcome, &error(arrives(from), HERE.ip()));
    }
    // What the pod says of a packet from outside.
    let quote = |to: Ipv4Addr| Packet::bare().ipv4(OUTSIDE, to).udp(53, 4000).payload(b"odd").build();
    by_kernel(&rig, &returns(OUTSIDE).udp(53, 4000).payload(b"odd"))?;
    let outcome = rig.by_here(&sent(HERE, OUTSIDE).icmp(3, 3, [0; 4]).payload(&quote(HERE.ip())))?;
    assert_becomes(outcome, &leaves(OUTSIDE).icmp(3, 3, [0; 4]).payload(&quote(PRIVATE)));
    // Not about a packet of this pod, of no connection, and without enough of it.
    let other = Packet::bare().ipv4(Ipv4Addr::new(172, 19, 0, 2), OUTSIDE).udp(4000, 53).build();
    let unknown = Packet::bare().ipv4(PRIVATE, OUTSIDE).udp(4001, 53).build();
    for quoted in [&other[..], &unknown, &unknown[..20]] {
        let error = returns(HOP).icmp(3, 3, [0; 4]).payload(quoted);
        by_kernel(&rig, &error)?.assert_dropped(DropReason::UnrelatedIcmpError);
    }
    Ok(())
}

#[test]
fn other_addresses_are_not_reached() -> Result<()> {
    needs!(root());
    let mut rig = rig("ha-closed")?;
    let groups = ["224.0.0.1", "255.255.255.255"].map(|ip| ip.parse::<Ipv4Addr>().unwrap());
    for to in groups {
        rig.by_here(&sent(HERE, to).udp(4000, 5000))?.assert_dropped(DropReason::AddressMismatch);
    }
    let closed = ["0.0.0.1", "127.0.0.1", "169.254.169.254", "172.19.0.2"];
    let closed = closed.map(|ip| ip.parse().unwrap()).into_iter().chain([UNUSED.ip(), PRIVATE]);
    for to in closed {
        rig.by_here(&sent(HERE, to).udp(4000, 5000))?.assert_dropped(DropReason::NoRoute);
    }
    rig.by_here(&sent(HERE, OUTSIDE).ttl(1).udp(4000, 5000))?;
    let six = Packet::eth(ROUTER, HERE.mac()).ipv6(HERE.ip6(), "2001:db8::9".parse::<std::net::Ipv6Addr>()?);
    rig.by_here(&six.udp(4000, 5000))?.assert_dropped(DropReason::NoRoute);
    // To another Ethernet address than the router's it is a frame of the network.
    let bridged = Packet::eth([2, 0, 0, 0, 0, 9], HERE.mac()).ipv4(HERE.ip(), OUTSIDE).udp(4000, 5000);
    let outcome = rig.by_here(&bridged)?;
    assert!(outcome.code == Code::Shot && outcome.dropped.is_empty(), "{outcome:?}");
    // The address of a service without a port of this number.
    let vip = Ipv4Addr::new(198, 51, 100, 9);
    let backends = vec![Backend::on(rig.networks[1].encap, OTHER.ip())];
    let scope = Scope::vrf(rig.networks[0].vrf.clone());
    rig.node.want(Object::Service(Service { backends, scope, ..service(vip.into(), &[]) }));
    rig.node.converge()?;
    rig.by_here(&sent(HERE, vip).icmp_echo_request(1, 1))?.assert_dropped(DropReason::NoService);
    let outcome = rig.by_here(&sent(HERE, vip).tcp(4000, 80, tcp_flags::SYN))?;
    let there = Packet::eth(OTHER.mac(), ROUTER).ipv4(HERE.ip(), OTHER.ip()).ttl(TTL - 1);
    assert_becomes(outcome, &there.tcp(4000, 8080, tcp_flags::SYN));
    Ok(())
}

#[test]
fn the_kernel_sends_to_private_addresses_of_pods_only() -> Result<()> {
    needs!(root());
    let rig = rig("ha-in")?;
    let to = |private: &str| {
        Packet::eth(KERNEL_MAC, KERNEL_MAC).ipv4(OUTSIDE, private.parse::<Ipv4Addr>().unwrap())
    };
    for unused in ["172.19.0.3", "172.19.255.254", "172.20.0.1", "10.1.1.1", "172.19.0.0"] {
        by_kernel(&rig, &to(unused).udp(53, 4000))?.assert_dropped(DropReason::NotLocal);
    }
    for (from, reason) in [
        (OTHER.ip(), DropReason::ForeignSource),
        (UNUSED.ip(), DropReason::ForeignSource),
        (Endpoint(126).ip(), DropReason::ForeignSource),
        (Ipv4Addr::LOCALHOST, DropReason::NotLocal),
        (Ipv4Addr::new(172, 19, 0, 2), DropReason::NotLocal),
    ] {
        by_kernel(&rig, &returns(from).udp(53, 4000))?.assert_dropped(reason);
    }
    let mut wrong = returns(OUTSIDE).udp(53, 4000).build();
    wrong[11] ^= 1;
    run(&rig.node, FROM_HOST, PEER, &wrong)?.assert_dropped(DropReason::NotLocal);
    let arp = Packet::arp_request(KERNEL_MAC, OUTSIDE, PRIVATE);
    by_kernel(&rig, &arp)?.assert_dropped(DropReason::NotLocal);
    // The program belongs to this interface.
    let outcome = run(&rig.node, FROM_HOST, &rig.here.local.port, &returns(OUTSIDE).udp(53, 4000).build())?;
    outcome.assert_dropped(DropReason::NotLocal);
    assert_eq!(flows(&rig.node)?, []);
    Ok(())
}

#[test]
fn truncated_packets_of_the_kernel_are_dropped() -> Result<()> {
    needs!(root());
    /// A test run takes no shorter ones.
    const SHORTEST: usize = 34;
    let rig = rig("ha-short")?;
    let quoted = Packet::bare().ipv4(PRIVATE, OUTSIDE).udp(4000, 53).build();
    rig.by_here(&sent(HERE, OUTSIDE).udp(4000, 53))?;
    for packet in [
        returns(OUTSIDE).udp(53, 4000).payload(b"odd"),
        returns(OUTSIDE).ip_options(&[1, 1, 1, 1]).tcp(80, 4000, tcp_flags::ACK),
        returns(HOP).icmp(3, 3, [0; 4]).payload(&quoted),
    ] {
        let frame = packet.build();
        for length in SHORTEST..frame.len() {
            let outcome = run(&rig.node, FROM_HOST, PEER, &frame[..length])?;
            outcome.assert_dropped(DropReason::Malformed);
        }
    }
    Ok(())
}

/// Rules see the address of the pod and that of the host outside.
#[test]
fn rules_apply_to_host_access() -> Result<()> {
    needs!(root());
    let mut rig = rig("ha-rules")?;
    let tcp = |port| sent(HERE, OUTSIDE).tcp(4000, port, tcp_flags::SYN);
    let web = Rule {
        protocol: Some(TCP),
        ports: Some(80.into()),
        peer: Peer::prefix("192.0.2.0/24".parse::<IpNet>()?),
        ..rule("web", Direction::Out, Action::Allow, 10)
    };
    let deny = |id, direction| rule(id, direction, Action::Deny, 1);
    let rules = vec![web, deny("out", Direction::Out), deny("in", Direction::In)];
    rig.node.want(Object::Group(group(1, rules)));
    rig.node.want(Object::Local(Local { identity: Some(number(1)), ..rig.here.local.clone() }));
    rig.node.converge()?;
    assert_becomes(rig.by_here(&tcp(80))?, &leaves(OUTSIDE).tcp(4000, 80, tcp_flags::SYN));
    rig.by_here(&tcp(81))?.assert_dropped(DropReason::Policy);
    let reply = |port| returns(OUTSIDE).tcp(port, 4000, tcp_flags::SYN | tcp_flags::ACK);
    let outcome = by_kernel(&rig, &reply(80))?;
    assert_becomes(outcome, &arrives(OUTSIDE).tcp(80, 4000, tcp_flags::SYN | tcp_flags::ACK));
    by_kernel(&rig, &reply(81))?.assert_dropped(DropReason::Policy);
    Ok(())
}

#[test]
fn the_interface_exists_as_long_as_the_route() -> Result<()> {
    needs!(root());
    let mut rig = rig("ha-life")?;
    let exists = |rig: &Rig| -> Result<bool> {
        let links = rig.node.ns.links()?;
        ensure!(links.iter().any(|link| link == HOST_PORT) == links.iter().any(|link| link == PEER));
        Ok(links.iter().any(|link| link == PEER))
    };
    assert!(exists(&rig)?);
    // A new agent changes nothing.
    drop(rig.node.restart());
    rig.node.converge()?;
    assert_eq!(rig.node.datapath.writes(), 0);
    // What was changed or deleted comes back.
    for damage in [
        format!("link set {PEER} down"),
        format!("link set {HOST_PORT} address 02:00:00:00:00:09"),
        format!("link set {HOST_PORT} mtu 1500"),
        format!("link del {PEER}"),
    ] {
        rig.node.ns.ip(&damage)?;
        rig.node.converge()?;
        let (own, end) = (
            rig.node.ns.ip(&format!("link show {HOST_PORT}"))?,
            rig.node.ns.ip(&format!("link show {PEER}"))?,
        );
        let is_right = own.contains("02:00:11:11:11:11") && own.contains("mtu 65535") && end.contains(",UP");
        ensure!(is_right, "{damage}: {own}{end}");
    }
    assert_becomes(rig.by_here(&sent(HERE, OUTSIDE).udp(4000, 53))?, &leaves(OUTSIDE).udp(4000, 53));
    let id = Object::Route(route(&rig)).id();
    rig.node.desired.remove(&id);
    assert!(rig.node.apply(&[Op::Delete(id)])?.is_empty());
    assert!(!exists(&rig)?);
    rig.by_here(&sent(HERE, OUTSIDE).udp(4000, 54))?.assert_dropped(DropReason::NoRoute);
    rig.node.converge()?;
    // One that an agent has left behind without a route.
    let route = route(&rig);
    rig.node.want(Object::Route(route));
    rig.node.converge()?;
    drop(rig.node.restart());
    rig.node.desired.remove(&Object::Route(self::route(&rig)).id());
    rig.node.converge()?;
    assert!(!exists(&rig)?);
    Ok(())
}

/// As while an OVS node becomes an eBPF node.
#[test]
fn an_interface_of_others_is_reported_and_left_alone() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("ha-taken")?;
    rig.node.ns.ip(&format!("link add {HOST_PORT} type veth peer name other0"))?;
    let failed = rig.node.apply(&[Op::Set(Object::Route(route(&rig)))])?;
    let said = format!("{}: {}", failed[0].error, failed[0].error.source);
    assert!(failed.len() == 1 && said.contains("create the interface contivh0"), "{said}");
    rig.node.cleanup()?;
    assert!(rig.node.ns.links()?.iter().any(|link| link == HOST_PORT));
    Ok(())
}

#[test]
fn checksums_of_devices_stay_right() -> Result<()> {
    needs!(root());
    let rig = rig("ha-sums")?;
    let out = Target::new(&rig.node, FROM_POD, &rig.here.local.port)?;
    let back = Target::new(&rig.node, FROM_HOST, PEER)?;
    let kinds: [fn(Packet) -> Packet; 3] = [
        |packet| packet.udp(4000, 53).payload(b"odd"),
        |packet| packet.tcp(4000, 80, tcp_flags::SYN),
        |packet| packet.icmp_echo_request(1, 1).payload(b"ping"),
    ];
    for kind in kinds {
        for (target, frame) in [(&out, kind(sent(HERE, OUTSIDE))), (&back, kind(returns(OUTSIDE)))] {
            match rig.node.ns.run(|| Ok(target.give_checksum_complete(&frame.build())))? {
                // This kernel cannot compute the sum in a test run.
                Err(Errno::EINVAL) => return Ok(()),
                result => assert_eq!(result, Ok(()), "{frame:?}"),
            }
        }
    }
    Ok(())
}
