//! Policies: their bodies in the store, their rules, and the evaluation of a connection.
//!
//! [`decide`] is the definition of the semantics. It favours clarity over speed: the datapaths and
//! `netctl policy check` are tested against it.

mod decision;
mod expand;
mod prefixes;
mod rule;
mod state;

pub use decision::{Connection, Decision, Packet, Side, decide, deciding_rule};
pub use expand::expand;
pub use rule::{Action, Direction, ICMP, ICMPV6, Peer, Priority, Rule, TCP, UDP};
pub use state::{DirectionalRule, DirectionalRuleState, ExpandedRule, Policy, PolicyState};
