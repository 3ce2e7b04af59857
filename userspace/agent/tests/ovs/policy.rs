//! Policies: what outlives the agent, drift, new ports, and rules that the switch rejects.

use std::{net::Ipv4Addr, time::Duration};

use anyhow::{Context as _, Result};
use contiv_model::{
    global::ArpMode,
    mac::Mac,
    policy::{Action, Direction, Identity, Peer, PortRange, Rule, TCP, UDP},
    vrf::Vrf,
};
use netplugin::datapath::{Datapath as _, Gateway, Group, Local, Network, Object, ObjectId, Op, Subnet};
use testkit::{
    capture::Tap,
    needs,
    packet::{BROADCAST, Packet},
    wait_until,
};

use crate::node::{Node, Pod, SOON, addresses, network, vlan, vxlan};

fn identity() -> Result<Identity> {
    Ok(Identity::try_from(7)?)
}

/// A group that denies what comes in, with one more rule that is a conjunction.
fn group() -> Result<Object> {
    let deny = Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?);
    let peers = [3, 4].map(Identity::try_from).into_iter().collect::<Result<_, _>>()?;
    let allow = Rule {
        peer: Peer { identities: Some(peers), ..Peer::any() },
        protocol: Some(TCP),
        ports: PortRange::new(1000, 2000),
        ..Rule::new("allow", Direction::In, Action::Allow, 2.try_into()?)
    };
    Ok(Object::Group(Group::new(identity()?, [deny, allow])))
}

/// Adds a pod of the group.
fn member(node: &Node, network: &Network, n: u8) -> Result<Pod> {
    let mut pod = node.pod(network, n)?;
    if let Object::Local(local) = &pod.object {
        pod.object = Object::Local(Local { identity: Some(identity()?), ..local.clone() });
    }
    node.add([pod.object.clone()])?;
    Ok(pod)
}

/// The switch revalidates its cache after it has confirmed a change of the tables.
fn wait_denied(pod: &Pod) -> Result<()> {
    wait_until(SOON, "the verdict of the changed tables", || Ok(pod.cannot_reach(2).ok()))
}

#[test]
fn policies_outlive_the_agent_and_are_repaired() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, encap, bridge) in
        [("polx", vxlan(5000), "contivVxlanBridge"), ("poll", vlan(100), "contivVlanBridge")]
    {
        let node = Node::new(label, &[])?;
        node.converge()?;
        let blue = network("blue", encap, ArpMode::Proxy);
        node.add([Object::Network(blue.clone()), group()?])?;
        let one = node.run_pod(&blue, 1)?;
        let two = member(&node, &blue, 2)?;
        // Replies pass, requests do not.
        two.reaches(1)?;
        one.cannot_reach(2)?;
        let before = node.tables()?;

        node.restart_agent();
        assert_eq!(node.converge()?, []);
        assert_eq!(node.writes(), 0);
        one.cannot_reach(2)?;

        for table in [5, 20, 21, 23, 24] {
            node.switch.borrow().ofctl("del-flows", bridge, &[&format!("table={table}")])?;
        }
        node.converge()?;
        assert_eq!(node.tables()?, before);
        wait_denied(&one)?;

        node.remove([ObjectId::Group(identity()?)])?;
        one.reaches(2)?;
        node.add([group()?])?;
        wait_denied(&one)?;
        assert_eq!(node.tables()?, before);
    }
    Ok(())
}

/// A rule counts the packets that it denies, and the connections that it allows.
#[test]
fn rules_are_counted() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("count", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone()), group()?])?;
    let one = node.run_pod(&blue, 1)?;
    let _two = member(&node, &blue, 2)?;
    let counters = || -> Result<Vec<(String, u64)>> {
        let telemetry = node.datapath.borrow().telemetry().context("the datapath counts")?;
        let read = async { tokio::task::spawn_blocking(move || telemetry.counters()).await };
        let counters = node.runtime.block_on(read)??;
        Ok(counters.rules.into_iter().map(|(rule, traffic)| (rule.to_string(), traffic.packets)).collect())
    };
    // The kernel of the pod sends packets of its own.
    assert!(counters()?.iter().all(|(rule, _)| rule == "deny"));
    one.cannot_reach(2)?;
    // The switch adds up the counters of its cache from time to time.
    wait_until(SOON, "four denied packets", || {
        let of_rule = counters()?.into_iter().find(|(rule, _)| rule == "deny");
        Ok(of_rule.filter(|(_, packets)| *packets >= 4).map(drop))
    })?;
    let allow = Rule::new("allow-all", Direction::In, Action::Allow, 3.try_into()?);
    let Object::Group(closed) = group()? else { unreachable!() };
    let rules: Vec<Rule> = closed.rules.iter().cloned().chain([allow]).collect();
    node.add([Object::Group(Group::new(identity()?, rules))])?;
    // Each ping of `reaches` that is answered is one connection.
    one.reaches(2)?;
    wait_until(SOON, "the allowed connections", || {
        let of_rule = counters()?.into_iter().find(|(rule, _)| rule == "allow-all");
        Ok(of_rule.filter(|(_, packets)| *packets >= 2).map(drop))
    })
}

/// A port with rules joins its VLAN when its flows are programmed, which is one more transaction.
#[test]
fn new_ports_end_on_their_vlan() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("tag", &[])?;
    node.converge()?;
    let green = network("green", vlan(100), ArpMode::Proxy);
    node.add([Object::Network(green.clone()), group()?])?;
    let _pods = [node.run_pod(&green, 1)?, member(&node, &green, 2)?];
    for port in ["vvport1", "vvport2"] {
        assert_eq!(node.switch.borrow().vsctl(&["get", "port", port, "tag"])?.trim(), "100");
    }
    assert_eq!(node.converge()?, []);
    Ok(())
}

/// A pod of a group that denies datagrams changes to a group whose rules the switch does not have yet. Until it is set, the rules of the
/// former group apply to it, whatever else is set after a resync, and also if that group is deleted.
#[test]
fn a_pod_that_waits_for_its_group_keeps_its_rules() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for (label, is_deleted) in [("waits", false), ("waits-del", true)] {
        let node = Node::new(label, &[])?;
        node.converge()?;
        let vrf = Vrf::Tenant("net".parse()?);
        let blue = Network { vrf, ..network("blue", vxlan(5000), ArpMode::Proxy) };
        let deny =
            Rule { protocol: Some(UDP), ..Rule::new("deny", Direction::In, Action::Deny, 1.try_into()?) };
        let former = Object::Group(Group::new(identity()?, [deny]));
        node.add([Object::Network(blue.clone()), former.clone()])?;
        let one = node.run_pod(&blue, 1)?;
        let two = member(&node, &blue, 2)?;
        let three = node.run_pod(&blue, 3)?;
        let (sender, inside) = (Tap::open(&one.namespace, "eth0")?, Tap::open(&two.namespace, "eth0")?);
        let other = Tap::open(&three.namespace, "eth0")?;
        let datagram = |mac: [u8; 6], to: Ipv4Addr| {
            Packet::eth(mac, one.mac).ipv4(addresses(1).0, to).udp(4000, 9).payload(b"denied").build()
        };
        let [broadcast, unicast] =
            [datagram(BROADCAST, Ipv4Addr::BROADCAST), datagram(two.mac, addresses(2).0)];
        let is_denied = || -> Result<()> {
            wait_until(SOON, "the broadcast at a pod without rules", || {
                sender.send(&broadcast)?;
                Ok(other.drain()?.iter().any(|frame| frame.bytes.starts_with(&broadcast)).then_some(()))
            })?;
            sender.send(&unicast)?;
            // The rules deny no pings.
            one.reaches(2)?;
            std::thread::sleep(Duration::from_millis(200));
            let received = inside.drain()?;
            let is_datagram =
                |bytes: &[u8]| [&broadcast, &unicast].iter().any(|sent| bytes.starts_with(sent));
            assert!(!received.iter().any(|frame| is_datagram(&frame.bytes)), "{received:?}");
            Ok(())
        };
        is_denied()?;
        let before = node.tables()?;

        let Object::Local(local) = &two.object else { unreachable!() };
        let next = Identity::try_from(8)?;
        let moved = Object::Local(Local { identity: Some(next), ..local.clone() });
        let group = Object::Group(Group::new(next, []).closed());
        for object in [&moved, &group] {
            node.desired.borrow_mut().insert(object.clone());
        }
        if is_deleted {
            node.desired.borrow_mut().remove(&former.id());
        }
        let observe = || -> Result<()> {
            let observed = node.observe()?;
            let desired = node.desired.borrow().clone();
            let missing: Vec<_> =
                desired.iter().map(|(id, _)| id).filter(|id| !observed.in_sync.contains(id)).collect();
            assert_eq!((missing, observed.orphans), (vec![&group.id(), &moved.id()], 0));
            Ok(())
        };
        observe()?;
        assert!(node.apply(&[Op::Set(Object::Network(blue.clone())), Op::GarbageCollect])?.is_empty());
        assert_eq!(node.tables()?, before);
        is_denied()?;
        let subnet = Subnet {
            network: blue.id.clone(),
            vrf: blue.vrf.clone(),
            encap: blue.encap,
            prefix: "10.1.0.0/24".parse()?,
            gateway: Some(Gateway { ip: addresses(254).0.into(), mac: Some(Mac::ROUTER) }),
        };
        node.add([Object::Subnet(subnet)])?;
        is_denied()?;
        observe()?;

        node.add([group.clone(), moved.clone()])?;
        assert_eq!(node.converge()?, []);
        // The new group is closed.
        wait_denied(&one)?;
    }
    Ok(())
}
