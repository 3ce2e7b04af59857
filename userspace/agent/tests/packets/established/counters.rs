//! Counters of flows.

use super::*;

#[test]
fn every_packet_is_counted_once() -> Result<()> {
    needs!(root());
    let rig = Rig::new("est-count")?;
    let mut there = open(&rig, 4000)?;
    let (sent, arrives) = (between(HERE, VIP).tcp(4000, 80, ACK), between(HERE, OTHER).tcp(4000, 8080, ACK));
    let bytes = sent.build().len() as u64;
    for _ in 0..50 {
        rig.becomes(HERE, &sent, &arrives);
        there += 1;
    }
    assert_eq!(rig.counts(4000)?[0], (there, there * bytes));
    let connections = rig.node.datapath.telemetry().unwrap().connections()?;
    let counters = rig.node.datapath.counters()?;
    let [reported, served] = [connections[0].to_backend, counters.services[0].1.to_backends];
    assert_eq!(reported, served);
    assert_eq!((reported.packets, reported.bytes), (there, there * bytes));
    Ok(())
}
