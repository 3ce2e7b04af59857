//! Access to the Open vSwitch of this node.
//!
//! * [`ovsdb`]: client of the configuration database.
//! * [`ports`]: Port and Interface rows of the database.
//! * [`session`]: connections to the database and to both bridges.
//! * [`tunnel`]: next-hop resolution of new tunnels.

pub(crate) mod ovsdb;
pub(crate) mod ports;
pub(crate) mod session;
pub(crate) mod tunnel;
