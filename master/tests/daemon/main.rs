//! The binary itself, driven over HTTP, on a store of its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod client;
mod fabric;
mod followers;
mod large;
mod limits;
mod master;
mod nodes;
mod passing_on;
mod problems;
mod rest;
mod restarts;
mod security;
mod startup;
mod store;
