//! Packets of established flows are translated and counted like the first ones, until a change applies to them.

mod counters;
mod fast_path;
mod invalidation;
mod rates;
pub(crate) mod rig;
mod traffic;
mod uplink;

use std::{
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{DropReason, TCP, tcp::sent};
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
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    policy::{group, rule},
    run::Code,
    services::service,
};
use rig::{FAR, HERE, OTHER, Rig, VIP};

const SYN: u8 = tcp_flags::SYN;
const ACK: u8 = tcp_flags::ACK;
const FIN: u8 = tcp_flags::FIN | ACK;

fn between(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip())
}

fn between6(from: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), from.mac()).ipv6(from.ip6(), to.ip6())
}

/// A reply from the service, with the backend's MAC address.
fn answer_of(backend: Endpoint, to: Endpoint) -> Packet {
    Packet::eth(to.mac(), backend.mac()).ipv4(VIP.ip(), to.ip())
}

/// Varies the fields that do not belong to the tuple.
fn vary(packet: Packet, n: u32) -> Packet {
    let ecn = n as u8 & 3;
    packet.ip_id(n as u16).ttl(64 - n as u8 % 8).tos(ecn).payload(&n.to_be_bytes()[..n as usize % 4])
}

fn vary6(packet: Packet, n: u32) -> Packet {
    let ecn = n as u8 & 3;
    packet.flow_label(n).ttl(64 - n as u8 % 8).tos(ecn).payload(&n.to_be_bytes()[..n as usize % 4])
}

#[test]
fn packets_of_a_flow_are_translated_alike() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-same")?;
    // To a service and back, with TCP and with UDP, also without checksum.
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
        rig.repeat(HERE, there);
        rig.repeat(OTHER, back);
    }
    rig.repeat(HERE, bare);
    // Without translation, to a pod here and to another node.
    let direct = |n| {
        let packet = vary(between(HERE, OTHER).udp(5000, 6000), n);
        (packet.clone(), packet)
    };
    rig.becomes(HERE, &direct(0).0, &direct(0).0);
    let back = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(OTHER, &back, &back);
    rig.repeat(HERE, direct);
    assert!(rig.node.drops()?.is_empty(), "{:?}", rig.node.drops()?);
    Ok(())
}

#[test]
fn ipv6_packets_of_a_flow_are_translated_alike() -> Result<()> {
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
    rig.repeat(HERE, there);
    rig.repeat(OTHER, back);
    let (udp, reply) = (between6(HERE, OTHER).udp(4000, 8080), between6(OTHER, HERE).udp(8080, 4000));
    rig.becomes(HERE, &to_vip().udp(4000, 80), &udp);
    rig.becomes(OTHER, &reply, &from_vip().udp(80, 4000));
    rig.repeat(HERE, |n| (vary6(to_vip().udp(4000, 80), n), vary6(between6(HERE, OTHER).udp(4000, 8080), n)));
    Ok(())
}

/// The TCP checksum of a packet with this payload, and its partial checksum.
fn sums(frame: &[u8], addresses: usize, transport: usize) -> (u16, u16) {
    let len = u16::try_from(frame.len() - transport).unwrap().to_be_bytes();
    let pseudo = !internet_checksum(&[&frame[addresses..transport], &[0, TCP], &len]);
    (u16::from_be_bytes([frame[transport + 16], frame[transport + 17]]), pseudo)
}

/// One complete checksum in 65,536 equals the sum over the pseudo header by chance, which is the value of a partial
/// one.
#[test]
fn a_complete_checksum_may_equal_a_partial_one() -> Result<()> {
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
    rig.repeat(HERE, |_| (sent(word), arrives.clone()));
    // Adjacent payloads do not.
    let beside = word ^ 1;
    let arrives = between(HERE, OTHER).tcp(4000, 8080, ACK).payload(&beside.to_be_bytes());
    rig.repeat(HERE, |_| (sent(beside), arrives.clone()));
    Ok(())
}

/// The kernel compares the checksum of the device with the packet.
#[test]
fn checksum_complete_stays_valid() -> Result<()> {
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
        // The same packet with source and destination exchanged has the same checksums.
        let (ip, len) = if there[12] == 8 { (26, 4) } else { (22, 16) };
        for (a, b, len) in [(0, 6, 6), (ip, ip + len, len), (ip + 2 * len, ip + 2 * len + 2, 2)] {
            (0..len).for_each(|at| answer.swap(a + at, b + at));
        }
        assert_eq!(rig.node.ns.run(|| rig.other.give(&answer))?.0, Code::Redirect);
        rig.repeat(HERE, |_| (sent.clone(), arrives.clone()));
        match rig.node.ns.run(|| Ok(rig.here.give_checksum_complete(&sent.build())))? {
            Err(Errno::EINVAL) => testkit::skip!("this kernel runs no packet with a sum of its own"),
            result => assert_eq!(result, Ok(()), "{sent:?}"),
        }
    }
    Ok(())
}

#[test]
fn packets_of_a_flow_are_marked_with_the_dscp_of_the_group() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-dscp")?;
    rig.set(Object::Group(Group { dscp: Some(Dscp::try_from(46).unwrap()), ..group(1, vec![]) }))?;
    let (sent, arrives) = (between(HERE, VIP).udp(4000, 80), between(HERE, OTHER).udp(4000, 8080).dscp(46));
    rig.becomes(HERE, &sent, &arrives);
    rig.becomes(OTHER, &between(OTHER, HERE).udp(8080, 4000), &answer_of(OTHER, HERE).udp(80, 4000));
    rig.repeat(HERE, |n| (sent.clone().ip_id(n as u16), arrives.clone().ip_id(n as u16)));
    // A DSCP of the sender is replaced.
    rig.becomes(HERE, &sent.clone().dscp(10), &arrives);
    let there = between6(HERE, OTHER).udp(4001, 8081);
    rig.becomes(HERE, &there, &there.clone().dscp(46));
    let back = between6(OTHER, HERE).udp(8081, 4001);
    rig.becomes(OTHER, &back, &back);
    rig.repeat(HERE, |n| (there.clone().flow_label(n), there.clone().flow_label(n).dscp(46)));
    // The new DSCP applies at once.
    rig.set(Object::Group(Group { dscp: Some(Dscp::try_from(8).unwrap()), ..group(1, vec![]) }))?;
    rig.becomes(HERE, &there, &there.clone().dscp(8));
    Ok(())
}

/// A connection of a client's port to the service. Returns the number of packets from the client.
fn open(rig: &Rig, port: u16) -> Result<u64> {
    open_to(rig, port, OTHER)
}

fn open_to(rig: &Rig, port: u16, backend: Endpoint) -> Result<u64> {
    rig.becomes(HERE, &between(HERE, VIP).tcp(port, 80, SYN), &between(HERE, backend).tcp(port, 8080, SYN));
    let (answer, shown) =
        (between(OTHER, HERE).tcp(8080, port, SYN | ACK), answer_of(OTHER, HERE).tcp(80, port, SYN | ACK));
    rig.becomes(OTHER, &answer, &shown);
    let (sent, arrives) =
        (between(HERE, VIP).tcp(port, 80, ACK), between(HERE, backend).tcp(port, 8080, ACK));
    let there = rig.repeat(HERE, |_| (sent.clone(), arrives.clone()));
    let (sent, arrives) =
        (between(OTHER, HERE).tcp(8080, port, ACK), answer_of(OTHER, HERE).tcp(80, port, ACK));
    rig.repeat(OTHER, |_| (sent.clone(), arrives.clone()));
    Ok(there + 1)
}
