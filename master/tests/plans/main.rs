//! Plans over a cache without a store. The result is the same when planned, committed and loaded
//! again, and no address has two owners.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod addresses;
mod batches;
mod bgp;
mod chunks;
mod cleanup;
mod containers;
mod endpoints;
mod expansions;
mod fabric;
mod fabric_mode;
mod fixture;
mod infra;
mod large_requests;
mod links;
mod names;
mod node_gc;
mod nodes;
mod policies;
mod pools;
mod property;
mod providers;
mod request_links;
mod restore;
mod routed_vlans;
mod services;
mod tenants;
mod unreadable;
mod unreadable_objects;
