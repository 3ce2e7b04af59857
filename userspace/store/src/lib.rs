//! The state store: an etcd v3 client in the words contiv needs, and an embedded store that
//! speaks the same protocol for a single machine.
//!
//! * [`Store`]: reads, guarded transactions ([`Txn`]), snapshot-and-watch ([`Watch`]), keys that
//!   live as long as their owner ([`Registration`]).
//! * [`election`]: one leader at a time, and the guard that makes a deposed leader's writes fail.
//! * [`embedded`]: a server for the part of the etcd API that this client and `etcdctl` use, kept
//!   in one file. It is for one machine; a cluster runs etcd.

mod backoff;
mod client;
mod config;
pub mod election;
pub mod embedded;
mod error;
mod kv;
mod lease;
mod members;
mod range;
mod txn;
mod watch;

pub use client::Store;
pub use config::{Auth, Config, Identity, Tls};
pub use error::{Cause, Error, Operation};
pub use kv::{KeyValue, Listing};
pub use lease::Registration;
pub use txn::{Guard, MAX_TXN_OPS, Op, Outcome, Txn};
pub use watch::{Status, Update, Watch};
