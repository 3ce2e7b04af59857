//! Tests of the netmaster binary over HTTP, each with a store of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod backup;
mod client;
mod fabric;
mod followers;
mod forwarding;
mod large;
mod limits;
mod master;
mod nodes;
mod problems;
mod quota;
mod rest;
mod restarts;
mod security;
mod startup;
mod store;
