//! Client of netmaster.
//!
//! The leader's address is the value of the lock key, which another task watches. Every request here is idempotent:
//! creating an existing endpoint returns it, and deleting a missing one succeeds. A request that fails while the leader
//! changes is repeated until its deadline.

mod access;
mod client;

pub use access::{Access, AccessError};
pub use client::{Error, Master, NewEndpoint, REQUEST_TIMEOUT};
