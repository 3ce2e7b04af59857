//! What changed in a large record since it was last written whole.
//!
//! The record of a /12 is 175 KB of JSON. Writing it for each address would cost more as the subnet grows, so a
//! record above a size is written whole only now and then (a checkpoint), and in between its transactions write
//! this small key of ours beside it. Record and journal together are the state; at rest there is no journal.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{HostsChange, PoolChange};
use crate::tags::runs;

/// The body under `state/ipam/...`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Journal {
    /// The record's id.
    pub id: String,
    /// The counters, as they are now.
    pub ep_addr_count: i64,
    pub ep_count: i64,
    /// Host numbers taken and freed since the record was written: `1-5000, 5007`.
    pub taken: String,
    pub freed: String,
    /// The same of IPv6, in hexadecimal.
    #[serde(rename = "taken6")]
    pub taken_v6: String,
    #[serde(rename = "freed6")]
    pub freed_v6: String,
    #[serde(rename = "ipv6LastHost")]
    pub last_v6: Option<String>,
}

impl Journal {
    pub fn new(id: &str, counts: (i64, i64), pool: &PoolChange, hosts: &HostsChange) -> Journal {
        Journal {
            id: id.to_owned(),
            ep_addr_count: counts.0,
            ep_count: counts.1,
            taken: list(pool.taken.iter().map(|n| *n as u128), false),
            freed: list(pool.freed.iter().map(|n| *n as u128), false),
            taken_v6: list(hosts.taken.iter().copied(), true),
            freed_v6: list(hosts.freed.iter().copied(), true),
            last_v6: hosts.last.map(|host| format!("{host:x}")),
        }
    }

    /// The changes, or the part of the journal that cannot be read.
    pub fn changes(&self) -> Result<(PoolChange, HostsChange), String> {
        let numbers = |text: &str| -> Result<BTreeSet<usize>, String> {
            read(text, 10)?.into_iter().map(|n| usize::try_from(n).map_err(|_| text.to_owned())).collect()
        };
        let mut pool = PoolChange::default();
        pool.taken = numbers(&self.taken)?;
        pool.freed = numbers(&self.freed)?;
        let last = match &self.last_v6 {
            Some(text) => Some(u128::from_str_radix(text, 16).map_err(|_| text.clone())?),
            None => None,
        };
        Ok((pool, HostsChange { taken: read(&self.taken_v6, 16)?, freed: read(&self.freed_v6, 16)?, last }))
    }
}

fn list(numbers: impl Iterator<Item = u128>, hex: bool) -> String {
    let number = |n: u128| if hex { format!("{n:x}") } else { n.to_string() };
    let run = |(a, b)| if a == b { number(a) } else { format!("{}-{}", number(a), number(b)) };
    runs(numbers).map(run).collect::<Vec<_>>().join(", ")
}

fn read(text: &str, radix: u32) -> Result<BTreeSet<u128>, String> {
    let number = |n: &str| u128::from_str_radix(n, radix).map_err(|_| text.to_owned());
    let mut numbers = BTreeSet::new();
    for run in text.split(", ").filter(|run| !run.is_empty()) {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        let (a, b) = (number(a)?, number(b)?);
        // Nobody writes more in a journal; a damaged one must not fill the memory.
        if b < a || b - a > 1 << 24 {
            return Err(text.to_owned());
        }
        numbers.extend(a..=b);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_is_short_and_readable() {
        let mut pool = PoolChange::default();
        pool.taken = (1..5000).chain([5007]).collect();
        let hosts = HostsChange { taken: (1..=17).collect(), last: Some(17), ..HostsChange::default() };
        let journal = Journal::new("n.default", (5, 7), &pool, &hosts);
        assert_eq!(
            serde_json::to_string(&journal).unwrap(),
            r#"{"id":"n.default","epAddrCount":5,"epCount":7,"taken":"1-4999, 5007","freed":"","taken6":"1-11","freed6":"","ipv6LastHost":"11"}"#
        );
    }

    #[test]
    fn damage_is_named() {
        for bad in ["x", "5-", "9-1", "0-99999999999"] {
            let journal = Journal { taken: bad.into(), ..Journal::default() };
            assert_eq!(journal.changes(), Err(bad.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn it_is_read_back(
            taken in prop::collection::btree_set(0usize..500, 0..200),
            freed in prop::collection::btree_set(0usize..500, 0..200),
            v6 in prop::collection::btree_set(any::<u128>(), 0..20),
            last in any::<Option<u128>>(),
        ) {
            let mut pool = PoolChange::default();
            (pool.taken, pool.freed) = (taken, freed);
            let hosts = HostsChange { taken: v6, last, ..HostsChange::default() };
            let journal = Journal::new("n", (0, 0), &pool, &hosts);
            prop_assert_eq!(journal.changes(), Ok((pool, hosts)));
        }
    }
}
