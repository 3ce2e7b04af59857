//! IP reuse: an address moves to an endpoint of another group. Verdicts for the previous endpoint do not apply to the
//! new one.

use std::time::Duration;

use netplugin::datapath::Network;
use testkit::{capture::Tap, wait_until};

use super::*;
use crate::from_overlay;

const TIMEOUT: Duration = Duration::from_secs(5);

fn n1() -> Network {
    network("n1.t", vxlan(10_001))
}

/// Deletes the pod, and creates another one of group `group` with its addresses.
fn replace(node: &mut Node, network: &Network, old: &Pod, group: u32) -> Result<Pod> {
    let id = ObjectId::Local(old.local.id.clone());
    node.desired.remove(&id);
    anyhow::ensure!(node.apply(&[Op::Delete(id)])?.is_empty(), "the old pod stays");
    node.ns.ip(&format!("link del {}", old.local.port))?;
    let successor = pod(node, network, old.endpoint, group)?;
    node.converge()?;
    Ok(successor)
}

fn all(direction: Direction) -> Vec<Rule> {
    vec![rule("all", direction, Action::Deny, 1)]
}

/// Opens connections to the server, with replies.
fn connections() -> [(Packet, Packet); 2] {
    [
        (to(SERVER).tcp(4000, 80, 0x10), back().tcp(80, 4000, 0x10)),
        (to(SERVER).udp(4000, 53), back().udp(53, 4000)),
    ]
}

fn connect(rig: &Rig, answered: bool) -> Result<()> {
    for (there, answer) in connections() {
        passes(&rig.send(&there)?);
        if answered {
            passes(&rig.answer(&answer)?);
        }
    }
    Ok(())
}

#[test]
fn a_new_pod_does_not_receive_flows_allowed_for_its_predecessor() -> Result<()> {
    needs!(root());
    for answered in [false, true] {
        let mut rig = Rig::new("reuse-in")?;
        rig.set(group(4, all(Direction::In)))?;
        connect(&rig, answered)?;
        rig.server = replace(&mut rig.node, &n1(), &rig.server, 4)?;
        for (there, _) in connections() {
            rig.send(&there)?.assert_dropped(DropReason::StaleFlow);
            rig.send(&there)?.assert_dropped(DropReason::Policy);
        }
        // If its rules allow the flow, it continues.
        rig.set(group(4, vec![]))?;
        for (there, _) in connections() {
            passes(&rig.send(&there)?);
        }
    }
    Ok(())
}

#[test]
fn a_new_pod_does_not_send_in_flows_allowed_for_its_predecessor() -> Result<()> {
    needs!(root());
    for answered in [false, true] {
        let mut rig = Rig::new("reuse-out")?;
        rig.set(group(4, all(Direction::Out)))?;
        connect(&rig, answered)?;
        rig.client = replace(&mut rig.node, &n1(), &rig.client, 4)?;
        for (there, _) in connections() {
            for _ in 0..3 {
                rig.send(&there)?.assert_dropped(DropReason::Policy);
            }
        }
        // Packets to it are not treated as replies either.
        for (_, answer) in connections() {
            rig.answer(&answer)?.assert_dropped(DropReason::StaleFlow);
        }
    }
    Ok(())
}

#[test]
fn a_reply_of_a_new_pod_belongs_to_no_flow_of_its_predecessor() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("reuse-answer")?;
    rig.set(group(4, all(Direction::Out)))?;
    connect(&rig, true)?;
    rig.server = replace(&mut rig.node, &n1(), &rig.server, 4)?;
    for (_, answer) in connections() {
        rig.answer(&answer)?.assert_dropped(DropReason::Policy);
    }
    Ok(())
}

#[test]
fn frames_from_the_uplink_are_evaluated_with_the_rules_of_the_current_pod() -> Result<()> {
    needs!(root());
    let (mut node, _outside) = Node::on_wire("reuse-wire")?;
    let n1 = network("n1.t", vlan(100));
    node.want_network(&n1).want(Object::Remote(FAR.remote(&n1, None)));
    node.want(Object::Group(group(4, all(Direction::In))));
    let old = pod(&mut node, &n1, SERVER, 2)?;
    node.converge()?;
    let sent = Packet::eth(SERVER.mac(), FAR.mac()).vlan(100).ipv4(FAR.ip(), SERVER.ip()).udp(4000, 53);
    let arrives = |node: &Node| run(node, FROM_UPLINK, "trunk", &sent.build());
    passes(&arrives(&node)?);
    let _heir = replace(&mut node, &n1, &old, 4)?;
    arrives(&node)?.assert_dropped(DropReason::StaleFlow);
    arrives(&node)?.assert_dropped(DropReason::Policy);
    Ok(())
}

/// A sender keeps a flow to an unassigned address alive.
#[test]
fn flows_that_precede_a_pod_are_evaluated_with_its_rules() -> Result<()> {
    needs!(root());
    let mut rig = from_overlay::Rig::new("reuse-late")?;
    let n1 = network("n1.t", vxlan(from_overlay::VNI));
    rig.node.want(Object::Group(group(4, all(Direction::In))));
    rig.node.converge()?;
    let (from, to) = (Endpoint(2), Endpoint(7));
    let sent = Packet::eth(to.mac(), from.mac()).ipv4(from.ip(), to.ip()).udp(4000, 53);
    let flood = Tap::open(&rig.pod.ns, "eth0")?;
    rig.send(from_overlay::VNI, &sent)?;
    let bytes = sent.build();
    flood.expect(TIMEOUT, "the flooded frame", |frame| (frame == bytes).then_some(()))?;
    let _heir = pod(&mut rig.node, &n1, to, 4)?;
    rig.node.converge()?;
    for reason in [DropReason::StaleFlow, DropReason::Policy] {
        rig.send(from_overlay::VNI, &sent)?;
        wait_until(TIMEOUT, reason.as_str(), || {
            Ok((rig.node.drops()?.get(&reason) == Some(&1)).then_some(()))
        })?;
    }
    assert_eq!(rig.node.drops()?.len(), 2);
    Ok(())
}
