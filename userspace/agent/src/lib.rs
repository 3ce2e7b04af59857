//! The agent of contiv-rs: watches the state and makes one node's datapath match it.

pub mod datapath;
pub mod link;
pub mod master;
pub mod plan;
pub mod reconcile;
pub mod source;
pub mod state;
