//! Drops that the switch revalidates.
//!
//! With the kernel datapath, the decision of ovs-vswitchd about a packet that it parses differently from the kernel
//! applies to all packets with the same kernel flow key. So these drops apply only to packets between two addresses,
//! which the flows read. Each also learns a flow that soon expires: a change of the tables makes the switch revalidate
//! its datapath flows, which it otherwise does not do while they are in use.

use openflow_rs::{Action, Field, Flow, Match, Slice, nicira::Learn};

use super::{
    family::Family,
    table::{self, LEARNED, priority},
};

/// Seconds after which the learned flow expires. No packet matches it.
const EXPIRES_AFTER: u16 = 2;

/// Drops packets of a family.
pub(super) fn drop(family: Family, table: u8, rank: u16, packets: Match) -> Flow {
    between([family.source(), family.destination()], family.register(), table, rank, packets)
}

/// Drops frames of any EtherType.
pub(super) fn drop_frames(table: u8, rank: u16, frames: Match) -> Flow {
    between([Field::EthSrc, Field::EthDst], Field::XReg2, table, rank, frames)
}

fn between(ends: [Field; 2], to: Field, table: u8, rank: u16, packets: Match) -> Flow {
    let expiring = Learn {
        idle_timeout: EXPIRES_AFTER,
        priority: priority::MISS,
        cookie: LEARNED,
        table: table::EXPIRING,
        ..Learn::default()
    };
    let read =
        |field: Field| Action::Move { from: Slice::whole(field), to: Slice::bits(to, 0, field.bits()) };
    Flow::new(table, rank, packets).apply(ends.map(read)).apply([Action::Learn(expiring)])
}
