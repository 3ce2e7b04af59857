//! Changes of a large record since it was last written as a whole.
//!
//! The record of a /12 has 175 KB of JSON, too much to write for each allocation. Large records are
//! written as a whole only at checkpoints, while nothing else is to be written. In between,
//! transactions write the journal key beside the record. When the journal gets long, its changes of
//! some chunks move to keys of these chunks. The record, the chunks that the journal names in place
//! of their ranges of the record, and the changes in the journal together are the state.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::range_set::{Number, addresses_text, hosts_text, read_addresses, read_hosts};
use super::{ChunkId, ChunkSet, HostsChange, PoolChange, RangeSet};

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
    /// Allocated ones are `null` if there are chunks: a release without chunks then takes the journal
    /// for invalid and restores the allocations from endpoints and services.
    pub taken: Option<String>,
    pub freed: String,
    /// IPv6 host numbers in hexadecimal.
    #[serde(rename = "taken6")]
    pub taken_v6: String,
    #[serde(rename = "freed6")]
    pub freed_v6: String,
    #[serde(rename = "ipv6LastHost")]
    pub last_v6: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunked: Option<Chunked>,
}

/// Fields of a journal with chunks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Chunked {
    /// Takes the place of [`Journal::taken`].
    pub taken: String,
    /// Numbers of the chunks with a key of their own, such as `0-17, 63`.
    pub chunks: String,
    /// Those of IPv6 hosts, in hexadecimal.
    #[serde(rename = "chunks6")]
    pub chunks_v6: String,
}

/// Decoded changes of a journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub pool: PoolChange,
    pub hosts: HostsChange,
    /// Chunks with a key of their own. `pool` and `hosts` are relative to them.
    pub chunks: ChunkSet,
}

impl Journal {
    pub fn new(id: &str, counts: (i64, i64), changes: &Changes) -> Journal {
        let Changes { pool, hosts, chunks } = changes;
        let taken = addresses_text(&pool.taken);
        let (taken, chunked) = match chunks.is_empty() {
            true => (Some(taken), None),
            false => {
                let (chunks, chunks_v6) = (addresses_text(&chunks.v4), hosts_text(&chunks.v6));
                (None, Some(Chunked { taken, chunks, chunks_v6 }))
            }
        };
        Journal {
            id: id.to_owned(),
            ep_addr_count: counts.0,
            ep_count: counts.1,
            taken,
            freed: addresses_text(&pool.freed),
            taken_v6: hosts_text(&hosts.taken),
            freed_v6: hosts_text(&hosts.freed),
            last_v6: hosts.last.map(|host| format!("{host:x}")),
            chunked,
        }
    }

    /// Decodes the changes.
    ///
    /// # Errors
    ///
    /// The invalid field's text.
    pub fn changes(&self) -> Result<Changes, String> {
        let (taken, chunks) = match &self.chunked {
            Some(Chunked { taken, chunks, chunks_v6 }) => {
                (taken.as_str(), ChunkSet { v4: read_addresses(chunks)?, v6: read_hosts(chunks_v6)? })
            }
            None => (self.taken.as_deref().unwrap_or_default(), ChunkSet::default()),
        };
        let mut pool = PoolChange::default();
        pool.taken = read_addresses(taken)?;
        pool.freed = read_addresses(&self.freed)?;
        let last = match &self.last_v6 {
            Some(text) => Some(u128::from_str_radix(text, 16).map_err(|_| text.clone())?),
            None => None,
        };
        let hosts =
            HostsChange { taken: read_hosts(&self.taken_v6)?, freed: read_hosts(&self.freed_v6)?, last };
        Ok(Changes { pool, hosts, chunks })
    }
}

impl Changes {
    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        let Changes { pool, hosts, .. } = self;
        pool.taken.ranges_len()
            + pool.freed.ranges_len()
            + hosts.taken.ranges_len()
            + hosts.freed.ranges_len()
    }

    /// Chunks by the number of ranges that a fold of the chunk removes, most first.
    pub fn foldable(&self) -> Vec<ChunkId> {
        fn ids<N: Number>(ranges: &RangeSet<N>, of: impl Fn(N) -> ChunkId) -> impl Iterator<Item = ChunkId> {
            let of = move |(first, last)| (of(first), of(last));
            ranges.ranges().map(of).filter(|(first, last)| first == last).map(|(id, _)| id)
        }
        let Changes { pool, hosts, .. } = self;
        let v4 = [&pool.taken, &pool.freed].into_iter().flat_map(|set| ids(set, ChunkId::of_address));
        let v6 = [&hosts.taken, &hosts.freed].into_iter().flat_map(|set| ids(set, ChunkId::of_host));
        let mut counts: BTreeMap<ChunkId, usize> = BTreeMap::new();
        for id in v4.chain(v6) {
            *counts.entry(id).or_default() += 1;
        }
        let mut foldable: Vec<(ChunkId, usize)> = counts.into_iter().collect();
        foldable.sort_by_key(|(_, ranges)| Reverse(*ranges));
        foldable.into_iter().map(|(id, _)| id).collect()
    }

    /// Moves the changes of the chunk to its key.
    pub fn fold(&mut self, chunk: ChunkId) {
        match chunk {
            ChunkId::V4(n) => self.pool.drop_chunk(n),
            ChunkId::V6(n) => self.hosts.drop_chunk(n),
        }
        self.chunks.insert(chunk);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn journals_are_compact() {
        let mut changes = Changes::default();
        changes.pool.taken = (1..5000).chain([5007]).collect();
        changes.hosts = HostsChange { taken: (1..=17).collect(), last: Some(17), ..HostsChange::default() };
        let text =
            |changes: &Changes| serde_json::to_string(&Journal::new("n.default", (5, 7), changes)).unwrap();
        assert_eq!(
            text(&changes),
            r#"{"id":"n.default","epAddrCount":5,"epCount":7,"taken":"1-4999, 5007","freed":"","taken6":"1-11","freed6":"","ipv6LastHost":"11"}"#
        );
        for chunk in [ChunkId::V4(3), ChunkId::V4(1), ChunkId::V4(0), ChunkId::V6(31)] {
            changes.chunks.insert(chunk);
        }
        assert_eq!(
            text(&changes),
            r#"{"id":"n.default","epAddrCount":5,"epCount":7,"taken":null,"freed":"","taken6":"1-11","freed6":"","ipv6LastHost":"11","chunked":{"taken":"1-4999, 5007","chunks":"0-1, 3","chunks6":"1f"}}"#
        );
    }

    /// A release without chunks must not take the journal for one without allocations.
    #[test]
    fn journals_with_chunks_are_invalid_without_them() {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Earlier {
            taken: String,
        }
        let mut changes = Changes::default();
        changes.chunks.insert(ChunkId::V4(0));
        for (changes, valid) in [(Changes::default(), true), (changes, false)] {
            let text = serde_json::to_vec(&Journal::new("n", (0, 0), &changes)).unwrap();
            let read = serde_json::from_slice::<Earlier>(&text).map(|journal| journal.taken);
            assert_eq!(read.ok(), valid.then(String::new));
        }
    }

    #[test]
    fn invalid_journals_are_reported() {
        for bad in ["x", "5-", "9-1", "-1", "1-2-3"] {
            let journal = Journal { taken: Some(bad.into()), ..Journal::default() };
            assert_eq!(journal.changes(), Err(bad.to_owned()));
            let chunked = Some(Chunked { chunks: bad.into(), ..Chunked::default() });
            assert_eq!(Journal { chunked, ..Journal::default() }.changes(), Err(bad.to_owned()));
        }
        assert_eq!(serde_json::from_str::<Journal>("{}").unwrap().changes(), Ok(Changes::default()));
    }

    #[test]
    fn chunks_with_the_most_ranges_are_folded_first() {
        let mut changes = Changes::default();
        // Chunk 0 has one range, chunk 1 a part of another, chunk 2 three, and IPv6 chunk 1 two.
        changes.pool.taken = (16384..40000).chain([5, 40001]).collect();
        changes.pool.freed = [40005, 40007].into_iter().collect();
        changes.hosts.taken = [4097, 4099].into_iter().collect();
        let foldable = changes.foldable();
        assert_eq!(foldable, [ChunkId::V4(2), ChunkId::V6(1), ChunkId::V4(0)]);
        let ranges = changes.ranges();
        for (chunk, left) in foldable.into_iter().zip([3, 5, 6].map(|gone| ranges - gone)) {
            changes.fold(chunk);
            assert_eq!(changes.ranges(), left);
        }
        assert_eq!(changes.pool.taken.ranges().collect::<Vec<_>>(), [(16384, 32767)]);
    }

    proptest! {
        #[test]
        fn journals_round_trip(
            taken in prop::collection::btree_set(0usize..500, 0..200),
            freed in prop::collection::btree_set(0usize..500, 0..200),
            v6 in prop::collection::btree_set(any::<u128>(), 0..20),
            last in any::<Option<u128>>(),
            v4_chunks in prop::collection::btree_set(0usize..20, 0..5),
            v6_chunks in prop::collection::btree_set(0u128..20, 0..5),
        ) {
            let mut pool = PoolChange::default();
            (pool.taken, pool.freed) = (taken.into_iter().collect(), freed.into_iter().collect());
            let hosts = HostsChange { taken: v6.into_iter().collect(), last, ..HostsChange::default() };
            let chunks =
                ChunkSet { v4: v4_chunks.into_iter().collect(), v6: v6_chunks.into_iter().collect() };
            let changes = Changes { pool, hosts, chunks };
            let text = serde_json::to_vec(&Journal::new("n", (0, 0), &changes)).unwrap();
            prop_assert_eq!(serde_json::from_slice::<Journal>(&text).unwrap().changes(), Ok(changes));
        }
    }
}
