//! IP reuse: an address moves to an endpoint of another group. Verdicts for the previous endpoint do not apply to the
//! new one.

use std::time::Duration;

use netplugin::datapath::Network;
use testkit::capture::Tap;

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

/// Its own rules have not been asked about what comes, although they are the same.
#[test]
fn a_new_pod_of_the_same_group_gets_no_replies_to_its_predecessor() -> Result<()> {
    needs!(root());
    for answered in [false, true] {
        let mut rig = Rig::new("reuse-same")?;
        rig.set(group(4, all(Direction::In)))?;
        rig.client = replace(&mut rig.node, &n1(), &rig.client, 4)?;
        connect(&rig, answered)?;
        rig.client = replace(&mut rig.node, &n1(), &rig.client, 4)?;
        for (_, answer) in connections() {
            rig.answer(&answer)?.assert_dropped(DropReason::StaleFlow);
            rig.answer(&answer)?.assert_dropped(DropReason::Policy);
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
fn an_error_of_a_new_pod_is_about_no_flow_of_its_predecessor() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("reuse-error")?;
    rig.set(group(4, all(Direction::Out)))?;
    connect(&rig, true)?;
    let datagram = to(SERVER).udp(4000, 53).build();
    let error = Packet::eth(CLIENT.mac(), SERVER.mac())
        .ipv4(SERVER.ip(), CLIENT.ip())
        .icmp(3, 3, [0; 4])
        .payload(&datagram[14..]);
    // The same error, of the pod that the connection is with.
    passes(&rig.answer(&error)?);
    rig.server = replace(&mut rig.node, &n1(), &rig.server, 4)?;
    for _ in 0..2 {
        rig.answer(&error)?.assert_dropped(DropReason::UnrelatedIcmpError);
    }
    Ok(())
}

/// Of another group than the one before it, or of the same one.
#[test]
fn a_new_pod_gets_no_error_about_a_flow_of_its_predecessor() -> Result<()> {
    needs!(root());
    for before in [1, 4] {
        let mut rig = Rig::new("reuse-told-in")?;
        rig.set(group(4, all(Direction::In)))?;
        rig.client = replace(&mut rig.node, &n1(), &rig.client, before)?;
        connect(&rig, true)?;
        let datagram = to(SERVER).udp(4000, 53).build();
        let error = back().icmp(3, 3, [0; 4]).payload(&datagram[14..]);
        passes(&rig.answer(&error)?);
        rig.client = replace(&mut rig.node, &n1(), &rig.client, 4)?;
        for _ in 0..2 {
            rig.answer(&error)?.assert_dropped(DropReason::UnrelatedIcmpError);
        }
        // It removes no flow; a reply does.
        let [_, (_, answer)] = connections();
        rig.answer(&answer)?.assert_dropped(DropReason::StaleFlow);
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

/// A node on a VLAN with the server in group 2. Rules deny what comes from group 5, or what goes there.
fn beside(label: &str, denied: Direction, far: Option<u32>) -> Result<(Node, Pod, testkit::Netns)> {
    let (mut node, outside) = Node::on_wire(label)?;
    let n1 = network("n1.t", vlan(100));
    let deny = Rule { peer: Peer::identity(number(5)), ..rule("five", denied, Action::Deny, 10) };
    node.want_network(&n1).want(Object::Group(group(2, vec![deny])));
    let server = pod(&mut node, &n1, SERVER, 2)?;
    if let Some(far) = far {
        node.want(remote(far));
    }
    node.converge()?;
    Ok((node, server, outside))
}

fn remote(group: u32) -> Object {
    let n1 = network("n1.t", vlan(100));
    Object::Remote(netplugin::datapath::Remote { identity: Some(number(group)), ..FAR.remote(&n1, None) })
}

/// A datagram from the wire.
fn comes(node: &Node, ports: (u16, u16)) -> Result<Outcome> {
    let frame = Packet::eth(SERVER.mac(), FAR.mac()).vlan(100).ipv4(FAR.ip(), SERVER.ip());
    run(node, FROM_UPLINK, "trunk", &frame.udp(ports.0, ports.1).build())
}

/// A datagram to the wire.
fn goes(node: &Node, server: &Pod, ports: (u16, u16)) -> Result<Outcome> {
    let frame = Packet::eth(FAR.mac(), SERVER.mac()).ipv4(SERVER.ip(), FAR.ip()).udp(ports.0, ports.1);
    run(node, FROM_POD, &server.local.port, &frame.build())
}

#[test]
fn a_remote_endpoint_of_another_group_does_not_send_in_flows_of_its_predecessor() -> Result<()> {
    needs!(root());
    let (mut node, server, _outside) = beside("reuse-far-in", Direction::In, Some(3))?;
    // Flows that either side has begun.
    passes(&comes(&node, (4000, 53))?);
    passes(&goes(&node, &server, (5000, 99))?);
    passes(&comes(&node, (99, 5000))?);
    node.want(remote(5));
    node.converge()?;
    for ports in [(4000, 53), (99, 5000), (4000, 53)] {
        comes(&node, ports)?.assert_dropped(DropReason::Policy);
    }
    Ok(())
}

#[test]
fn a_remote_endpoint_of_another_group_does_not_receive_flows_of_its_predecessor() -> Result<()> {
    needs!(root());
    let (mut node, server, _outside) = beside("reuse-far-out", Direction::Out, Some(3))?;
    passes(&goes(&node, &server, (5000, 99))?);
    node.want(remote(5));
    node.converge()?;
    goes(&node, &server, (5000, 99))?.assert_dropped(DropReason::StaleFlow);
    goes(&node, &server, (5000, 99))?.assert_dropped(DropReason::Policy);
    Ok(())
}

#[test]
fn a_flow_continues_when_the_record_of_its_peer_arrives() -> Result<()> {
    needs!(root());
    let (mut node, server, _outside) = beside("reuse-record", Direction::In, None)?;
    passes(&goes(&node, &server, (5000, 99))?);
    passes(&comes(&node, (99, 5000))?);
    node.want(remote(3));
    node.converge()?;
    for _ in 0..2 {
        passes(&comes(&node, (99, 5000))?);
        passes(&goes(&node, &server, (5000, 99))?);
    }
    let flows = crate::flow_table::flows(&node)?;
    let [flow] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(flow.halves.map(|half| half.identities), [[2, 3]; 2]);
    // From now on it is the endpoint of this flow.
    node.want(remote(5));
    node.converge()?;
    comes(&node, (99, 5000))?.assert_dropped(DropReason::Policy);
    Ok(())
}

/// An endpoint of the allowed group sends an error for an address without a record.
#[test]
fn an_error_does_not_tell_the_group_of_the_peer() -> Result<()> {
    needs!(root());
    let (mut node, server, _outside) = beside("reuse-told", Direction::In, Some(5))?;
    let unknown = Endpoint(9);
    let sent = Packet::eth(unknown.mac(), SERVER.mac()).ipv4(SERVER.ip(), unknown.ip()).udp(4000, 53).build();
    let goes = |node: &Node| run(node, FROM_POD, &server.local.port, &sent);
    passes(&goes(&node)?);
    let only_to_five = vec![
        rule("all", Direction::Out, Action::Deny, 1),
        Rule { peer: Peer::identity(number(5)), ..rule("five", Direction::Out, Action::Allow, 10) },
    ];
    node.want(Object::Group(group(2, only_to_five)));
    node.converge()?;
    let error = Packet::eth(SERVER.mac(), FAR.mac()).vlan(100).ipv4(unknown.ip(), SERVER.ip());
    let error = error.icmp(3, 3, [0; 4]).payload(&sent[14..]).build();
    run(&node, FROM_UPLINK, "trunk", &error)?.assert_dropped(DropReason::Policy);
    goes(&node)?.assert_dropped(DropReason::Policy);
    Ok(())
}

/// A sender keeps sending to an unassigned address, to which there is no flow.
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
    rig.send(from_overlay::VNI, &sent)?;
    rig.expect_drop(DropReason::Policy)
}
