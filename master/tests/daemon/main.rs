//! Tests of the netmaster binary over HTTP, each with a store of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod audit_log;
mod authorization;
mod backup;
mod client;
mod conditional;
mod fabric;
mod failed_disk;
mod first_writes;
mod followers;
mod forwarding;
mod generated_calls;
mod large;
mod limits;
mod lists;
mod master;
mod metrics;
mod nodes;
mod problems;
mod quota;
mod rest;
mod restarts;
mod security;
mod startup;
mod store;
mod subject_roles;
mod tenant_views;
mod watches;
