//! Plans over a world, without a store: what is planned, committed and loaded again is the same, and no address has two
//! owners.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod addresses;
mod bgp;
mod cleanup;
mod fabric;
mod gone;
mod infra;
mod lab;
mod nodes;
mod policies;
mod property;
mod providers;
mod restore;
mod services;
