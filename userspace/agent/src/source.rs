//! Sources of the state.

mod decode;
mod endpoints;
mod status_vteps;
mod store;

pub use decode::decode;
pub use store::{Batch, BatchKind, NETWORKS, Put, SETTINGS, Sources, identity_in, prefixes};
