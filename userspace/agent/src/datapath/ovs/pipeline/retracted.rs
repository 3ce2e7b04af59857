//! Drops that the switch takes back.
//!
//! With the kernel datapath, what ovs-vswitchd decides about a packet that it reads otherwise than the kernel is in force for all packets
//! that are alike to the kernel. So these drops are for packets between two addresses: the flows read them. And they learn a flow that
//! expires, whatever comes: each change of the tables makes the switch look at its datapath flows again, which it else does not while they
//! are in use.

use openflow_rs::{Action, Field, Flow, Match, Slice, nicira::Learn};

use super::{
    family::Family,
    table::{self, LEARNED, priority},
};

/// Seconds after which the flow that is learned from a packet expires. No packet meets it.
const EXPIRES_AFTER: u16 = 2;

/// Drops packets of a family.
pub(super) fn drop(family: Family, table: u8, rank: u16, packets: Match) -> Flow {
    between([family.source(), family.destination()], family.register(), table, rank, packets)
}

/// Drops frames, whatever they carry.
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
