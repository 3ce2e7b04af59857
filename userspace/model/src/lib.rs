//! Domain types of contiv-rs: names, tags, networks, routes, groups, endpoints, services and policies, the
//! keys and JSON bodies under which the store keeps them, and the events that change them.
//!
//! There are two layers with a conversion between them. The *bodies* (`State` in [`network`],
//! [`group`], [`endpoint`], [`service`] and [`bgp`], `PolicyState` in [`policy`]; everything in
//! [`global`] and [`registry`]) have the fields, the order and the spelling of the original's JSON,
//! because operators' scripts read them (INVENTORY section 3). The *domain types* are what the rest
//! of the program works with: strings are parsed once, in `TryFrom<&State>`, and a value that
//! exists is valid.
//!
//! This crate does no I/O and is not async.

#![deny(missing_docs, clippy::missing_errors_doc)]

pub mod addresses;
pub mod api;
pub mod bgp;
pub mod bitset;
pub mod endpoint;
pub mod event;
pub mod global;
pub mod group;
pub mod key;
pub mod mac;
pub mod name;
pub mod network;
pub mod node;
pub mod packet_event;
pub mod policy;
pub mod registry;
pub mod route;
pub mod service;
pub mod tag;
pub mod token_bucket;
pub mod trace;
pub mod vrf;

mod invalid;
pub use invalid::Invalid;
