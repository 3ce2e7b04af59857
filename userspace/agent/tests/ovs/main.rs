//! Tests of the OVS datapath with a running Open vSwitch and pods in network namespaces.
#![expect(clippy::unwrap_used, reason = "a failed setup step fails the test")]

mod announce;
mod bandwidth;
mod checksum;
mod conntrack;
mod deleted_endpoints;
mod drift;
mod external;
mod forwarding;
mod lifecycle;
mod misread;
mod neighbour;
mod node;
mod policy;
mod refusal;
mod refused_rules;
mod restart;
mod routed_takeover;
mod routing;
mod services;
mod takeover;
mod trace;
#[path = "../node/traced.rs"]
mod traced;
