//! Services: ports, backends, counters and their announcement.

pub(crate) mod announce;
pub(crate) mod buddy;
pub(crate) mod counts;
pub(crate) mod ring;
pub(crate) mod table;
