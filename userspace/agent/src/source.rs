//! Sources of the state.

mod decode;
mod store;

pub use decode::decode;
pub use store::{PREFIXES, Sources};
