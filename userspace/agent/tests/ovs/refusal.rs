//! A switch that refuses flows: the object is reported with the switch's reason, and the other objects are installed.

use std::{collections::BTreeMap, time::Duration};

use anyhow::Result;
use contiv_model::{
    global::ArpMode,
    group::Rate,
    mac::Mac,
    policy::{Action, Direction, Identity, PortRange, Rule, UDP},
    vrf::Vrf,
};
use netplugin::datapath::{FailedOp, Gateway, Group, KERNEL_PORT, Local, Network, Object, Op, Subnet};
use testkit::{
    capture::{Frame, Tap},
    needs,
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::{
    announce::{TAG, wait_for},
    node::{Node, SOON, addresses, network, peer, remote, vlan, vtep, vxlan},
};

const BRIDGE: &str = "contivVxlanBridge";
const VLAN_BRIDGE: &str = "contivVlanBridge";
/// Assigns the network of a frame.
const SOURCE: u8 = 1;
/// Finds the endpoint that has an IP address.
const OWNER: u8 = 35;
/// Forwarding by destination address.
const DESTINATION: u8 = 9;
/// Rules for what pods receive.
pub(crate) const RULES_IN: u8 = 23;
/// VLAN of ports that are closed.
const CLOSED: u16 = 4095;
/// UDP ports.
const DENIED: u16 = 9;
const ALLOWED: u16 = 10;

/// Lets a table of the VXLAN bridge hold so many more flows than now.
pub(crate) fn limit(node: &Node, table: u8, more: usize) -> Result<()> {
    limit_on(node, BRIDGE, table, more)
}

/// Lets a table of a bridge hold so many more flows than now.
fn limit_on(node: &Node, bridge: &str, table: u8, more: usize) -> Result<()> {
    let switch = node.switch.borrow();
    let flows = switch.ofctl("dump-flows", bridge, &["--no-stats", &format!("table={table}")])?;
    let flows = flows.lines().filter(|line| !line.contains("OFPST_FLOW")).count();
    let (flow_limit, column) =
        (format!("flow_limit={}", flows + more), format!("flow_tables:{table}=@limit"));
    let create = ["--id=@limit", "create", "Flow_Table", &flow_limit, "overflow_policy=refuse"];
    switch.vsctl(&[&["--timeout=20", "set", "bridge", bridge, &column, "--"], &create[..]].concat()).map(drop)
}

pub(crate) fn unlimited(node: &Node) -> Result<()> {
    unlimited_on(node, BRIDGE)
}

fn unlimited_on(node: &Node, bridge: &str) -> Result<()> {
    node.switch.borrow().vsctl(&["--timeout=20", "clear", "bridge", bridge, "flow_tables"]).map(drop)
}

fn configured(node: &Node) -> Result<String> {
    node.switch.borrow().vsctl(&["get", "open_vswitch", ".", "next_cfg"])
}

/// Adds the objects to the desired state. Returns the failures of setting them.
pub(crate) fn set(node: &Node, objects: &[Object]) -> Result<Vec<(usize, String)>> {
    for object in objects {
        node.desired.borrow_mut().insert(object.clone());
    }
    let failures = node.apply(&objects.iter().cloned().map(Op::Set).collect::<Vec<_>>())?;
    let text = |failed: FailedOp| (failed.index, format!("{:#}", anyhow::Error::from(failed.error)));
    Ok(failures.into_iter().map(text).collect())
}

#[test]
fn a_full_table_fails_only_what_does_not_fit() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("full", &[])?;
    node.converge()?;
    let [blue, green, red] = [
        network("blue", vxlan(5000), ArpMode::Proxy),
        network("green", vlan(100), ArpMode::Proxy),
        network("red", vxlan(5001), ArpMode::Proxy),
    ];
    node.add([peer(vtep(1)), Object::Network(blue.clone()), Object::Network(green.clone())])?;
    let one = node.run_pod(&blue, 1)?;
    let [two, three] = [node.pod(&blue, 2)?, node.pod(&green, 3)?];
    limit(&node, DESTINATION, 1)?;
    // One of these fits; the network red needs more.
    let objects = [
        remote(&green, 9, None),
        Object::Network(red),
        remote(&blue, 10, Some(vtep(1))),
        remote(&blue, 11, Some(vtep(1))),
        two.object.clone(),
        three.object.clone(),
    ];
    let failures = set(&node, &objects)?;
    assert_eq!(failures.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [1, 3, 4], "{failures:?}");
    for (op, name) in [(0, "network net.red"), (1, "remote endpoint"), (2, "local endpoint")] {
        let text = &failures[op].1;
        assert!(text.contains(name) && text.contains("TABLE_FULL"), "{text}");
    }
    let groups = node.switch.borrow().ofctl("dump-groups", BRIDGE, &[])?;
    assert!(!groups.contains(&format!("group_id={}", 10_000 + 2)), "a refused network has a group: {groups}");
    // A resync finds exactly these, also after a restart of the agent.
    node.restart_agent();
    let observed = node.observe()?;
    let missing: Vec<_> =
        objects.iter().map(Object::id).filter(|id| !observed.in_sync.contains(id)).collect();
    assert_eq!(missing, [1, 3, 4].map(|op| objects[op].id()));
    assert_eq!(observed.orphans, 0);
    one.cannot_reach(2)?;

    // Retries write nothing, and leave the configuration alone.
    let [configuration, tables] = [configured(&node)?, format!("{:?}", node.tables()?)];
    let refused = [1, 3, 4].map(|op: usize| objects[op].clone());
    for _ in 0..5 {
        assert_eq!(set(&node, &refused)?.len(), 3);
    }
    assert_eq!([configured(&node)?, format!("{:?}", node.tables()?)], [configuration, tables]);

    unlimited(&node)?;
    assert_eq!(set(&node, &refused)?, []);
    assert_eq!(node.converge()?, []);
    one.reaches(2)
}

/// The port of a pod with rules carries no frames before the switch has its flows, also if the agent restarts meanwhile. A pod that has
/// moved here is announced then.
#[test]
fn a_pod_whose_flows_are_refused_stays_closed() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let (node, _outside, wire) = Node::with_uplink("full-vlan")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    let identity = Identity::try_from(7)?;
    let deny = Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?);
    node.add([Object::Network(green.clone()), Object::Group(Group::new(identity, [deny]))])?;
    let mut pod = node.pod(&green, 1)?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    let (id, port) = (pod.object.id(), local.port.clone());
    pod.object = Object::Local(Local { identity: Some(identity), ..local.clone() });
    // As an ADD leaves it.
    node.namespace.ip(&format!("link set {port} down"))?;
    let is_up =
        || -> Result<bool> { Ok(node.namespace.ip(&format!("-o link show {port}"))?.contains(",UP")) };
    let tag = || node.switch.borrow().vsctl(&["get", "port", &port, "tag"]);

    limit_on(&node, VLAN_BRIDGE, SOURCE, 0)?;
    let refuse = || -> Result<()> {
        let failures = set(&node, std::slice::from_ref(&pod.object))?;
        assert!(matches!(&failures[..], [(0, text)] if text.contains("TABLE_FULL")), "{failures:?}");
        assert_eq!((tag()?.trim(), is_up()?), ("4095", false));
        Ok(())
    };
    refuse()?;
    node.restart_agent();
    for _ in 0..2 {
        let observed = node.observe()?;
        let desired = node.desired.borrow().clone();
        let missing: Vec<_> =
            desired.iter().map(|(id, _)| id).filter(|id| !observed.in_sync.contains(id)).collect();
        assert_eq!((missing, observed.orphans), (vec![&id], 0));
        // Of other ports: this one is of an endpoint that waits.
        assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
        assert_eq!(tag()?.trim(), "4095");
        refuse()?;
    }

    unlimited_on(&node, VLAN_BRIDGE)?;
    assert_eq!(set(&node, std::slice::from_ref(&pod.object))?, []);
    assert_eq!((tag()?.trim(), is_up()?), ("100", true));
    wait_for(&node, &wire, &mut BTreeMap::new(), 1, 1)?;
    // A change of it is refused: the pod goes on with the flows that it has.
    let before = node.tables()?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    let changed = [Object::Local(Local { addresses: addresses(2).0.into(), ..local.clone() })];
    limit_on(&node, VLAN_BRIDGE, OWNER, 0)?;
    assert_eq!(set(&node, &changed)?.len(), 1);
    assert_eq!((tag()?.trim(), is_up()?, node.tables()?), ("100", true, before));
    unlimited_on(&node, VLAN_BRIDGE)?;
    assert_eq!(set(&node, &changed)?, []);
    assert_eq!(node.converge()?, []);
    Ok(())
}

/// The network of a pod with rules becomes a VLAN, and the switch refuses the pod's flows there. Those that it has on the bridge of before
/// do not open its port, also after a restart of the agent.
#[test]
fn a_pod_that_changes_its_bridge_stays_closed() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let (node, _outside, _wire) = Node::with_uplink("full-move")?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let identity = Identity::try_from(7)?;
    let group = Group::new(identity, [Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?)]);
    let pod = node.pod(&blue, 1)?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    let before = Local { identity: Some(identity), ..local.clone() };
    node.add([Object::Network(blue.clone()), Object::Group(group.clone()), Object::Local(before.clone())])?;
    let encap = vlan(TAG);
    let after = [Object::Network(Network { encap, ..blue }), Object::Local(Local { encap, ..before })];
    let tag = || node.switch.borrow().vsctl(&["get", "port", "vvport1", "tag"]);

    // The flow of the network fits.
    limit_on(&node, VLAN_BRIDGE, SOURCE, 1)?;
    let failures = set(&node, &after)?;
    assert!(matches!(&failures[..], [(1, text)] if text.contains("TABLE_FULL")), "{failures:?}");
    assert_eq!(tag()?.trim(), "4095");
    node.restart_agent();
    node.observe()?;
    // Sets the limits of the ports of its members.
    let rate = Some(Rate { bits_per_second: 4_000_000, burst_bytes: 125_000 });
    assert_eq!(set(&node, &[Object::Group(Group { rate, ..group })])?, []);
    assert_eq!(tag()?.trim(), "4095");

    unlimited_on(&node, VLAN_BRIDGE)?;
    assert_eq!(set(&node, &after)?, []);
    assert_eq!(tag()?.trim(), "100");
    assert_eq!(node.converge()?, []);
    Ok(())
}

/// Pods with rules on two networks get other VLANs, which the switch refuses. Their ports are closed with flows that let frames in: neither
/// the other pod nor the node's kernel gets these.
#[test]
fn closed_pods_do_not_reach_each_other() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let (node, _outside, wire) = Node::with_uplink("full-tags")?;
    let identity = Identity::try_from(7)?;
    let deny = Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?);
    node.add([Object::Group(Group::new(identity, [deny]))])?;
    // The node routes this network, so that its kernel has a port.
    let red = Network { vrf: Vrf::Tenant("net".parse()?), ..network("red", vlan(300), ArpMode::Flood) };
    let gateway = Some(Gateway { ip: [10, 9, 0, 254].into(), mac: Some(Mac::ROUTER) });
    let subnet = Object::Subnet(Subnet {
        network: red.id.clone(),
        vrf: red.vrf.clone(),
        encap: red.encap,
        prefix: "10.9.0.0/24".parse()?,
        gateway,
    });
    node.add([Object::Network(red), subnet])?;
    node.namespace.up(KERNEL_PORT)?;
    let networks =
        [("green", 100), ("blue", 200)].map(|(name, tag)| network(name, vlan(tag), ArpMode::Flood));
    let pods = [node.pod(&networks[0], 1)?, node.pod(&networks[1], 2)?];
    // The bridge would not flood frames to a pod that sends on its own.
    for pod in &pods {
        pod.namespace.sysctl("net/ipv6/conf/eth0/disable_ipv6", "1")?;
    }
    let (mut before, mut after) = (vec![], vec![]);
    for ((network, pod), moved) in networks.into_iter().zip(&pods).zip([101, 201]) {
        let Object::Local(local) = &pod.object else { unreachable!() };
        let (local, encap) = (Local { identity: Some(identity), ..local.clone() }, vlan(moved));
        after.push(Object::Network(Network { encap, ..network.clone() }));
        after.push(Object::Local(Local { encap, ..local.clone() }));
        before.extend([Object::Network(network), Object::Local(local)]);
    }
    node.add(before)?;
    let columns = || -> Result<[[String; 2]; 2]> {
        let column = |port, name| {
            anyhow::Ok(node.switch.borrow().vsctl(&["get", "port", port, name])?.trim().to_owned())
        };
        let of = |port| anyhow::Ok([column(port, "tag")?, column(port, "protected")?]);
        Ok([of("vvport1")?, of("vvport2")?])
    };
    assert_eq!(columns()?, [["100", "false"], ["200", "false"]]);

    // Neither the flow of the network nor the records of the pods fit. The flow that lets in the frames of a pod would: it replaces one.
    limit_on(&node, VLAN_BRIDGE, SOURCE, 0)?;
    limit_on(&node, VLAN_BRIDGE, OWNER, 0)?;
    let failures = set(&node, &after)?;
    assert_eq!(failures.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [0, 1, 2, 3], "{failures:?}");
    assert_eq!(columns()?, [["4095", "true"], ["4095", "true"]]);
    let [one, two] = &pods;
    let sender = Tap::open(&one.namespace, "eth0")?;
    let receivers = [Tap::open(&two.namespace, "eth0")?, Tap::open(&node.namespace, KERNEL_PORT)?];
    let (from, to) = (addresses(1).0, addresses(2).0);
    let datagram =
        Packet::eth(two.mac, one.mac).ipv4(from, to).udp(4000, ALLOWED).payload(b"from a closed pod");
    let request = |eth: Packet| eth.arp(1, (one.mac, from), ([0; 6], to)).build();
    let [request, flooded] =
        [request(Packet::eth(BROADCAST, one.mac)), request(Packet::eth(BROADCAST, one.mac).vlan(CLOSED))];
    // The copy for the uplink shows that the bridge has flooded the request, and has had the datagram before.
    wait_until(SOON, "the flooded request", || {
        sender.send(&datagram.build())?;
        sender.send(&request)?;
        Ok(wire.drain()?.iter().any(|frame| frame.bytes.starts_with(&flooded)).then_some(()))
    })?;
    std::thread::sleep(Duration::from_millis(200));
    for receiver in &receivers {
        let received = receiver.drain()?;
        let is_of_pod = |frame: &Frame| frame.bytes.get(6..12) == Some(&one.mac[..]);
        assert!(!received.iter().any(is_of_pod), "{received:?}");
    }

    unlimited_on(&node, VLAN_BRIDGE)?;
    assert_eq!(set(&node, &after)?, []);
    assert_eq!(columns()?, [["101", "false"], ["201", "false"]]);
    assert_eq!(node.converge()?, []);
    Ok(())
}

/// ovs-vswitchd has restarted without its flows. Those of the bridge come back first, then those of networks and groups: until a pod with
/// rules has its own, its port carries no frames, also if the switch refuses its rules.
#[test]
fn a_pod_gets_nothing_before_its_rules_are_back() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, wire) = Node::with_uplink("lost-vlan")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    let identity = Identity::try_from(7)?;
    let deny = Rule {
        protocol: Some(UDP),
        ports: PortRange::new(DENIED, DENIED),
        ..Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?)
    };
    let first = [Object::Network(green.clone()), Object::Group(Group::new(identity, [deny]))];
    node.add(first.clone())?;
    let mut pod = node.pod(&green, 1)?;
    let Object::Local(local) = &pod.object else { unreachable!() };
    pod.object = Object::Local(Local { identity: Some(identity), ..local.clone() });
    node.add([pod.object.clone()])?;
    let other = node.run_pod(&green, 2)?;
    let pods = [pod.object.clone(), other.object.clone()];
    let tags = || -> Result<[String; 2]> {
        let tag = |port| node.switch.borrow().vsctl(&["get", "port", port, "tag"]);
        Ok([tag("vvport1")?.trim().to_owned(), tag("vvport2")?.trim().to_owned()])
    };
    let inside = Tap::open(&pod.namespace, "eth0")?;
    let (client, client_mac) = (addresses(90).0, [2, 2, 10, 1, 0, 90]);
    let datagram = |eth: Packet, port: u16| {
        eth.ipv4(client, addresses(1).0).udp(4000, port).payload(b"from outside").build()
    };
    let send = |port: u16| wire.send(&datagram(Packet::eth(pod.mac, client_mac).vlan(TAG), port));

    node.switch.borrow_mut().kill_vswitchd()?;
    assert!(node.resync_needed(SOON));
    node.switch.borrow_mut().start_vswitchd()?;
    node.observe_with_retries()?;
    // Pods without rules are not interrupted.
    assert_eq!(tags()?, ["4095", "100"]);
    limit_on(&node, VLAN_BRIDGE, RULES_IN, 0)?;
    let failures = set(&node, &first)?;
    assert!(matches!(&failures[..], [(1, text)] if text.contains("TABLE_FULL")), "{failures:?}");
    send(DENIED)?;
    node.observe()?;
    send(DENIED)?;
    assert_eq!(tags()?, ["4095", "100"]);

    unlimited_on(&node, VLAN_BRIDGE)?;
    assert_eq!(set(&node, &first)?, []);
    send(DENIED)?;
    assert_eq!(set(&node, &pods)?, []);
    assert_eq!(tags()?, ["100", "100"]);
    let mut received = vec![];
    wait_until(SOON, "a datagram that the rules allow", || {
        send(ALLOWED)?;
        received.extend(inside.drain()?.into_iter().map(|frame| frame.bytes));
        let expected = datagram(Packet::eth(pod.mac, client_mac), ALLOWED);
        Ok(received.iter().any(|bytes| bytes.starts_with(&expected)).then_some(()))
    })?;
    let denied = datagram(Packet::eth(pod.mac, client_mac), DENIED);
    assert!(!received.iter().any(|bytes| bytes.starts_with(&denied)), "past the rules");
    assert_eq!(node.converge()?, []);
    Ok(())
}
