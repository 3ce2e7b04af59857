//! Pods whose groups have a bandwidth limit: sent packets use the flow cache behind the queue; received packets leave
//! by the TX path of the host's interface, where they may be queued.

use anyhow::{Result, ensure};
use aya::maps::{HashMap, Map, MapData};
use contiv_abi::{FlowCacheEntry, Port, maps::PORTS};
use contiv_model::{
    group::Rate,
    policy::{Action, Direction},
};
use netplugin::datapath::{Group, Object, ObjectId, Op};
use testkit::{needs, packet::Packet};

use super::{
    ACK, SYN, answer_of, between, between6, open,
    rig::{HERE, OTHER, Rig, VIP},
    vary, vary6,
};
use crate::{
    policy::{group, rule},
    run::Code,
};

fn limited(number: u32) -> Object {
    let rate = Some(Rate { bits_per_second: 1_000_000_000, burst_bytes: 1_000_000 });
    Object::Group(Group { rate, ..group(number, vec![]) })
}

fn there(n: u32) -> (Packet, Packet) {
    (vary(between(HERE, VIP).tcp(4000, 80, ACK), n), vary(between(HERE, OTHER).tcp(4000, 8080, ACK), n))
}

fn back(n: u32) -> (Packet, Packet) {
    (vary(between(OTHER, HERE).tcp(8080, 4000, ACK), n), vary(answer_of(OTHER, HERE).tcp(80, 4000, ACK), n))
}

#[test]
fn queued_packets_use_the_flow_cache() -> Result<()> {
    needs!(root());
    let rig = Rig::behind_queue("cut-queue")?;
    let sent = open(&rig, 4000)?;
    let more = rig.until_cached(HERE, there)?;
    rig.until_cached(OTHER, back)?;
    assert_eq!(rig.counts(4000)?[0].0, sent + more);
    let direct = |n| {
        let packet = vary6(between6(HERE, OTHER).udp(5000, 6000), n);
        (packet.clone(), packet)
    };
    rig.becomes(HERE, &direct(0).0, &direct(0).0);
    let answer = between6(OTHER, HERE).udp(6000, 5000);
    rig.becomes(OTHER, &answer, &answer);
    rig.until_cached(HERE, direct)?;
    // The pod still sends into the queue, whatever is cached behind it.
    let pod = crate::run::Target::new(&rig.node, contiv_abi::maps::FROM_POD, &rig.first.local.port)?;
    for n in 0..20 {
        let before = rig.cached()?;
        let frame = there(n).0.build();
        assert_eq!(rig.node.ns.run(|| pod.give(&frame))?, (Code::Redirect, frame.clone()));
        ensure!(rig.cached()? <= before, "a packet has bypassed the queue");
    }
    // Packets to the pod go to the interface where they may be queued, packets to others are delivered directly.
    let ways: Vec<_> = rig.pending()?.iter().map(|entry| (entry.side, entry.way)).collect();
    assert!(
        ways.iter()
            .all(|(side, way)| *way == [FlowCacheEntry::POD, FlowCacheEntry::PORT][usize::from(*side)])
    );
    Ok(())
}

#[test]
fn changes_invalidate_entries_behind_the_queue() -> Result<()> {
    needs!(root());
    let mut rig = Rig::behind_queue("cut-qend")?;
    open(&rig, 4000)?;
    // A rule on the other side.
    let deny = rule("deny", Direction::In, Action::Deny, 10);
    rig.set(Object::Group(group(2, vec![deny])))?;
    assert_eq!(rig.give(HERE, &there(0).0)?.0, Code::Shot);
    rig.set(Object::Group(group(2, vec![])))?;
    rig.until_cached(HERE, there)?;
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
fn entries_behind_the_queue_are_per_port() -> Result<()> {
    needs!(root());
    let mut rig = Rig::behind_queue("cut-qport")?;
    let packet = between(HERE, OTHER).udp(5000, 6000);
    let answer = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(HERE, &packet, &packet);
    rig.becomes(OTHER, &answer, &answer);
    rig.until_cached(HERE, |_| (packet.clone(), packet.clone()))?;
    // The other network has no such endpoint, and frames to it are dropped.
    let n2 = crate::node::network("n2.t", crate::node::vlan(7));
    rig.node.want_network(&n2);
    let other = crate::policy::pod(&mut rig.node, &n2, HERE, 1)?;
    rig.node.converge()?;
    let port = rig.node.ifindex(&other.local.port)?;
    let target = crate::run::Target::new(&rig.node, contiv_abi::maps::FROM_QUEUE, "contivq1")?.marked(port);
    rig.until_cached(HERE, |_| (packet.clone(), packet.clone()))?;
    let frame = packet.build();
    assert_eq!(rig.node.ns.run(|| target.give(&frame))?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&contiv_abi::DropReason::NoUplink), Some(&1));
    Ok(())
}

/// Without queues in the kernel, or before a port has its queue, the meter applies to each packet.
#[test]
fn metered_packets_are_not_cached() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-meter")?;
    for number in [1, 2] {
        rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
        let (sent, arrives) = back(0);
        rig.becomes(OTHER, &sent, &arrives);
        rig.until_cached(HERE, there)?;
        rig.set(limited(number))?;
        let pin = rig.node.datapath.maps_directory().join(PORTS);
        let mut ports: HashMap<MapData, u32, Port> =
            Map::from_map_data(MapData::from_pin(pin)?)?.try_into()?;
        for pod in [&rig.first, &rig.second] {
            let index = rig.node.ifindex(&pod.local.port)?;
            let port = ports.get(&index, 0)?;
            ports.insert(index, Port { queue: 0, ..port }, 0)?;
        }
        let (sent, arrives) = there(1);
        rig.never_cached(HERE, &sent, &arrives)?;
        rig.set(Object::Group(group(number, vec![])))?;
        rig.node.converge()?;
    }
    Ok(())
}
