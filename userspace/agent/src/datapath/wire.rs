//! Frames and packets as bytes: parsing, rewriting, and the node's own answers.
//!
//! * [`frame`]: Ethernet, VLAN tags, ARP and neighbour discovery.
//! * [`packet`]: IP packets, their tuples and their translation.
//! * [`segment`]: segments and datagrams without data.
//! * [`answer`]: messages of the node itself: pings, expired packets, refused connections.

pub(crate) mod answer;
pub(crate) mod frame;
pub(crate) mod packet;
pub(crate) mod segment;
