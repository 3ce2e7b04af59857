//! Counters, connections and packet events for operators. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`counters`] | counters of rules and services |
//! | [`connections`] | tracked connections to services |
//! | [`events`] | packet events |
//! | [`dump`] | counters in the debug dump |

pub(crate) mod connections;
pub(crate) mod counters;
pub(crate) mod dump;
pub(crate) mod events;
