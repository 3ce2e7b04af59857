//! Base flows: they exist for any desired state.

use openflow_rs::{Action, Flow, Match, Port};

use super::{
    answer, external, guard, kernel, misread, neighbour, policy, released, route, service,
    table::{self, priority},
};
use crate::datapath::ovs::bridge::BridgeKind;

/// Returns the flow that drops all incoming frames.
pub(crate) fn drop_all() -> Flow {
    Flow::new(table::INPUT, u16::MAX, Match::new())
}

/// Returns the base flows of a bridge, without a cookie.
pub(crate) fn base_flows(bridge: BridgeKind) -> Vec<Flow> {
    let lead = |from: u8, to: u8| Flow::new(from, priority::MISS, Match::new()).goto(to);
    let mut flows = guard::base();
    flows.extend([
        lead(table::INPUT, table::SOURCE),
        // An explicit drop, so that the flow counts the dropped frames.
        Flow::new(table::SOURCE, priority::MISS, Match::new()),
        lead(table::SERVICE_DNAT, table::DESTINATION_GROUP),
        lead(table::SERVICE_SNAT, table::DESTINATION),
        Flow::new(table::DSCP, priority::MISS, Match::new()).apply([Action::resubmit(table::SERVICE_SNAT)]),
    ]);
    flows.extend(service::base());
    flows.extend(misread::base());
    flows.extend(released::base());
    let miss = |table: u8| Flow::new(table, priority::MISS, Match::new());
    flows.extend(match bridge {
        // The bridge learns the ports of unknown stations.
        BridgeKind::Vlan => {
            [table::DESTINATION, table::NEIGHBOUR].map(|t| miss(t).apply([Action::output(Port::NORMAL)]))
        }
        BridgeKind::Vxlan => [table::DESTINATION, table::NEIGHBOUR].map(miss),
    });
    flows.extend(policy::base());
    flows.extend(route::base());
    flows.extend(answer::base());
    if bridge == BridgeKind::Vlan {
        flows.extend(external::base());
        flows.extend(kernel::base());
    }
    flows.push(neighbour::arp_reply());
    flows.extend(neighbour::nd_replies());
    flows
}
