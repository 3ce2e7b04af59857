//! Frames from pods.

mod icmp;

use std::{net::Ipv6Addr, time::Duration};

use anyhow::Result;
use contiv_abi::{DropReason, maps::FROM_POD};
use contiv_model::global::ArpMode;
use netplugin::datapath::Object;
use testkit::{
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet, mac, nd_flags, solicited_node, solicited_node_mac},
};

use crate::{
    node::{Endpoint, Node, Pod, network, vlan, vtep, vxlan},
    run::{Code, Outcome, Target, run},
};

const NOWHERE: &str = "02:02:0a:01:01:63";
const HERE: Endpoint = Endpoint(1);
const OTHER: Endpoint = Endpoint(2);
const FAR: Endpoint = Endpoint(3);
const STRANGER: Endpoint = Endpoint(99);

/// A node with two local pods and one remote endpoint on one network.
struct Rig {
    node: Node,
    first: Pod,
    second: Pod,
}

impl Rig {
    fn new(label: &str) -> Result<Rig> {
        Rig::with(label, ArpMode::Proxy)
    }

    fn with(label: &str, arp: ArpMode) -> Result<Rig> {
        let mut node = Node::new(label)?;
        let mut n1 = network("n1.t", vxlan(10_001));
        n1.arp = arp;
        node.want_network(&n1).want_peer(2).want(Object::Remote(FAR.remote(&n1, Some(vtep(2)))));
        let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
        node.converge()?;
        Ok(Rig { node, first, second })
    }

    fn run(&self, packet: &Packet) -> Result<Outcome> {
        self.run_bytes(&packet.build())
    }

    fn run_bytes(&self, frame: &[u8]) -> Result<Outcome> {
        run(&self.node, FROM_POD, &self.first.local.port, frame)
    }
}

fn udp_to(target: Endpoint) -> Packet {
    Packet::eth(target.mac(), HERE.mac()).ipv4(HERE.ip(), target.ip()).udp(4000, 53).payload(b"query")
}

#[test]
fn frames_to_known_destinations_are_forwarded_unchanged() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-known")?;
    for target in [OTHER, FAR] {
        let frame = udp_to(target).build();
        rig.run_bytes(&frame)?.assert_sent_on(&frame);
    }
    // IP options are irrelevant; the first fragment provides the ports of later ones.
    for odd in [
        udp_to(OTHER).ip_options(&[7, 3, 4, 0]),
        udp_to(FAR).fragment(7, 0, true),
        udp_to(FAR).fragment(7, 64, true),
    ] {
        let frame = odd.build();
        rig.run_bytes(&frame)?.assert_sent_on(&frame);
    }
    Ok(())
}

#[test]
fn a_tagged_frame_is_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-tagged")?;
    let frame = Packet::eth(OTHER.mac(), HERE.mac()).vlan(5).ipv4(HERE.ip(), OTHER.ip()).udp(1, 2);
    rig.run(&frame)?.assert_dropped(DropReason::TaggedByPod);
    let mut bytes = frame.build();
    bytes[12..14].copy_from_slice(&[0x88, 0xa8]);
    rig.run_bytes(&bytes)?.assert_dropped(DropReason::TaggedByPod);
    Ok(())
}

#[test]
fn frames_that_no_bridge_forwards_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-odd")?;
    let from_group = Packet::eth(OTHER.mac(), mac("03:02:0a:01:01:01")).ipv4(HERE.ip(), OTHER.ip()).udp(1, 2);
    rig.run(&from_group)?.assert_dropped(DropReason::GroupSource);
    let to_bridge = Packet::eth(mac("01:80:c2:00:00:0e"), HERE.mac()).ipv4(HERE.ip(), OTHER.ip()).udp(1, 2);
    rig.run(&to_bridge)?.assert_dropped(DropReason::LinkLocalGroup);
    rig.run(&udp_to(HERE))?.assert_dropped(DropReason::Hairpin);
    Ok(())
}

#[test]
fn frames_from_an_interface_that_is_not_a_port_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-noport")?;
    let frame = udp_to(OTHER).build();
    run(&rig.node, FROM_POD, "lo", &frame)?.assert_dropped(DropReason::UnknownPort);
    Ok(())
}

#[test]
fn frames_from_a_port_of_a_deleted_network_are_dropped() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("pod-noseg")?;
    let gone = netplugin::datapath::Op::Delete(netplugin::datapath::ObjectId::Network("n1.t".into()));
    assert!(rig.node.apply(&[gone])?.is_empty());
    rig.run(&udp_to(OTHER))?.assert_dropped(DropReason::UnknownSegment);
    Ok(())
}

#[test]
fn arp_for_known_endpoints_is_answered() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-arp")?;
    for owner in [OTHER, FAR] {
        let question = Packet::arp_request(HERE.mac(), HERE.ip(), owner.ip());
        let answer = Packet::arp_reply(owner.mac(), owner.ip(), HERE.mac(), HERE.ip()).build();
        rig.run(&question)?.assert_answered(&answer);
        // An address probe, from the unspecified address, is answered.
        let probe = Packet::arp_request(HERE.mac(), [0, 0, 0, 0], owner.ip());
        let answer = Packet::arp_reply(owner.mac(), owner.ip(), HERE.mac(), [0, 0, 0, 0]).build();
        rig.run(&probe)?.assert_answered(&answer);
    }
    // Padded to the minimum frame length, like the reply.
    let mut question = Packet::arp_request(HERE.mac(), HERE.ip(), FAR.ip()).build();
    question.resize(60, 0);
    let mut answer = Packet::arp_reply(FAR.mac(), FAR.ip(), HERE.mac(), HERE.ip()).build();
    answer.resize(60, 0);
    rig.run_bytes(&question)?.assert_answered(&answer);
    Ok(())
}

#[test]
fn arp_for_others_is_flooded() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-arpflood")?;
    let tap = Tap::open(&rig.second.ns, "eth0")?;
    // Requests for an unknown address are flooded; a pod's request for its own address is not answered.
    for (sender, target) in
        [(HERE.ip(), STRANGER.ip()), (HERE.ip(), HERE.ip()), ([0, 0, 0, 0].into(), HERE.ip())]
    {
        let question = Packet::arp_request(HERE.mac(), sender, target);
        rig.run(&question)?.assert_flooded();
        let question = question.build();
        tap.expect(Duration::from_secs(5), "the question", |frame| (frame == question).then_some(()))?;
    }
    Ok(())
}

#[test]
fn other_arp_is_forwarded_if_it_is_valid() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-arpother")?;
    let reply = Packet::arp_reply(HERE.mac(), HERE.ip(), OTHER.mac(), OTHER.ip()).build();
    rig.run_bytes(&reply)?.assert_sent_on(&reply);
    // A request for another hardware type.
    let mut strange = Packet::arp_request(HERE.mac(), HERE.ip(), FAR.ip()).build();
    strange[15] = 6;
    rig.run_bytes(&strange)?.assert_dropped(DropReason::InvalidNeighbour);
    // Bytes behind the request would pass every rule.
    let long = [Packet::arp_request(HERE.mac(), HERE.ip(), FAR.ip()).build(), vec![0; 23]].concat();
    rig.run_bytes(&long)?.assert_dropped(DropReason::InvalidNeighbour);
    Ok(())
}

#[test]
fn solicitations_for_known_endpoints_are_answered() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-nd")?;
    for owner in [OTHER, FAR] {
        let question = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), owner.ip6());
        let answer = Packet::neighbour_advertisement(
            (HERE.mac(), HERE.ip6()),
            (owner.mac(), owner.ip6()),
            owner.mac(),
            nd_flags::SOLICITED | nd_flags::OVERRIDE,
        );
        rig.run(&question)?.assert_answered(&answer.build());

        // Without the option, as in a probe of a known neighbour, and with an additional option.
        let bare = |options: &[u8]| {
            Packet::eth(solicited_node_mac(owner.ip6()), HERE.mac())
                .ipv6(HERE.ip6(), solicited_node(owner.ip6()))
                .ttl(255)
                .icmpv6(135, 0, [0; 4])
                .payload(&[&owner.ip6().octets()[..], options].concat())
        };
        rig.run(&bare(&[]))?.assert_answered(&answer.build());
        rig.run(&bare(&[14, 1, 1, 2, 3, 4, 5, 6, 1, 1, 2, 2, 10, 1, 1, 1]))?.assert_answered(&answer.build());
    }
    Ok(())
}

#[test]
fn duplicate_detection_fails_for_the_addresses_of_others_only() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-dad")?;
    let tap = Tap::open(&rig.second.ns, "eth0")?;
    let probe = |endpoint: Endpoint| {
        Packet::neighbour_solicitation(HERE.mac(), Ipv6Addr::UNSPECIFIED, endpoint.ip6())
    };
    let all_nodes = (mac("33:33:00:00:00:01"), Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
    let answer =
        Packet::neighbour_advertisement(all_nodes, (FAR.mac(), FAR.ip6()), FAR.mac(), nd_flags::OVERRIDE);
    rig.run(&probe(FAR))?.assert_answered(&answer.build());

    // One that is not answered is not forwarded: it would end the detection of the address's owner.
    rig.run(&probe(STRANGER))?.assert_dropped(DropReason::SpoofedIp);
    rig.run(&probe(HERE))?.assert_flooded();
    let own = probe(HERE).build();
    tap.expect(Duration::from_secs(5), "the probe", |frame| (frame == own).then_some(()))?;
    Ok(())
}

#[test]
fn malformed_solicitations_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-ndother")?;
    let solicitation = |ttl, kind, code| {
        Packet::eth(solicited_node_mac(FAR.ip6()), HERE.mac())
            .ipv6(HERE.ip6(), solicited_node(FAR.ip6()))
            .ttl(ttl)
            .icmpv6(kind, code, [0; 4])
            .payload(&FAR.ip6().octets())
    };
    // Forwarded by a router, which the kernel of a pod ignores: a packet like any other.
    rig.run(&solicitation(254, 135, 0))?.assert_flooded();
    // Another code; a redirect; an advertisement of a router; a fragment.
    for (packet, reason) in [
        (solicitation(255, 135, 1), DropReason::InvalidNeighbour),
        (solicitation(255, 137, 0), DropReason::RouterDiscovery),
        (solicitation(255, 134, 0), DropReason::RouterDiscovery),
        (solicitation(255, 135, 0).fragment(1, 0, true), DropReason::InvalidNeighbour),
    ] {
        rig.run(&packet)?.assert_dropped(reason);
    }
    let stranger = Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), STRANGER.ip6());
    rig.run(&stranger)?.assert_flooded();
    Ok(())
}

#[test]
fn in_flood_mode_requests_are_flooded() -> Result<()> {
    needs!(root());
    let rig = Rig::with("pod-flood", ArpMode::Flood)?;
    rig.run(&Packet::arp_request(HERE.mac(), HERE.ip(), FAR.ip()))?.assert_flooded();
    rig.run(&Packet::neighbour_solicitation(HERE.mac(), HERE.ip6(), FAR.ip6()))?.assert_flooded();
    Ok(())
}

#[test]
fn unknown_unicast_on_vxlan_is_flooded_but_not_reflected() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-unknown")?;
    let (own, other) = (Tap::open(&rig.first.ns, "eth0")?, Tap::open(&rig.second.ns, "eth0")?);
    let frame = Packet::eth(mac(NOWHERE), HERE.mac()).ipv4(HERE.ip(), STRANGER.ip()).udp(4000, 53).build();
    rig.run_bytes(&frame)?.assert_flooded();
    other.expect(Duration::from_secs(5), "the copy", |bytes| (bytes == frame).then_some(()))?;
    assert!(own.drain()?.iter().all(|sent| sent.bytes != frame));
    Ok(())
}

#[test]
fn a_vlan_without_uplink_is_local() -> Result<()> {
    needs!(root());
    let mut node = Node::new("pod-vlan")?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1).want(Object::Remote(FAR.remote(&n1, None)));
    let (first, second) = (node.pod(&n1, HERE)?, node.pod(&n1, OTHER)?);
    node.converge()?;
    let send = |packet: &Packet| run(&node, FROM_POD, &first.local.port, &packet.build());
    let frame = udp_to(OTHER);
    send(&frame)?.assert_sent_on(&frame.build());
    // Without an uplink there is no other way out.
    send(&udp_to(FAR))?.assert_dropped(DropReason::NoUplink);
    // A broadcast still reaches the local pods.
    let tap = Tap::open(&second.ns, "eth0")?;
    let broadcast = Packet::arp_request(HERE.mac(), HERE.ip(), STRANGER.ip());
    send(&broadcast)?.assert_flooded();
    let broadcast = broadcast.build();
    tap.expect(Duration::from_secs(5), "the broadcast", |bytes| (bytes == broadcast).then_some(()))?;
    Ok(())
}

/// Clients do not ask which port a message comes from.
#[test]
fn datagrams_to_dhcp_clients_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-dhcp")?;
    let v4 = || Packet::eth(OTHER.mac(), HERE.mac()).ipv4(HERE.ip(), OTHER.ip());
    let v6 = || Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), OTHER.ip6());
    for source in [67, 547, 1067, 40_000] {
        for packet in [v4().udp(source, 68), v6().udp(source, 546), v4().udp(source, 68).fragment(7, 0, true)]
        {
            rig.run(&packet)?.assert_dropped(DropReason::DhcpServer);
        }
        for packet in [v4().udp(source, 69), v4().udp(source, 546), v6().udp(source, 68)] {
            rig.run(&packet)?.assert_sent_on(&packet.build());
        }
    }
    Ok(())
}

/// It would have the record of an IPv4 endpoint or service.
#[test]
fn packets_to_mapped_addresses_are_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("pod-mapped")?;
    for to in [OTHER.ip().to_ipv6_mapped(), STRANGER.ip().to_ipv6_mapped(), Ipv6Addr::LOCALHOST] {
        let packet = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), to).udp(4000, 53);
        rig.run(&packet)?.assert_dropped(DropReason::AddressMismatch);
    }
    Ok(())
}

/// A packet of 4,000 segments is what the port may send in 1,000 seconds.
#[test]
fn storm_control_counts_the_segments_of_a_packet() -> Result<()> {
    needs!(root());
    let mut node = Node::with("pod-gso", |options| options.bum_rate = 4)?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let pod = node.pod(&n1, HERE)?;
    node.converge()?;
    let frame = Packet::eth(BROADCAST, HERE.mac()).ipv4(HERE.ip(), [255; 4]).udp(4000, 4001).build();
    let send = || run(&node, FROM_POD, &pod.local.port, &frame);
    send()?.assert_flooded();
    let target = Target::new(&node, FROM_POD, &pod.local.port)?.segmented(4000);
    node.ns.run(|| target.give(&frame))?;
    send()?.assert_dropped(DropReason::StormControl);
    Ok(())
}

/// Tunnels over IPv6 put destination options (60) before the packet (41), which the kernel segments later.
#[test]
fn segmented_packets_with_options_pass() -> Result<()> {
    needs!(root());
    let mut node = Node::new("pod-gso-opts")?;
    let n1 = network("n1.t", vxlan(10_001));
    node.want_network(&n1);
    let (pod, other) = (node.pod(&n1, HERE)?, node.pod(&n1, Endpoint(2))?);
    node.converge()?;
    let inner = [&[41, 0, 4, 1, 4, 1, 1, 0][..], &[0x60; 300]].concat();
    let packet = Packet::eth(other.endpoint.mac(), HERE.mac()).ipv6(HERE.ip6(), other.endpoint.ip6());
    let frame = packet.protocol(60).payload(&inner).build();
    let target = Target::new(&node, FROM_POD, &pod.local.port)?.segmented(3);
    assert_eq!(node.ns.run(|| target.give(&frame))?, (Code::Redirect, frame));
    Ok(())
}
