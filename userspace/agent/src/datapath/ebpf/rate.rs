//! Bandwidth limits of groups by queueing disciplines.

pub(crate) mod qdisc;
pub(crate) mod queue;
