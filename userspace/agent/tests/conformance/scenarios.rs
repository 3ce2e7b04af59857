//! Scenarios. Each creates its own node.

pub(crate) mod change;
pub(crate) mod connections;
pub(crate) mod drift;
pub(crate) mod external;
pub(crate) mod failure;
pub(crate) mod flooding;
pub(crate) mod host_access;
pub(crate) mod isolation;
pub(crate) mod neighbours;
pub(crate) mod policy;
pub(crate) mod programs;
pub(crate) mod restart;
mod routed;
pub(crate) mod routing;
pub(crate) mod routing_changes;
pub(crate) mod routing_kinds;
pub(crate) mod routing_policies;
pub(crate) mod routing_vlan;
pub(crate) mod service_changes;
pub(crate) mod service_collisions;
pub(crate) mod services;
pub(crate) mod session_affinity;
pub(crate) mod unicast;
pub(crate) mod vlan;
pub(crate) mod vxlan;
