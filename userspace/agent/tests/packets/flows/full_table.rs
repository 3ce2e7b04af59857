//! Floods, shares and a full table.

use std::{net::Ipv6Addr, path::Path, time::Instant};

use anyhow::Result;
use aya::programs::{SchedClassifier, TestRun as _, TestRunOptions};
use contiv_abi::{FlowBucket, maps::FROM_POD, tcp::sent};
use testkit::{
    needs,
    packet::{Packet, tcp_flags},
    wait_until,
};

use super::{HERE, OTHER, Rig, TIMEOUT, between, open, packets, tcp};
use crate::{
    flow_table::{self, HOUR, slots},
    node::{Endpoint, Pod, network, vxlan},
    run::Code,
};

fn flood(rig: &Rig, frames: impl Iterator<Item = Vec<u8>> + Send) -> Result<()> {
    flood_from(rig, &rig.first, frames)
}

/// Runs the program once per frame, without reading counters in between.
fn flood_from(rig: &Rig, pod: &Pod, frames: impl Iterator<Item = Vec<u8>> + Send) -> Result<()> {
    let ifindex = rig.node.ifindex(&pod.local.port)?;
    let pin = rig.node.pin(FROM_POD);
    rig.node.ns.run(|| give_all(&pin, ifindex, frames))
}

/// Runs the program of a port once per frame, in the namespace of the calling thread.
pub(super) fn give_all(pin: &Path, ifindex: u32, frames: impl Iterator<Item = Vec<u8>>) -> Result<()> {
    let program = SchedClassifier::from_pin(pin)?;
    let mut context = [0; 192];
    context[40..44].copy_from_slice(&ifindex.to_ne_bytes());
    for frame in frames {
        program.test_run(TestRunOptions {
            data_in: Some(&frame),
            ctx_in: Some(&context),
            ..TestRunOptions::new()
        })?;
    }
    Ok(())
}

#[test]
fn a_flood_of_new_flows_evicts_no_established_flow() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 2048;
    let rig = Rig::with("ct-flood", |options| {
        // However slow the machine is, no flow ends before it is counted.
        (options.flows, options.timeouts.tcp_opening) = (CAPACITY, HOUR);
    })?;
    for port in 1000..1100 {
        open(&rig, (HERE, port), (OTHER, 6))?;
    }
    let before = rig.replied()?;
    let count = 5 * CAPACITY;
    let started = Instant::now();
    flood(&rig, (0..count).map(|n| tcp((HERE, n as u16), (OTHER, 7000), tcp_flags::SYN).build()))?;
    println!("{count} new flows in {:?}", started.elapsed());
    assert_eq!(rig.replied()?, before);
    let quota = CAPACITY as usize / 4;
    assert!(rig.unreplied()? <= quota, "{}", rig.unreplied()?);
    assert_eq!(slots(&rig.node)?, 2 * flow_table::flows(&rig.node)?.len(), "each flow has two slots");
    // Existing connections continue, and other endpoints begin new ones.
    let ack = tcp((HERE, 1000), (OTHER, 6), tcp_flags::ACK).sequence(1001, 5001);
    rig.exchange(&ack, &tcp((OTHER, 6), (HERE, 1000), tcp_flags::ACK).sequence(5001, 1001))?;
    let flow = rig.replied()?.into_iter().find(|flow| flow.client_port.get() == 1000).unwrap();
    assert_eq!(packets(&flow), [3, 2]);
    let (there, back) = (between(OTHER, HERE).udp(1, 2), between(HERE, OTHER).udp(2, 1));
    rig.from(&rig.second, &there)?.assert_sent_on(&there.build());
    rig.from(&rig.first, &back)?.assert_sent_on(&back.build());
    assert_eq!(rig.replied()?.len(), before.len() + 1);
    Ok(())
}

/// The endpoints of a node take the whole table together; then new flows evict unreplied ones of any endpoint, and established
/// ones stay.
#[test]
fn a_full_table_evicts_unreplied_flows_only() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    let mut rig = Rig::with("ct-evict", |options| {
        // However slow the machine is, no flow ends before it is counted.
        (options.flows, options.timeouts.tcp_opening) = (CAPACITY, HOUR);
    })?;
    let n1 = network("n1.t", vxlan(10_001));
    let senders: Vec<Pod> =
        (20..25).map(|number| rig.node.pod(&n1, Endpoint(number))).collect::<Result<_>>()?;
    rig.node.converge()?;
    rig.exchange(&between(HERE, OTHER).udp(5, 6), &between(OTHER, HERE).udp(6, 5))?;
    // A quiet one would not stay.
    flow_table::keep_fresh(&rig.node)?;
    let before = rig.replied()?;
    for sender in &senders {
        let frames =
            (0..CAPACITY).map(|n| tcp((sender.endpoint, n as u16), (OTHER, 80), tcp_flags::SYN).build());
        flood_from(&rig, sender, frames)?;
    }
    assert_eq!(rig.replied()?, before);
    assert!(rig.event("evicted") > 0);
    // New connections of the others find room, and become established.
    let mut tracked = 0;
    for port in 100..200 {
        let made = rig.event("made");
        rig.exchange(&between(HERE, OTHER).udp(port, 6), &between(OTHER, HERE).udp(6, port))?;
        tracked += rig.event("made") - made;
    }
    assert!(tracked >= 95, "{tracked} of 100");
    assert_eq!(slots(&rig.node)?, 2 * flow_table::flows(&rig.node)?.len(), "each flow has two slots");
    Ok(())
}

#[test]
fn an_endpoint_uses_at_most_its_share_of_the_table() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    const QUOTA: usize = CAPACITY as usize / 4;
    let rig = Rig::with("ct-quota", |options| {
        options.flows = CAPACITY;
        // However slow the machine is, no flow ends before it is counted.
        (options.timeouts.udp, options.timeouts.unanswered) = (HOUR, HOUR);
    })?;
    let connection = |port| (between(HERE, OTHER).udp(port, 6), between(OTHER, HERE).udp(6, port));
    for ports in [0..QUOTA as u16, QUOTA as u16..2 * QUOTA as u16] {
        // Not the port of DHCP clients.
        for port in ports.map(|port| 1000 + port) {
            let (there, back) = connection(port);
            // Packets pass, tracked or not.
            rig.exchange(&there, &back)?;
        }
        // The second half finds no quiet flow, which it might replace.
        flow_table::keep_fresh(&rig.node)?;
    }
    let of = |pod: &Pod| -> Result<usize> {
        let owner = rig.node.ifindex(&pod.local.port)?;
        Ok(flow_table::flows(&rig.node)?.iter().filter(|flow| flow.halves[0].owner == owner).count())
    };
    assert_eq!(of(&rig.first)?, QUOTA);
    assert!(rig.event("over-quota") > 0);
    // The endpoint that it talks to has its own share.
    let started = of(&rig.second)?;
    for port in 0..20 {
        let (there, back) = (between(OTHER, HERE).udp(port, 9), between(HERE, OTHER).udp(9, port));
        rig.from(&rig.second, &there)?.assert_sent_on(&there.build());
        rig.from(&rig.first, &back)?.assert_sent_on(&back.build());
    }
    assert_eq!(of(&rig.second)?, (started + 20).min(QUOTA));
    // When its flows end, it may begin others.
    flow_table::expire(&rig.node)?;
    wait_until(TIMEOUT, "the timer", || Ok(flow_table::flows(&rig.node)?.is_empty().then_some(())))?;
    assert_eq!(slots(&rig.node)?, 0);
    let (there, back) = connection(1);
    rig.exchange(&there, &back)?;
    assert_eq!(of(&rig.first)?, 1);
    Ok(())
}

/// Expired flows of others are no room for an endpoint that has used its share.
#[test]
fn an_endpoint_over_its_quota_takes_no_expired_flow_of_another() -> Result<()> {
    needs!(root());
    const CAPACITY: u32 = 1024;
    const QUOTA: usize = CAPACITY as usize / 4;
    let rig = Rig::with("ct-takes", |options| {
        options.flows = CAPACITY;
        (options.timeouts.udp, options.timeouts.unanswered) = (3600, 3600);
    })?;
    let there = |port| between(HERE, OTHER).udp(port, 6);
    let back = |port| between(OTHER, HERE).udp(6, port);
    // Not the port of DHCP clients.
    for port in 1000..1000 + QUOTA as u16 {
        rig.exchange(&there(port), &back(port))?;
    }
    let owned = |pod: &Pod| -> Result<usize> {
        let owner = rig.node.ifindex(&pod.local.port)?;
        Ok(flow_table::flows(&rig.node)?.iter().filter(|flow| flow.halves[0].owner == owner).count())
    };
    assert_eq!(owned(&rig.first)?, QUOTA);
    let other = rig.node.ifindex(&rig.second.local.port)?;
    for port in 0..QUOTA as u16 {
        rig.from(&rig.second, &between(OTHER, HERE).udp(port, 9))?;
    }
    flow_table::change(&rig.node, |flow| {
        if flow.halves[0].owner == other {
            flow.halves.iter_mut().for_each(|half| half.seen = half.seen.wrapping_sub(1 << 20));
        }
    })?;
    // The timer has not removed them all yet.
    for port in 0..32 {
        let frame = there(5000 + port);
        rig.from(&rig.first, &frame)?.assert_sent_on(&frame.build());
        assert!(owned(&rig.first)? <= QUOTA, "after {port} flows");
    }
    Ok(())
}

/// Addresses and ports that differ in the same bits, of which two buckets would not hold the slots.
#[test]
fn flows_with_the_same_difference_in_address_and_port_are_all_tracked() -> Result<()> {
    needs!(root());
    const FLOWS: u16 = 2 * FlowBucket::LEN as u16 + 1;
    let rig = Rig::with("ct-class", |options| options.flows = 1024)?;
    for number in 0..FLOWS {
        // Without a record, an address may be anywhere.
        let server = Ipv6Addr::new(0xfd00, 0, number, 0, 0, 0, 0, 9);
        let syn = Packet::eth(OTHER.mac(), HERE.mac()).ipv6(HERE.ip6(), server);
        let outcome = rig.from(&rig.first, &syn.tcp(4000, 80 ^ number, tcp_flags::SYN))?;
        assert_eq!((outcome.code, outcome.dropped), (Code::Redirect, vec![]));
        // As if the server had answered: an established flow makes no room.
        flow_table::change(&rig.node, |flow| {
            let established = sent::ANY | sent::SYN | sent::ACK;
            flow.halves.iter_mut().for_each(|half| (half.sent, half.other) = (established, established));
        })?;
    }
    assert_eq!(rig.replied()?.len(), usize::from(FLOWS));
    assert_eq!((rig.event("full"), slots(&rig.node)?), (0, 2 * usize::from(FLOWS)));
    Ok(())
}

#[test]
fn packets_pass_when_the_flow_table_is_full() -> Result<()> {
    needs!(root());
    let rig = Rig::with("ct-full", |options| options.flows = 4)?;
    for port in 0..10 {
        for _ in 0..2 {
            rig.exchange(&between(HERE, OTHER).udp(port, 6), &between(OTHER, HERE).udp(6, port))?;
        }
    }
    assert!(rig.replied()?.len() <= 4);
    assert!(rig.event("over-quota") + rig.event("full") >= 6);
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}
