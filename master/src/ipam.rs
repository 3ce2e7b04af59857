//! Which addresses a network has and which are free (INVENTORY section 2). Pure: values in, values out.

mod hosts;
mod ip_pool;
mod journal;
mod pool;
mod runs;
mod subnet;

pub use hosts::{Hosts, HostsChange};
pub use ip_pool::IpPool;
pub use journal::Journal;
pub use pool::{Pool, PoolChange};
pub use runs::Runs;
pub use subnet::{Subnet, Subnet6, host_key};

use crate::problem::Problem;

/// An explicit address that somebody has already.
pub fn in_use(address: impl std::fmt::Display) -> Problem {
    Problem::conflict(format!("address {address} is in use"))
}
