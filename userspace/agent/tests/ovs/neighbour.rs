//! ARP and ND: which requests the switch answers, forwards or floods.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::Result;
use contiv_model::{global::ArpMode, tag::Encap};
use netplugin::datapath::Object;
use testkit::{
    capture::Tap,
    needs,
    packet::{self, Packet},
    patience,
};

use crate::node::{Node, Pod, SOON, addresses, network, remote, vlan, vtep, vxlan};

const REQUEST: u16 = 1;
const ZERO: [u8; 6] = [0; 6];

/// Runs `test` on a node with two pods and a remote endpoint. The pods have no addresses, so that only the switch replies.
fn with_pods(
    label: &str,
    encap: Encap,
    test: impl FnOnce(&Node, [(&Pod, &Tap); 2]) -> Result<()>,
) -> Result<()> {
    let node = Node::new(label, &[])?;
    node.converge()?;
    let blue = network("blue", encap, ArpMode::Proxy);
    let through = matches!(encap, Encap::Vxlan { .. }).then(|| vtep(1));
    node.add(through.map(crate::node::peer))?;
    node.add([Object::Network(blue.clone()), remote(&blue, 3, through)])?;
    let pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    pods[0].reaches(2)?;
    for pod in &pods {
        pod.namespace.ip("link set eth0 arp off")?;
        pod.namespace.ip("addr flush dev eth0")?;
    }
    let taps = [Tap::open(&pods[0].namespace, "eth0")?, Tap::open(&pods[1].namespace, "eth0")?];
    test(&node, [(&pods[0], &taps[0]), (&pods[1], &taps[1])])
}

fn arp(sender: (&Pod, Ipv4Addr), target: Ipv4Addr) -> Vec<u8> {
    let mac = sender.0.mac;
    Packet::eth([0xff; 6], mac).arp(REQUEST, (mac, sender.1), (ZERO, target)).build()
}

fn answers_for_known_addresses(encap: Encap, label: &str) -> Result<()> {
    with_pods(label, encap, |_, [(one, tap), (_, other)]| {
        let own = addresses(1);
        for n in [2, 3] {
            let (ip, ip6) = addresses(n);
            let mac = contiv_model::mac::Mac::of_endpoint(ip).0;
            tap.send(&arp((one, own.0), ip))?;
            let reply = Packet::eth(one.mac, mac).arp(2, (mac, ip), (one.mac, own.0)).build();
            tap.expect(SOON, "the ARP reply", |bytes| (bytes[..reply.len()] == reply).then_some(()))?;

            let solicitation = Packet::neighbour_solicitation(one.mac, own.1, ip6).build();
            tap.send(&solicitation)?;
            let advertisement = tap.expect(SOON, "the advertisement", |bytes| {
                (bytes.len() >= 86 && bytes[12..14] == [0x86, 0xdd] && bytes[54] == 136)
                    .then(|| bytes.to_vec())
            })?;
            let expected = Packet::eth(one.mac, mac)
                .ipv6(ip6, own.1)
                .ttl(255)
                .icmpv6(136, 0, [0x60, 0, 0, 0])
                .payload(&[&ip6.octets()[..], &[2, 1], &mac].concat())
                .build();
            assert_eq!(advertisement, expected, "the whole frame, with checksum");
        }
        // No request reaches another pod. The kernels of the pods send frames of their own at any time, such as MLD reports.
        let requests: Vec<_> =
            other.drain()?.into_iter().filter(|frame| is_neighbour_message(&frame.bytes, one.mac)).collect();
        assert_eq!(requests, []);
        Ok(())
    })
}

#[test]
fn known_addresses_are_answered_on_vxlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    answers_for_known_addresses(vxlan(5000), "ndx")
}

#[test]
fn known_addresses_are_answered_on_vlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    answers_for_known_addresses(vlan(100), "ndl")
}

/// Whether a frame is ARP, a neighbour solicitation or an advertisement, sent from `source`.
fn is_neighbour_message(frame: &[u8], source: [u8; 6]) -> bool {
    let arp = frame[12..14] == [0x08, 0x06];
    let nd = frame[12..14] == [0x86, 0xdd] && matches!(frame.get(54), Some(135 | 136));
    frame[6..12] == source && (arp || nd)
}

/// Sends a frame and then a request; checks that the first reply is that to the request.
fn expect_no_reply(tap: &Tap, pod: &Pod, frame: &[u8]) -> Result<()> {
    tap.drain()?;
    tap.send(frame)?;
    tap.send(&arp((pod, addresses(1).0), addresses(3).0))?;
    let is_reply = |bytes: &[u8]| bytes[12..14] == [0x08, 0x06] && bytes[21] == 2;
    let first = tap.expect(SOON, "the reply to the request", |bytes| {
        (is_reply(bytes) || bytes.get(54) == Some(&136)).then(|| bytes.to_vec())
    })?;
    assert_eq!(first[28..32], addresses(3).0.octets(), "unexpected reply");
    Ok(())
}

#[test]
fn requests_for_own_addresses_are_not_answered() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap) in [("ownx", vxlan(5000)), ("ownl", vlan(100))] {
        with_pods(label, encap, |_, [(one, tap), _]| {
            let (ip, ip6) = addresses(1);
            expect_no_reply(tap, one, &arp((one, Ipv4Addr::UNSPECIFIED), ip))?;
            expect_no_reply(tap, one, &arp((one, ip), ip))?;
            expect_no_reply(tap, one, &dad_solicitation(one, ip6))
        })?;
    }
    Ok(())
}

/// Returns a solicitation of duplicate address detection: unspecified source, no option (RFC 4862 section 5.4.2).
fn dad_solicitation(pod: &Pod, target: Ipv6Addr) -> Vec<u8> {
    Packet::eth(packet::solicited_node_mac(target), pod.mac)
        .ipv6(Ipv6Addr::UNSPECIFIED, packet::solicited_node(target))
        .ttl(255)
        .icmpv6(135, 0, [0; 4])
        .payload(&target.octets())
        .build()
}

#[test]
fn duplicate_addresses_are_detected() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap) in [("defx", vxlan(5000)), ("defl", vlan(100))] {
        with_pods(label, encap, |_, [(one, tap), _]| {
            for n in [2, 3] {
                let (ip, ip6) = addresses(n);
                let mac = contiv_model::mac::Mac::of_endpoint(ip).0;
                tap.send(&arp((one, Ipv4Addr::UNSPECIFIED), ip))?;
                let reply =
                    Packet::eth(one.mac, mac).arp(2, (mac, ip), (one.mac, Ipv4Addr::UNSPECIFIED)).build();
                tap.expect(SOON, "the ARP reply", |bytes| (bytes[..reply.len()] == reply).then_some(()))?;

                tap.send(&dad_solicitation(one, ip6))?;
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                let expected = Packet::eth([0x33, 0x33, 0, 0, 0, 1], mac)
                    .ipv6(ip6, all_nodes)
                    .ttl(255)
                    .icmpv6(136, 0, [0x20, 0, 0, 0])
                    .payload(&ip6.octets())
                    .build();
                tap.expect(SOON, "the advertisement", |bytes| (bytes == expected).then_some(()))?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn the_kernel_detects_a_duplicate_address() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("dad", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let [pod, other] = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    other.reaches(1)?;
    // How long the kernel waits for the owner's answer: a guest that is emulated is slower.
    let time = (1000 * patience()).to_string();
    pod.namespace.sysctl("net/ipv6/neigh/eth0/retrans_time_ms", &time)?;
    for (address, taken) in [(addresses(2).1, true), (addresses(9).1, false)] {
        pod.namespace.ip(&format!("addr add {address}/64 dev eth0"))?;
        let line = testkit::wait_until(SOON, "end of duplicate address detection", || {
            let shown = pod.namespace.ip("-6 addr show dev eth0")?;
            let line = shown.lines().find(|line| line.contains(&format!("{address}/"))).unwrap_or_default();
            let settled = line.contains("dadfailed") || !line.is_empty() && !line.contains("tentative");
            Ok(settled.then(|| line.to_owned()))
        })?;
        assert_eq!(line.contains("dadfailed"), taken, "{line}");
    }
    Ok(())
}

#[test]
fn requests_for_unknown_addresses_are_flooded() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap) in [("unkx", vxlan(5000)), ("unkl", vlan(100))] {
        with_pods(label, encap, |_, [(one, tap), (_, other)]| {
            let (ip, ip6) = addresses(77);
            let frames = [
                arp((one, addresses(1).0), ip),
                Packet::neighbour_solicitation(one.mac, addresses(1).1, ip6).build(),
            ];
            // Duplicate address detection for an address that is not the pod's: only the node may answer it.
            let detection = dad_solicitation(one, ip6);
            tap.send(&detection)?;
            for frame in &frames {
                tap.send(frame)?;
                other.expect(SOON, "the request", |bytes| {
                    assert_ne!(bytes, detection, "forwarded");
                    (bytes == frame).then_some(())
                })?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The ARP mode changes while pods run.
#[test]
fn flood_mode_forwards_requests_to_the_pod() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap) in [("flx", vxlan(5000)), ("fll", vlan(100))] {
        with_pods(label, encap, |node, [(one, tap), (_, other)]| {
            node.add([Object::Network(network("blue", encap, ArpMode::Flood))])?;
            let request = arp((one, addresses(1).0), addresses(2).0);
            tap.send(&request)?;
            other.expect(SOON, "the request", |bytes| (bytes == request).then_some(()))?;
            // The kernels of the pods can send other frames, and pods on VLANs are announced. No ARP reply or copy arrives.
            let is_reply = |bytes: &[u8]| bytes[12..14] == [0x08, 0x06] && bytes[..6] == one.mac;
            assert!(tap.drain()?.iter().all(|got| !is_reply(&got.bytes) && got.bytes != request));
            Ok(())
        })?;
    }
    Ok(())
}
