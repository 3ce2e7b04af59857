//! Where the state comes from.

mod decode;
mod etcd;

pub use decode::decode;
pub use etcd::{PREFIXES, Sources};
