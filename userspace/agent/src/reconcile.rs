//! Keeps the datapath in sync with the plan.
//!
//! A change becomes ops for the objects that it affects. A full resync compares the whole datapath with the plan. It runs
//! at the start, after an error, when the datapath requests it, and periodically. So restart and drift are handled by the
//! same code.

mod diff;
mod memberships;
mod metrics;
mod reconciler;
mod retention;
mod retries;
mod status;
mod waiters;

pub use diff::{diff, ordered};
pub use metrics::Metrics;
pub use reconciler::{Reconciler, StandByError};
pub use retries::Failures;
pub use status::{Handle, Inspection, Status, TraceError, Traced};
pub use waiters::{Presence, Waiters};

#[cfg(test)]
mod tests;
