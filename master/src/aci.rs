//! An ACI fabric: its gateway is told of the application profiles (INVENTORY 1.5.9).
//!
//! What the fabric is to be follows from the store. A request for an application profile is first planned without
//! being carried out, and that the fabric may be told is written down ([`Pending`]); then the gateway is told, and only
//! when it agrees the request is committed, in one transaction with the end of the note. Whatever goes wrong between -
//! the gateway refuses, it is away, this netmaster dies - the store has not changed, and the note makes the leader of
//! the time tell the gateway again what the store says, until it has heard it. Other changes that the fabric must know
//! of (a group in a profile, a rule) leave such a note in their transaction.

mod gateway;
mod sync;

pub use gateway::Gateway;
pub use sync::{Fabric, Plan};
