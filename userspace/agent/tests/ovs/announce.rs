//! Announcements of endpoints of VLAN networks: on the uplinks, and to the bridge itself.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::{Context as _, Result};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Identity, Rule},
    service::Readiness,
};
use netplugin::datapath::{Backend, Datapath as _, Group, Network, Object, Scope, Service};
use testkit::{Netns, capture::Tap, needs, packet::Packet, wait_until};

use crate::node::{Node, Pod, SOON, addresses, network, remote, vlan, vxlan};

pub(crate) const TAG: u16 = 100;
const BROADCAST: [u8; 6] = [0xff; 6];

/// Counts announcements by address: frames that no kernel sends. Lets the datapath run meanwhile.
fn count(node: &Node, tap: &Tap, seen: &mut BTreeMap<IpAddr, usize>) -> Result<()> {
    assert!(!node.resync_needed(Duration::from_millis(50)));
    for frame in tap.drain()? {
        for n in 1..=9 {
            let ((ip, ip6), mac) = (addresses(n), [2, 2, 10, 1, 0, n]);
            let arp = Packet::eth(BROADCAST, mac).vlan(TAG).arp(2, (mac, ip), (BROADCAST, ip)).build();
            if frame.bytes.starts_with(&arp) {
                *seen.entry(ip.into()).or_default() += 1;
            }
            // Type 136, neither router nor solicited, with the tag and the source of the pod.
            let is_advertisement = frame.bytes.get(58..62).is_some_and(|b| b[0] == 136)
                && frame.bytes.get(62) == Some(&0x20)
                && frame.bytes.get(66..82) == Some(&ip6.octets()[..])
                && frame.bytes.get(6..12) == Some(&mac[..]);
            if is_advertisement && frame.bytes[..6] == [0x33, 0x33, 0, 0, 0, 1] {
                testkit::packet::verify(&frame.bytes).map_err(anyhow::Error::msg)?;
                *seen.entry(ip6.into()).or_default() += 1;
            }
        }
    }
    Ok(())
}

/// Waits until each address of a pod on the VLAN [`TAG`] has been announced so many times.
pub(crate) fn wait_for(
    node: &Node,
    tap: &Tap,
    seen: &mut BTreeMap<IpAddr, usize>,
    pod: u8,
    times: usize,
) -> Result<()> {
    let (ip, ip6) = addresses(pod);
    wait_until(SOON, &format!("{times} announcements of pod {pod}"), || {
        count(node, tap, seen)?;
        let reached =
            [ip.into(), IpAddr::from(ip6)].iter().all(|ip| seen.get(ip).is_some_and(|n| *n >= times));
        Ok(reached.then_some(()))
    })
}

#[test]
fn new_endpoints_are_announced_on_the_uplink() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, tap) = Node::with_uplink("announce")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(green.clone()), Object::Network(blue.clone()), remote(&green, 3, None)])?;
    let mut seen = BTreeMap::new();
    let one = node.run_pod(&green, 1)?;
    let _other = node.run_pod(&blue, 5)?;
    wait_for(&node, &tap, &mut seen, 1, 2)?;

    // What is in place is not announced again.
    node.add([one.object.clone()])?;
    node.restart_agent();
    assert_eq!(node.converge()?, []);

    // An endpoint moves here, and is removed: before the second announcement, unless the machine is busy.
    let three = node.pod(&green, 3)?;
    node.remove([remote(&green, 3, None).id()])?;
    node.add([three.object.clone()])?;
    wait_for(&node, &tap, &mut seen, 3, 1)?;
    node.remove([three.object.id()])?;
    wait_for(&node, &tap, &mut seen, 3, 1)?;
    // Its addresses are announced one after the other, so one of them may have been repeated.
    let (ip, ip6) = addresses(3);
    let of_removed = [ip.into(), IpAddr::from(ip6)].map(|ip| seen.get(&ip).copied().unwrap_or(0));
    // The next one is announced twice, so that the time of the repetition has passed.
    let _four = node.run_pod(&green, 4)?;
    wait_for(&node, &tap, &mut seen, 4, 2)?;
    let expected = [(1, [2; 2]), (3, of_removed), (4, [2; 2])].map(|(pod, times)| {
        let (ip, ip6) = addresses(pod);
        [(IpAddr::from(ip), times[0]), (ip6.into(), times[1])]
    });
    assert_eq!(seen, expected.into_iter().flatten().collect());
    // Counted since the restart, after the reply of the switch, for which the datapath has to run.
    let counts = || node.datapath.borrow().stats().endpoint_announcements;
    // Four are of the last one.
    let sent = of_removed.iter().sum::<usize>() as u64 + 4;
    wait_until(SOON, &format!("{sent} announcements are counted"), || {
        assert!(!node.resync_needed(Duration::from_millis(50)));
        Ok((counts() == [("sent", sent), ("failed", 0), ("left-out", 0)]).then_some(()))
    })
    .with_context(|| format!("{:?}", counts()))
}

/// A pod that sends nothing on its own.
fn silent_pod(node: &Node, n: u8) -> Result<Pod> {
    let pod = node.pod(&network("green", vlan(TAG), ArpMode::Proxy), n)?;
    pod.namespace.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1")?;
    node.add([pod.object.clone()])?;
    Ok(pod)
}

/// Waits until the VLAN bridge has learned the address of pod `n` at a port.
fn wait_learned(node: &Node, n: u8, port: &str) -> Result<()> {
    wait_until(SOON, &format!("the bridge knows pod {n} at {port}"), || {
        // Lets the datapath run.
        assert!(!node.resync_needed(Duration::from_millis(50)));
        let switch = node.switch.borrow();
        let number = switch.vsctl(&["--timeout=20", "get", "interface", port, "ofport"])?;
        let learned = switch.appctl(&["fdb/show", "contivVlanBridge"])?;
        let mut lines = learned.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mac = format!("02:02:0a:01:00:{n:02x}");
        let is_there =
            lines.any(|line| line.first() == Some(&number.trim()) && line.get(2) == Some(&mac.as_str()));
        Ok(is_there.then_some(()))
    })
}

/// The bridge itself knows the address of a moved endpoint at its uplink. Frames that arrive there would be dropped.
#[test]
fn a_silent_endpoint_is_found_where_it_has_moved_to() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, wire) = Node::with_uplink("moved")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    node.add([Object::Network(green.clone()), remote(&green, 3, None)])?;
    let (ip, mac) = (addresses(3).0, [2, 2, 10, 1, 0, 3]);
    wire.send(&Packet::eth(BROADCAST, mac).vlan(TAG).arp(2, (mac, ip), (BROADCAST, ip)).build())?;
    wait_learned(&node, 3, "up0")?;

    node.remove([remote(&green, 3, None).id()])?;
    let pod = silent_pod(&node, 3)?;
    wait_learned(&node, 3, "vvport1")?;
    let tap = Tap::open(&pod.namespace, "eth0")?;
    let client = [2, 2, 10, 1, 0, 90];
    let datagram = |eth: Packet| eth.ipv4(addresses(90).0, ip).udp(4000, 9).payload(b"found").build();
    wire.send(&datagram(Packet::eth(mac, client).vlan(TAG)))?;
    let expected = datagram(Packet::eth(mac, client));
    tap.expect(SOON, "the datagram", |bytes| bytes.starts_with(&expected).then_some(()))
}

#[test]
fn a_silent_endpoint_is_found_without_an_uplink() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("alone", &[])?;
    node.converge()?;
    node.add([Object::Network(network("green", vlan(TAG), ArpMode::Proxy))])?;
    let _pod = silent_pod(&node, 3)?;
    wait_learned(&node, 3, "vvport1")
}

/// A resync before the second announcement replaces the connection to the switch.
#[test]
fn announcements_outlive_a_resync() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, tap) = Node::with_uplink("outlive")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(green.clone()), Object::Network(blue.clone())])?;
    let _other = node.run_pod(&blue, 5)?;
    let _one = node.run_pod(&green, 1)?;
    node.switch.borrow().vsctl(&["--timeout=20", "del-port", "vvport1"])?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    wait_for(&node, &tap, &mut BTreeMap::new(), 1, 2)
}

/// Time limit for the switch to notice a link. LACP then tries for some seconds.
const BOND_TIMEOUT: Duration = Duration::from_secs(30);

/// Makes this uplink the active one of the bond. The other one loses its link for a while.
fn activate(node: &Node, outside: &Netns, [uplink, other]: [&str; 2]) -> Result<()> {
    let switch = node.switch.borrow();
    outside.ip(&format!("link set {other} down"))?;
    wait_until(BOND_TIMEOUT, &format!("{uplink} is active"), || {
        let active = switch.vsctl(&["get", "port", "uplinkPort", "bond_active_slave"])?;
        let mac = switch.vsctl(&["get", "interface", uplink, "mac_in_use"])?;
        Ok((active == mac).then_some(()))
    })?;
    outside.up(other)?;
    wait_until(BOND_TIMEOUT, &format!("the bond has {other} again"), || {
        let members = switch.appctl(&["bond/show", "uplinkPort"])?;
        Ok(members.contains(&format!("{other}: enabled")).then_some(()))
    })
}

/// A node with the uplinks `up0` and `up1`, of which the second one is active, and the other ends of the uplinks.
fn bonded(label: &str) -> Result<(Node, Netns)> {
    let (outside, inside) = (Netns::new(&format!("{label}-out"))?, Netns::new(&format!("{label}-in"))?);
    for wire in ["up0", "up1"] {
        inside.veth(wire, &outside, wire)?;
        inside.up(wire)?;
        outside.up(wire)?;
    }
    let node = Node::on(inside, &["up0", "up1"])?;
    node.converge()?;
    activate(&node, &outside, ["up1", "up0"])?;
    node.converge()?;
    Ok((node, outside))
}

/// Without LACP one uplink of the bond is active, and stays so when another one gets its link back.
#[test]
fn frames_leave_by_the_active_uplink() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, outside) = bonded("active")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    // With rules, copies for other nodes leave by a group and not as the bond chooses.
    let identity = Identity::try_from(7)?;
    let deny = Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?);
    node.add([Object::Network(green.clone()), Object::Group(Group::new(identity, [deny]))])?;
    for (n, uplinks) in [(1, ["up0", "up1"]), (2, ["up1", "up0"])] {
        activate(&node, &outside, uplinks)?;
        assert!(node.resync_needed(SOON));
        node.converge()?;
        let [active, other] = uplinks.map(|wire| Tap::open(&outside, wire));
        let (active, other) = (active?, other?);
        let mut pod = node.pod(&green, n)?;
        if let Object::Local(local) = &mut pod.object {
            local.identity = Some(identity);
        }
        node.add([pod.object.clone()])?;
        wait_for(&node, &active, &mut BTreeMap::new(), n, 2)?;
        let to_all =
            |eth: Packet| eth.ipv4(addresses(n).0, [10, 1, 0, 255]).udp(9, 9).payload(b"to all").build();
        Tap::open(&pod.namespace, "eth0")?.send(&to_all(Packet::eth(BROADCAST, pod.mac)))?;
        let expected = to_all(Packet::eth(BROADCAST, pod.mac).vlan(TAG));
        active.expect(SOON, "the broadcast", |bytes| bytes.starts_with(&expected).then_some(()))?;
        let strays = other.drain()?.into_iter().filter(|frame| frame.bytes[6..12] == pod.mac);
        assert_eq!(strays.count(), 0);
    }
    Ok(())
}

/// A service that the node of pod 1 answers for, whose connections all go to pod 3.
fn relayed_service(network: &Network) -> Result<(Ipv4Addr, Service)> {
    let backend = |n, readiness| Backend { readiness, ..Backend::on(network.encap, addresses(n).0) };
    let service = |vip: Ipv4Addr| Service {
        ports: vec!["80:8080:UDP".parse().unwrap()],
        backends: vec![backend(1, Readiness::Terminating), backend(3, Readiness::Ready)],
        ..Service::new("web:net", Scope::network(network), vip)
    };
    let vips = (200..=250).map(|last| Ipv4Addr::new(10, 1, 0, last));
    let mut services = vips.map(|vip| (vip, service(vip)));
    let answered = services.find(|(_, service)| service.speaker() == Some(addresses(1).0.into()));
    answered.context("no address for which pod 1 speaks")
}

/// Switches without LACP flood to both uplinks, and send to an address where they see it last.
#[test]
fn frames_from_outside_are_answered_by_the_active_uplink_and_taken_once() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, outside) = bonded("standby")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    let identity = Identity::try_from(7)?;
    let allow = Rule::new("allow", Direction::In, Action::Allow, 1.try_into()?);
    node.add([Object::Network(green.clone()), Object::Group(Group::new(identity, [allow]))])?;
    let mut pod = node.pod(&green, 1)?;
    if let Object::Local(local) = &mut pod.object {
        local.identity = Some(identity);
    }
    let (vip, service) = relayed_service(&green)?;
    node.add([pod.object.clone(), remote(&green, 3, None), Object::Service(service)])?;
    let inside = Tap::open(&pod.namespace, "eth0")?;

    let (client, client_mac) = (addresses(90).0, [2, 2, 10, 1, 0, 90]);
    let (mac, far) = (Mac::of_service(vip.into()).0, [2, 2, 10, 1, 0, 3]);
    let request =
        Packet::eth(BROADCAST, client_mac).vlan(TAG).arp(1, (client_mac, client), ([0; 6], vip)).build();
    let reply = Packet::eth(client_mac, mac).vlan(TAG).arp(2, (mac, vip), (client_mac, client)).build();
    let datagram = |dst: [u8; 6], src: [u8; 6]| {
        Packet::eth(dst, src).vlan(TAG).ipv4(client, vip).udp(4000, 80).payload(b"relayed").build()
    };
    let to_all = |eth: Packet, text: &[u8]| eth.ipv4(client, [10, 1, 0, 255]).udp(9, 9).payload(text).build();
    let outer = || Packet::eth(BROADCAST, client_mac).vlan(TAG);
    let inner = || Packet::eth(BROADCAST, client_mac);
    for (uplinks, copy, last) in
        [(["up0", "up1"], &b"one"[..], &b"end of one"[..]), (["up1", "up0"], &b"two"[..], &b"end of two"[..])]
    {
        activate(&node, &outside, uplinks)?;
        assert!(node.resync_needed(SOON));
        node.converge()?;
        let [active, other] = uplinks.map(|wire| Tap::open(&outside, wire));
        let (active, other) = (active?, other?);
        other.send(&to_all(outer(), copy))?;
        // What the uplink that stands by gets is answered and relayed by the active one.
        other.send(&request)?;
        active.expect(SOON, "the reply", |bytes| bytes.starts_with(&reply).then_some(()))?;
        other.send(&datagram(mac, client_mac))?;
        let relayed = datagram(far, mac);
        active.expect(SOON, "the datagram", |bytes| bytes.starts_with(&relayed).then_some(()))?;
        active.send(&request)?;
        active.expect(SOON, "the reply", |bytes| bytes.starts_with(&reply).then_some(()))?;
        let strays = other.drain()?.into_iter().filter(|frame| frame.bytes[6..12] == mac);
        assert_eq!(strays.count(), 0);

        active.send(&to_all(outer(), copy))?;
        let expected = to_all(inner(), copy);
        inside.expect(SOON, "the broadcast", |bytes| bytes.starts_with(&expected).then_some(()))?;
        active.send(&to_all(outer(), last))?;
        let end = to_all(inner(), last);
        let mut copies = 0;
        inside.expect(SOON, "the last broadcast", |bytes| {
            copies += u32::from(bytes.starts_with(&expected));
            bytes.starts_with(&end).then_some(())
        })?;
        assert_eq!(copies, 0, "more than one copy");
    }
    Ok(())
}
