//! Forwarding tables: networks, ports with their flood lists, and tunnel peers.

pub(crate) mod dense_list;
pub(crate) mod peers;
pub(crate) mod ports;
