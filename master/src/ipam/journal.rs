//! Changes of a large record since it was last written as a whole.
//!
//! The record of a /12 has 175 KB of JSON, too much to write for each allocation. Large records are
//! written as a whole only at checkpoints. In between, transactions write the journal key beside
//! the record. Record and journal together are the state. An idle journal is merged into its
//! record.

use serde::{Deserialize, Serialize};

use super::range_set::Number;
use super::{HostsChange, PoolChange, RangeSet};

/// Body below `state/ipam/...`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Journal {
    /// Id of the record.
    pub id: String,
    /// Current counters.
    pub ep_addr_count: i64,
    pub ep_count: i64,
    /// Host numbers allocated and freed since the record was written, such as `1-5000, 5007`.
    pub taken: String,
    pub freed: String,
    /// IPv6 host numbers in hexadecimal.
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
            taken: list(&pool.taken, |n| n.to_string()),
            freed: list(&pool.freed, |n| n.to_string()),
            taken_v6: list(&hosts.taken, |n| format!("{n:x}")),
            freed_v6: list(&hosts.freed, |n| format!("{n:x}")),
            last_v6: hosts.last.map(|host| format!("{host:x}")),
        }
    }

    /// Decodes the changes.
    ///
    /// # Errors
    ///
    /// The invalid field's text.
    pub fn changes(&self) -> Result<(PoolChange, HostsChange), String> {
        let numbers = |text| read(text, |n| n.parse::<usize>().ok());
        let hosts = |text| read(text, |n| u128::from_str_radix(n, 16).ok());
        let mut pool = PoolChange::default();
        pool.taken = numbers(&self.taken)?;
        pool.freed = numbers(&self.freed)?;
        let last = match &self.last_v6 {
            Some(text) => Some(u128::from_str_radix(text, 16).map_err(|_| text.clone())?),
            None => None,
        };
        Ok((pool, HostsChange { taken: hosts(&self.taken_v6)?, freed: hosts(&self.freed_v6)?, last }))
    }
}

fn list<N: Number>(numbers: &RangeSet<N>, number: impl Fn(N) -> String) -> String {
    let run = |(a, b)| if a == b { number(a) } else { format!("{}-{}", number(a), number(b)) };
    numbers.ranges().map(run).collect::<Vec<_>>().join(", ")
}

/// Parses a list of ranges. Returns the text if it is invalid.
fn read<N: Number>(text: &str, number: impl Fn(&str) -> Option<N>) -> Result<RangeSet<N>, String> {
    let mut numbers = RangeSet::default();
    for run in text.split(", ").filter(|run| !run.is_empty()) {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        let bounds = number(a).zip(number(b)).filter(|(a, b)| a <= b);
        let (a, b) = bounds.ok_or_else(|| text.to_owned())?;
        numbers.insert_range(a, b);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn journals_are_compact() {
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
    fn invalid_journals_are_reported() {
        for bad in ["x", "5-", "9-1", "-1", "1-2-3"] {
            let journal = Journal { taken: bad.into(), ..Journal::default() };
            assert_eq!(journal.changes(), Err(bad.to_owned()));
        }
    }

    proptest! {
        #[test]
        fn journals_round_trip(
            taken in prop::collection::btree_set(0usize..500, 0..200),
            freed in prop::collection::btree_set(0usize..500, 0..200),
            v6 in prop::collection::btree_set(any::<u128>(), 0..20),
            last in any::<Option<u128>>(),
        ) {
            let mut pool = PoolChange::default();
            (pool.taken, pool.freed) = (taken.into_iter().collect(), freed.into_iter().collect());
            let hosts = HostsChange { taken: v6.into_iter().collect(), last, ..HostsChange::default() };
            let journal = Journal::new("n", (0, 0), &pool, &hosts);
            prop_assert_eq!(journal.changes(), Ok((pool, hosts)));
        }
    }
}
