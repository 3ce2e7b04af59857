//! Address range of a network that is reserved for a group.

use contiv_model::bitset::BitWindow;

use super::Subnet;
use crate::problem::Problem;

/// Host numbers from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPool {
    pub first: usize,
    pub last: usize,
}

impl IpPool {
    /// Parses `a-b`; none for the empty string.
    pub fn read(text: &str, subnet: &Subnet) -> Result<Option<IpPool>, Problem> {
        if text.is_empty() {
            return Ok(None);
        }
        let invalid = || Problem::invalid(format!("invalid ip-pool {text}"));
        let (first, last) = text.split_once('-').ok_or_else(invalid)?;
        let outside = |_| {
            let error = format!("bad ip-pool {text}, EPG ip-pool must be a subset of network {subnet}");
            Problem::invalid(error)
        };
        let pool =
            IpPool { first: subnet.host(first).map_err(outside)?, last: subnet.host(last).map_err(outside)? };
        if pool.last < pool.first { Err(invalid()) } else { Ok(Some(pool)) }
    }

    pub fn contains(&self, host: usize) -> bool {
        (self.first..=self.last).contains(&host)
    }

    /// Bitmap of `len` hosts with all hosts outside the pool allocated.
    pub fn map(&self, len: usize) -> BitWindow {
        BitWindow::with_clear(len, self.first..self.last + 1)
    }
}
