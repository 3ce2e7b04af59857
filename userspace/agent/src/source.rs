//! Sources of the state.

mod decode;
mod status_vteps;
mod store;

pub use decode::decode;
pub use store::{Batch, NETWORKS, PREFIXES, Put, SETTINGS, Sources, identity_in};
