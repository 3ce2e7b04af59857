//! Frames of pods whose checksums the kernel writes when they leave the node, where the sender has chosen the place.

use std::{net::IpAddr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use contiv_abi::{DropReason, SkbLayout};
use netplugin::datapath::{Object, Scope, Service, ebpf::skb_layout};
use testkit::{
    Netns,
    capture::{OffloadSender, Tap},
    needs,
    packet::{Packet, internet_checksum, tcp_flags},
    wait_until,
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan},
    services::service,
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const TAG: u16 = 100;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an 802.1Q tag.
const TAG_LEN: usize = 4;
/// Offsets of the transport header.
const V4: u16 = 34;
const V6: u16 = 54;
/// Offsets of the checksum in the transport header.
const UDP: u16 = 6;
const TCP: u16 = 16;

/// A node with a pod on a VLAN, whose uplink writes the checksums.
struct Rig {
    node: Node,
    pod: Pod,
    outside: Netns,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        let (mut node, outside) = Node::on_wire(label)?;
        node.ns.tx_checksum_off("trunk")?;
        let n1 = network("n1.t", vlan(TAG));
        node.want_network(&n1).want(Object::Remote(THERE.remote(&n1, None)));
        let pod = node.pod(&n1, HERE)?;
        node.converge()?;
        Ok(Rig { node, pod, outside })
    }

    fn malformed(&self) -> Result<u64> {
        Ok(self.node.drops()?.get(&DropReason::Malformed).copied().unwrap_or(0))
    }
}

fn udp() -> Packet {
    Packet::eth(THERE.mac(), HERE.mac()).ipv4(HERE.ip(), THERE.ip()).udp(4000, 53).payload(b"query")
}

fn tcp() -> Packet {
    Packet::eth(THERE.mac(), HERE.mac()).ipv4(HERE.ip(), THERE.ip()).tcp(4000, 80, tcp_flags::SYN)
}

fn udp6() -> Packet {
    Packet::eth(THERE.mac(), HERE.mac()).ipv6(HERE.ip6(), THERE.ip6()).udp(4000, 53).payload(b"query")
}

fn tcp6() -> Packet {
    Packet::eth(THERE.mac(), HERE.mac()).ipv6(HERE.ip6(), THERE.ip6()).tcp(4000, 80, tcp_flags::SYN)
}

/// The frame as a kernel hands it over to a device: the sum of the pseudo header is in the place of the checksum.
fn without_checksum(packet: &Packet, start: u16, offset: u16) -> Result<Vec<u8>> {
    let mut frame = packet.build();
    let (start, at) = (usize::from(start), usize::from(start + offset));
    let (protocol, addresses) = if start == usize::from(V6) { (20, 22) } else { (23, 26) };
    let len = u16::try_from(frame.len() - start)?;
    let pseudo = [&frame[addresses..start], &[0, frame[protocol]], &len.to_be_bytes()].concat();
    let sum = !internet_checksum(&[&pseudo]);
    frame.get_mut(at..at + 2).context("a frame without a checksum")?.copy_from_slice(&sum.to_be_bytes());
    Ok(frame)
}

/// The next packet of TCP or UDP on the wire, without its tag.
fn next_packet(wire: &Tap) -> Result<Vec<u8>> {
    wire.expect(TIMEOUT, "a packet of TCP or UDP", |bytes| {
        let frame = [bytes.get(..12)?, bytes.get(12 + TAG_LEN..)?].concat();
        let protocol = match frame.get(12..14)? {
            [8, 0] => frame.get(23)?,
            [0x86, 0xdd] => frame.get(20)?,
            _ => return None,
        };
        matches!(protocol, 6 | 17).then_some(frame)
    })
}

#[test]
fn checksums_that_are_left_to_the_kernel_are_written() -> Result<()> {
    needs!(root(), binary("ethtool"));
    let rig = Rig::new("sum-right")?;
    let (pod, wire) = (OffloadSender::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.outside, "wire")?);
    let before = rig.malformed()?;
    for (packet, start, offset) in [(udp(), V4, UDP), (tcp(), V4, TCP), (udp6(), V6, UDP), (tcp6(), V6, TCP)]
    {
        pod.send(&without_checksum(&packet, start, offset)?, start, offset)?;
        assert_eq!(next_packet(&wire)?, packet.build(), "{start} {offset}");
    }
    assert_eq!(rig.malformed()?, before);
    Ok(())
}

#[test]
fn checksums_in_what_is_evaluated_are_refused() -> Result<()> {
    needs!(root(), binary("ethtool"));
    if skb_layout() == SkbLayout::UNKNOWN.words() {
        testkit::skip!("the kernel tells no layout of its buffers");
    }
    const PORT: u16 = 2;
    const FLAGS: u16 = 12;
    /// Behind Ethernet, as far as the kernel accepts it.
    const IP: u16 = 20;
    let rig = Rig::new("sum-wrong")?;
    let (pod, wire) = (OffloadSender::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.outside, "wire")?);
    let echo = Packet::eth(THERE.mac(), HERE.mac()).ipv4(HERE.ip(), THERE.ip()).icmp_echo_request(7, 1);
    let question = Packet::arp_request(HERE.mac(), HERE.ip(), THERE.ip());
    let attempts = [
        ("the destination port of UDP", udp(), V4, PORT),
        ("the source port of UDP", udp(), V4, 0),
        ("the destination port of TCP", tcp(), V4, PORT),
        ("the flags of TCP", tcp(), V4, FLAGS),
        ("the destination port over IPv6", udp6(), V6, PORT),
        ("the source address", udp(), IP, 8),
        ("the destination address", udp(), IP, 12),
        ("the IPv6 source address", udp6(), IP, 16),
        ("the checksum of TCP with the place of UDP", tcp(), V4, UDP),
        ("an echo request", echo.payload(b"some data"), V4, 4),
        ("a fragment", udp().fragment(7, 0, true), V4, UDP),
        ("ARP", question, IP, 8),
    ];
    for (dropped, (what, packet, start, offset)) in (rig.malformed()? + 1..).zip(attempts) {
        pod.send(&packet.build(), start, offset).context(what)?;
        wait_until(TIMEOUT, &format!("{what} to be dropped"), || {
            let count = rig.malformed()?;
            ensure!(count <= dropped, "{count} frames are dropped instead of {dropped}");
            Ok((count == dropped).then_some(()))
        })?;
    }
    // Nothing of it is on the wire before a frame that is sent afterwards.
    let honest = udp();
    pod.send(&without_checksum(&honest, V4, UDP)?, V4, UDP)?;
    assert_eq!(next_packet(&wire)?, honest.build());
    Ok(())
}

/// A reset is made from the segment that it refuses, whose checksum the kernel is still to write.
#[test]
fn resets_are_right_when_the_kernel_has_written_their_checksum() -> Result<()> {
    needs!(root());
    if skb_layout() == SkbLayout::UNKNOWN.words() {
        testkit::skip!("the kernel tells no layout of its buffers");
    }
    const VIP: Endpoint = Endpoint(250);
    let mut rig = Rig::new("sum-reset")?;
    let scope = Scope::network(&network("n1.t", vlan(TAG)));
    for (name, vip) in [("v4", IpAddr::from(VIP.ip())), ("v6", VIP.ip6().into())] {
        let id = format!("{name}:t").as_str().into();
        rig.node.want(Object::Service(Service { id, scope: scope.clone(), ..service(vip, &[]) }));
    }
    rig.node.converge()?;
    let (pod, receiver) = (OffloadSender::open(&rig.pod.ns, "eth0")?, Tap::open(&rig.pod.ns, "eth0")?);
    let [.., a, b, c, d] = VIP.ip6().octets();
    let mac6 = [2, 2, a, b, c, d];
    let ip = |eth: Packet, start, from: Endpoint, to: Endpoint| match start {
        V4 => eth.ipv4(from.ip(), to.ip()),
        _ => eth.ipv6(from.ip6(), to.ip6()),
    };
    for (start, mac) in [(V4, VIP.mac()), (V6, mac6)] {
        let syn =
            ip(Packet::eth(mac, HERE.mac()), start, HERE, VIP).tcp(4000, 80, tcp_flags::SYN).sequence(7, 0);
        pod.send(&without_checksum(&syn, start, TCP)?, start, TCP)?;
        let mut reset = receiver.expect(TIMEOUT, "a reset", |frame| {
            let is_here = frame.get(..6)? == HERE.mac() && frame.get(12..14)? != [8, 6];
            is_here.then(|| frame.to_vec())
        })?;
        // As the kernel does when the frame leaves by a device.
        let at = usize::from(start + TCP);
        let written = internet_checksum(&[&reset[usize::from(start)..]]);
        reset[at..at + 2].copy_from_slice(&written.to_be_bytes());
        let reply = ip(Packet::eth(HERE.mac(), mac), start, VIP, HERE);
        let reply = if start == V4 { reply.ip_id(0) } else { reply };
        let reply = reply.tcp(80, 4000, tcp_flags::RST | tcp_flags::ACK).sequence(0, 8).window(0);
        assert_eq!(reset, reply.build(), "left: received, right: expected");
    }
    Ok(())
}
