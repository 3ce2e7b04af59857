//! Packets while the flows of another table are imported: what may belong to one of these is held.

use contiv_abi::Phase;

use super::*;
use crate::flow_table::set_phase;

const HELD: DropReason = DropReason::FlowImport;

/// A packet behind these headers, to this port.
type Finish = fn(Packet, u16) -> Packet;

/// Packets without a flow, and whether each opens a connection.
const PACKETS: [(bool, Finish); 3] = [
    (true, |headers, port| headers.tcp(4000, port, SYN)),
    (false, |headers, port| headers.tcp(4000, port, ACK)),
    (false, |headers, port| headers.udp(4000, port).payload(b"query")),
];

/// Headers of the client to the service.
fn to_service() -> Packet {
    Packet::eth(VIP.mac(), CLIENT.mac()).vlan(TAG).ipv4(CLIENT.ip(), VIP.ip())
}

impl Rig {
    /// Where a new connection of the client goes; `None` if its packet is held. XDP leaves it to TC.
    fn opened(&self, port: u16) -> Result<Option<Endpoint>> {
        let frame = to_service().tcp(port, 80, SYN);
        ensure!(self.xdp(&frame)?.is_none(), "XDP forwards it");
        let outcome = self.tc(&frame)?;
        match (outcome.code, &outcome.dropped[..]) {
            (Code::Shot, [DropReason::FlowImport]) => Ok(None),
            (Code::Redirect, []) => {
                let is_to = |endpoint: &Endpoint| outcome.bytes[..6] == endpoint.mac();
                let found = [HERE, THERE].into_iter().find(is_to);
                found.map(Some).with_context(|| format!("no destination: {outcome:?}"))
            }
            _ => anyhow::bail!("{outcome:?}"),
        }
    }

    /// The outcome of a packet of the pod to the service.
    fn pod_sends(&self, finish: Finish, port: u16) -> Result<Outcome> {
        let headers = Packet::eth(VIP.mac(), HERE.mac()).ipv4(HERE.ip(), VIP.ip());
        run(&self.node, FROM_POD, &self.pod.local.port, &finish(headers, port).build())
    }
}

#[test]
fn connections_to_services_are_held_unless_it_is_known_where_they_are_forwarded() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-import", &[HERE, THERE])?;
    let known = rig.port_to(THERE)?;
    assert_eq!((rig.asked_tcp(known, ACK)?, rig.noted()?), (THERE, 1));
    let unknown: Vec<Packet> = (6000..6010)
        .flat_map(|port| [to_service().tcp(port, 80, ACK), to_service().udp(port, 80).payload(b"query")])
        .collect();
    set_phase(&rig.node, Phase::IMPORTING)?;
    // The flow of each would have its backend, which the hash may not choose.
    for frame in &unknown {
        assert_eq!(rig.xdp(frame)?, None);
        rig.tc(frame)?.assert_dropped(HELD);
    }
    assert_eq!((rig.asked_tcp(known, ACK)?, rig.noted()?), (THERE, 1));
    let opened = (7000..7020).map(|port| rig.opened(port)).collect::<Result<Vec<_>>>()?;
    assert!(opened.contains(&Some(HERE)) && opened.contains(&Some(THERE)), "{opened:?}");
    assert!(!opened.contains(&None), "{opened:?}");

    // Nothing begins a flow.
    set_phase(&rig.node, Phase::HOLDING)?;
    assert_eq!(rig.asked_tcp(known, ACK)?, THERE);
    let opened = (8000..8020).map(|port| rig.opened(port)).collect::<Result<Vec<_>>>()?;
    assert!(opened.contains(&None) && !opened.contains(&Some(HERE)), "{opened:?}");
    for frame in &unknown {
        assert_eq!(rig.xdp(frame)?, None);
        rig.tc(frame)?.assert_dropped(HELD);
    }

    set_phase(&rig.node, Phase::RUNNING)?;
    for frame in &unknown {
        let outcome = rig.tc(frame)?;
        assert_eq!((outcome.code, &outcome.dropped[..]), (Code::Redirect, &[][..]));
    }
    Ok(())
}

/// Another node has chosen the pod.
#[test]
fn segments_that_another_node_has_forwarded_are_held() -> Result<()> {
    needs!(root());
    let rig = Rig::v4("out-import-in", &[HERE, THERE])?;
    for (phase, are_held) in [
        (Phase::IMPORTING, [false, true, false]),
        (Phase::HOLDING, [true, true, true]),
        (Phase::RUNNING, [false, false, false]),
    ] {
        set_phase(&rig.node, phase)?;
        for (number, ((_, finish), is_held)) in (1..).zip(PACKETS.into_iter().zip(are_held)) {
            // No other packet has its ends.
            let client = Endpoint(100 + 10 * phase as u8 + number);
            let headers = Packet::eth(HERE.mac(), VIP.mac()).vlan(TAG).ipv4(client.ip(), VIP.ip());
            let outcome = rig.tc(&finish(headers, 80))?;
            let expected = if is_held { (Code::Shot, vec![HELD]) } else { (Code::Redirect, vec![]) };
            assert_eq!((outcome.code, outcome.dropped), expected, "phase {phase}, packet {number}");
        }
    }
    Ok(())
}

/// Packets that no backend serves are refused for this reason, or held.
fn check_refusals(
    rig: &Rig,
    reason: DropReason,
    send: impl Fn(&Rig, Finish) -> Result<Outcome>,
) -> Result<()> {
    for phase in [Phase::IMPORTING, Phase::HOLDING, Phase::RUNNING] {
        set_phase(&rig.node, phase)?;
        for (opens, finish) in PACKETS {
            let is_refused = phase == Phase::RUNNING || opens && phase == Phase::IMPORTING;
            let expected = if is_refused { (Code::Redirect, vec![reason]) } else { (Code::Shot, vec![HELD]) };
            let outcome = send(rig, finish)?;
            assert_eq!((outcome.code, outcome.dropped), expected, "phase {phase}, opens: {opens}");
        }
    }
    Ok(())
}

/// A refusal would end the connection whose flow is to come: its port, or its backend, is one that the service had.
#[test]
fn connections_are_not_refused_while_their_flow_may_come() -> Result<()> {
    needs!(root());
    let mut rig = Rig::v4("out-import-no", &[HERE, THERE])?;
    check_refusals(&rig, DropReason::NoService, |rig, finish| rig.tc(&finish(to_service(), 81)))?;
    check_refusals(&rig, DropReason::NoService, |rig, finish| rig.pod_sends(finish, 81))?;
    rig.set(&[])?;
    check_refusals(&rig, DropReason::NoBackend, |rig, finish| rig.pod_sends(finish, 80))
}
