//! Frames from the uplink of VLAN networks.

use std::{net::UdpSocket, time::Duration};

use anyhow::Result;
use contiv_abi::{DropReason, maps::FROM_UPLINK};
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{Local, Object};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, mac},
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan},
    policy,
    run::{Code, Outcome, run},
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const TAG: u16 = 100;
const TIMEOUT: Duration = Duration::from_secs(5);

struct Rig {
    node: Node,
    pod: Pod,
    outside: Netns,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        let (mut node, outside) = Node::on_wire(label)?;
        let n1 = network("n1.t", vlan(TAG));
        node.want_network(&n1).want(Object::Remote(THERE.remote(&n1, None)));
        let pod = node.pod(&n1, HERE)?;
        node.converge()?;
        Ok(Rig { node, pod, outside })
    }

    fn run(&self, packet: &Packet) -> Result<Outcome> {
        run(&self.node, FROM_UPLINK, "trunk", &packet.build())
    }
}

fn tagged(to: [u8; 6], tag: u16) -> Packet {
    Packet::eth(to, THERE.mac()).vlan(tag).ipv4(THERE.ip(), HERE.ip()).udp(4000, 53)
}

fn plain(to: [u8; 6]) -> Packet {
    Packet::eth(to, THERE.mac()).ipv4(THERE.ip(), HERE.ip()).udp(4000, 53)
}

#[test]
fn the_hosts_own_traffic_is_left_to_the_host() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-host")?;
    for packet in [plain(HERE.mac()), tagged(HERE.mac(), TAG + 1), tagged(HERE.mac(), 0), plain(BROADCAST)] {
        let frame = packet.build();
        let outcome = rig.run(&packet)?;
        assert_eq!((outcome.code, outcome.bytes, outcome.dropped), (Code::Next, frame, vec![]));
    }
    Ok(())
}

#[test]
fn the_tag_of_a_network_is_removed() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-pop")?;
    rig.run(&tagged(HERE.mac(), TAG))?.assert_sent_on(&plain(HERE.mac()).build());
    // The priority bits are ignored.
    let mut frame = tagged(HERE.mac(), TAG).build();
    frame[14] |= 0xe0;
    run(&rig.node, FROM_UPLINK, "trunk", &frame)?.assert_sent_on(&plain(HERE.mac()).build());
    Ok(())
}

#[test]
fn frames_for_other_hosts_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-others")?;
    rig.run(&tagged(mac("02:02:0a:01:01:63"), TAG))?.assert_dropped(DropReason::NotLocal);
    let from_group = Packet::eth(HERE.mac(), BROADCAST).vlan(TAG).ipv4(THERE.ip(), HERE.ip()).udp(1, 2);
    rig.run(&from_group)?.assert_dropped(DropReason::GroupSource);
    Ok(())
}

#[test]
fn broadcasts_reach_the_pods() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-bcast")?;
    let tap = Tap::open(&rig.pod.ns, "eth0")?;
    let to_all = |packet: Packet| packet.ipv4(THERE.ip(), [255; 4]).udp(4000, 53);
    rig.run(&to_all(Packet::eth(BROADCAST, THERE.mac()).vlan(TAG)))?.assert_flooded();
    let frame = to_all(Packet::eth(BROADCAST, THERE.mac())).build();
    tap.expect(TIMEOUT, "the broadcast", |bytes| (bytes == frame).then_some(()))?;
    Ok(())
}

#[test]
fn frames_on_the_wire_carry_the_tag_both_ways() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-wire")?;
    let (wire, pod) = (Tap::open(&rig.outside, "wire")?, Tap::open(&rig.pod.ns, "eth0")?);
    wire.send(&tagged(HERE.mac(), TAG).build())?;
    let frame = plain(HERE.mac()).build();
    pod.expect(TIMEOUT, "the untagged frame", |bytes| (bytes == frame).then_some(()))?;

    // To a remote endpoint, to an unknown gateway, and to all.
    let gateway = mac("02:02:0a:01:01:fe");
    for (target, ip) in
        [(THERE.mac(), THERE.ip()), (gateway, [192, 0, 2, 77].into()), (BROADCAST, [255; 4].into())]
    {
        let out = |packet: Packet| packet.ipv4(HERE.ip(), ip).udp(4000, 53).build();
        pod.send(&out(Packet::eth(target, HERE.mac())))?;
        let expected = out(Packet::eth(target, HERE.mac()).vlan(TAG));
        wire.expect(TIMEOUT, "the tagged frame", |bytes| (bytes == expected).then_some(()))?;
    }
    Ok(())
}

#[test]
fn requests_for_local_pods_are_answered_with_the_tag() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-arp")?;
    let (wire, pod) = (Tap::open(&rig.outside, "wire")?, Tap::open(&rig.pod.ns, "eth0")?);
    let request = |target: Endpoint| {
        let (sender, asked) = ((THERE.mac(), THERE.ip()), ([0; 6], target.ip()));
        Packet::eth(BROADCAST, THERE.mac()).vlan(TAG).arp(1, sender, asked)
    };
    wire.send(&request(HERE).build())?;
    let answer = Packet::eth(THERE.mac(), HERE.mac())
        .vlan(TAG)
        .arp(2, (HERE.mac(), HERE.ip()), (THERE.mac(), THERE.ip()))
        .build();
    wire.expect(TIMEOUT, "the answer", |bytes| (bytes == answer).then_some(()))?;
    assert!(pod.drain()?.is_empty(), "the pod was bothered");
    Ok(())
}

#[test]
fn a_second_tag_is_refused() -> Result<()> {
    needs!(root());
    let rig = Rig::new("upl-qinq")?;
    for tag in [0, 7, TAG] {
        let inner = Packet::eth(HERE.mac(), THERE.mac()).vlan(TAG).vlan(tag);
        rig.run(&inner.ipv4(THERE.ip(), HERE.ip()).udp(4000, 53))?.assert_dropped(DropReason::TaggedTwice);
    }
    Ok(())
}

/// A kernel accepts packets behind any number of priority tags (VLAN 0). Programs read one hardware-accelerated tag,
/// and would treat a packet behind a further tag as non-IP, to which no rule applies.
#[test]
fn rules_apply_to_frames_with_several_tags() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("upl-tags")?;
    let denying = policy::group(1, vec![policy::rule("deny", Direction::In, Action::Deny, 10)]);
    let local = Local { identity: Some(policy::number(1)), ..rig.pod.local.clone() };
    rig.node.want(Object::Group(denying)).want(Object::Local(local));
    rig.node.converge()?;
    let socket = rig.pod.ns.run(|| Ok(UdpSocket::bind((HERE.ip(), 53))?))?;
    socket.set_read_timeout(Some(Duration::from_millis(300)))?;
    let wire = Tap::open(&rig.outside, "wire")?;
    for (tags, reason) in
        [(0, DropReason::Policy), (1, DropReason::TaggedTwice), (2, DropReason::TaggedTwice)]
    {
        let eth = Packet::eth(HERE.mac(), THERE.mac()).vlan(TAG);
        let eth = (0..tags).fold(eth, |eth, _| eth.vlan(0));
        let packet = eth.ipv4(THERE.ip(), HERE.ip()).udp(4000, 53).payload(b"behind tags");
        wire.send(&packet.build())?;
        assert!(socket.recv(&mut [0; 64]).is_err(), "a packet has come, behind {tags} tags");
        rig.run(&packet)?.assert_dropped(reason);
    }
    Ok(())
}
