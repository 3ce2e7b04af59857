//! Restarts, removal, and invalid objects.

use std::{env, time::Duration};

use anyhow::Result;
use contiv_abi::Timeouts;
use contiv_model::{global::ArpMode, policy::Identity, vrf::Vrf};
use netplugin::{
    datapath::{Datapath as _, Group, Object, ObjectId, Op, Scope, Service, ovs::Options},
    error::one_line,
};
use testkit::{Netns, Pinger, needs};

use crate::node::{Node, Pod, SOON, addresses, network, peer, remote, vlan, vtep, vxlan};

/// Creates a node with peers, both kinds of networks, remote endpoints and pods.
pub(crate) fn populated_node(label: &str) -> Result<(Node, Vec<Pod>)> {
    let node = Node::new(label, &[])?;
    node.converge()?;
    let [blue, green] =
        [network("blue", vxlan(5000), ArpMode::Proxy), network("green", vlan(100), ArpMode::Proxy)];
    node.add([peer(vtep(0)), peer(vtep(1)), Object::Network(blue.clone()), Object::Network(green.clone())])?;
    node.add([remote(&blue, 3, Some(vtep(1))), remote(&green, 4, None)])?;
    let pods = vec![
        node.run_pod(&blue, 1)?,
        node.run_pod(&blue, 2)?,
        node.run_pod(&green, 1)?,
        node.run_pod(&green, 2)?,
    ];
    Ok((node, pods))
}

#[test]
fn a_restarted_agent_finds_everything_in_sync() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, pods) = populated_node("again")?;
    let before = node.tables()?;
    let pinger = Pinger::start(&pods[0].namespace, addresses(2).0.into(), Duration::from_millis(10))?;
    testkit::wait_until(SOON, "pings run", || Ok((pinger.answers() > 5).then_some(())))?;
    node.restart_agent();
    let observed = node.observe()?;
    assert_eq!(observed.in_sync.len(), node.desired.borrow().len());
    assert_eq!((observed.orphans, node.writes()), (0, 0));
    assert_eq!(node.tables()?, before);
    // Setting the same objects again writes nothing.
    let again: Vec<_> = node.desired.borrow().iter().map(|(_, object)| Op::Set(object.clone())).collect();
    assert!(node.apply(&again)?.is_empty() && node.apply(&[Op::GarbageCollect])?.is_empty());
    assert_eq!(node.writes(), 0);
    assert_eq!(pinger.finish(SOON)?.lost(), 0);
    Ok(())
}

#[test]
fn a_change_writes_only_its_differences() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _pods) = populated_node("cost")?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let before = node.writes();
    node.add([remote(&blue, 9, Some(vtep(1)))])?;
    // Its flows alone, also those of the checks.
    let cost = node.writes() - before;
    node.add([remote(&blue, 8, Some(vtep(1)))])?;
    assert_eq!(node.writes() - before, 2 * cost);
    assert!(cost < 50, "{cost}");
    let before = node.writes();
    node.add([Object::Network(network("blue", vxlan(5000), ArpMode::Flood))])?;
    assert_eq!(node.writes() - before, 2);
    Ok(())
}

#[test]
fn removal_leaves_nothing() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let fresh = Node::new("fresh", &[])?;
    fresh.converge()?;
    let (node, _pods) = populated_node("gone")?;
    let ids: Vec<_> = node.desired.borrow().iter().map(|(id, _)| id.clone()).collect();
    node.remove(ids.into_iter().rev())?;
    assert_eq!(node.tables()?, fresh.tables()?);
    let ports = ["contivVlanBridge", "contivVxlanBridge"]
        .map(|bridge| node.switch.borrow().vsctl(&["list-ports", bridge]).unwrap());
    assert_eq!(ports, ["", ""]);
    assert_eq!(crate::conntrack::zones(&node)?, Vec::<String>::new());

    let mut datapath = node.datapath.borrow_mut();
    node.runtime.block_on(datapath.cleanup())?;
    assert_eq!(node.switch.borrow().vsctl(&["list-br"])?, "");
    assert_eq!(node.switch.borrow().vsctl(&["--bare", "--columns=_uuid", "list", "Datapath"])?, "");
    // A second cleanup succeeds.
    node.runtime.block_on(datapath.cleanup())?;
    Ok(())
}

#[test]
fn a_missing_database_is_reported() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let options = Options {
        socket: "/nonexistent/db.sock".into(),
        datapath_type: netplugin::datapath::ovs::DatapathType::System,
        uplinks: vec![],
        vtep: None,
        control: None,
        announce: true,
        timeouts: Timeouts::default(),
        connections: Options::CONNECTIONS,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut datapath = netplugin::datapath::ovs::Ovs::new(options);
    let error = runtime.block_on(datapath.observe(&Default::default())).unwrap_err();
    let text = format!("{:#}", anyhow::Error::from(error));
    assert!(text.contains("/nonexistent/db.sock (is openvswitch-switch running on this node?)"), "{text}");
    Ok(())
}

/// A bridge of type system works if and only if the kernel has the module; otherwise the error names the module.
#[test]
fn a_missing_kernel_module_is_reported() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("kernel", &[])?;
    let options = Options {
        socket: node.switch.borrow().socket(),
        datapath_type: netplugin::datapath::ovs::DatapathType::System,
        uplinks: vec![],
        vtep: None,
        control: None,
        announce: true,
        timeouts: Timeouts::default(),
        connections: Options::CONNECTIONS,
    };
    let mut datapath = netplugin::datapath::ovs::Ovs::new(options);
    let observed = node.runtime.block_on(datapath.observe(&Default::default()));
    match (observed, kernel_has_openvswitch()?) {
        (Ok(observed), true) => assert_eq!(observed.in_sync.len(), 0),
        (Err(error), false) => {
            let text = format!("{:#}", anyhow::Error::from(error));
            assert!(text.contains("kernel module openvswitch"), "{text}");
        }
        (Ok(_), false) => panic!("a bridge of type system exists without the kernel module"),
        (Err(error), true) => return Err(error.into()),
    }
    node.runtime.block_on(datapath.cleanup())?;
    assert_eq!(node.switch.borrow().vsctl(&["list-br"])?, "");
    Ok(())
}

/// Returns whether the kernel has the generic netlink family of the module `openvswitch`, whether loaded or built in.
fn kernel_has_openvswitch() -> Result<bool> {
    let families = std::process::Command::new("genl").args(["ctrl", "list"]).output()?;
    anyhow::ensure!(families.status.success(), "{}", String::from_utf8_lossy(&families.stderr));
    Ok(String::from_utf8_lossy(&families.stdout).contains("Name: ovs_datapath"))
}

/// Several uplinks form one bond; a restarted agent does not change it.
#[test]
fn several_uplinks_form_a_bond() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let outside = Netns::new("bond-out")?;
    let inside = Netns::new("bond-in")?;
    for wire in ["up0", "up1"] {
        inside.veth(wire, &outside, wire)?;
        inside.up(wire)?;
        outside.up(wire)?;
    }
    let node = Node::on(inside, &["up0", "up1"])?;
    node.converge()?;
    let vsctl = |words: &[&str]| node.switch.borrow().vsctl(words);
    assert_eq!(vsctl(&["list-ports", "contivVlanBridge"])?, "uplinkPort\n");
    // The agent follows the choice of the switch.
    testkit::wait_until(SOON, "an uplink is active", || {
        let active = vsctl(&["get", "port", "uplinkPort", "bond_active_slave"])?;
        Ok((active.trim() != "[]").then_some(()))
    })?;
    node.converge()?;
    assert_eq!(vsctl(&["get", "port", "uplinkPort", "bond_mode", "lacp"])?, "balance-tcp\nactive\n");
    let text = node.tables()?["contivVlanBridge"].join("\n");
    assert_eq!(text.matches("actions=write_metadata:0x1/0x1,goto_table:1").count(), 2, "{text}");
    node.restart_agent();
    assert_eq!(node.converge()?, []);
    assert_eq!(node.writes(), 0);
    Ok(())
}

/// Uplinks can be changed in any order: one, several, another one, none.
#[test]
fn uplinks_are_replaced() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let outside = Netns::new("relink-out")?;
    let inside = Netns::new("relink-in")?;
    for wire in ["up0", "up1"] {
        inside.veth(wire, &outside, wire)?;
        inside.up(wire)?;
        outside.up(wire)?;
    }
    let mut node = Node::on(inside, &["up0", "up1"])?;
    for (uplinks, ports) in [
        (&["up0", "up1"][..], "uplinkPort\n"),
        (&["up0"], "up0\n"),
        (&["up0", "up1"], "uplinkPort\n"),
        (&["up1"], "up1\n"),
        (&["up0"], "up0\n"),
        (&["up1", "up0"], "uplinkPort\n"),
        (&[], ""),
    ] {
        node.restart_agent_with(uplinks);
        // Two uplinks that are no bond would be a loop, and the garbage collection may come late.
        node.observe()?;
        let list = || node.switch.borrow().vsctl(&["list-ports", "contivVlanBridge"]);
        assert_eq!(list()?, ports, "{uplinks:?}");
        node.converge()?;
        assert_eq!(list()?, ports, "{uplinks:?}");
        assert_eq!(node.warnings(), Vec::<String>::new());
    }
    Ok(())
}

/// A node whose uplink does not exist has no VLANs, and says so until the uplink appears.
#[test]
fn a_missing_uplink_is_reported() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let outside = Netns::new("nolink-out")?;
    let node = Node::new("nolink-in", &["upp0"])?;
    node.converge()?;
    let warnings = node.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("upp0") && warnings[0].contains("No such device"), "{warnings:?}");

    node.namespace.veth("upp0", &outside, "up0")?;
    node.namespace.up("upp0")?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    assert_eq!(node.warnings(), Vec::<String>::new());
    Ok(())
}

/// Retries of an endpoint without its interface leave ovs-vswitchd alone; it opens the port when the interface appears.
#[test]
fn retries_of_an_invalid_port_do_not_reconfigure_the_switch() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("retry", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let pod = node.pod(&blue, 1)?;
    node.namespace.ip("link set vvport1 down")?;
    node.namespace.ip("link set vvport1 name hidden")?;
    node.add([Object::Network(blue)])?;
    node.desired.borrow_mut().insert(pod.object.clone());
    let op = Op::Set(pod.object.clone());
    assert_eq!(node.apply(std::slice::from_ref(&op))?.len(), 1);
    let configured = || node.switch.borrow().vsctl(&["get", "open_vswitch", ".", "next_cfg"]);
    let before = configured()?;
    for _ in 0..5 {
        assert_eq!(node.apply(std::slice::from_ref(&op))?.len(), 1);
    }
    assert_eq!(configured()?, before);

    node.observe()?;
    node.namespace.ip("link set hidden name vvport1")?;
    node.namespace.up("vvport1")?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    Ok(())
}

/// A flow of another program with a match field that we do not know hides nothing, and stays.
#[test]
fn a_flow_with_an_unknown_field_does_not_disturb() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _pods) = populated_node("foreign")?;
    for flow in [
        "table=99,sctp,tp_src=7,actions=drop",
        "table=99,pkt_mark=0x5,actions=drop",
        "table=99,mpls,mpls_label=3,actions=drop",
    ] {
        node.switch.borrow().ofctl("add-flow", "contivVxlanBridge", &[flow])?;
    }
    node.restart_agent();
    let observed = node.observe()?;
    assert_eq!(observed.in_sync.len(), node.desired.borrow().len());
    node.converge()?;
    let tables = node.tables()?["contivVxlanBridge"].join("\n");
    assert!(tables.contains("mpls"), "{tables}");
    Ok(())
}

/// An endpoint without its interface fails alone, and is installed when the interface exists.
#[test]
fn an_invalid_port_fails_alone() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("badport", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    let good = node.pod(&blue, 1)?;
    let other = node.pod(&blue, 2)?;
    let Object::Local(mut bad) = other.object.clone() else { unreachable!() };
    bad.port = "vvport99".into();
    let without_tunnel = remote(&blue, 3, Some(vtep(0)));
    let objects = [Object::Network(blue), Object::Local(bad.clone()), without_tunnel, good.object.clone()];
    for object in &objects {
        node.desired.borrow_mut().insert(object.clone());
    }
    let failures = node.apply(&objects.clone().map(Op::Set))?;
    let texts: Vec<_> =
        failures.into_iter().map(|f| (f.index, format!("{:#}", anyhow::Error::from(f.error)))).collect();
    assert_eq!(texts.iter().map(|(op, _)| *op).collect::<Vec<_>>(), [1]);
    assert!(texts[0].1.contains("vvport99") && texts[0].1.contains("No such device"), "{texts:?}");
    let observed = node.observe()?;
    assert_eq!(observed.in_sync, [0, 2, 3].map(|op: usize| objects[op].id()).into());

    node.namespace.ip(&format!("link set {} down", "vvport2"))?;
    node.namespace.ip("link set vvport2 name vvport99")?;
    node.namespace.up("vvport99")?;
    node.add([peer(vtep(0))])?;
    node.converge()?;
    good.reaches(2)
}

/// A service of a VRF without a network on the node fails alone: nothing is written for it, and other objects remain.
#[test]
fn objects_that_cannot_be_set_fail_alone() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("refuse", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let group = Object::Group(Group { dscp: Some(46.try_into()?), ..Group::new(Identity::try_from(5)?, []) });
    let service = Object::Service(Service {
        ports: vec!["80:8080:TCP".parse()?],
        ..Service::new("web:t", Scope::vrf(Vrf::Tenant("other".parse()?)), [10, 1, 1, 9])
    });
    let ops = [group, service].map(Op::Set);
    let writes = node.writes();
    let failures = node.apply(&ops)?;
    assert_eq!(failures.iter().map(|failed| failed.index).collect::<Vec<_>>(), [1]);
    let error = one_line(&failures[0].error);
    assert!(error.contains("give the service a network"), "{error}");
    assert_eq!(node.writes(), writes);
    for op in &ops {
        let Op::Set(object) = op else { unreachable!() };
        node.desired.borrow_mut().insert(object.clone());
    }
    let observed = node.observe()?;
    let Op::Set(group) = &ops[0] else { unreachable!() };
    assert_eq!((observed.in_sync, observed.orphans), ([Object::Network(blue).id(), group.id()].into(), 0));
    let deletes = ops.map(|op| match op {
        Op::Set(object) => Op::Delete(object.id()),
        other => other,
    });
    assert!(node.apply(&deletes)?.is_empty());
    assert_eq!(node.writes(), writes);
    Ok(())
}

/// An endpoint moves between nodes: the new flows precede the removal, and no old flow remains.
#[test]
fn an_endpoint_moves_between_nodes() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("move", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([peer(vtep(0)), Object::Network(blue.clone()), remote(&blue, 1, Some(vtep(0)))])?;
    let elsewhere = node.tables()?;
    let pod = node.pod(&blue, 1)?;
    let there: ObjectId = remote(&blue, 1, Some(vtep(0))).id();
    for ops in [
        [Op::Set(pod.object.clone()), Op::Delete(there.clone())],
        [Op::Set(remote(&blue, 1, Some(vtep(0)))), Op::Delete(pod.object.id())],
    ] {
        for op in &ops {
            match op {
                Op::Set(object) => drop(node.desired.borrow_mut().insert(object.clone())),
                Op::Delete(id) => drop(node.desired.borrow_mut().remove(id)),
                Op::GarbageCollect => {}
            }
        }
        assert!(node.apply(&ops)?.is_empty());
        assert_eq!(node.converge()?, []);
    }
    assert_eq!(node.tables()?, elsewhere);
    Ok(())
}

/// 2,000 endpoints, or as many as this variable says.
const ENDPOINTS: &str = "CONTIV_OVS_ENDPOINTS";

#[test]
fn thousands_of_endpoints_are_added_and_removed() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let endpoints: usize = env::var(ENDPOINTS).map_or(Ok(2000), |number| number.parse())?;
    let node = Node::new("many", &[])?;
    node.converge()?;
    node.add([peer(vtep(0)), peer(vtep(1))])?;
    let mut objects = vec![];
    for n in 0..20u32 {
        let encap = if n % 2 == 0 { vxlan(5000 + n) } else { vlan(100 + n as u16) };
        let network = network(&format!("n{n}"), encap, ArpMode::Proxy);
        let through = (n % 2 == 0).then(|| vtep((n / 2 % 2) as usize));
        objects.push(Object::Network(network.clone()));
        objects.extend((1..=u8::MAX).take(endpoints / 20).map(|pod| remote(&network, pod, through)));
    }
    node.add(objects.clone())?;
    assert_eq!(node.converge()?, []);
    node.remove(objects.iter().rev().map(Object::id))?;
    assert_eq!(node.converge()?, []);
    assert_eq!(node.datapath.borrow().inspect()["objects"], 2);
    Ok(())
}
