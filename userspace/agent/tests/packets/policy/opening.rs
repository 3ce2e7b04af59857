//! The other end of a connection begins one with its ports: rules are evaluated for it as for any other.

use testkit::packet::tcp_flags;

use super::*;

pub(super) const SYN: u8 = tcp_flags::SYN;
pub(super) const ACK: u8 = tcp_flags::ACK;

/// A segment of the client.
pub(super) fn there(flags: u8, numbers: (u32, u32)) -> Packet {
    to(SERVER).tcp(4000, 80, flags).sequence(numbers.0, numbers.1)
}

/// A segment of the server.
pub(super) fn answer(flags: u8, numbers: (u32, u32)) -> Packet {
    back().tcp(80, 4000, flags).sequence(numbers.0, numbers.1)
}

pub(super) fn open(rig: &Rig) -> Result<()> {
    passes(&rig.send(&there(SYN, (1000, 0)))?);
    passes(&rig.answer(&answer(SYN | ACK, (5000, 1001)))?);
    passes(&rig.send(&there(ACK, (1001, 5001)))?);
    Ok(())
}

#[test]
fn the_server_opens_no_connection_that_rules_deny() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("opening-deny")?;
    rig.set(group(1, vec![rule("all", Direction::In, Action::Deny, 1)]))?;
    // At once with the client's SYN, and later.
    passes(&rig.send(&there(SYN, (1000, 0)))?);
    rig.answer(&answer(SYN, (5000, 0)))?.assert_dropped(DropReason::Policy);
    open(&rig)?;
    for sequence in [5000, 5001, 90_000] {
        rig.answer(&answer(SYN, (sequence, 0)))?.assert_dropped(DropReason::Policy);
    }
    // The client's connection goes on.
    passes(&rig.answer(&answer(ACK, (5001, 1001)))?);
    passes(&rig.send(&there(ACK, (1001, 5001)))?);
    let flows = crate::flow_table::flows(&rig.node)?;
    let [flow] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(flow.client_port.get(), 4000);
    Ok(())
}

#[test]
fn a_connection_of_the_server_replaces_that_of_the_client() -> Result<()> {
    needs!(root());
    let rig = Rig::new("opening-other")?;
    open(&rig)?;
    passes(&rig.answer(&answer(SYN, (90_000, 0)))?);
    passes(&rig.send(&there(SYN | ACK, (70_000, 90_001)))?);
    passes(&rig.answer(&answer(ACK, (90_001, 70_001)))?);
    let flows = crate::flow_table::flows(&rig.node)?;
    let [flow] = &flows[..] else { panic!("{flows:?}") };
    assert_eq!(flow.client_port.get(), 80);
    Ok(())
}
