//! Policies: their bodies in the store, their rules, and the evaluation of a connection.
//!
//! [`decide`] is the definition of the semantics. It favours clarity over speed: the datapaths and
//! `netctl policy check` are tested against it.

mod action;
mod decision;
mod expand;
mod identity;
mod peer;
mod ports;
mod prefixes;
mod rule;
mod state;
mod tier;

pub use action::Action;
pub use decision::{Connection, Decision, Outcome, Packet, Party, Side, decide, deciding_rule};
pub use expand::expand;
pub use identity::{Identity, IdentitySet};
pub use peer::{IpBlock, Peer};
pub use ports::PortRange;
pub use prefixes::is_reversed_range;
pub use rule::{Direction, ICMP, ICMPV6, Rule, TCP, UDP};
pub use state::{DirectionalRule, DirectionalRuleState, ExpandedRule, Policy, PolicyState};
pub use tier::{InvalidPriority, Layer, Priority, Tier};
