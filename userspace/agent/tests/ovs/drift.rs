//! Changes by other processes: the next observation finds them and the ops after it repair them.

use anyhow::Result;
use contiv_model::global::ArpMode;
use netplugin::datapath::{Object, Op};
use testkit::{capture::Tap, needs, packet::Packet, wait_until};

use crate::{
    announce::TAG,
    node::{Node, SOON, addresses, network, peer, remote, vlan, vtep, vxlan},
};

#[test]
fn drift_is_found_and_repaired() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("drift", &[])?;
    node.converge()?;
    let [blue, green] =
        [network("blue", vxlan(5000), ArpMode::Proxy), network("green", vlan(100), ArpMode::Proxy)];
    node.add([peer(vtep(1)), Object::Network(blue.clone()), Object::Network(green.clone())])?;
    node.add([remote(&blue, 3, Some(vtep(1)))])?;
    let one = node.run_pod(&blue, 1)?;
    let two = node.run_pod(&blue, 2)?;
    let green_one = node.run_pod(&green, 1)?;
    let before = node.tables()?;

    let vsctl = |words: &[&str]| node.switch.borrow().vsctl(&[&["--timeout=20"], words].concat()).map(drop);
    let ofctl = |command: &str, argument: &str| {
        node.switch.borrow().ofctl(command, "contivVxlanBridge", &[argument]).map(drop)
    };
    let one_id = [one.object.id()];
    let all = node.desired.borrow().iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
    type Fault<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>, Option<Vec<netplugin::datapath::ObjectId>>);
    let faults: Vec<Fault<'_>> = vec![
        (
            "missing flow",
            Box::new(|| ofctl("del-flows", "table=9,dl_dst=02:02:0a:01:00:01")),
            Some(one_id.to_vec()),
        ),
        (
            "changed flow",
            Box::new(|| ofctl("mod-flows", "table=9,dl_dst=02:02:0a:01:00:01,actions=drop")),
            Some(one_id.to_vec()),
        ),
        (
            "overwritten flow",
            Box::new(|| {
                let matching = "metadata=0x13880000000000/0xffffff0000000000,dl_dst=02:02:0a:01:00:01";
                ofctl("add-flow", &format!("table=9,priority=100,{matching},actions=drop"))
            }),
            Some(one_id.to_vec()),
        ),
        (
            "flow of no object",
            Box::new(|| {
                ofctl("add-flow", "cookie=0xc300000000000077,table=0,priority=500,icmp,actions=drop")
            }),
            Some(vec![]),
        ),
        ("no flows", Box::new(|| ofctl("del-flows", "table=255")), None),
        ("no groups", Box::new(|| ofctl("del-groups", "")), None),
        (
            "group without a bucket",
            Box::new(|| ofctl("mod-group", "group_id=10000,type=all,bucket=actions=output:1")),
            Some(vec![Object::Network(blue.clone()).id()]),
        ),
        ("foreign group", Box::new(|| ofctl("add-group", "group_id=77,type=all")), Some(vec![])),
        (
            "missing port",
            Box::new(|| vsctl(&["del-port", "vvport1"])),
            // The group of the network refers to the removed port.
            Some(vec![Object::Network(blue.clone()).id(), one.object.id()]),
        ),
        (
            "port of no object",
            Box::new(|| {
                vsctl(&[
                    "add-port",
                    "contivVlanBridge",
                    "stray0",
                    "--",
                    "set",
                    "interface",
                    "stray0",
                    "type=internal",
                    "--",
                    "set",
                    "port",
                    "stray0",
                    "external_ids:endpoint-id=gone",
                ])
            }),
            Some(vec![]),
        ),
        (
            "changed VLAN tag",
            Box::new(|| vsctl(&["set", "port", "vvport3", "tag=101"])),
            Some(vec![green_one.object.id()]),
        ),
        (
            "changed tunnel",
            Box::new(|| vsctl(&["set", "interface", "vxif19216892", "options:dst_port=4790"])),
            Some(vec![peer(vtep(1)).id()]),
        ),
        ("missing bridge", Box::new(|| vsctl(&["del-br", "contivVxlanBridge"])), None),
        (
            "changed fail mode",
            Box::new(|| vsctl(&["set", "bridge", "contivVxlanBridge", "fail_mode=standalone"])),
            None,
        ),
    ];
    for (fault, inject, affected) in faults {
        inject()?;
        let found = node.converge()?;
        if let Some(affected) = affected {
            assert_eq!(found, affected, "{fault}");
        }
        assert!(found.iter().all(|id| all.contains(id)));
        one.reaches(2)?;
        two.reaches(1)?;
        let writes = node.writes();
        assert_eq!(node.converge()?, [], "{fault}");
        assert_eq!(node.writes(), writes, "{fault}");
    }
    // Port numbers can have changed, nothing else.
    assert_eq!(node.tables()?.lengths(), before.lengths());
    Ok(())
}

/// Another program has removed the port of a pod, and orphans are removed: no host on the wire sends in the name of the pod.
#[test]
fn a_pod_without_its_port_keeps_its_addresses() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let (node, _outside, wire) = Node::with_uplink("portless")?;
    let green = network("green", vlan(TAG), ArpMode::Proxy);
    node.add([Object::Network(green.clone())])?;
    let (one, two) = (node.run_pod(&green, 1)?, node.run_pod(&green, 2)?);
    node.switch.borrow().vsctl(&["--timeout=20", "del-port", "vvport1"])?;
    assert!(!node.observe_with_retries()?.in_sync.contains(&one.object.id()));
    assert!(node.apply(&[Op::GarbageCollect])?.is_empty());

    let inside = Tap::open(&two.namespace, "eth0")?;
    let host = [2, 2, 10, 1, 0, 90];
    let datagram = |eth: Packet, from: u8| {
        eth.ipv4(addresses(from).0, addresses(2).0).udp(4000, 9).payload(b"from the wire").build()
    };
    let send = |mac, from| wire.send(&datagram(Packet::eth(two.mac, mac).vlan(TAG), from));
    for _ in 0..2 {
        let mut received: Vec<Vec<u8>> = vec![];
        wait_until(SOON, "a datagram of the host", || {
            // With the addresses of the pod, and with one of them.
            send(one.mac, 1)?;
            send(host, 1)?;
            send(host, 90)?;
            received.extend(inside.drain()?.into_iter().map(|frame| frame.bytes));
            let expected = datagram(Packet::eth(two.mac, host), 90);
            Ok(received.iter().any(|bytes| bytes.starts_with(&expected)).then_some(()))
        })?;
        for mac in [one.mac, host] {
            let spoofed = datagram(Packet::eth(two.mac, mac), 1);
            assert!(!received.iter().any(|bytes| bytes.starts_with(&spoofed)), "in the name of the pod");
        }
    }
    node.converge()?;
    assert_eq!(node.converge()?, []);
    Ok(())
}

/// Flows, ports and groups of other programs stay, and are no orphans. The flows are reported.
#[test]
fn what_other_programs_add_stays() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("others", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let one = node.run_pod(&blue, 1)?;
    let _two = node.run_pod(&blue, 2)?;
    let ours = node.tables()?;
    // A flow uses the second one, by which it uses the first one. The last one has an action on a field that the agent does not know.
    for group in [
        "group_id=8,type=all,bucket=actions=output:1",
        "group_id=7,type=all,bucket=actions=group:8",
        "group_id=78,type=all,bucket=actions=set_field:5->tun_gbp_id,output:1",
    ] {
        node.switch.borrow().ofctl("add-group", "contivVxlanBridge", &[group])?;
    }
    // The second one is like the flow that has the number of a service. The third one has the cookie of a flow of the agent, and a
    // field that the agent does not know.
    for flow in [
        "table=0,priority=500,udp,tp_dst=5555,actions=group:7",
        "cookie=0x2a,table=27,priority=500,metadata=0xa0000/0xfffffe0000,actions=drop",
        "cookie=0xc300000000000077,table=0,priority=500,mpls,mpls_label=5,actions=NORMAL",
    ] {
        node.switch.borrow().ofctl("add-flow", "contivVxlanBridge", &[flow])?;
    }
    let vsctl = |words: &[&str]| node.switch.borrow().vsctl(words);
    let set = ["--", "set", "interface", "mirror0", "type=internal"];
    vsctl(&[&["--timeout=20", "add-port", "contivVxlanBridge", "mirror0"][..], &set].concat())?;
    let writes = node.writes();
    for _ in 0..2 {
        let observed = node.observe()?;
        assert_eq!((observed.in_sync.len(), observed.orphans), (node.desired.borrow().len(), 0));
        assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
        assert_eq!(node.writes() - writes, 0);
        let warnings = node.warnings();
        assert!(
            matches!(&warnings[..], [line] if line.contains("contivVxlanBridge: 3 flows")),
            "{warnings:?}"
        );
        let with_them = node.tables()?["contivVxlanBridge"].len();
        assert_eq!(with_them, ours["contivVxlanBridge"].len() + 6);
    }
    one.reaches(2)?;
    assert!(vsctl(&["list-ports", "contivVxlanBridge"])?.contains("mirror0"));
    for cookie in ["cookie=0/-1", "cookie=0x2a/-1", "cookie=0xc300000000000077/-1"] {
        node.switch.borrow().ofctl("del-flows", "contivVxlanBridge", &[cookie])?;
    }
    node.switch.borrow().ofctl("del-groups", "contivVxlanBridge", &["group_id=78"])?;
    // Nothing uses them any more.
    assert_eq!(node.observe()?.orphans, 2);
    assert!(node.apply(&[Op::GarbageCollect])?.is_empty());
    node.observe()?;
    assert_eq!((node.warnings(), node.tables()?), (vec![], ours));
    Ok(())
}

trait Lengths {
    fn lengths(&self) -> Vec<usize>;
}

impl<K> Lengths for std::collections::BTreeMap<K, Vec<String>> {
    fn lengths(&self) -> Vec<usize> {
        self.values().map(Vec::len).collect()
    }
}

/// The datapath requests a resync after a change by another process, and not after its own changes.
/// A change of another program that the agent sees together with its own change is not taken for its own.
#[test]
fn a_foreign_change_before_an_own_one_requests_a_resync() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("overlap", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let _one = node.run_pod(&blue, 1)?;
    assert!(!node.resync_requested());
    node.switch.borrow().vsctl(&["--timeout=20", "del-port", "vvport1"])?;
    // Waits for ovs-vswitchd, and thus receives the earlier change.
    let _two = node.run_pod(&blue, 2)?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    let _three = node.run_pod(&blue, 3)?;
    assert!(!node.resync_requested());
    Ok(())
}

#[test]
fn a_foreign_change_requests_a_resync() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("foreign", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let _pod = node.run_pod(&blue, 1)?;
    // Committed by the database before `resync_needed` is polled, and not part of the bridges.
    let vsctl = |words: &[&str]| node.switch.borrow().vsctl(&[&["--timeout=20"], words].concat());
    vsctl(&["set", "Open_vSwitch", ".", "external_ids:foreign=yes"])?;
    assert!(!node.resync_requested());
    vsctl(&["del-port", "vvport1"])?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    Ok(())
}
