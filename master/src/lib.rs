//! The control plane of contiv-rs: REST API, address and tag allocation, leader election.
//!
//! A request passes these steps: [`api`] routes it, [`objects`] or [`plugin`] validates it and
//! plans changes in a [`cache::StagedTxn`], [`commit`] writes the staged transaction to the store,
//! and then the API answers.
//!
//! Modules are listed from the top layer to the bottom layer. A module imports only modules listed
//! below it.

pub mod daemon;

pub mod embedded;

pub mod config;

pub mod api;

pub mod leadership;

pub mod aci;

pub mod commit;

pub mod audit;
pub mod backup;
pub mod repair;
pub mod restore;

pub mod objects;
pub mod plugin;

pub mod reports;

pub mod domain;

pub mod metrics;

pub mod cache;

pub mod access;
pub mod go_json;
pub mod ipam;
pub mod problem;
pub mod schema;
pub mod tags;
