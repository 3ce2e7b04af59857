//! Counters, connections and packet events for operators.

pub(crate) mod connections;
pub(crate) mod counters;
pub(crate) mod dump;
pub(crate) mod events;
pub(crate) mod pending;
