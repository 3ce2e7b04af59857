//! Packets that ovs-vswitchd reads otherwise than the kernel's datapath: they are dropped.
//!
//! The kernel looks a packet up by what it reads of it, and asks ovs-vswitchd about those that it does not know, which reads them anew:
//! nothing of one whose header contradicts its length, and no protocol behind false extension headers. What it decides is then in force
//! for all packets that are alike to the kernel. A connection would be evaluated without its protocol and ports, and so would be those of
//! sound packets. No packet without a protocol is tracked, so one that has passed connection tracking is such a packet.
//!
//! The drop is also in force for sound packets. So its flows match both addresses where they can: it is for packets between these two.
//! And they learn a flow that expires, whatever comes: each change of the tables makes the switch look at its datapath flows again, which
//! it else does not while they are in use.

use openflow_rs::{Action, Flow, Match, nicira::Learn};

use super::{
    family::Family,
    service::LEARNED,
    table::{
        self,
        priority::{self, MISREAD},
    },
};

/// Seconds after which the flow that is learned from a packet expires. No packet meets it.
const EXPIRES_AFTER: u16 = 2;

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    Family::ALL.into_iter().flat_map(of_family).collect()
}

fn of_family(family: Family) -> Vec<Flow> {
    let (source, destination) = (family.source(), family.destination());
    let without_protocol = || family.packets(Match::new()).ip_proto(0);
    let without_source = || without_protocol().field(source, 0u8);
    let without_addresses = || without_source().field(destination, 0u8);
    vec![
        drop(table::GUARD, MISREAD, without_addresses()),
        drop(table::CLAIM, MISREAD, without_addresses()),
        // It may have the destination that a service has given it.
        drop(table::DESTINATION_GROUP, MISREAD, without_source()),
        drop(table::SERVICE_STATE, MISREAD, without_protocol()),
        drop(table::SERVICE_STATE, MISREAD + 1, without_addresses()),
        // Reached anew from the group that chooses by the kernel's hash.
        drop(table::CHOSEN, MISREAD, without_protocol()),
        drop(table::CHOSEN, MISREAD + 1, without_addresses()),
        drop(table::STATE, MISREAD, without_protocol()),
        drop(table::STATE, MISREAD + 1, without_addresses()),
    ]
}

fn drop(table: u8, rank: u16, packets: Match) -> Flow {
    let flow = Learn {
        idle_timeout: EXPIRES_AFTER,
        priority: priority::MISS,
        cookie: LEARNED,
        table: table::EXPIRING,
        ..Learn::default()
    };
    Flow::new(table, rank, packets).apply([Action::Learn(flow)])
}
