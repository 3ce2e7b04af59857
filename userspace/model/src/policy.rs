//! Policies: their bodies in the store, their rules, and what they come to for a connection.
//!
//! [`decide`] is the one definition of what policies mean. It is written to be read, not to be fast: the datapaths and
//! `netctl policy check` are held to it.

mod decision;
mod expand;
mod prefixes;
mod rule;
mod state;

pub use decision::{Connection, Decision, Packet, Side, decide, deciding_rule};
pub use expand::expand;
pub use rule::{Action, Direction, ICMP, ICMPV6, Peer, Priority, Rule, TCP, UDP};
pub use state::{DirectionalRule, DirectionalRuleState, ExpandedRule, Policy, PolicyState};
