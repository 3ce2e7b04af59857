//! Policies, DSCP and rates of groups: what the programs look up, made from the rules and kept in the kernel.
//!
//! A change of a group's rules is written as a new rule set beside the old one; then one word of the group is
//! changed, by which every endpoint of it has the new rules at once; and when no program can have the old set in hand any
//! more, that is removed.
//!
//! ```text
//! compile   rules -> trees, pure
//! groups    the array of groups, mapped into memory
//! sets      the sets in the kernel, their trees, and room for more
//! store     which sets are in the kernel, and for whom
//! ```

mod compile;
mod groups;
mod sets;
mod store;

pub(crate) use sets::Sets;
pub(crate) use store::{Policies, Wanted};
