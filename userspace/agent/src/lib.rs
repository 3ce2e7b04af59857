//! The agent of contiv-rs: watches the cluster's state and keeps the datapath of one node in sync with it.

mod addresses;
pub mod api;
mod atomic_file;
pub mod attach;
pub mod backoff;
pub mod bgp;
pub mod config;
pub mod continuity;
pub mod datapath;
pub mod error;
mod fail_point;
pub mod master;
mod netdevice;
mod netlink;
pub mod plan;
pub mod ready;
pub mod reconcile;
pub mod registration;
pub mod router;
pub mod run;
pub mod source;
pub mod state;
pub mod sysctl;
