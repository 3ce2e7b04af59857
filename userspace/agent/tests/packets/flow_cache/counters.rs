//! Counters of cached packets.

use super::*;

#[test]
fn every_packet_is_counted_once() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-count")?;
    let mut there = open(&rig, 4000)?;
    let (sent, arrives) = (between(HERE, VIP).tcp(4000, 80, ACK), between(HERE, OTHER).tcp(4000, 8080, ACK));
    let bytes = sent.build().len() as u64;
    for _ in 0..50 {
        rig.becomes(HERE, &sent, &arrives);
        there += 1;
    }
    assert_eq!(rig.counts(4000)?[0], (there, there * bytes));
    // Telemetry includes them within two seconds, without further packets.
    wait_until(TIMEOUT, "the counts", || {
        let connections = rig.node.datapath.telemetry().unwrap().connections()?;
        let counters = rig.node.datapath.counters()?;
        let [reported, served] = [connections[0].to_backend, counters.services[0].1.to_backends];
        ensure!(reported.packets <= there, "{reported:?} of {there}");
        Ok((reported == served && (reported.packets, reported.bytes) == (there, there * bytes)).then_some(()))
    })?;
    // The first packet of the next second takes the slow path and flushes the counters of the packets before it.
    let seen = rig.flow(4000)?.1.seen;
    for _ in 0..2 {
        rig.becomes(HERE, &sent, &arrives);
        there += 1;
    }
    let (_, flow) = rig.flow(4000)?;
    assert!(flow.seen > seen);
    assert_eq!(rig.counts(4000)?[0], (there, there * bytes));
    Ok(())
}

#[test]
fn flows_that_share_a_slot_lose_no_counts() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-share")?;
    let ifindex = rig.node.ifindex(&rig.first.local.port)?;
    let place = |port| {
        let frame = between(HERE, OTHER).tcp(port, 90, ACK).build();
        let word = |at: usize| u64::from_ne_bytes(frame[at..at + 8].try_into().unwrap());
        let ports = u32::from_ne_bytes(frame[34..38].try_into().unwrap());
        let headers = Headers { addresses: [word(26), 0, 0, 0], ports, protocol: TCP, ..Headers::default() };
        headers.hash(ifindex) % FLOW_CACHE_CAPACITY as u32
    };
    let (one, two) = (4000, (4001..).find(|port| place(*port) == place(4000)).unwrap());
    let packet = |port| between(HERE, OTHER).tcp(port, 90, ACK);
    for port in [one, two] {
        rig.becomes(HERE, &packet(port), &packet(port));
        let back = between(OTHER, HERE).tcp(90, port, ACK);
        rig.becomes(OTHER, &back, &back);
    }
    let mut sent = [1, 1];
    sent[0] += rig.until_cached(HERE, |_| (packet(one), packet(one)))?;
    for _ in 0..30 {
        for (port, count) in [one, two].into_iter().zip(&mut sent) {
            rig.becomes(HERE, &packet(port), &packet(port));
            *count += 1;
        }
    }
    thread::sleep(Duration::from_millis(1100));
    // The other flow is faster now.
    sent[1] += rig.until_cached(HERE, |_| (packet(two), packet(two)))?;
    for (port, sent) in [one, two].into_iter().zip(sent) {
        assert_eq!(rig.counts(port)?[0].0, sent, "port {port}");
    }
    Ok(())
}
