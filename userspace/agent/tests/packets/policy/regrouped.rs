//! Endpoints that get another group. Their connections go on by the rules of that group, in the direction in which they began.

use contiv_model::service::Readiness;

use super::*;

const VIP: Endpoint = Endpoint(250);
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Opens connections to the server, with replies.
fn connections() -> [(Packet, Packet); 2] {
    [
        (to(SERVER).tcp(4000, 80, ACK), back().tcp(80, 4000, ACK)),
        (to(SERVER).udp(4000, 53), back().udp(53, 4000)),
    ]
}

/// The pod with another group, which it has from now on.
fn regroup(node: &mut Node, pod: &mut Pod, group: u32) -> Result<()> {
    pod.local.identity = Some(number(group));
    node.want(Object::Local(pod.local.clone()));
    node.converge()
}

fn all(direction: Direction) -> Vec<Rule> {
    vec![rule("all", direction, Action::Deny, 1)]
}

/// Whether all flows began at the client.
fn began_at_client(rig: &Rig) -> Result<bool> {
    let client = contiv_abi::Address::v4(CLIENT.ip().octets());
    let flows = crate::flow_table::flows(&rig.node)?;
    Ok(flows.len() == connections().len() && flows.iter().all(|flow| flow.client == client))
}

/// The server, which was allowed to be reached before, sends first.
#[test]
fn a_server_does_not_turn_its_connections_round() -> Result<()> {
    needs!(root());
    for replied in [false, true] {
        let mut rig = Rig::new("regroup-answer")?;
        rig.set(group(4, all(Direction::In)))?;
        for (there, answer) in connections() {
            passes(&rig.send(&there)?);
            if replied {
                passes(&rig.answer(&answer)?);
            }
        }
        regroup(&mut rig.node, &mut rig.server, 4)?;
        for (there, answer) in connections() {
            rig.answer(&answer)?.assert_dropped(DropReason::Policy);
            rig.send(&there)?.assert_dropped(DropReason::Policy);
        }
        rig.set(group(4, vec![]))?;
        for (there, answer) in connections() {
            passes(&rig.answer(&answer)?);
            passes(&rig.send(&there)?);
        }
        assert!(began_at_client(&rig)?);
    }
    Ok(())
}

#[test]
fn a_server_is_reached_by_the_rules_of_its_new_group() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("regroup-in")?;
    rig.set(group(4, all(Direction::In)))?;
    for (there, _) in connections() {
        passes(&rig.send(&there)?);
    }
    regroup(&mut rig.node, &mut rig.server, 4)?;
    for (there, answer) in connections() {
        rig.send(&there)?.assert_dropped(DropReason::StaleFlow);
        rig.send(&there)?.assert_dropped(DropReason::Policy);
        rig.answer(&answer)?.assert_dropped(DropReason::Policy);
    }
    assert!(began_at_client(&rig)?);
    Ok(())
}

/// Neither group of the client has rules, but those of the server are about groups.
#[test]
fn rules_of_the_other_end_are_evaluated_for_the_new_group() -> Result<()> {
    needs!(root());
    for sends in [false, true] {
        let mut rig = Rig::new("regroup-peer")?;
        let from_one =
            Rule { peer: Peer::identity(number(1)), ..rule("one", Direction::In, Action::Allow, 10) };
        let rules = [all(Direction::In), vec![from_one]].concat();
        rig.set(group(2, rules))?;
        for (there, answer) in connections() {
            passes(&rig.send(&there)?);
            passes(&rig.answer(&answer)?);
        }
        regroup(&mut rig.node, &mut rig.client, 5)?;
        for (there, answer) in connections() {
            if !sends {
                rig.answer(&answer)?.assert_dropped(DropReason::StaleFlow);
            }
            rig.send(&there)?.assert_dropped(DropReason::Policy);
            rig.answer(&answer)?.assert_dropped(DropReason::Policy);
        }
    }
    Ok(())
}

/// Its packets, or those that it receives, come first.
#[test]
fn a_client_keeps_the_direction_of_its_connections() -> Result<()> {
    needs!(root());
    for sends in [false, true] {
        let mut rig = Rig::new("regroup-client")?;
        rig.set(group(4, all(Direction::Out)))?;
        for (there, answer) in connections() {
            passes(&rig.send(&there)?);
            passes(&rig.answer(&answer)?);
        }
        regroup(&mut rig.node, &mut rig.client, 4)?;
        for (there, answer) in connections() {
            if !sends {
                rig.answer(&answer)?.assert_dropped(DropReason::StaleFlow);
            }
            rig.send(&there)?.assert_dropped(DropReason::Policy);
            rig.answer(&answer)?.assert_dropped(DropReason::Policy);
        }
        rig.set(group(4, vec![]))?;
        for (there, answer) in connections() {
            passes(&rig.send(&there)?);
            passes(&rig.answer(&answer)?);
        }
        assert!(began_at_client(&rig)?);
    }
    Ok(())
}

/// The reply of a backend with another group is translated as before.
#[test]
fn connections_to_a_service_are_translated_as_before() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("regroup-nat")?;
    let service = crate::services::service(VIP.ip().into(), &[(SERVER.ip().into(), Readiness::Ready)]);
    rig.node.want(Object::Service(service));
    rig.node.converge()?;
    passes(&rig.send(&to(VIP).tcp(4000, 80, SYN))?);
    let answer = back().tcp(8080, 4000, SYN | ACK);
    let translated = Packet::eth(CLIENT.mac(), SERVER.mac()).ipv4(VIP.ip(), CLIENT.ip());
    let translated = translated.tcp(80, 4000, SYN | ACK).build();
    for turn in 4..8 {
        rig.set(group(turn, vec![]))?;
        regroup(&mut rig.node, &mut rig.server, turn)?;
        let outcome = rig.answer(&answer)?;
        passes(&outcome);
        assert_eq!(outcome.bytes, translated, "left: received, right: expected");
        passes(&rig.send(&to(VIP).tcp(4000, 80, ACK))?);
    }
    Ok(())
}

/// It is both ends of such a connection.
#[test]
fn connections_of_a_pod_to_itself_go_on() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("regroup-self")?;
    let service = crate::services::service(VIP.ip().into(), &[(CLIENT.ip().into(), Readiness::Ready)]);
    rig.node.want(Object::Service(service));
    rig.node.converge()?;
    passes(&rig.send(&to(VIP).tcp(4000, 80, SYN))?);
    for turn in 4..8 {
        rig.set(group(turn, vec![]))?;
        regroup(&mut rig.node, &mut rig.client, turn)?;
        for _ in 0..2 {
            passes(&rig.send(&to(VIP).tcp(4000, 80, ACK))?);
        }
    }
    assert_eq!(crate::flow_table::flows(&rig.node)?.len(), 1);
    Ok(())
}

/// Connections to it pass by the rules of the new group, whether those of the former one have allowed or denied packets of them.
#[test]
fn a_server_leaves_a_group_that_denies() -> Result<()> {
    needs!(root());
    for (was_allowed, was_denied) in [(false, true), (true, false), (true, true)] {
        let mut rig = Rig::new("regroup-leave")?;
        regroup(&mut rig.node, &mut rig.server, 4)?;
        rig.set(group(4, vec![]))?;
        for (there, _) in connections().into_iter().filter(|_| was_allowed) {
            passes(&rig.send(&there)?);
        }
        rig.set(group(4, all(Direction::In)))?;
        for (there, _) in connections().into_iter().filter(|_| was_denied) {
            rig.send(&there)?.assert_dropped(DropReason::Policy);
        }
        regroup(&mut rig.node, &mut rig.server, 2)?;
        for (there, answer) in connections() {
            passes(&rig.send(&there)?);
            passes(&rig.answer(&answer)?);
        }
        assert!(began_at_client(&rig)?);
    }
    Ok(())
}
