//! Commits the leader's writes, one transaction after the other.
//!
//! While a transaction is being written to the store, requests queue. The queued requests are
//! planned together, each on top of the previous one, and committed as one transaction, so several
//! requests share one disk flush. A request is answered only after its commit.

mod committer;
mod large_value;
mod queue;
mod redo_log;
mod store_problem;
mod unread;

#[cfg(test)]
mod tests;

pub use committer::{Committer, Deposed};
pub use large_value::LargeValue;
pub use queue::{Plan, Queue};
pub use redo_log::COMMIT_RECORD;
pub use store_problem::store_problem;
pub use unread::read_derived;
