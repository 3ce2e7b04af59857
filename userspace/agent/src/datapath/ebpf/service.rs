//! Services: ports, backends, counters, and announcement of addresses. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`buddy`] | allocator of blocks in the map of lists and rings |
//! | [`ring`] | assignment of buckets to backends |
//! | [`counters`] | counters per service port |
//! | [`backends`] | backend sets in the kernel |
//! | [`slots`] | copies of entries of service ports |
//! | [`ports`] | service ports in the kernel |
//! | [`vips`] | services for which this node answers ARP and ND on the VLAN uplink |
//! | [`announcer`] | GARP and NA announcements |

pub(crate) mod announcer;
pub(crate) mod backends;
pub(crate) mod buddy;
pub(crate) mod counters;
pub(crate) mod ports;
pub(crate) mod ring;
pub(crate) mod slots;
pub(crate) mod vips;
