//! Chunks: parts of a large pool with a key of their own.
//!
//! A chunk holds the allocations of a fixed range of numbers, whatever the size of the pool, so it is
//! written in the time of a small record.

use std::fmt;
use std::str::FromStr;

use contiv_model::bitset::Bitset;
use serde::{Deserialize, Serialize};

use super::RangeSet;
use super::range_set::{hosts_text, read_hosts};

/// IPv4 addresses in a chunk. Their bitmap takes 2.8 KB in the store.
pub const CHUNK_ADDRESSES: usize = 16 * 1024;
/// IPv6 hosts in a chunk, as a power of two.
const CHUNK_HOST_BITS: u32 = 12;

/// A chunk of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ChunkId {
    /// IPv4 addresses, by their host number divided by [`CHUNK_ADDRESSES`].
    V4(usize),
    /// IPv6 hosts, by their host number without the last 12 bits.
    V6(u128),
}

/// Chunks of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChunkSet {
    /// Numbers as in [`ChunkId::V4`].
    pub v4: RangeSet<usize>,
    /// Numbers as in [`ChunkId::V6`].
    pub v6: RangeSet<u128>,
}

impl ChunkSet {
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    pub fn contains(&self, chunk: ChunkId) -> bool {
        match chunk {
            ChunkId::V4(n) => self.v4.contains(n),
            ChunkId::V6(n) => self.v6.contains(n),
        }
    }

    pub fn insert(&mut self, chunk: ChunkId) {
        match chunk {
            ChunkId::V4(n) => self.v4.insert(n),
            ChunkId::V6(n) => self.v6.insert(n),
        };
    }

    pub fn iter(&self) -> impl Iterator<Item = ChunkId> + '_ {
        self.v4.iter().map(ChunkId::V4).chain(self.v6.iter().map(ChunkId::V6))
    }
}

/// Allocations of a chunk.
#[derive(Clone, Debug, PartialEq)]
pub enum Chunk {
    /// Bit n is the nth address of the chunk.
    V4(Bitset),
    /// Host numbers less the first of the chunk.
    V6(RangeSet<u128>),
}

/// Value of a chunk's key.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Body {
    /// Id of the record.
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<Bitset>,
    /// As [`Chunk::V6`], in hexadecimal, such as `1-1f, 30`.
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<String>,
}

/// First and last address of chunk `n`.
pub(super) fn addresses_of(n: usize) -> (usize, usize) {
    let first = n.saturating_mul(CHUNK_ADDRESSES);
    (first, first.saturating_add(CHUNK_ADDRESSES - 1))
}

/// First and last host of chunk `n`.
pub(super) fn hosts_of(n: u128) -> (u128, u128) {
    let first = n << CHUNK_HOST_BITS;
    (first, first | ((1 << CHUNK_HOST_BITS) - 1))
}

impl ChunkId {
    /// The chunk of an IPv4 host number.
    pub fn of_address(n: usize) -> ChunkId {
        ChunkId::V4(n / CHUNK_ADDRESSES)
    }

    /// The chunk of an IPv6 host number.
    pub fn of_host(n: u128) -> ChunkId {
        ChunkId::V6(n >> CHUNK_HOST_BITS)
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChunkId::V4(n) => write!(f, "{n}"),
            ChunkId::V6(n) => write!(f, "v6-{n:x}"),
        }
    }
}

impl FromStr for ChunkId {
    /// The invalid text.
    type Err = String;

    fn from_str(text: &str) -> Result<ChunkId, String> {
        let id = match text.strip_prefix("v6-") {
            Some(hosts) => u128::from_str_radix(hosts, 16).ok().map(ChunkId::V6),
            None => text.parse().ok().map(ChunkId::V4),
        };
        let exists = |id: &ChunkId| match id {
            ChunkId::V4(_) => true,
            ChunkId::V6(n) => *n <= u128::MAX >> CHUNK_HOST_BITS,
        };
        // One text for each chunk.
        id.filter(exists).filter(|id| id.to_string() == text).ok_or_else(|| text.to_owned())
    }
}

impl Chunk {
    /// The value of the key of a chunk of record `id`.
    pub fn encode(self, id: &str) -> serde_json::Result<Vec<u8>> {
        let body = Body { id: id.to_owned(), ..Body::default() };
        serde_json::to_vec(&match self {
            Chunk::V4(bits) => Body { bits: Some(bits), ..body },
            Chunk::V6(hosts) => Body { hosts: Some(hosts_text(&hosts)), ..body },
        })
    }

    /// # Errors
    ///
    /// Why the value is invalid.
    pub fn decode(value: &[u8]) -> Result<Chunk, String> {
        let body: Body = serde_json::from_slice(value).map_err(|e| e.to_string())?;
        match body {
            Body { bits: Some(bits), hosts: None, .. } => Ok(Chunk::V4(bits)),
            Body { bits: None, hosts: Some(hosts), .. } => read_hosts(&hosts).map(Chunk::V6),
            _ => Err("expected either bits or hosts".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read_as_written() {
        for (name, id) in [("0", ChunkId::V4(0)), ("63", ChunkId::V4(63)), ("v6-1f", ChunkId::V6(31))] {
            assert_eq!((id.to_string(), name.parse::<ChunkId>()), (name.to_owned(), Ok(id)));
        }
        let too_large = format!("v6-{:x}", u128::MAX);
        for wrong in ["", "-1", "+1", "01", "v6-", "v6-1F", "v6-01", "x", &too_large] {
            assert_eq!(wrong.parse::<ChunkId>(), Err(wrong.to_owned()));
        }
        assert_eq!([0, 16383, 16384].map(ChunkId::of_address), [0, 0, 1].map(ChunkId::V4));
        assert_eq!(
            [0, 4095, 4096, u128::MAX].map(ChunkId::of_host),
            [0, 0, 1, u128::MAX >> 12].map(ChunkId::V6)
        );
        assert_eq!(hosts_of(u128::MAX >> 12), (u128::MAX - 4095, u128::MAX));
    }

    #[test]
    fn values_are_bounded() {
        let mut bits = Bitset::new(CHUNK_ADDRESSES);
        bits.insert_range(0..CHUNK_ADDRESSES);
        assert!(Chunk::V4(bits).encode("net.default").unwrap().len() < 3 << 10);
        let sparse: RangeSet<u128> = (0..4096).step_by(2).collect();
        assert!(Chunk::V6(sparse).encode("net.default").unwrap().len() < 11 << 10);
        for wrong in
            ["", "{}", r#"{"bits":"AA"}"#, r#"{"hosts":"x"}"#, r#"{"bits":"AAAAAAAAAAA=","hosts":""}"#]
        {
            assert!(Chunk::decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn values_are_read_as_written(
            addresses in prop::collection::btree_set(0..200usize, 0..100),
            hosts in prop::collection::btree_set(any::<u128>(), 0..50),
        ) {
            let mut bits = Bitset::new(200);
            addresses.iter().for_each(|n| { bits.insert(*n); });
            for chunk in [Chunk::V4(bits), Chunk::V6(hosts.into_iter().collect())] {
                prop_assert_eq!(Chunk::decode(&chunk.clone().encode("n").unwrap()), Ok(chunk));
            }
        }
    }
}
