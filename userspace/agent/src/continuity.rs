//! Continuity of the store's data.
//!
//! The agent applies changes that netmaster makes. It does not apply the contents of a store that lost its data: one that
//! was emptied, restored from a backup, replaced by another store, or from which keys were deleted by hand. Such a store
//! is *regressed*: the agent keeps its state, so that forwarding does not change, until the data is restored or an
//! operator accepts the store.
//!
//! The agent distinguishes both cases as follows:
//!
//! * The history of one store only grows: its revision does not decrease, a put that was seen is found again at its
//!   revision, and its cluster id does not change.
//! * The cluster has an identity, which is written once and never changed or deleted.
//! * netmaster writes everything that a request changes in one transaction. A deleted record therefore has a *witness*:
//!   the API object was deleted as well, or the record that counts it was written at the same revision or later.
//!
//! The agent also does not apply the store under another node name than that of its interfaces: see [`Renamed`].

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
