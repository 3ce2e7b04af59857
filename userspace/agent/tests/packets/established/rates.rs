//! Pods whose groups have a bandwidth limit: sent packets are tracked behind the queue.

use anyhow::{Result, ensure};
use contiv_model::policy::{Action, Direction};
use netplugin::datapath::{Object, ObjectId, Op};
use testkit::{needs, packet::Packet};

use super::{
    ACK, answer_of, between, between6, open,
    rig::{HERE, OTHER, Rig, VIP},
    vary, vary6,
};
use crate::{
    policy::{group, rule},
    run::Code,
};

fn there(n: u32) -> (Packet, Packet) {
    (vary(between(HERE, VIP).tcp(4000, 80, ACK), n), vary(between(HERE, OTHER).tcp(4000, 8080, ACK), n))
}

fn back(n: u32) -> (Packet, Packet) {
    (vary(between(OTHER, HERE).tcp(8080, 4000, ACK), n), vary(answer_of(OTHER, HERE).tcp(80, 4000, ACK), n))
}

#[test]
fn queued_packets_are_translated_behind_the_queue() -> Result<()> {
    needs!(root());
    let rig = Rig::behind_queue("cut-queue")?;
    let sent = open(&rig, 4000)?;
    let more = rig.repeat(HERE, there);
    rig.repeat(OTHER, back);
    assert_eq!(rig.counts(4000)?[0].0, sent + more);
    let direct = |n| {
        let packet = vary6(between6(HERE, OTHER).udp(5000, 6000), n);
        (packet.clone(), packet)
    };
    rig.becomes(HERE, &direct(0).0, &direct(0).0);
    let answer = between6(OTHER, HERE).udp(6000, 5000);
    rig.becomes(OTHER, &answer, &answer);
    rig.repeat(HERE, direct);
    // The pod still sends into the queue.
    let pod = crate::run::Target::new(&rig.node, contiv_abi::maps::FROM_POD, &rig.first.local.port)?;
    for n in 0..20 {
        let frame = there(n).0.build();
        assert_eq!(rig.node.ns.run(|| pod.give(&frame))?, (Code::Redirect, frame.clone()));
    }
    assert_eq!(rig.counts(4000)?[0].0, sent + more);
    Ok(())
}

#[test]
fn changes_apply_behind_the_queue() -> Result<()> {
    needs!(root());
    let mut rig = Rig::behind_queue("cut-qend")?;
    open(&rig, 4000)?;
    // A rule on the other side.
    let deny = rule("deny", Direction::In, Action::Deny, 10);
    rig.set(Object::Group(group(2, vec![deny])))?;
    assert_eq!(rig.give(HERE, &there(0).0)?.0, Code::Shot);
    rig.set(Object::Group(group(2, vec![])))?;
    rig.repeat(HERE, there);
    // The port was deleted while its packets were queued.
    let gone = ObjectId::Local(rig.first.local.id.clone());
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    assert_eq!(rig.give(HERE, &there(0).0)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&contiv_abi::DropReason::UnknownPort), Some(&1));
    Ok(())
}

/// Pods of two networks may have the same address, and all ports share the queue interface.
#[test]
fn ports_are_told_apart_behind_the_queue() -> Result<()> {
    needs!(root());
    let mut rig = Rig::behind_queue("cut-qport")?;
    let packet = between(HERE, OTHER).udp(5000, 6000);
    let answer = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(HERE, &packet, &packet);
    rig.becomes(OTHER, &answer, &answer);
    rig.repeat(HERE, |_| (packet.clone(), packet.clone()));
    // The other network has no such endpoint, and frames to it are dropped.
    let n2 = crate::node::network("n2.t", crate::node::vlan(7));
    rig.node.want_network(&n2);
    let other = crate::policy::pod(&mut rig.node, &n2, HERE, 1)?;
    rig.node.converge()?;
    let port = rig.node.ifindex(&other.local.port)?;
    let target = crate::run::Target::new(&rig.node, contiv_abi::maps::FROM_QUEUE, "contivq1")?.marked(port);
    rig.repeat(HERE, |_| (packet.clone(), packet.clone()));
    let frame = packet.build();
    assert_eq!(rig.node.ns.run(|| target.give(&frame))?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&contiv_abi::DropReason::NoUplink), Some(&1));
    Ok(())
}
