//! The agent of contiv-rs: watches the state and makes one node's datapath match it.

pub mod cni;
pub mod datapath;
pub mod link;
pub mod master;
pub mod metrics;
pub mod plan;
pub mod reconcile;
pub mod source;
pub mod state;
