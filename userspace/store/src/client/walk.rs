//! The way of a listing through its keys: which range to read next.
//!
//! For each request etcd counts all keys of the range, also those that are not on the page. A listing
//! whose pages end only by their number of keys therefore costs as much as the square of the number of
//! keys: minutes for a million. So a page also ends with the keys that begin like its first ones.

use std::sync::Arc;

use etcd_client::proto::PbKeyValue;

use crate::Position;
use crate::range::prefix_end;

/// Keys on the first page and on the largest page of a listing.
const FIRST_PAGE: usize = 64;
const LARGEST_PAGE: usize = 4000;
/// Bytes that a page should have. Each page is as long as the previous one allows to expect.
const PAGE_BYTES: usize = 4 << 20;
/// A range with more keys is divided.
const LARGEST_RANGE: usize = 2 * LARGEST_PAGE;

/// What a listing leaves out of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// Values.
    Values,
    /// Keys and values: they are only counted.
    Keys,
}

/// A prefix, and what is left out of the keys that begin with it. No such prefix begins with another one.
pub(crate) type Omission = (String, Without);

/// What is left out of a key.
pub(crate) fn omitted(omissions: &[Omission], key: &[u8]) -> Option<Without> {
    omissions.iter().find(|(prefix, _)| key.starts_with(prefix.as_bytes())).map(|(_, without)| *without)
}

/// Range of the next page.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Store and revision of the first page.
    pub(super) at: Option<Position>,
    /// Length of the prefix of all keys.
    prefix: usize,
    /// End of all keys.
    end: Vec<u8>,
    pub(super) from: Vec<u8>,
    pub(super) to: Vec<u8>,
    /// Number of bytes that the keys from `from` to `to` have in common, if it is larger than `prefix`.
    depth: usize,
    /// What is left out.
    omissions: Arc<[Omission]>,
    /// Largest number of keys on a page.
    page: usize,
    /// Largest number of keys in a range.
    range: usize,
}

impl Walk {
    /// Leaves out what `omissions` say.
    pub(crate) fn new(prefix: &str, omissions: Arc<[Omission]>) -> Walk {
        let prefix = prefix.as_bytes();
        let (end, from) = (prefix_end(prefix), if prefix.is_empty() { vec![0] } else { prefix.to_vec() });
        let mut walk = Walk {
            at: None,
            prefix: prefix.len(),
            to: vec![],
            end: end.clone(),
            from,
            depth: prefix.len(),
            omissions,
            page: FIRST_PAGE,
            range: LARGEST_RANGE,
        };
        walk.read_to(end);
        walk
    }

    /// What is left out of the keys of the range.
    pub(super) fn omitted(&self) -> Option<Without> {
        omitted(&self.omissions, &self.from)
    }

    /// Ends the range at `to`, or before it, where something begins to be left out or ceases to be. A range without keys is not
    /// divided.
    fn read_to(&mut self, to: Vec<u8>) {
        let to = match self.omitted() {
            Some(Without::Keys) => self.end.clone(),
            Some(Without::Values) | None => to,
        };
        let borders = self.omissions.iter().map(|(prefix, _)| prefix.as_bytes());
        let borders = borders.flat_map(|prefix| [prefix.to_vec(), prefix_end(prefix)]);
        let inside = borders.filter(|border| *border > self.from && (to == [0] || *border < to));
        self.to = inside.min().unwrap_or(to);
    }

    pub(super) fn limit(&self) -> i64 {
        i64::try_from(self.page).unwrap_or(i64::MAX)
    }

    /// Makes the page smaller; returns false if it has one key already.
    pub(super) fn shrink(&mut self) -> bool {
        let is_possible = self.page > 1;
        self.page = (self.page / 8).max(1);
        is_possible
    }

    /// Continues after a page with `keys`. The range had `count` keys, and there are `more` of them.
    /// Returns false at the end.
    pub(super) fn go_on(&mut self, keys: &[PbKeyValue], more: bool, count: i64) -> bool {
        if !keys.is_empty() {
            self.page = next_page(keys);
        }
        match (keys, more) {
            ([first, .., last], true) | ([first @ last], true) => {
                self.from = [&last.key[..], &[0]].concat();
                if usize::try_from(count).is_ok_and(|count| count > self.range) {
                    let common = first.key.iter().zip(&last.key).take_while(|(a, b)| a == b).count();
                    self.depth = self.depth.max(common + 1).min(last.key.len());
                    self.read_to(prefix_end(&last.key[..self.depth]));
                }
            }
            // No store answers so. Asking again is better than a listing without the rest.
            ([], true) => {}
            _ if self.to == self.end => return false,
            _ => {
                self.from = std::mem::take(&mut self.to);
                let is_short = keys.len() < self.page / 2;
                let depth = self.depth.saturating_sub(usize::from(is_short));
                self.depth = depth.max(self.prefix).min(self.from.len());
                self.read_to(match self.depth > self.prefix {
                    true => prefix_end(&self.from[..self.depth]),
                    false => self.end.clone(),
                });
            }
        }
        true
    }
}

/// Keys on the page after one with `keys`.
fn next_page(keys: &[PbKeyValue]) -> usize {
    let bytes: usize = keys.iter().map(|kv| kv.key.len() + kv.value.len()).sum();
    let average = (bytes / keys.len().max(1)).max(1);
    (PAGE_BYTES / average).clamp(1, LARGEST_PAGE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What a listing of the keys received, the number of its requests, and of the keys that the store
    /// counted for them.
    fn list(
        keys: &BTreeSet<Vec<u8>>,
        prefix: &str,
        value: usize,
        range: usize,
        omissions: &[Omission],
    ) -> (Vec<Vec<u8>>, usize, usize) {
        let (mut received, mut requests, mut counted) = (vec![], 0, 0);
        let mut walk = Walk { range, ..Walk::new(prefix, omissions.into()) };
        loop {
            let is_before_end = |key: &&Vec<u8>| walk.to == [0] || **key < walk.to;
            let found: Vec<_> = keys.range(walk.from.clone()..).take_while(is_before_end).collect();
            requests += 1;
            counted += found.len();
            assert!(found.iter().all(|key| omitted(omissions, key) == walk.omitted()), "{walk:?}");
            let page = if walk.omitted() == Some(Without::Keys) { 0 } else { walk.page };
            let is_more = page != 0 && found.len() > page;
            let page: Vec<_> = found.iter().take(page).map(|key| (*key).clone()).collect();
            let kv =
                |key: &Vec<u8>| PbKeyValue { key: key.clone(), value: vec![0; value], ..Default::default() };
            let kvs: Vec<_> = page.iter().map(kv).collect();
            received.extend(page);
            if !walk.go_on(&kvs, is_more, found.len() as i64) {
                return (received, requests, counted);
            }
        }
    }

    proptest! {
        #[test]
        fn each_key_is_received_once(
            keys in prop::collection::btree_set(prop::collection::vec(prop_oneof![0u8..4, Just(0x30), Just(0x31), Just(0xff)], 0..6), 0..200),
            value in prop_oneof![Just(0usize), Just(1 << 16), Just(1 << 19)],
            range in prop_oneof![Just(1usize), Just(8), Just(LARGEST_RANGE)],
            prefix in prop_oneof![Just(""), Just("0"), Just("01")],
            omitted_prefixes in prop_oneof![Just(vec![]), Just(vec!["0"]), Just(vec!["00", "010", "\u{1}"])],
            without in prop_oneof![Just(Without::Values), Just(Without::Keys)],
        ) {
            let omissions: Vec<_> = omitted_prefixes.into_iter().map(|prefix| (prefix.to_owned(), without)).collect();
            let keys: BTreeSet<Vec<u8>> =
                keys.into_iter().map(|key| [prefix.as_bytes(), &key[..]].concat()).filter(|key| !key.is_empty()).collect();
            let (received, ..) = list(&keys, prefix, value, range, &omissions);
            let is_listed = |key: &Vec<u8>| omitted(&omissions, key) != Some(Without::Keys);
            prop_assert_eq!(received, keys.into_iter().filter(is_listed).collect::<Vec<_>>());
        }
    }

    /// The keys of a cluster with many objects: the cost is in proportion to their number.
    #[test]
    fn each_key_is_counted_a_few_times() {
        for groups in [20, 80] {
            let rules = |group: usize| {
                (0..400).flat_map(move |rule| {
                    ["inRx", "inTx"].map(|way| {
                        format!("/c/state/policyRule/t:g{group}:t:p{group}:t:p{group}:{rule}:{way}")
                    })
                })
            };
            let endpoints = (0..groups * 100).map(|n| format!("/c/state/eps/net{}.t-e{n}", n % 50));
            let others = (0..groups).map(|n| format!("/c/state/endpointGroups/g{n}:t"));
            let keys: BTreeSet<Vec<u8>> =
                (0..groups).flat_map(rules).chain(endpoints).chain(others).map(String::into_bytes).collect();
            let (received, requests, counted) = list(
                &keys,
                "/c/",
                100,
                LARGEST_RANGE,
                &[("/c/state/policyRule/".to_owned(), Without::Values)],
            );
            assert_eq!(received.len(), keys.len());
            let (pages, each) = (keys.len() / LARGEST_PAGE, counted / keys.len());
            assert!(
                requests < 8 * pages && each < 6,
                "{} keys: {requests} requests, {counted} counted",
                keys.len()
            );
        }
    }
}
