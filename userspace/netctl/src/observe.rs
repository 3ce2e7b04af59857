//! Commands that show the state of the cluster and change nothing.

pub mod agent;
pub mod endpoint;
pub mod finder;
pub mod monitor;
pub mod node;
pub mod policy_check;
pub mod policy_trace;
pub mod trace;
pub mod version;
