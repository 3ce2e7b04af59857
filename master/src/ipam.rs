//! Address management of networks (INVENTORY section 2). Pure functions without I/O.

mod chunk;
mod hosts;
mod ip_pool;
mod journal;
mod pool;
mod range_set;
mod subnet;

pub use chunk::{CHUNK_ADDRESSES, Chunk, ChunkId, ChunkSet};
pub use hosts::{Hosts, HostsChange};
pub use ip_pool::IpPool;
pub use journal::{Changes, Journal};
pub use pool::{Pool, PoolChange};
pub use range_set::RangeSet;
pub use subnet::{Subnet, Subnet6, host_key};

use crate::problem::Problem;

/// Error for a requested address that is already allocated.
pub fn in_use(address: impl std::fmt::Display) -> Problem {
    Problem::conflict(format!("address {address} is in use"))
}
