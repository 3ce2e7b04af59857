//! Changes that apply to established flows.

use testkit::wait_until;

use super::*;
use crate::policy::pod;

#[test]
fn a_deny_rule_applies_to_established_flows() -> Result<()> {
    needs!(root());
    let deny = |direction| rule("deny", direction, Action::Deny, 10);
    // On either side, and in either direction of the connection.
    for (name, number, direction) in [("cut-out", 1, Direction::Out), ("cut-in", 2, Direction::In)] {
        let mut rig = Rig::new(name)?;
        rig.set(Object::Group(group(
            number,
            vec![Rule { ports: Some(1.into()), protocol: Some(TCP), ..deny(direction) }],
        )))?;
        open(&rig, 4000)?;
        rig.set(Object::Group(group(number, vec![deny(direction)])))?;
        for (from, packet) in [
            (HERE, between(HERE, VIP).tcp(4000, 80, ACK)),
            (OTHER, between(OTHER, HERE).tcp(8080, 4000, ACK)),
        ] {
            assert_eq!(rig.give(from, &packet)?.0, Code::Shot);
        }
        assert_eq!(rig.node.drops()?.get(&DropReason::Policy), Some(&2));
        // A policy that allows the connection resumes it.
        rig.set(Object::Group(group(number, vec![])))?;
        let (sent, arrives) =
            (between(HERE, VIP).tcp(4000, 80, ACK), between(HERE, OTHER).tcp(4000, 8080, ACK));
        rig.repeat(HERE, |_| (sent.clone(), arrives.clone()));
    }
    Ok(())
}

#[test]
fn packets_are_not_sent_to_moved_or_deleted_endpoints() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-gone")?;
    let packet = between(HERE, OTHER).udp(5000, 6000);
    let back = between(OTHER, HERE).udp(6000, 5000);
    rig.becomes(HERE, &packet, &packet);
    rig.becomes(OTHER, &back, &back);
    rig.repeat(HERE, |_| (packet.clone(), packet.clone()));
    rig.repeat(OTHER, |_| (back.clone(), back.clone()));
    // The sender has another address.
    let mut local = rig.first.local.clone();
    local.addresses = (Endpoint(9).ip(), Some(HERE.ip6())).into();
    rig.set(Object::Local(local))?;
    assert_eq!(rig.give(HERE, &packet)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::SpoofedIp), Some(&1));
    rig.set(Object::Local(rig.first.local.clone()))?;
    rig.repeat(HERE, |_| (packet.clone(), packet.clone()));
    // The receiver is deleted: its address is unknown, and frames are flooded.
    let gone = Object::Local(rig.second.local.clone()).id();
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    assert_eq!(rig.give(HERE, &packet)?.0, Code::Shot);
    // The port no longer exists.
    assert_eq!(rig.give(OTHER, &back)?.0, Code::Shot);
    assert_eq!(rig.node.drops()?.get(&DropReason::UnknownPort), Some(&1));
    Ok(())
}

#[test]
fn a_service_change_moves_no_established_connection() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-svc")?;
    open(&rig, 4000)?;
    rig.serve(&[(FAR, Readiness::Ready)])?;
    let to = |port, endpoint: Endpoint, at| between(HERE, endpoint).tcp(port, at, ACK);
    rig.becomes(HERE, &to(4000, VIP, 80), &to(4000, OTHER, 8080));
    rig.repeat(HERE, |_| (to(4000, VIP, 80), to(4000, OTHER, 8080)));
    rig.becomes(HERE, &to(4001, VIP, 80), &to(4001, FAR, 8080));
    // Nor does the removal of the backend.
    let gone = ObjectId::Service("web:t".into());
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    rig.repeat(HERE, |_| (to(4000, VIP, 80), to(4000, OTHER, 8080)));
    Ok(())
}

/// Its Ethernet address is that of the service, too.
#[test]
fn an_endpoint_gets_what_is_sent_to_the_address_of_a_deleted_service() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-reuse")?;
    open(&rig, 4000)?;
    let udp = between(HERE, VIP).udp(5000, 80);
    let (answer, shown) = (between(OTHER, HERE).udp(8080, 5000), answer_of(OTHER, HERE).udp(80, 5000));
    for _ in 0..2 {
        rig.becomes(HERE, &udp, &between(HERE, OTHER).udp(5000, 8080));
        rig.becomes(OTHER, &answer, &shown);
    }
    let gone = ObjectId::Service("web:t".into());
    rig.node.desired.remove(&gone);
    ensure!(rig.node.apply(&[Op::Delete(gone)])?.is_empty());
    let _endpoint = pod(&mut rig.node, &network("n1.t", vxlan(10_001)), VIP, 3)?;
    rig.node.converge()?;
    // Within a second, also in the fast path.
    let tcp = between(HERE, VIP).tcp(4000, 80, ACK);
    for packet in [&udp, &tcp] {
        wait_until(Duration::from_secs(5), "the packet arrives at the endpoint", || {
            Ok((rig.give(HERE, packet)? == (Code::Redirect, packet.build())).then_some(()))
        })?;
    }
    // The backend is that of no connection of the client any more.
    rig.becomes(OTHER, &answer, &answer);
    rig.set(Object::Group(group(3, vec![rule("deny", Direction::In, Action::Deny, 10)])))?;
    for packet in [&udp, &tcp] {
        assert_eq!(rig.give(HERE, packet)?.0, Code::Shot);
    }
    assert_eq!(rig.node.drops()?.get(&DropReason::Policy), Some(&2));
    Ok(())
}

#[test]
fn reused_ports_use_the_entry_of_the_new_connection() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("cut-again")?;
    open(&rig, 4000)?;
    let fin = |from, to, a, b| between(from, to).tcp(a, b, FIN);
    rig.becomes(HERE, &fin(HERE, VIP, 4000, 80), &fin(HERE, OTHER, 4000, 8080));
    rig.becomes(OTHER, &fin(OTHER, HERE, 8080, 4000), &answer_of(OTHER, HERE).tcp(80, 4000, FIN));
    assert!(rig.flow(4000)?.halves.iter().all(|half| half.sent & sent::FIN != 0));
    rig.serve(&[(FAR, Readiness::Ready)])?;
    // Usually within the same second.
    let to = |endpoint: Endpoint, at, flags| between(HERE, endpoint).tcp(4000, at, flags);
    rig.becomes(HERE, &to(VIP, 80, SYN), &to(FAR, 8080, SYN));
    rig.becomes(HERE, &to(VIP, 80, ACK), &to(FAR, 8080, ACK));
    // Later packets of the first backend belong to no connection of the service.
    let late = between(OTHER, HERE).tcp(8080, 4000, ACK);
    rig.becomes(OTHER, &late, &late);
    Ok(())
}

#[test]
fn unusual_packets_are_translated_or_dropped() -> Result<()> {
    needs!(root());
    let rig = Rig::new("cut-odd")?;
    open(&rig, 4000)?;
    let (sent, arrives) = (between(HERE, VIP), between(HERE, OTHER));
    let pair = |change: &dyn Fn(Packet) -> Packet, flags| {
        (change(sent.clone().tcp(4000, 80, flags)), change(arrives.clone().tcp(4000, 8080, flags)))
    };
    for (sent, arrives) in [pair(&|p| p.ip_options(&[1, 1, 1, 1]), ACK), pair(&|p| p, FIN)] {
        rig.becomes(HERE, &sent, &arrives);
    }
    // Another source MAC address: spoofed.
    let strange = Packet::eth(VIP.mac(), FAR.mac()).ipv4(HERE.ip(), VIP.ip()).tcp(4000, 80, ACK);
    assert_eq!(rig.give(HERE, &strange)?.0, Code::Shot);
    let strange = Packet::eth(VIP.mac(), HERE.mac()).ipv4(FAR.ip(), VIP.ip()).tcp(4000, 80, ACK);
    assert_eq!(rig.give(HERE, &strange)?.0, Code::Shot);
    Ok(())
}
