//! The state in the kernel, and the objects that its entries belong to. From low to high:
//!
//! | module | contents |
//! |---|---|
//! | [`entry`] | one item in the kernel |
//! | [`encode`] | objects to entries, pure |
//! | [`resize`] | replaces the flow table by one of another size |
//! | [`tables`] | all maps and programs |
//! | [`installed`] | the entries in the kernel, their owners, and orphans |

pub(crate) mod encode;
pub(crate) mod entry;
pub(crate) mod installed;
pub(crate) mod resize;
pub(crate) mod tables;
