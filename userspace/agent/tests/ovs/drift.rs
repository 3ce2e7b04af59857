//! Others meddle with the bridges; the next observation sees it and the ops that follow repair it.

use anyhow::Result;
use contiv_model::global::ArpMode;
use netplugin::datapath::Object;
use testkit::needs;

use crate::node::{Node, SOON, network, peer, remote, vlan, vtep, vxlan};

#[test]
fn whatever_is_broken_is_found_and_repaired() -> Result<()> {
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
    type Break<'a> = (&'a str, Box<dyn Fn() -> Result<()> + 'a>, Option<Vec<netplugin::datapath::ObjectId>>);
    let breaks: Vec<Break<'_>> = vec![
        (
            "a flow is gone",
            Box::new(|| ofctl("del-flows", "table=9,dl_dst=02:02:0a:01:00:01")),
            Some(one_id.to_vec()),
        ),
        (
            "a flow does something else",
            Box::new(|| ofctl("mod-flows", "table=9,dl_dst=02:02:0a:01:00:01,actions=drop")),
            Some(one_id.to_vec()),
        ),
        (
            "a flow nobody asked for",
            Box::new(|| ofctl("add-flow", "table=0,priority=500,icmp,actions=drop")),
            Some(vec![]),
        ),
        ("no flows at all", Box::new(|| ofctl("del-flows", "table=255")), None),
        ("no groups at all", Box::new(|| ofctl("del-groups", "")), None),
        (
            "a group with too few",
            Box::new(|| ofctl("mod-group", "group_id=10000,type=all,bucket=actions=output:1")),
            Some(vec![Object::Network(blue.clone()).id()]),
        ),
        ("a group nobody asked for", Box::new(|| ofctl("add-group", "group_id=77,type=all")), Some(vec![])),
        (
            "a port is gone",
            Box::new(|| vsctl(&["del-port", "vvport1"])),
            // Its network's group sends to a port that is not there any more.
            Some(vec![Object::Network(blue.clone()).id(), one.object.id()]),
        ),
        (
            "a port nobody asked for",
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
                ])
            }),
            Some(vec![]),
        ),
        (
            "a pod's tag is another",
            Box::new(|| vsctl(&["set", "port", "vvport3", "tag=101"])),
            Some(vec![green_one.object.id()]),
        ),
        (
            "a tunnel leads elsewhere",
            Box::new(|| vsctl(&["set", "interface", "vxif19216892", "options:dst_port=4790"])),
            Some(vec![peer(vtep(1)).id()]),
        ),
        ("a bridge is gone", Box::new(|| vsctl(&["del-br", "contivVxlanBridge"])), None),
        (
            "a bridge opens itself",
            Box::new(|| vsctl(&["set", "bridge", "contivVxlanBridge", "fail_mode=standalone"])),
            None,
        ),
    ];
    for (what, meddle, hurt) in breaks {
        meddle()?;
        let found = node.converge()?;
        if let Some(hurt) = hurt {
            assert_eq!(found, hurt, "{what}");
        }
        assert!(found.iter().all(|id| all.contains(id)));
        one.reaches(2)?;
        two.reaches(1)?;
        let writes = node.writes();
        assert_eq!(node.converge()?, [], "{what}");
        assert_eq!(node.writes(), writes, "{what}");
    }
    // Port numbers may have changed, nothing else.
    assert_eq!(node.tables()?.map_len(), before.map_len());
    Ok(())
}

trait Lengths {
    fn map_len(&self) -> Vec<usize>;
}

impl<K> Lengths for std::collections::BTreeMap<K, Vec<String>> {
    fn map_len(&self) -> Vec<usize> {
        self.values().map(Vec::len).collect()
    }
}

/// A changed configuration is noticed at once, our own changes are not.
#[test]
fn a_meddled_port_is_noticed() -> Result<()> {
    needs!(root(), binary("ovs-vswitchd"), binary("ovsdb-server"));
    let node = Node::new("meddle", &[])?;
    node.converge()?;
    let blue = network("blue", vxlan(5000), ArpMode::Proxy);
    node.add([Object::Network(blue.clone())])?;
    let _pod = node.run_pod(&blue, 1)?;
    assert!(!node.resync_needed(SOON / 20));
    node.switch.borrow().vsctl(&["--timeout=20", "del-port", "vvport1"])?;
    assert!(node.resync_needed(SOON));
    node.converge()?;
    Ok(())
}
