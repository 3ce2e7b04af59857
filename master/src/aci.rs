//! Synchronises application profiles with the gateway of an ACI fabric (INVENTORY 1.5.9).
//!
//! The desired state of the fabric is derived from the store. A request for an application profile
//! is first planned without a commit, and a [`Pending`](crate::cache::Pending) key is written. Then
//! the profile is sent to the gateway. Only if the gateway accepts it, the request is committed, in
//! one transaction with the deletion of the pending key. If anything fails in between (gateway
//! error, gateway unreachable, netmaster failure), the store is unchanged and the current leader
//! sends the stored state to the gateway until the gateway accepts it. A request is sent to the
//! gateway only while this netmaster is known to lead, and is abandoned when its leadership ends. Other changes that affect
//! the fabric (a group in a profile, a rule) write a pending key in their transaction.

mod gateway;
mod sync;

pub use gateway::Gateway;
pub use sync::{FabricSync, RepeatablePlan, unsent};
