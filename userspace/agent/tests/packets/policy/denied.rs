//! A connection that rules deny later ends for good: none of its packets begins a flow that other rules are asked about.

use testkit::packet::tcp_flags;

use super::{
    opening::{ACK, answer, open, there},
    *,
};
use crate::flow_table;

/// Makes the flows older, in seconds.
fn age(rig: &Rig, seconds: u32) -> Result<()> {
    flow_table::change(&rig.node, |flow| {
        flow.halves.iter_mut().for_each(|half| half.seen = half.seen.wrapping_sub(seconds));
    })
}

fn is_denied(rig: &Rig) -> Result<()> {
    rig.answer(&answer(ACK, (5001, 1001)))?.assert_dropped(DropReason::Policy);
    rig.send(&there(ACK, (1001, 5001)))?.assert_dropped(DropReason::Policy);
    Ok(())
}

/// The client sends a RST that its server ignores, but that ends the flow for the table.
#[test]
fn a_denied_connection_does_not_come_back_from_its_server() -> Result<()> {
    needs!(root());
    for (label, number, direction) in [("deny-in", 2, Direction::In), ("deny-out", 1, Direction::Out)] {
        let mut rig = Rig::new(label)?;
        open(&rig)?;
        passes(&rig.send(&there(tcp_flags::RST | ACK, (41_001, 5001)))?);
        rig.set(group(number, vec![rule("all", direction, Action::Deny, 1)]))?;
        rig.send(&there(ACK, (1001, 5001)))?.assert_dropped(DropReason::Policy);
        age(&rig, 61)?;
        is_denied(&rig)?;
    }
    Ok(())
}

/// Two times five of eight thousand seconds.
#[test]
fn dropped_packets_keep_a_denied_flow() -> Result<()> {
    needs!(root());
    let mut rig = Rig::new("deny-long")?;
    open(&rig)?;
    rig.set(group(2, vec![rule("all", Direction::In, Action::Deny, 1)]))?;
    rig.send(&there(ACK, (1001, 5001)))?.assert_dropped(DropReason::Policy);
    for _ in 0..2 {
        age(&rig, 5000)?;
        is_denied(&rig)?;
    }
    Ok(())
}
