//! Connections whose tuples collide, and reused client ports.

use super::*;

#[test]
fn direct_and_service_connections_may_use_the_same_client_port() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-beside", &[OTHER])?;
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK),
        &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK),
    );
    // A direct connection with the same tuple at the backend gets another source port.
    let outcome = rig.from(HERE, &between(HERE, OTHER).tcp(4000, 8080, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4000);
    assert_eq!(outcome.bytes, between(HERE, OTHER).tcp(port, 8080, SYN).build());
    let answer = between(OTHER, HERE).tcp(8080, port, SYN_ACK);
    rig.becomes(OTHER, &answer, &between(OTHER, HERE).tcp(8080, 4000, SYN_ACK));
    rig.becomes(HERE, &between(HERE, OTHER).tcp(4000, 8080, ACK), &between(HERE, OTHER).tcp(port, 8080, ACK));
    // The service connection continues.
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, ACK), &between(HERE, OTHER).tcp(4000, 8080, ACK));
    // In the other order: first the direct connection, then the service connection.
    let direct = between(HERE, OTHER).tcp(4001, 8080, SYN);
    rig.becomes(HERE, &direct, &direct);
    let outcome = rig.from(HERE, &between(HERE, VIP).tcp(4001, 80, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4001);
    assert_eq!(outcome.bytes, between(HERE, OTHER).tcp(port, 8080, SYN).build());
    rig.becomes(
        OTHER,
        &between(OTHER, HERE).tcp(8080, port, SYN_ACK),
        &answer_of(OTHER, HERE).tcp(80, 4001, SYN_ACK),
    );
    let answer = between(OTHER, HERE).tcp(8080, 4001, SYN_ACK);
    rig.becomes(OTHER, &answer, &answer);
    Ok(())
}

#[test]
fn connections_whose_tuples_collide_get_other_source_ports() -> Result<()> {
    needs!(root());
    // Two service ports with one target port and one backend: connections from the same client ports collide. Fewer
    // than nine of ten ports are used; above that, port allocation sometimes fails (`TRIES` in the programs).
    const CLIENTS: u16 = 19_000;
    let mut both = service(VIP.ip().into(), &[(OTHER.ip().into(), Readiness::Ready)]);
    both.ports =
        ["80:8080:TCP", "81:8080:TCP", "82:8080:TCP"].map(|port| port.parse::<Port>().unwrap()).into();
    // Enough for one endpoint's share.
    let rig = Rig::with_options("svc-collide", both, |options| options.flows = 1 << 18)?;
    let (first, second) = (rig.target(HERE)?, rig.target(OTHER)?);
    rig.node.ns.run(|| {
        for port in [80, 81, 82] {
            for client in 40_000..40_000 + CLIENTS {
                let (code, bytes) = first.give(&between(HERE, VIP).tcp(client, port, SYN).build())?;
                assert_eq!(code, Code::Redirect, "{client} to {port}");
                let seen = u16::from_be_bytes([bytes[34], bytes[35]]);
                assert!(seen >= 1024 && (port != 80 || seen == client));
                let answer = between(OTHER, HERE).tcp(8080, seen, SYN_ACK).build();
                let (code, bytes) = second.give(&answer)?;
                let expected = answer_of(OTHER, HERE).tcp(port, client, SYN_ACK).build();
                assert_eq!((code, bytes), (Code::Redirect, expected));
            }
        }
        Ok(())
    })?;
    assert!(rig.node.drops()?.is_empty());
    Ok(())
}

#[test]
fn a_retransmitted_syn_keeps_its_source_port_and_flow() -> Result<()> {
    needs!(root());
    let rig = Rig::new("svc-again", &[OTHER])?;
    let direct = between(HERE, OTHER).tcp(4000, 8080, SYN);
    rig.becomes(HERE, &direct, &direct);
    let outcome = rig.from(HERE, &between(HERE, VIP).tcp(4000, 80, SYN))?;
    let port = u16::from_be_bytes([outcome.bytes[34], outcome.bytes[35]]);
    assert_ne!(port, 4000);
    for _ in 0..3 {
        rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, SYN), &between(HERE, OTHER).tcp(port, 8080, SYN));
    }
    assert_eq!(rig.node.datapath.inspect()["flows"]["made"], 2);
    let back = between(OTHER, HERE).tcp(8080, port, SYN_ACK);
    rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK));
    rig.becomes(HERE, &between(HERE, VIP).tcp(4000, 80, ACK), &between(HERE, OTHER).tcp(port, 8080, ACK));
    Ok(())
}

#[test]
fn the_backend_that_replies_first_gets_the_connection() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-first", &[OTHER])?;
    let there = |flags| between(HERE, VIP).tcp(4000, 80, flags);
    rig.becomes(HERE, &there(SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
    // Before the first reply the service changes, and the client retransmits.
    rig.set(&[(HERE, Readiness::Ready)])?;
    let own = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip());
    let arrives = |outcome: Outcome| (outcome.code, outcome.bytes[12..].to_vec());
    let expected = |packet: Packet| (Code::Redirect, packet.build()[12..].to_vec());
    let own = |flags| own.clone().tcp(4000, 8080, flags);
    assert_eq!(arrives(rig.from(HERE, &there(SYN))?), expected(own(SYN)));
    let back = between(HERE, VIP).tcp(8080, 4000, SYN_ACK);
    let received = Packet::eth(HERE.mac(), VIP.mac()).ipv4(VIP.ip(), HERE.ip()).tcp(80, 4000, SYN_ACK);
    assert_eq!(arrives(rig.from(HERE, &back)?), expected(received));
    // The reply of the other backend belongs to no flow and changes nothing: the client resets that connection.
    let late = between(OTHER, HERE).tcp(8080, 4000, SYN_ACK);
    rig.becomes(OTHER, &late, &late);
    assert_eq!(arrives(rig.from(HERE, &there(ACK))?), expected(own(ACK)));
    Ok(())
}

#[test]
fn reused_client_ports_use_the_current_backends() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("svc-reuse", &[OTHER])?;
    let there = |flags| between(HERE, VIP).tcp(4000, 80, flags);
    let connect = |rig: &Rig| {
        rig.becomes(HERE, &there(SYN), &between(HERE, OTHER).tcp(4000, 8080, SYN));
        let back = between(OTHER, HERE).tcp(8080, 4000, SYN_ACK);
        rig.becomes(OTHER, &back, &answer_of(OTHER, HERE).tcp(80, 4000, SYN_ACK));
        rig.becomes(HERE, &there(ACK), &between(HERE, OTHER).tcp(4000, 8080, ACK));
        rig.becomes(HERE, &there(RST), &between(HERE, OTHER).tcp(4000, 8080, RST));
    };
    for _ in 0..3 {
        connect(&rig);
    }
    let flows = |rig: &Rig| rig.node.datapath.inspect()["flows"].clone();
    let counts = flows(&rig);
    assert_eq!((&counts["made"], &counts["answered"], &counts["reused"]), (&3.into(), &3.into(), &2.into()));
    let connections = rig.node.datapath.telemetry().context("no telemetry")?.connections()?;
    let [connection] = &connections[..] else { panic!("{connections:?}") };
    assert_eq!((connection.to_backend.packets, connection.to_client.packets), (3, 1), "the last one's");
    // From the backend, it is another connection, which is not to the service.
    let (direct, back) =
        (between(OTHER, HERE).tcp(8080, 4000, SYN), between(HERE, OTHER).tcp(4000, 8080, SYN_ACK));
    rig.becomes(OTHER, &direct, &direct);
    rig.becomes(HERE, &back, &back);
    let reset = between(OTHER, HERE).tcp(8080, 4000, RST);
    rig.becomes(OTHER, &reset, &reset);
    // Another backend: the old state does not redirect the client's packets.
    rig.set(&[(FAR, Readiness::Ready)])?;
    rig.becomes(HERE, &there(SYN), &between(HERE, FAR).tcp(4000, 8080, SYN));
    rig.becomes(HERE, &there(ACK), &between(HERE, FAR).tcp(4000, 8080, ACK));
    rig.set(&[])?;
    assert_eq!(rig.from(HERE, &between(HERE, VIP).tcp(4001, 80, SYN))?.dropped, [DropReason::NoBackend]);
    assert!(rig.node.datapath.telemetry().context("no telemetry")?.connections()?.len() == 1);
    Ok(())
}
