//! Frames from tunnels. A program run on a single frame cannot carry a tunnel key, so the other node is a socket that
//! speaks VXLAN.

use std::{net::UdpSocket, time::Duration};

use anyhow::Result;
use contiv_abi::{DropReason, FlowHalf, maps::FROM_OVERLAY};
use netplugin::datapath::{Object, ebpf::Options};
use testkit::{
    Netns,
    capture::Tap,
    needs,
    packet::{Packet, mac, nd_flags},
    patience, wait_until,
};

use crate::{
    flow_table,
    node::{Endpoint, Node, Pod, network, vtep, vxlan},
    run::run,
};

const HERE: Endpoint = Endpoint(1);
const THERE: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
/// No endpoint has its addresses.
const UNKNOWN: Endpoint = Endpoint(99);
pub(crate) const VNI: u32 = 10_001;
const TIMEOUT: Duration = Duration::from_secs(5);

/// A node with a pod, connected to a peer that sends arbitrary frames.
pub(crate) struct Rig {
    pub(crate) node: Node,
    pub(crate) pod: Pod,
    outside: Netns,
    socket: UdpSocket,
}

impl Rig {
    pub(crate) fn new(label: &str) -> Result<Rig> {
        let mut node = Node::with(label, |options| options.vtep = Some(vtep(1).into()))?;
        let outside = Netns::new(&format!("{label}-out"))?;
        node.ns.veth("under", &outside, "wire")?;
        node.ns.address("under", &format!("{}/24", vtep(1)))?;
        outside.address("wire", &format!("{}/24", vtep(2)))?;
        outside.address("wire", &format!("{}/24", vtep(9)))?;
        node.ns.up("under")?;
        outside.up("wire")?;
        let n1 = network("n1.t", vxlan(VNI));
        node.want_network(&n1).want_peer(2);
        node.want(Object::Remote(THERE.remote(&n1, Some(vtep(2)))));
        node.want(Object::Remote(FAR.remote(&n1, Some(vtep(3)))));
        let pod = node.pod(&n1, HERE)?;
        node.converge()?;
        let socket = outside.run(|| Ok(UdpSocket::bind((vtep(2), Options::VXLAN_PORT))?))?;
        socket.set_read_timeout(Some(TIMEOUT * patience()))?;
        Ok(Rig { node, pod, outside, socket })
    }

    pub(crate) fn send(&self, vni: u32, inner: &Packet) -> Result<()> {
        send_from(&self.socket, vni, inner)
    }

    /// Waits for one drop with this reason and no other.
    pub(crate) fn expect_drop(&self, reason: DropReason) -> Result<()> {
        wait_until(TIMEOUT, reason.as_str(), || {
            Ok((self.node.drops()?.get(&reason) == Some(&1)).then_some(()))
        })?;
        assert_eq!(self.node.drops()?.len(), 1);
        Ok(())
    }
}

fn send_from(socket: &UdpSocket, vni: u32, inner: &Packet) -> Result<()> {
    let message = [&[8, 0, 0, 0], &(vni << 8).to_be_bytes()[..], &inner.build()].concat();
    socket.send_to(&message, (vtep(1), Options::VXLAN_PORT))?;
    Ok(())
}

fn udp(to: [u8; 6], from: [u8; 6]) -> Packet {
    Packet::eth(to, from).ipv4(THERE.ip(), HERE.ip()).udp(4000, 53).payload(b"query")
}

#[test]
fn a_frame_without_tunnel_is_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-nokey")?;
    let frame = udp(HERE.mac(), THERE.mac()).build();
    run(&rig.node, FROM_OVERLAY, Options::VXLAN_DEVICE, &frame)?.assert_dropped(DropReason::NoTunnelKey);
    Ok(())
}

#[test]
fn a_known_destination_gets_the_frame() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-known")?;
    let tap = Tap::open(&rig.pod.ns, "eth0")?;
    let frame = udp(HERE.mac(), THERE.mac());
    rig.send(VNI, &frame)?;
    let bytes = frame.build();
    tap.expect(TIMEOUT, "the frame", |frame| (frame == bytes).then_some(()))?;
    // Broadcasts and frames to unknown destinations are delivered, too.
    for (target, ip) in [("ff:ff:ff:ff:ff:ff", [255; 4]), ("02:02:0a:01:01:63", [10, 1, 1, 99])] {
        let frame = Packet::eth(mac(target), THERE.mac()).ipv4(THERE.ip(), ip).udp(4000, 53);
        rig.send(VNI, &frame)?;
        let bytes = frame.build();
        tap.expect(TIMEOUT, "the flooded frame", |frame| (frame == bytes).then_some(()))?;
    }
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

#[test]
fn unknown_peers_and_networks_are_refused() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-stranger")?;
    let stranger = rig.outside.run(|| Ok(UdpSocket::bind((vtep(9), 0))?))?;
    send_from(&stranger, VNI, &udp(HERE.mac(), THERE.mac()))?;
    rig.expect_drop(DropReason::UnknownPeer)
}

#[test]
fn a_network_without_local_pods_is_refused() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-noseg")?;
    rig.send(VNI + 1, &udp(HERE.mac(), THERE.mac()))?;
    rig.expect_drop(DropReason::UnknownSegment)
}

#[test]
fn frames_are_not_forwarded_between_tunnels() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-join")?;
    rig.send(VNI, &Packet::eth(FAR.mac(), THERE.mac()).ipv4(THERE.ip(), FAR.ip()).udp(4000, 53))?;
    rig.expect_drop(DropReason::NotLocal)
}

/// A peer, or a pod elsewhere that sends to addresses without a record, fills no table of others.
#[test]
fn frames_for_no_endpoint_here_make_no_flow() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-noflow")?;
    let tap = Tap::open(&rig.pod.ns, "eth0")?;
    for port in 4000..4010 {
        let to = |at: Endpoint| Packet::eth(at.mac(), THERE.mac()).ipv4(THERE.ip(), at.ip()).udp(port, 53);
        rig.send(VNI, &to(FAR))?;
        let frame = to(UNKNOWN);
        rig.send(VNI, &frame)?;
        let bytes = frame.build();
        tap.expect(TIMEOUT, "the flooded frame", |frame| (frame == bytes).then_some(()))?;
    }
    // A frame for the pod makes one, which its quota counts.
    let frame = udp(HERE.mac(), THERE.mac());
    rig.send(VNI, &frame)?;
    let bytes = frame.build();
    tap.expect(TIMEOUT, "the frame", |frame| (frame == bytes).then_some(()))?;
    let owners: Vec<u32> = flow_table::flows(&rig.node)?.iter().map(|flow| flow.halves[0].owner).collect();
    assert_eq!(owners, [rig.node.ifindex(&rig.pod.local.port)? | FlowHalf::RECEIVED]);
    Ok(())
}

#[test]
fn a_group_source_is_refused() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-group")?;
    rig.send(VNI, &udp(HERE.mac(), mac("03:00:00:00:00:01")))?;
    // The VXLAN device may drop the frame first, without a count.
    let tap = Tap::open(&rig.pod.ns, "eth0")?;
    let good = udp(HERE.mac(), THERE.mac());
    rig.send(VNI, &good)?;
    let bytes = good.build();
    tap.expect(TIMEOUT, "the next frame", |frame| (frame == bytes).then_some(()))?;
    assert!(rig.node.drops()?.keys().all(|reason| *reason == DropReason::GroupSource));
    Ok(())
}

/// The inner frame of the next tunnelled packet.
fn receive(socket: &UdpSocket) -> Result<(u32, Vec<u8>)> {
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer)?;
    let vni = u32::from_be_bytes([0, buffer[4], buffer[5], buffer[6]]);
    Ok((vni, buffer[8..length].to_vec()))
}

#[test]
fn requests_for_local_pods_are_answered_through_the_tunnel() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-arp")?;
    let tap = Tap::open(&rig.pod.ns, "eth0")?;
    rig.send(VNI, &Packet::arp_request(THERE.mac(), THERE.ip(), HERE.ip()))?;
    let answer = Packet::arp_reply(HERE.mac(), HERE.ip(), THERE.mac(), THERE.ip()).build();
    assert_eq!(receive(&rig.socket)?, (VNI, answer));

    rig.send(VNI, &Packet::neighbour_solicitation(THERE.mac(), THERE.ip6(), HERE.ip6()))?;
    let answer = Packet::neighbour_advertisement(
        (THERE.mac(), THERE.ip6()),
        (HERE.mac(), HERE.ip6()),
        HERE.mac(),
        nd_flags::SOLICITED | nd_flags::OVERRIDE,
    );
    assert_eq!(receive(&rig.socket)?, (VNI, answer.build()));
    assert!(tap.drain()?.is_empty(), "the pod was bothered");

    // The nodes of other endpoints answer for them; here the request is flooded to the pods.
    let question = Packet::arp_request(THERE.mac(), THERE.ip(), FAR.ip());
    rig.send(VNI, &question)?;
    let bytes = question.build();
    tap.expect(TIMEOUT, "the question", |frame| (frame == bytes).then_some(()))?;
    Ok(())
}

#[test]
fn encapsulated_frames_match_those_of_ovs_nodes() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-out")?;
    let wire = Tap::open(&rig.outside, "wire")?;
    let pod = Tap::open(&rig.pod.ns, "eth0")?;
    for (inner, class) in [
        (Packet::eth(THERE.mac(), HERE.mac()).ipv4(HERE.ip(), THERE.ip()).dscp(46).udp(1, 2), 46 << 2),
        (Packet::eth(THERE.mac(), HERE.mac()).ipv6(HERE.ip6(), THERE.ip6()).dscp(10).udp(1, 2), 10 << 2),
    ] {
        pod.send(&inner.build())?;
        let outer = wire.expect(TIMEOUT, "the tunnelled frame", |frame| {
            let tunnelled = frame.get(23) == Some(&17) && frame.get(36..38) == Some(&4789_u16.to_be_bytes());
            tunnelled.then(|| frame.to_vec())
        })?;
        assert_eq!(outer[15], class, "outer TOS");
        assert_eq!(outer[22], 64, "outer TTL");
        assert_eq!(outer[40..42], [0, 0], "outer UDP checksum");
        assert_eq!(outer[42..50], [8, 0, 0, 0, 0, 0x27, 0x11, 0], "VXLAN header");
        assert_eq!(outer[50..], inner.build());
    }
    Ok(())
}

#[test]
fn frames_with_two_tags_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("ovl-tags")?;
    let eth = Packet::eth(HERE.mac(), THERE.mac()).vlan(0).vlan(0);
    rig.send(VNI, &eth.ipv4(THERE.ip(), HERE.ip()).udp(4000, 53))?;
    rig.expect_drop(DropReason::TaggedTwice)
}
