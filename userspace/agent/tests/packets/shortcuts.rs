//! Packets of busy flows, which go past the stages: they become what the stages made of the packets before, are counted
//! like them, and no longer than that is right.

mod rates;
pub(crate) mod rig;
mod wire;

use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{DropReason, Flow, Headers, TCP, maps::FLOW_CACHE_CAPACITY};
use contiv_model::{
    group::Dscp,
    policy::{Action, Direction, Rule},
    service::Readiness,
};
use netplugin::datapath::{Datapath as _, Group, Object, ObjectId, Op, Scope};
use nix::errno::Errno;
use testkit::{
    needs,
    packet::{Packet, internet_checksum, tcp_flags},
    wait_until,
};

use crate::{
    node::{Node, Pod, Who, network, vlan, vtep, vxlan},
    policy::{group, rule},
    run::Code,
    services::service,
};
use rig::{FAR, HERE, OTHER, Rig, SOON, VIP, uncounted};

const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const FIN: u8 = tcp_flags::FIN | ACK;

fn between(from: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

fn between6(from: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv6(from.ip6(), to.ip6())
}

/// From the service, by Ethernet from its backend.
fn answer_of(backend: Who, to: Who) -> Packet {
    Packet::eth(to.mac(), backend.mac()).ipv4(VIP.ip(), to.ip())
}

/// No two packets of a flow are alike in what does not tell flows apart.
fn vary(packet: Packet, n: u32) -> Packet {
    let ecn = n as u8 & 3;
    packet.ip_id(n as u16).ttl(64 - n as u8 % 8).tos(ecn).payload(&n.to_be_bytes()[..n as usize % 4])
}

fn vary6(packet: Packet, n: u32) -> Packet {
    let ecn = n as u8 & 3;
    packet.flow_label(n).ttl(64 - n as u8 % 8).tos(ecn).payload(&n.to_be_bytes()[..n as usize % 4])
}

#[test]
fn packets_become_what_the_stages_make_of_them() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-same")?;
    // To a service and back, TCP and UDP, which may do without a checksum.
    let tcp = |n| {
        (vary(between(HERE, VIP).tcp(4000, 80, ACK), n), vary(between(HERE, OTHER).tcp(4000, 8080, ACK), n))
    };
    let answer = |n| {
        let sent = between(OTHER, HERE).tcp(8080, 4000, ACK).sequence(n, 7).window(n as u16);
        (vary(sent, n), vary(answer_of(OTHER, HERE).tcp(80, 4000, ACK).sequence(n, 7).window(n as u16), n))
    };
    let udp = |n| (vary(between(HERE, VIP).udp(4000, 80), n), vary(between(HERE, OTHER).udp(4000, 8080), n));
    let reply =
        |n| (vary(between(OTHER, HERE).udp(8080, 4000), n), vary(answer_of(OTHER, HERE).udp(80, 4000), n));
    let bare = |n| {
        let arrives = between(HERE, OTHER).udp_unchecked(4000, 8080);
        (vary(between(HERE, VIP).udp_unchecked(4000, 80), n), vary(arrives, n))
    };
    for (there, back) in [
        (&tcp as &dyn Fn(u32) -> (Packet, Packet), &answer as &dyn Fn(u32) -> (Packet, Packet)),
        (&udp, &reply),
    ] {
        for (from, packets) in [(HERE, there), (OTHER, back)] {
            let (sent, arrives) = packets(0);
            rig.becomes(from, &sent, &arrives);
        }
        rig.until_taken(HERE, there)?;
        rig.until_taken(OTHER, back)?;
    }
    rig.until_taken(HERE, bare)?;
    // As they are, to a pod here and to another node.
    let direct = |n| {
        let packet = vary(between(HERE, OTHER).udp(5000, 6000), n);
        (packet.clone(), packet)
    };
    rig.becomes(HERE, &direct(0).0, &direct(0).0);
    let back = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(OTHER, &back, &back);
    rig.until_taken(HERE, direct)?;
    assert!(rig.node.drops()?.is_empty(), "{:?}", rig.node.drops()?);
    Ok(())
}

#[test]
fn packets_of_ipv6_do_so_too() -> Result<()> {
    needs!(root());
    let rig = Rig::at("cut-v6", VIP.ip6().into(), OTHER.ip6().into())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let to_vip = || Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
    let from_vip = || Packet::eth(HERE.mac(), OTHER.mac()).ipv6(VIP.ip6(), HERE.ip6());
    let there =
        |n| (vary6(to_vip().tcp(4000, 80, ACK), n), vary6(between6(HERE, OTHER).tcp(4000, 8080, ACK), n));
    let back =
        |n| (vary6(between6(OTHER, HERE).tcp(8080, 4000, ACK), n), vary6(from_vip().tcp(80, 4000, ACK), n));
    for (from, (sent, arrives)) in [(HERE, there(0)), (OTHER, back(0))] {
        rig.becomes(from, &sent, &arrives);
    }
    rig.until_taken(HERE, there)?;
    rig.until_taken(OTHER, back)?;
    let (udp, reply) = (between6(HERE, OTHER).udp(4000, 8080), between6(OTHER, HERE).udp(8080, 4000));
    rig.becomes(HERE, &to_vip().udp(4000, 80), &udp);
    rig.becomes(OTHER, &reply, &from_vip().udp(80, 4000));
    rig.until_taken(HERE, |n| {
        (vary6(to_vip().udp(4000, 80), n), vary6(between6(HERE, OTHER).udp(4000, 8080), n))
    })?;
    Ok(())
}

/// Of a packet with this payload: the checksum of TCP, and what TCP leaves to a device that finishes it.
fn sums(frame: &[u8], addresses: usize, transport: usize) -> (u16, u16) {
    let len = u16::try_from(frame.len() - transport).unwrap().to_be_bytes();
    let pseudo = !internet_checksum(&[&frame[addresses..transport], &[0, TCP], &len]);
    (u16::from_be_bytes([frame[transport + 16], frame[transport + 17]]), pseudo)
}

/// One checksum in 65,536 is the sum over the pseudo header by chance, as one is that a device would finish.
#[test]
fn a_whole_checksum_may_look_unfinished() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-look")?;
    open(&rig, 4000)?;
    let looks = |packet: &Packet| {
        let (sum, pseudo) = sums(&packet.build(), 26, 34);
        sum == pseudo
    };
    let sent = |word: u16| between(HERE, VIP).tcp(4000, 80, ACK).payload(&word.to_be_bytes());
    let word = (0..=u16::MAX).find(|word| looks(&sent(*word))).context("no such packet")?;
    let arrives = between(HERE, OTHER).tcp(4000, 8080, ACK).payload(&word.to_be_bytes());
    rig.until_taken(HERE, |_| (sent(word), arrives.clone()))?;
    // Those beside it do not.
    let beside = word ^ 1;
    let arrives = between(HERE, OTHER).tcp(4000, 8080, ACK).payload(&beside.to_be_bytes());
    rig.until_taken(HERE, |_| (sent(beside), arrives.clone()))?;
    Ok(())
}

/// The kernel compares the sum over the whole packet with the packet.
#[test]
fn the_sum_of_a_device_stays_that_of_the_packet() -> Result<()> {
    needs!(root());
    let v4 = Rig::new("cut-sum")?;
    let v6 = Rig::at("cut-sum6", VIP.ip6().into(), OTHER.ip6().into())?;
    let [.., a, b, c, d] = VIP.ip6().octets();
    let to6 = || Packet::eth([2, 2, a, b, c, d], HERE.mac()).ipv6(HERE.ip6(), VIP.ip6());
    let (to4, at4) = (|| between(HERE, VIP), || between(HERE, OTHER));
    let at6 = || between6(HERE, OTHER);
    for (rig, sent, arrives) in [
        (&v4, to4().tcp(4000, 80, ACK), at4().tcp(4000, 8080, ACK)),
        (&v4, to4().udp(4000, 80), at4().udp(4000, 8080)),
        (&v4, to4().udp_unchecked(4000, 80), at4().udp_unchecked(4000, 8080)),
        (&v6, to6().tcp(4000, 80, ACK), at6().tcp(4000, 8080, ACK)),
        (&v6, to6().udp(4000, 80), at6().udp(4000, 8080)),
    ] {
        rig.becomes(HERE, &sent, &arrives);
        let there = arrives.build();
        let mut answer = there.clone();
        // The same with its ends exchanged, and so with the same checksums.
        let (ip, len) = if there[12] == 8 { (26, 4) } else { (22, 16) };
        for (a, b, len) in [(0, 6, 6), (ip, ip + len, len), (ip + 2 * len, ip + 2 * len + 2, 2)] {
            (0..len).for_each(|at| answer.swap(a + at, b + at));
        }
        assert_eq!(rig.node.ns.run(|| rig.other.give(&answer))?.0, Code::Redirect);
        let started = Instant::now();
        loop {
            rig.until_taken(HERE, |_| (sent.clone(), arrives.clone()))?;
            let before = rig.taken()?;
            match rig.here.give_summed(&sent.build()) {
                Err(Errno::EINVAL) => testkit::skip!("this kernel runs no packet with a sum of its own"),
                // In the next second a packet goes through the stages; the kernel's own helper forgets such sums of UDP
                // without a checksum.
                result if rig.taken()? > before => {
                    assert_eq!(result, Ok(()), "{sent:?}");
                    break;
                }
                _ => ensure!(started.elapsed() < SOON, "no packet has taken a shortcut"),
            }
        }
    }
    Ok(())
}

#[test]
fn packets_are_marked_with_the_class_of_the_group() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-dscp")?;
    rig.set(Object::Group(Group { dscp: Some(Dscp::try_from(46).unwrap()), ..group(1, vec![]) }))?;
    let (sent, arrives) = (between(HERE, VIP).udp(4000, 80), between(HERE, OTHER).udp(4000, 8080).dscp(46));
    rig.becomes(HERE, &sent, &arrives);
    rig.becomes(OTHER, &between(OTHER, HERE).udp(8080, 4000), &answer_of(OTHER, HERE).udp(80, 4000));
    rig.until_taken(HERE, |n| (sent.clone().ip_id(n as u16), arrives.clone().ip_id(n as u16)))?;
    // One that has a class already takes its own way.
    rig.becomes(HERE, &sent.clone().dscp(10), &arrives);
    let there = between6(HERE, OTHER).udp(4001, 8081);
    rig.becomes(HERE, &there, &there.clone().dscp(46));
    let back = between6(OTHER, HERE).udp(8081, 4001);
    rig.becomes(OTHER, &back, &back);
    rig.until_taken(HERE, |n| (there.clone().flow_label(n), there.clone().flow_label(n).dscp(46)))?;
    // Another class from now on.
    rig.set(Object::Group(Group { dscp: Some(Dscp::try_from(8).unwrap()), ..group(1, vec![]) }))?;
    rig.becomes(HERE, &there, &there.clone().dscp(8));
    Ok(())
}

/// A connection of a client's port to the service, with shortcuts both ways.
fn open(rig: &Rig, port: u16) -> Result<u64> {
    open_to(rig, port, OTHER)
}

fn open_to(rig: &Rig, port: u16, backend: Who) -> Result<u64> {
    rig.becomes(HERE, &between(HERE, VIP).tcp(port, 80, SYN), &between(HERE, backend).tcp(port, 8080, SYN));
    let (answer, shown) =
        (between(OTHER, HERE).tcp(8080, port, SYN | ACK), answer_of(OTHER, HERE).tcp(80, port, SYN | ACK));
    rig.becomes(OTHER, &answer, &shown);
    let (sent, arrives) =
        (between(HERE, VIP).tcp(port, 80, ACK), between(HERE, backend).tcp(port, 8080, ACK));
    let there = rig.until_taken(HERE, |_| (sent.clone(), arrives.clone()))?;
    let (sent, arrives) =
        (between(OTHER, HERE).tcp(8080, port, ACK), answer_of(OTHER, HERE).tcp(80, port, ACK));
    rig.until_taken(OTHER, |_| (sent.clone(), arrives.clone()))?;
    Ok(there + 1)
}

#[test]
fn everything_is_counted_once() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-count")?;
    let mut there = open(&rig, 4000)?;
    let (sent, arrives) = (between(HERE, VIP).tcp(4000, 80, ACK), between(HERE, OTHER).tcp(4000, 8080, ACK));
    let bytes = sent.build().len() as u64;
    for _ in 0..50 {
        rig.becomes(HERE, &sent, &arrives);
        there += 1;
    }
    assert_eq!(rig.counts(4000)?[0], (there, there * bytes));
    // What agents tell has them, too, two seconds later, though nothing passes any more.
    wait_until(SOON, "the counts", || {
        let connections = rig.node.datapath.telemetry().unwrap().connections()?;
        let tallies = rig.node.datapath.counters()?;
        let [told, served] = [connections[0].to_backend, tallies.services[0].1.to_backends];
        ensure!(told.packets <= there, "{told:?} of {there}");
        Ok((told == served && (told.packets, told.bytes) == (there, there * bytes)).then_some(()))
    })?;
    // In the next second a packet goes through the stages, and the flow has all of them but those that come after.
    let seen = rig.flow(4000)?.1.seen;
    for _ in 0..2 {
        rig.becomes(HERE, &sent, &arrives);
        there += 1;
    }
    let (_, flow) = rig.flow(4000)?;
    assert!(flow.seen > seen);
    assert_eq!(rig.counts(4000)?[0], (there, there * bytes));
    Ok(())
}

#[test]
fn flows_that_share_a_place_lose_nothing() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-share")?;
    let ifindex = rig.node.ifindex(&rig.first.local.port)?;
    let place = |port| {
        let frame = between(HERE, OTHER).tcp(port, 90, ACK).build();
        let word = |at: usize| u64::from_ne_bytes(frame[at..at + 8].try_into().unwrap());
        let ports = u32::from_ne_bytes(frame[34..38].try_into().unwrap());
        let headers = Headers { addresses: [word(26), 0, 0, 0], ports, protocol: TCP, ..Headers::default() };
        headers.hash(ifindex) % FLOW_CACHE_CAPACITY as u32
    };
    let (one, two) = (4000, (4001..).find(|port| place(*port) == place(4000)).unwrap());
    let packet = |port| between(HERE, OTHER).tcp(port, 90, ACK);
    for port in [one, two] {
        rig.becomes(HERE, &packet(port), &packet(port));
        let back = between(OTHER, HERE).tcp(90, port, ACK);
        rig.becomes(OTHER, &back, &back);
    }
    let mut sent = [1, 1];
    sent[0] += rig.until_taken(HERE, |_| (packet(one), packet(one)))?;
    for _ in 0..30 {
        for (port, count) in [one, two].into_iter().zip(&mut sent) {
            rig.becomes(HERE, &packet(port), &packet(port));
            *count += 1;
        }
    }
    thread::sleep(Duration::from_millis(1100));
    // The other one is faster now.
    sent[1] += rig.until_taken(HERE, |_| (packet(two), packet(two)))?;
    for (port, sent) in [one, two].into_iter().zip(sent) {
        assert_eq!(rig.counts(port)?[0].0, sent, "port {port}");
    }
    Ok(())
}

#[test]
fn a_rule_that_denies_ends_them() -> Result<()> {
    needs!(root());
    let deny = |direction| rule("deny", direction, Action::Deny, 10);
    // On either side, and in either direction of the connection.
    for (name, number, direction) in [("cut-out", 1, Direction::Out), ("cut-in", 2, Direction::In)] {
        let mut rig = Rig::new(name)?;
        rig.set(Object::Group(group(
            number,
            vec![Rule { port: Some(1), protocol: Some(TCP), ..deny(direction) }],
        )))?;
        open(&rig, 4000)?;
        rig.set(Object::Group(group(number, vec![deny(direction)])))?;
        for (from, packet) in [
            (HERE, between(HERE, VIP).tcp(4000, 80, ACK)),
            (OTHER, between(OTHER, HERE).tcp(8080, 4000, ACK)),
        ] {
            assert_eq!(rig.give(from, &packet)?.0, Code::Shot);
        }
        assert_eq!(rig.node.drops()?.get(&DropReason::Policy), Some(&2));
        // And another one that lets them be brings them back.
        rig.set(Object::Group(group(number, vec![])))?;
        let (sent, arrives) =
            (between(HERE, VIP).tcp(4000, 80, ACK), between(HERE, OTHER).tcp(4000, 8080, ACK));
        rig.until_taken(HERE, |_| (sent.clone(), arrives.clone()))?;
    }
    Ok(())
}

#[test]
fn what_has_moved_or_gone_is_not_sent_where_it_was() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-gone")?;
    let packet = between(HERE, OTHER).udp(5000, 6000);
    let back = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(HERE, &packet, &packet);
    rig.becomes(OTHER, &back, &back);
    rig.until_taken(HERE, |_| (packet.clone(), packet.clone()))?;
    rig.until_taken(OTHER, |_| (back.clone(), back.clone()))?;
    // The sender has another address now.
    let mut local = rig.first.local.clone();
    local.ip = Who(9).ip();
    rig.set(Object::Local(local))?;
    assert_eq!(rig.give(HERE, &packet)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::SpoofedIp), Some(&1));
    rig.set(Object::Local(rig.first.local.clone()))?;
    rig.until_taken(HERE, |_| (packet.clone(), packet.clone()))?;
    // The receiver is gone: nobody knows it, and copies go to all.
    let gone = Object::Local(rig.second.local.clone()).id();
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    assert_eq!(rig.give(HERE, &packet)?.0, Code::Shot);
    // And the port that it had is nobody's.
    assert_eq!(rig.give(OTHER, &back)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::UnknownPort), Some(&1));
    Ok(())
}

#[test]
fn a_change_of_a_service_moves_no_connection() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-svc")?;
    open(&rig, 4000)?;
    rig.serve(&[(FAR, Readiness::Ready)])?;
    let to = |port, who: Who, at| between(HERE, who).tcp(port, at, ACK);
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.until_taken(HERE, |_| (to(4000, VIP, 80), to(4000, OTHER, 8080)))?;
    rig.becomes(HERE, &to(4001, VIP, 80), &to(4001, FAR, 8080));
    // Nor does the end of it.
    let gone = ObjectId::Service("web:t".into());
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    rig.until_taken(HERE, |_| (to(4000, VIP, 80), to(4000, OTHER, 8080)))?;
    Ok(())
}

#[test]
fn ports_that_are_used_again_lead_where_the_new_connection_is() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-again")?;
    open(&rig, 4000)?;
    // What begins or ends a connection goes through the stages, which note it.
    let fin = |from, to, a, b| between(from, to).tcp(a, b, FIN);
    rig.becomes(HERE, &fin(HERE, VIP, 4000, 80), &fin(HERE, OTHER, 4000, 8080));
    rig.becomes(OTHER, &fin(OTHER, HERE, 8080, 4000), &answer_of(OTHER, HERE).tcp(80, 4000, FIN));
    assert_eq!(rig.flow(4000)?.1.tcp, [Flow::FIN; 2]);
    rig.serve(&[(FAR, Readiness::Ready)])?;
    // At once: in the same second, as a rule.
    let to = |who: Who, at, flags| between(HERE, who).tcp(4000, at, flags);
    rig.becomes(HERE, &to(VIP, 80, SYN), &to(FAR, 8080, SYN));
    rig.becomes(HERE, &to(VIP, 80, ACK), &to(FAR, 8080, ACK));
    // What the first backend still says belongs to no connection to the service.
    let late = between(OTHER, HERE).tcp(8080, 4000, ACK);
    rig.becomes(OTHER, &late, &late);
    Ok(())
}

#[test]
fn what_is_no_plain_packet_goes_through_the_stages() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-odd")?;
    open(&rig, 4000)?;
    let (sent, arrives) = (between(HERE, VIP), between(HERE, OTHER));
    let pair = |change: &dyn Fn(Packet) -> Packet, flags| {
        (change(sent.clone().tcp(4000, 80, flags)), change(arrives.clone().tcp(4000, 8080, flags)))
    };
    for (sent, arrives) in [pair(&|p| p.ip_options(&[1, 1, 1, 1]), ACK), pair(&|p| p, FIN)] {
        rig.never_taken(HERE, &sent, &arrives)?;
    }
    // By Ethernet from another: no packet of this pod.
    let strange = Packet::eth(VIP.mac(), FAR.mac()).ipv4(HERE.ip(), VIP.ip()).tcp(4000, 80, ACK);
    assert_eq!(rig.give(HERE, &strange)?.0, Code::Shot);
    let strange = Packet::eth(VIP.mac(), HERE.mac()).ipv4(FAR.ip(), VIP.ip()).tcp(4000, 80, ACK);
    assert_eq!(rig.give(HERE, &strange)?.0, Code::Shot);
    Ok(())
}

/// Two nodes, real stacks: segments whose checksums the device would finish, large ones, both ways; and such whose
/// checksums are whole and looked at.
#[test]
fn real_traffic_takes_them_on_both_nodes() -> Result<()> {
    needs!(root(), binary("ethtool"));
    for (n1, place) in [(network("n1.t", vxlan(10_001)), Some(2)), (network("n1.t", vlan(100)), None)] {
        let (mut a, mut b) = Node::pair("cut")?;
        let (client, server) = (a.pod(&n1, HERE)?, b.pod(&n1, OTHER)?);
        let near = a.pod(&n1, Who(4))?;
        a.want_network(&n1).want_peer(2).want(Object::Remote(OTHER.remote(&n1, place.map(vtep))));
        b.want_network(&n1).want_peer(1).want(Object::Remote(HERE.remote(&n1, place.map(|_| vtep(1)))));
        for (vip, backend, family) in
            [(VIP.ip().into(), &server, 4), (Who(251).ip().into(), &near, 4), (VIP.ip6().into(), &server, 6)]
        {
            let ip = if family == 4 { backend.ip() } else { backend.ip6() };
            let mut served = service(vip, &[(ip, Readiness::Ready)]);
            served.id = format!("{vip}:t").into();
            served.scope = Some(Scope { network: n1.id.clone(), encap: n1.encap });
            served.backends[0].encap = n1.encap;
            a.want(Object::Service(served));
        }
        a.converge()?;
        b.converge()?;
        for offloads in [true, false] {
            for (vip, backend, ip) in [
                (VIP.ip().into(), &server, server.ip()),
                (Who(251).ip().into(), &near, near.ip()),
                (VIP.ip6().into(), &server, server.ip6()),
            ] {
                let (service, at) = (SocketAddr::new(vip, 80), SocketAddr::new(ip, 8080));
                echo(&client, service, backend, at)?;
                echo_datagrams(&client, service, backend, at)?;
            }
            if offloads {
                [&client, &server, &near].iter().try_for_each(|pod| pod.ns.tx_checksum_off("eth0"))?;
            }
        }
        assert!(!uncounted(&a)?.is_empty() && !uncounted(&b)?.is_empty());
        let reasons = [a.drops()?, b.drops()?];
        assert!(reasons.iter().all(|drops| !drops.contains_key(&DropReason::RewriteFailed)), "{reasons:?}");
    }
    Ok(())
}

/// One after the other: more of them than a second's first ones, so that most take shortcuts.
fn echo_datagrams(client: &Pod, target: SocketAddr, server: &Pod, at: SocketAddr) -> Result<()> {
    const COUNT: u32 = 200;
    let bind = |pod: &Pod, at: SocketAddr| -> Result<UdpSocket> {
        let socket = pod.ns.run(|| Ok(UdpSocket::bind(at)?))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(socket)
    };
    let served = bind(server, at)?;
    let any = if at.is_ipv4() { SocketAddr::from(([0; 4], 0)) } else { SocketAddr::from(([0_u16; 8], 0)) };
    let asking = bind(client, any)?;
    asking.connect(target)?;
    let (mut there, mut back) = ([0; 2048], [0; 2048]);
    for number in 0..COUNT {
        let sent: Vec<u8> = (0..number % 97).map(|at| (at * 31 + number) as u8).collect();
        asking.send(&sent)?;
        let (len, from) =
            served.recv_from(&mut there).with_context(|| format!("datagram {number} to {target}"))?;
        served.send_to(&there[..len], from)?;
        let len = asking.recv(&mut back).with_context(|| format!("answer {number} from {target}"))?;
        assert!(back[..len] == sent, "what came back from {target} is not what was sent");
    }
    Ok(())
}

fn echo(client: &Pod, target: SocketAddr, server: &Pod, at: SocketAddr) -> Result<()> {
    use std::io::{Read as _, Write as _};
    const PIECE: usize = 1 << 16;
    const PIECES: usize = 64;
    let listener = server.ns.run(|| Ok(TcpListener::bind(at)?))?;
    let served = thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut data = vec![0; PIECE];
        for _ in 0..PIECES {
            stream.read_exact(&mut data)?;
            stream.write_all(&data)?;
        }
        Ok(())
    });
    let mut stream = client.ns.run(|| {
        let stream = TcpStream::connect_timeout(&target, Duration::from_secs(5))
            .with_context(|| format!("connect to {target}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        Ok(stream)
    })?;
    let sent: Vec<u8> = (0..PIECE).map(|n| (n * 7 / 8) as u8).collect();
    let mut back = vec![0; PIECE];
    for _ in 0..PIECES {
        stream.write_all(&sent)?;
        stream.read_exact(&mut back)?;
        assert!(back == sent, "what came back from {target} is not what was sent");
    }
    served.join().map_err(|_| anyhow::anyhow!("the server failed"))?
}
