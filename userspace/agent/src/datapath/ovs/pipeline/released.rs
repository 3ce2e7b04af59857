//! Fragments that the userspace datapath's connection tracking releases: those of a datagram that was not complete within
//! 15 s, and those of a complete datagram for which there was no memory.
//!
//! The datapath appends released fragments to the batch of whatever packet it processes at that time, of any endpoint,
//! and executes that packet's actions on them. Fragments of an incomplete datagram have no connection state. Without a
//! check, an endpoint could send two of them in turn past the rules, and to other tenants. So these flows drop them where
//! packets return from connection tracking. A connection is recorded for a clone that ends there or leads back. Fragments
//! of a complete datagram are not the first ones, and are useless without the first.

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
