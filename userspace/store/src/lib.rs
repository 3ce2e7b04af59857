//! The state store: a client for the parts of etcd v3 that contiv uses, and an embedded server of
//! the same protocol for a single machine.
//!
//! * [`Store`]: reads, guarded transactions ([`Txn`]), list and watch ([`Watch`]), leased keys
//!   ([`Registration`]).
//! * [`election`]: election of one leader, and the guard that makes the writes of a deposed leader
//!   fail.
//! * [`embedded`]: a server for the part of the etcd API that this client and `etcdctl` use, stored
//!   in one file. It serves one machine; a cluster runs etcd.

#![deny(missing_docs, clippy::missing_errors_doc)]

mod backoff;
mod client;
mod config;
pub mod election;
pub mod embedded;
mod error;
mod kv;
mod lease;
mod limits;
mod maintenance;
mod members;
mod metrics;
mod range;
mod rotation;
mod txn;
mod watch;

pub use client::{Store, Without};
pub use config::{Auth, Config, Identity, Tls};
pub use error::{Cause, Error, Operation};
pub use kv::{KeyValue, Listing, Position};
pub use lease::Registration;
pub use limits::{MAX_LEADER_GUARDS, MAX_LEADER_OPS, MAX_TXN_OPS};
pub use maintenance::{Alarm, Database};
pub use metrics::RequestMetrics;
pub use txn::{Guard, Op, Outcome, Txn};
pub use watch::{Batch, Progress, Relisted, Status, Update, Watch};
