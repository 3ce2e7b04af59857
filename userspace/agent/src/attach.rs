//! Attaches and detaches endpoints: pods, as requested by container runtimes through `contivk8s`, and the node itself on
//! infra networks.
//!
//! A request runs to its end even if the client disconnects. It succeeds as a whole, or its steps are rolled back.

mod add;
mod boot;
mod check;
mod conditions;
mod create;
mod del;
mod failure;
mod gc;
mod infra;
mod journal;
mod key_lock;
pub mod link;
mod lost;
mod metrics;
mod pod;
mod pods;
mod record;
mod recorded;
mod requirements;
mod server;
mod unanswered;
mod undo;
mod warnings;

pub use failure::{Failure, Step};
pub use journal::Journal;
pub use metrics::{RequestMetrics, Verb};
pub use pod::Pod;
pub use pods::{Parts, Pods};
pub use server::{DRAIN_TIMEOUT, Server};
pub use warnings::NodeWarnings;
