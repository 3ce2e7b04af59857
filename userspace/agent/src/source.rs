//! Sources of the state.

mod decode;
mod endpoints;
mod needed;
mod records;
mod status_vteps;
mod store;

pub use decode::decode;
pub use records::{Record, list_records, snapshot_of};
pub use store::{Batch, BatchKind, NETWORKS, Put, SETTINGS, Sources, identity_in, prefixes};
