//! The control plane of contiv-rs: REST, address and tag allocation, election.
//!
//! The way of a request: [`api`] routes it, [`objects`] or [`plugin`] check it and make a plan of it, the
//! [`committer`] plans it over the [`world`] and commits it as one transaction, and only then it is answered.
//! Plans, [`ipam`] and [`tags`] are pure; [`daemon`] holds the rest together.

pub mod aci;
pub mod api;
pub mod assurance;
pub mod committer;
pub mod config;
pub mod daemon;
pub mod go_json;
pub mod ipam;
pub mod metrics;
pub mod objects;
pub mod openapi;
mod place;
pub mod plugin;
pub mod problem;
pub mod role;
pub mod schema;
pub mod services;
pub mod tags;
pub mod world;
