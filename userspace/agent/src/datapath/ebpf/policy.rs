//! Policies, DSCP and rates of groups: the tables that the programs search, compiled from the rules.
//!
//! A change of a group's rules is written as a new rule set. One word in the entry of the group then refers to it, so
//! every endpoint of the group has the new rules at once. The old set is removed after an RCU grace period. From low to
//! high:
//!
//! | module | contents |
//! |---|---|
//! | [`slots`] | allocator of slots in an array |
//! | [`compile`] | rules to search trees, pure |
//! | [`groups`] | the array of groups |
//! | [`rule_sets`] | rule sets and their trees in the kernel |
//! | [`policies`] | the rule sets of each group |

mod compile;
mod groups;
mod policies;
mod rule_sets;
mod slots;

pub(crate) use compile::{OverlappingPorts, check_ports};
pub(crate) use policies::{DesiredGroup, Policies};
pub(crate) use rule_sets::RuleSets;
