//! Forwarding tables: flood lists of ports and tunnel peers.

pub(crate) mod dense_list;
