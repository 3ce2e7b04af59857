//! Access to pinned BPF maps.

pub(crate) mod batch;
pub(crate) mod generation;
pub(crate) mod mmap;
pub(crate) mod names;
pub(crate) mod pins;
pub(crate) mod rcu;
pub(crate) mod table;
pub(crate) mod usage;
pub(crate) mod writes;
