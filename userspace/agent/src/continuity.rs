//! Continuity of the store's data.
//!
//! The agent follows changes that netmaster makes. It does not follow a store that lost its data: one that was emptied,
//! restored from a backup, replaced by another store, or from which keys were deleted by hand. Such a store is *regressed*:
//! the agent keeps the state that it has, so forwarding does not change, until the data is back or an operator accepts the
//! store.
//!
//! What tells them apart:
//!
//! * The history of one store only grows: its revision does not go back, a put that was seen is found again at its
//!   revision, and its cluster id does not change.
//! * The cluster has an identity, which is written once and never changed or deleted.
//! * netmaster writes everything that a request changes in one transaction. A deleted record therefore has a *witness*:
//!   the API object was deleted as well, or the record that counts it was written at the same revision or later.
//!
//! Nor does it follow a store as another node than the one whose interfaces it finds: see [`Renamed`].

mod acceptance;
mod guard;
mod memory;
mod regression;
mod renamed;
mod witness;

pub use guard::{Continuity, Guard};
pub use memory::MemoryFile;
pub use regression::Regression;
pub use renamed::Renamed;
