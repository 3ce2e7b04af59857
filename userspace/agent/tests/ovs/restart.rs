//! Restarts of ovs-vswitchd and ovsdb-server while the datapath is connected.

use std::{net::IpAddr, time::Duration};

use anyhow::Result;
use contiv_model::{global::ArpMode, vrf::Vrf};
use netplugin::datapath::{Datapath as _, Network, Object, ObjectId, Op, Scope, Service, ovs::DatapathType};
use testkit::{Netns, Pinger, needs, wait_until};

use crate::{
    bandwidth::{counts, limited, member},
    lifecycle::populated_node,
    node::{Node, Pod, SOON, addresses, network, vxlan},
};

fn blue() -> Network {
    network("blue", vxlan(5000), ArpMode::Proxy)
}

/// A node with all kinds of objects, and a pod with a bandwidth limit.
fn full_node(label: &str) -> Result<(Node, Vec<Pod>)> {
    let (node, mut pods) = populated_node(label)?;
    let limited_pod = member(&node, &blue(), 5)?;
    node.add([limited(Some(4_194_000)), limited_pod.object.clone()])?;
    pods.push(limited_pod);
    // Connections have their numbers, which are not in the order of the names.
    for (name, last) in [("web:net", 201), ("api:net", 202)] {
        let service = Service::new(name, Scope::network(&blue()), addresses(last).0);
        let ports = vec!["80:8080:TCP".parse()?];
        node.add([Object::Service(Service { ports, ..service })])?;
    }
    Ok((node, pods))
}

fn observe_fails_with(node: &Node, text: &str) {
    let error = format!("{:#}", anyhow::Error::from(node.observe().unwrap_err()));
    assert!(error.contains(text), "{error}");
}

/// Resyncs until nothing is requested any more: ovs-vswitchd writes port numbers to a new database.
fn settle(node: &Node) -> Result<Vec<ObjectId>> {
    let found = node.converge()?;
    wait_until(SOON, "the switch to report its ports", || {
        if node.resync_requested() {
            node.converge()?;
            return Ok(None);
        }
        Ok(Some(()))
    })?;
    Ok(found)
}

/// Everything is as before, also for a new pod.
fn assert_restored(node: &Node, pods: &[Pod]) -> Result<()> {
    for (from, to) in [(0, 2), (2, 2), (4, 1)] {
        pods[from].reaches(to)?;
    }
    assert_eq!(counts(node)?, [1, 1]);
    let new = node.run_pod(&blue(), 6)?;
    new.reaches(1)?;
    let writes = node.writes();
    assert_eq!(node.converge()?, []);
    assert_eq!(node.writes(), writes);
    Ok(())
}

#[test]
fn the_switch_restarts() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, pods) = full_node("crash")?;
    let before = node.tables()?;
    node.switch.borrow_mut().kill_vswitchd()?;
    assert!(node.resync_needed(SOON));
    observe_fails_with(&node, "is ovs-vswitchd running on this node?");
    node.switch.borrow_mut().start_vswitchd()?;
    node.converge()?;
    assert_eq!(node.tables()?, before);
    assert_restored(&node, &pods)
}

/// `ovs-ctl restart` puts the flows back that it has saved. They would replace what an agent has programmed before.
#[test]
fn nothing_is_programmed_while_flows_are_restored() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, pods) = full_node("restore")?;
    let before = node.tables()?;
    let vsctl = |words: &[&str]| {
        let at = ["Open_vSwitch", ".", "other_config"];
        let words = [&["--no-wait", words[0]][..], &at[..], &words[1..]].concat();
        node.switch.borrow().vsctl(&words)
    };
    vsctl(&["add", "flow-restore-wait=true"])?;
    assert!(node.resync_needed(SOON));
    node.switch.borrow().ofctl("del-flows", "contivVxlanBridge", &[])?;
    let lost = node.tables()?;
    observe_fails_with(&node, "other_config:flow-restore-wait is true");
    node.restart_agent();
    observe_fails_with(&node, "other_config:flow-restore-wait is true");
    assert_eq!(node.tables()?, lost);

    vsctl(&["remove", "flow-restore-wait"])?;
    settle(&node)?;
    assert_eq!(node.tables()?, before);
    assert_restored(&node, &pods)
}

/// The connections of the kernel outlive the flows, and have the numbers of services and tenants.
#[test]
fn the_switch_and_the_agent_restart() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, pods) = full_node("crash-agent")?;
    // The names of both tenants choose one number. The one that comes last is the first one for another agent.
    for (name, tenant, vni) in [("second", "red", 5002), ("first", "green2285", 5001)] {
        let vrf = Vrf::Tenant(tenant.parse()?);
        node.add([Object::Network(Network { vrf, ..network(name, vxlan(vni), ArpMode::Proxy) })])?;
    }
    let kept = || {
        let words = ["--timeout=20", "get", "bridge", "contivVxlanBridge", "external_ids"];
        node.switch.borrow().vsctl(&words)
    };
    let ids = kept()?;
    assert!(
        ids.contains("contiv-vrf-green2285=") && !ids.contains("red=") && !ids.contains("service"),
        "{ids}"
    );
    let before = node.tables()?;
    node.switch.borrow_mut().kill_vswitchd()?;
    node.restart_agent();
    node.switch.borrow_mut().start_vswitchd()?;
    node.converge()?;
    assert_eq!((node.tables()?, kept()?), (before, ids));
    assert_restored(&node, &pods)?;
    node.remove([ObjectId::Network(network("first", vxlan(5001), ArpMode::Proxy).id)])?;
    assert!(!kept()?.contains("contiv-vrf-"));
    Ok(())
}

/// The database is gone for a moment: what has waited in the queues of the ports is forwarded, and nothing is programmed again.
#[test]
fn the_database_restarts() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, pods) = full_node("dbcrash")?;
    let before = node.tables()?;
    let pinger = Pinger::start(&pods[0].namespace, addresses(2).0.into(), Duration::from_millis(10))?;
    wait_until(SOON, "pings run", || Ok((pinger.answers() > 5).then_some(())))?;
    node.switch.borrow_mut().kill_database()?;
    assert!(node.resync_needed(SOON));
    observe_fails_with(&node, "is openvswitch-switch running on this node?");
    node.switch.borrow_mut().start_database()?;
    let writes = node.writes();
    assert_eq!(settle(&node)?, []);
    assert_eq!((node.tables()?, node.writes()), (before, writes));
    assert_restored(&node, &pods)?;
    assert_eq!(pinger.finish(SOON)?.lost(), 0);
    Ok(())
}

#[test]
fn both_restart_in_any_order() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for database_first in [true, false] {
        let (node, pods) = full_node("crash-both")?;
        let before = node.tables()?;
        {
            let mut switch = node.switch.borrow_mut();
            if database_first {
                switch.kill_database()?;
                switch.kill_vswitchd()?;
            } else {
                switch.kill_vswitchd()?;
                switch.kill_database()?;
            }
        }
        assert!(node.resync_needed(SOON));
        observe_fails_with(&node, "is openvswitch-switch running on this node?");
        if database_first {
            node.switch.borrow_mut().start_database()?;
            observe_fails_with(&node, "is ovs-vswitchd running on this node?");
            node.switch.borrow_mut().start_vswitchd()?;
        } else {
            node.switch.borrow_mut().spawn_vswitchd()?;
            observe_fails_with(&node, "is openvswitch-switch running on this node?");
            node.switch.borrow_mut().start_database()?;
            node.switch.borrow_mut().wait_vswitchd()?;
        }
        settle(&node)?;
        assert_eq!(node.tables()?, before, "database first: {database_first}");
        assert_restored(&node, &pods)?;
    }
    Ok(())
}

/// A change that a crash interrupts is an error, and is completed by the next resync.
#[test]
fn a_crash_interrupts_a_change() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    for kill_database in [true, false] {
        let (node, pods) = full_node("crash-apply")?;
        let pod = node.pod(&blue(), 7)?;
        {
            let mut switch = node.switch.borrow_mut();
            if kill_database {
                switch.kill_database()?;
            } else {
                switch.kill_vswitchd()?;
            }
        }
        node.desired.borrow_mut().insert(pod.object.clone());
        assert!(node.apply(&[Op::Set(pod.object.clone())]).is_err());
        {
            let mut switch = node.switch.borrow_mut();
            if kill_database {
                switch.start_database()?;
            } else {
                switch.start_vswitchd()?;
            }
        }
        settle(&node)?;
        pod.reaches(1)?;
        assert_restored(&node, &pods)?;
    }
    Ok(())
}

/// The first `observe` would leave bridges in the database, which ovs-vswitchd would create when it is back.
#[test]
fn preparation_needs_a_running_switch_and_creates_no_bridge() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("prepare", &[])?;
    let prepare = || node.runtime.block_on(node.datapath.borrow_mut().prepare());
    let fails_with = |text: &str| {
        let error = format!("{:#}", anyhow::Error::from(prepare().unwrap_err()));
        assert!(error.contains(text), "{error}");
    };
    prepare()?;
    node.switch.borrow_mut().kill_vswitchd()?;
    fails_with("is ovs-vswitchd running on this node?");
    assert_eq!(node.switch.borrow().vsctl(&["--no-wait", "list-br"])?, "");
    node.switch.borrow_mut().kill_database()?;
    fails_with("is openvswitch-switch running on this node?");
    Ok(())
}

/// A port of the kernel datapath takes all frames from the network stack of the node.
#[test]
fn preparation_refuses_an_uplink_that_connects_the_node() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"), binary("ip"));
    let (inside, outside) = (Netns::new("prepare-in")?, Netns::new("prepare-out")?);
    inside.veth("trunk0", &outside, "trunk0")?;
    for space in [&inside, &outside] {
        space.up("trunk0")?;
    }
    inside.address("trunk0", "192.0.2.7/24")?;
    let node = Node::on(inside, &["trunk0"])?;
    let (own, other) = (IpAddr::from([192, 0, 2, 7]), IpAddr::from([198, 51, 100, 7]));
    let why = |control| {
        let refused = node.prepare(DatapathType::System, control).unwrap_err();
        format!("{:#}", anyhow::Error::from(refused))
    };
    let text = why(own);
    assert!(text.contains("trunk0 has the address 192.0.2.7/24 of this node"), "{text}");
    // It has an address that does not connect the node.
    node.prepare(DatapathType::System, other)?;
    node.namespace.ip("route add default via 192.0.2.1")?;
    let text = why(other);
    assert!(text.contains("the default route of this node leads through trunk0 (192.0.2.7/24"), "{text}");
    node.prepare(DatapathType::Netdev, own)?;
    assert_eq!(node.switch.borrow().vsctl(&["--no-wait", "list-br"])?, "");
    Ok(())
}
