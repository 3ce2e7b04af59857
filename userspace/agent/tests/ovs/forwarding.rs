//! Pods reach only pods of their network, on this node and on another.

use anyhow::Result;
use contiv_model::{global::ArpMode, tag::Encap};
use netplugin::datapath::{Object, Op, ovs::DatapathType};
use testkit::{capture::Tap, needs, packet::Packet, skip, wait_until};

use crate::node::{Node, SOON, addresses, kind, network, peer, remote, spread, vlan, vtep, vxlan};

fn two_networks_on_two_nodes(label: &str, encaps: [Encap; 2], arp: ArpMode) -> Result<()> {
    let nodes = Node::pair(label)?;
    let [blue, green] = [network("blue", encaps[0], arp), network("green", encaps[1], arp)];
    for node in &nodes {
        node.converge()?;
        node.add([&blue, &green].map(|network| Object::Network(network.clone())))?;
    }
    let one = spread(&nodes, 0, &blue, 1)?;
    let two = spread(&nodes, 0, &blue, 2)?;
    let three = spread(&nodes, 1, &blue, 3)?;
    // Same addresses in another network.
    let green_one = spread(&nodes, 0, &green, 1)?;
    let green_four = spread(&nodes, 1, &green, 4)?;
    one.reaches(2)?;
    one.reaches(3)?;
    three.reaches(2)?;
    two.reaches(3)?;
    green_one.reaches(4)?;
    green_four.reaches(1)?;
    one.cannot_reach(4)?;
    three.cannot_reach(4)?;
    green_one.cannot_reach(2)?;
    green_four.cannot_reach(3)?;
    for node in &nodes {
        assert_eq!(node.converge()?, []);
    }
    Ok(())
}

#[test]
fn vxlan_networks() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    two_networks_on_two_nodes("vx", [vxlan(5000), vxlan(5001)], ArpMode::Proxy)
}

#[test]
fn vxlan_networks_that_flood_arp() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    two_networks_on_two_nodes("vxf", [vxlan(5000), vxlan(0xff_ffff)], ArpMode::Flood)
}

#[test]
fn vlan_networks() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    two_networks_on_two_nodes("vl", [vlan(100), vlan(200)], ArpMode::Proxy)
}

#[test]
fn vlan_networks_that_flood_arp() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    two_networks_on_two_nodes("vlf", [vlan(100), vlan(4094)], ArpMode::Flood)
}

/// The userspace datapath drops the frame that starts next-hop resolution; it must not be a frame of a pod.
#[test]
fn the_next_hop_of_a_tunnel_is_resolved_before_pods_exist() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    if kind() == DatapathType::System {
        skip!("the kernel datapath queues the frame");
    }
    let nodes = Node::pair("way")?;
    for (node, other) in nodes.iter().zip([vtep(1), vtep(0)]) {
        node.converge()?;
        node.add([peer(other)])?;
        let known = || {
            let neighbours = node.switch.borrow().appctl(&["tnl/neigh/show"])?;
            Ok(neighbours.contains(&other.to_string()).then_some(()))
        };
        wait_until(SOON, "the tunnel's next hop", known)?;
    }
    Ok(())
}

/// A broadcast reaches each other pod of the network once, and not its sender.
#[test]
fn a_broadcast_reaches_each_pod_once() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let nodes = Node::pair("bc")?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    for node in &nodes {
        node.converge()?;
        node.add([Object::Network(blue.clone())])?;
    }
    let pods = [spread(&nodes, 0, &blue, 1)?, spread(&nodes, 0, &blue, 2)?, spread(&nodes, 1, &blue, 3)?];
    pods[0].reaches(3)?;
    let taps: Vec<_> = pods.iter().map(|pod| Tap::open(&pod.namespace, "eth0")).collect::<Result<_>>()?;
    let frame = Packet::eth([0xff; 6], pods[0].mac)
        .ipv4(addresses(1).0, [10, 1, 0, 255])
        .udp(9, 9)
        .payload(b"to all")
        .build();
    taps[0].send(&frame)?;
    for tap in &taps[1..] {
        tap.expect(SOON, "the broadcast", |bytes| (bytes == frame).then_some(()))?;
    }
    // A second copy would precede these replies.
    pods[0].reaches(3)?;
    pods[2].reaches(2)?;
    for tap in &taps {
        assert!(tap.drain()?.iter().all(|got| got.bytes != frame), "a second copy, or one to its sender");
    }
    Ok(())
}

/// Drops tagged frames of pods and frames with a multicast source; does not forward between tunnels.
#[test]
fn forged_frames_are_dropped() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("claims", &[])?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let green = network("green", vlan(100), ArpMode::Proxy);
    node.converge()?;
    let others =
        [peer(vtep(0)), peer(vtep(1)), Object::Network(blue.clone()), Object::Network(green.clone())];
    node.add(others)?;
    node.add([remote(&blue, 3, Some(vtep(0)))])?;
    let _pods = [node.run_pod(&blue, 1)?, node.run_pod(&green, 2)?];
    let ports = |name: &str| -> Result<String> {
        Ok(node.switch.borrow().vsctl(&["get", "interface", name, "ofport"])?.trim().to_owned())
    };
    for (bridge, port) in [("contivVxlanBridge", ports("vvport1")?), ("contivVlanBridge", ports("vvport2")?)]
    {
        let tagged = format!("in_port={port},dl_vlan=200,dl_dst=ff:ff:ff:ff:ff:ff,dl_src=02:02:0a:01:00:01");
        let from_group = format!("in_port={port},dl_src=03:00:00:00:00:01,dl_dst=ff:ff:ff:ff:ff:ff");
        for packet in [tagged, from_group] {
            let trace = node.trace(bridge, &packet)?;
            assert!(trace.contains("Datapath actions: drop"), "{trace}");
        }
    }
    let from_node = format!("in_port={},tun_id=5000", ports("vxif19216892")?);
    for destination in ["02:02:0a:01:00:03", "ff:ff:ff:ff:ff:ff"] {
        let trace = node.trace("contivVxlanBridge", &format!("{from_node},dl_dst={destination}"))?;
        assert!(!trace.contains("tnl_push") && !trace.contains("native tunnel"), "{trace}");
    }
    let unknown = format!("in_port={},tun_id=5001,dl_dst=ff:ff:ff:ff:ff:ff", ports("vxif19216892")?);
    let trace = node.trace("contivVxlanBridge", &unknown)?;
    assert!(trace.contains("Datapath actions: drop"), "{trace}");
    Ok(())
}

/// The tunnel to the node of an endpoint is gone, but not the endpoint's record: no other node sends in its name, nor gets its frames,
/// also after a restart of the agent. The endpoint is reached when the tunnel is back.
#[test]
fn an_endpoint_without_a_tunnel_is_nowhere() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("nowhere", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([peer(vtep(0)), peer(vtep(1)), Object::Network(blue.clone())])?;
    node.add([remote(&blue, 3, Some(vtep(0)))])?;
    let _pods = [node.run_pod(&blue, 1)?, node.run_pod(&blue, 2)?];
    let reply = |port: &str, more: &str, from: u8, to: u8| -> Result<String> {
        let number = node.switch.borrow().vsctl(&["get", "interface", port, "ofport"])?;
        let [source, target] = [from, to].map(|n| (format!("02:02:0a:01:00:{n:02x}"), addresses(n).0));
        let frame = format!(
            "in_port={}{more},arp,dl_src={},dl_dst={},arp_op=2,arp_spa={},arp_tpa={},arp_sha={},arp_tha={}",
            number.trim(),
            source.0,
            target.0,
            source.1,
            target.1,
            source.0,
            target.0
        );
        node.trace("contivVxlanBridge", &frame)
    };
    let is_dropped = |trace: &str| trace.contains("Datapath actions: drop");
    let trace = reply("vxif19216891", ",tun_id=5000", 3, 1)?;
    assert!(!is_dropped(&trace), "{trace}");
    node.remove([peer(vtep(0)).id()])?;
    for is_restarted in [false, true] {
        if is_restarted {
            node.restart_agent();
            assert_eq!(node.converge()?, []);
            assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
        }
        for (port, more, from, to) in [("vxif19216892", ",tun_id=5000", 3, 1), ("vvport1", "", 1, 3)] {
            let trace = reply(port, more, from, to)?;
            assert!(is_dropped(&trace), "{is_restarted}: {trace}");
        }
    }
    node.add([peer(vtep(0))])?;
    let trace = reply("vxif19216891", ",tun_id=5000", 3, 1)?;
    assert!(!is_dropped(&trace), "{trace}");
    Ok(())
}
