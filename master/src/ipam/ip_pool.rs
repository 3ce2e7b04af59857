//! The part of a network's addresses that a group has for itself.

use contiv_model::bitset::Bitset;

use super::Subnet;
use crate::problem::Problem;

/// The host numbers from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPool {
    pub first: usize,
    pub last: usize,
}

impl IpPool {
    /// Reads `a-b`; the empty text is no pool.
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

    pub fn hosts(&self) -> std::ops::RangeInclusive<usize> {
        self.first..=self.last
    }

    pub fn contains(&self, host: usize) -> bool {
        self.hosts().contains(&host)
    }

    /// The map of `len` hosts with everything outside the pool taken.
    pub fn map(&self, len: usize) -> Bitset {
        let mut map = Bitset::new(len);
        map.insert_range(0..self.first);
        map.insert_range(self.last + 1..len);
        map
    }
}
