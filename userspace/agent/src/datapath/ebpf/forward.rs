//! Forwarding tables: routing domains with their subnets and routes, networks, ports with their flood lists, locations of Ethernet
//! addresses, tunnel peers, and the networks of each peer.

pub(crate) mod dense_list;
pub(crate) mod domains;
pub(crate) mod fdb;
pub(crate) mod members;
pub(crate) mod peers;
mod port_slots;
pub(crate) mod ports;
pub(crate) mod prefixes;
