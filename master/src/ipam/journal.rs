//! What changed in a large record since it was last written whole.
//!
//! The record of a /12 is 175 KB of JSON. Writing it for each address would cost more as the subnet grows, so a
//! record above a size is written whole only now and then (a checkpoint), and in between its transactions write
//! this small key of ours beside it. Record and journal together are the state; at rest there is no journal.

use serde::{Deserialize, Serialize};

use super::runs::Number;
use super::{HostsChange, PoolChange, Runs};

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
            taken: list(&pool.taken, |n| n.to_string()),
            freed: list(&pool.freed, |n| n.to_string()),
            taken_v6: list(&hosts.taken, |n| format!("{n:x}")),
            freed_v6: list(&hosts.freed, |n| format!("{n:x}")),
            last_v6: hosts.last.map(|host| format!("{host:x}")),
        }
    }

    /// The changes, or the part of the journal that cannot be read.
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

fn list<N: Number>(numbers: &Runs<N>, number: impl Fn(N) -> String) -> String {
    let run = |(a, b)| if a == b { number(a) } else { format!("{}-{}", number(a), number(b)) };
    numbers.runs().map(run).collect::<Vec<_>>().join(", ")
}

/// The numbers, or the text if it is no list of them.
fn read<N: Number>(text: &str, number: impl Fn(&str) -> Option<N>) -> Result<Runs<N>, String> {
    let mut numbers = Runs::default();
    for run in text.split(", ").filter(|run| !run.is_empty()) {
        let (a, b) = run.split_once('-').unwrap_or((run, run));
        let bounds = number(a).zip(number(b)).filter(|(a, b)| a <= b);
        let (a, b) = bounds.ok_or_else(|| text.to_owned())?;
        numbers.insert_run(a, b);
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
        for bad in ["x", "5-", "9-1", "-1", "1-2-3"] {
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
            (pool.taken, pool.freed) = (taken.into_iter().collect(), freed.into_iter().collect());
            let hosts = HostsChange { taken: v6.into_iter().collect(), last, ..HostsChange::default() };
            let journal = Journal::new("n", (0, 0), &pool, &hosts);
            prop_assert_eq!(journal.changes(), Ok((pool, hosts)));
        }
    }
}
