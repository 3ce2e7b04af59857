//! Everything that the agent keeps in the kernel, and the objects that the entries belong to.

pub(crate) mod encode;
pub(crate) mod installed;
pub(crate) mod tables;
