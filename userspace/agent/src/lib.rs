//! The agent of contiv-rs: watches the state and makes one node's datapath match it.

pub mod backoff;
pub mod cni;
pub mod config;
pub mod datapath;
pub mod error;
pub mod link;
pub mod master;
pub mod metrics;
pub mod monitor;
pub mod plan;
pub mod ready;
pub mod reconcile;
pub mod register;
pub mod rest;
pub mod run;
pub mod service_stats;
pub mod source;
pub mod state;
