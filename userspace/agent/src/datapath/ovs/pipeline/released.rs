//! Fragments that the userspace datapath's connection tracking releases: of a datagram that was not complete within 15 s, and those of a
//! complete one for which there was no room.
//!
//! They go on behind whatever packet is looked up then, of any endpoint, with the actions for it. Those of an incomplete datagram have no
//! connection state: without a check, an endpoint could send two in turn past the rules, and to other tenants. So they are dropped
//! where packets return from connection tracking, and connections are recorded for copies that end there, or lead back. The others are not the first
//! fragments of their datagrams, and mean nothing without these.

use openflow_rs::{Action, Ct, Flow, Match, ct_state};

use super::table::{self, priority};

/// Returns the flows that exist for any desired state.
pub(super) fn base() -> Vec<Flow> {
    let untracked = || Match::new().ct_state(0, ct_state::TRACKED);
    let tracked = || Match::new().ct_state(ct_state::TRACKED, ct_state::TRACKED);
    let mut flows: Vec<Flow> = [table::STATE, table::SERVICE_STATE]
        .map(|table| Flow::new(table, priority::MISREAD + 1, untracked()))
        .into();
    // Other packets enter these tables without a state.
    let returns = [
        (table::REASSEMBLED, table::SERVICE_DNAT),
        (table::TRANSLATED, table::DESTINATION),
        (table::RECORDED, table::DSCP),
    ];
    flows.extend(
        returns.map(|(table, next)| {
            Flow::new(table, priority::MATCH, tracked()).apply([Action::resubmit(next)])
        }),
    );
    flows
}

/// Records the connection of a packet.
pub(super) fn record(connection: Ct) -> Action {
    Action::Clone(vec![Action::Ct(connection)])
}
