//! Allocated IPv6 host numbers: a set instead of a bitmap, allocated in ascending order with
//! wrap-around.

use std::collections::BTreeMap;

use contiv_model::network::State;

use super::chunk::hosts_of;
use super::{RangeSet, Subnet6, host_key};
use crate::problem::Problem;

/// Allocated host numbers of a network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hosts {
    used: RangeSet<u128>,
    count: usize,
    /// Last allocated number; the search continues after it.
    last: Option<u128>,
}

/// Staged change of [`Hosts`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostsChange {
    /// Numbers to allocate; free in the set.
    pub taken: RangeSet<u128>,
    /// Numbers to free; allocated in the set.
    pub freed: RangeSet<u128>,
    pub last: Option<u128>,
}

impl Hosts {
    /// Reads the stored map. Clears prefix bits that the original left in some keys.
    pub fn of_state(state: &State) -> Hosts {
        let Some(subnet) = Subnet6::of_state(state) else { return Hosts::default() };
        let host =
            |key: &str| key.parse::<std::net::Ipv6Addr>().ok().map(|ip| u128::from(ip) & subnet.host_mask());
        let used = state.ipv6_alloc_map.iter().flatten().filter(|(_, used)| **used);
        let used: RangeSet<u128> = used.filter_map(|(key, _)| host(key)).collect();
        Hosts { count: size(used.ranges()), used, last: host(&state.ipv6_last_host) }
    }

    /// Allocated numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u128> + '_ {
        self.used.iter()
    }

    /// Number of allocated numbers.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn apply(&mut self, change: &HostsChange) {
        for (first, last) in change.taken.ranges() {
            self.count = self.count.saturating_add(size(self.used.gaps_within(first, last)));
            self.used.insert_range(first, last);
        }
        for (first, last) in change.freed.ranges() {
            self.count = self.count.saturating_sub(size(self.used.ranges_within(first, last)));
            self.used.remove_range(first, last);
        }
        self.last = change.last.or(self.last);
    }

    /// The numbers of chunk `n` with `change` applied, less the first number of the chunk.
    pub fn chunk_with(&self, change: &HostsChange, n: u128) -> RangeSet<u128> {
        let (first, last) = hosts_of(n);
        let mut hosts = RangeSet::default();
        for (a, b) in self.used.ranges_within(first, last).chain(change.taken.ranges_within(first, last)) {
            hosts.insert_range(a - first, b - first);
        }
        for (a, b) in change.freed.ranges_within(first, last) {
            hosts.remove_range(a - first, b - first);
        }
        hosts
    }

    /// Replaces the numbers of chunk `n` by what [`Hosts::chunk_with`] has returned. Returns false if
    /// it cannot have returned it.
    pub fn set_chunk(&mut self, n: u128, hosts: &RangeSet<u128>) -> bool {
        let (first, last) = hosts_of(n);
        if hosts.ranges().any(|(_, b)| b > last - first) {
            return false;
        }
        self.count = self.count.saturating_sub(size(self.used.ranges_within(first, last)));
        self.count = self.count.saturating_add(size(hosts.ranges()));
        self.used.remove_range(first, last);
        for (a, b) in hosts.ranges() {
            self.used.insert_range(first + a, first + b);
        }
        true
    }

    /// The stored map with `change` applied.
    pub fn map_with(&self, change: &HostsChange) -> BTreeMap<String, bool> {
        let kept = self.used.iter().filter(|host| !change.freed.contains(*host));
        kept.chain(change.taken.iter()).map(|host| (host_key(host), true)).collect()
    }

    /// The stored last number with `change` applied.
    pub fn last_with(&self, change: &HostsChange) -> String {
        change.last.or(self.last).map(host_key).unwrap_or_default()
    }
}

impl HostsChange {
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty() && self.freed.is_empty() && self.last.is_none()
    }

    pub fn is_taken(&self, hosts: &Hosts, host: u128) -> bool {
        self.taken.contains(host) || hosts.used.contains(host) && !self.freed.contains(host)
    }

    /// Removes the changes of chunk `n`.
    pub fn drop_chunk(&mut self, n: u128) {
        let (first, last) = hosts_of(n);
        self.taken.remove_range(first, last);
        self.freed.remove_range(first, last);
    }

    /// Next free number after the last one, wrapping around. 0 is the subnet address and is never
    /// returned.
    pub fn next_free(&self, hosts: &Hosts, subnet: &Subnet6) -> Result<u128, Problem> {
        let max = subnet.host_mask();
        let start = self.last.or(hosts.last).unwrap_or(0);
        let (mut host, mut wrapped) = (start, false);
        loop {
            // Skips a whole range at a time, so that a densely allocated prefix costs one step.
            let past = match self.taken.range_of(host).or_else(|| hosts.used.range_of(host)) {
                Some((_, last)) => match self.freed.next_from(host) {
                    Some(freed) if freed <= last => freed.saturating_sub(1).max(host),
                    _ => last,
                },
                None => host,
            };
            host = past.wrapping_add(1) & max;
            if host <= past {
                if wrapped {
                    return Err(Problem::conflict(format!(
                        "Reached MaxHosts ({max}). Cannot allocate more hosts"
                    )));
                }
                wrapped = true;
            }
            if host != 0 && !self.is_taken(hosts, host) {
                return Ok(host);
            }
        }
    }

    /// Allocates `host`. Returns false if it is already allocated.
    pub fn take(&mut self, hosts: &Hosts, host: u128) -> bool {
        if self.is_taken(hosts, host) {
            return false;
        }
        if !self.freed.remove(host) {
            self.taken.insert(host);
        }
        true
    }

    /// Frees `host`. Returns false if it is already free.
    pub fn free(&mut self, hosts: &Hosts, host: u128) -> bool {
        if !self.is_taken(hosts, host) {
            return false;
        }
        if !self.taken.remove(host) {
            self.freed.insert(host);
        }
        true
    }

    /// Merges a later change into this one.
    pub fn merge(&mut self, later: &HostsChange) {
        RangeSet::merge_change([&mut self.taken, &mut self.freed], [&later.taken, &later.freed]);
        self.last = later.last.or(self.last);
    }
}

/// Number of hosts in the ranges, which may be more than `usize` holds in a damaged record.
fn size(ranges: impl Iterator<Item = (u128, u128)>) -> usize {
    let sizes = ranges.map(|(first, last)| usize::try_from(last - first).unwrap_or(usize::MAX));
    sizes.fold(0, |sum: usize, size| sum.saturating_add(size).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn allocation_wraps_around_and_fails_when_full() {
        let subnet = Subnet6::parse("2001:db8::/126").unwrap();
        let (hosts, mut change) = (Hosts::default(), HostsChange::default());
        let give = |change: &mut HostsChange| {
            let host = change.next_free(&hosts, &subnet)?;
            change.take(&hosts, host);
            change.last = Some(host);
            Ok(host)
        };
        assert_eq!((give(&mut change), give(&mut change), give(&mut change)), (Ok(1), Ok(2), Ok(3)));
        let full: Result<u128, Problem> = give(&mut change);
        assert_eq!(full.unwrap_err().text, "Reached MaxHosts (3). Cannot allocate more hosts");
        change.free(&hosts, 2);
        assert_eq!(give(&mut change), Ok(2));
    }

    #[test]
    fn stale_prefixes_are_cleared() {
        let state = State {
            ipv6_subnet_ip: "2001:db8:1::".into(),
            ipv6_subnet_len: 64,
            ipv6_alloc_map: Some([("2001:db8:1::100".to_owned(), true), ("::1".to_owned(), true)].into()),
            ipv6_last_host: "::1".into(),
            ..State::default()
        };
        let hosts = Hosts::of_state(&state);
        assert_eq!(hosts.map_with(&HostsChange::default()).into_keys().collect::<Vec<_>>(), ["::1", "::100"]);
    }

    proptest! {
        #[test]
        fn chunks_and_the_changes_of_others_are_the_whole_change(
            used in prop::collection::btree_set(0u128..20_000, 0..100),
            changed in prop::collection::btree_set(0u128..20_000, 0..100),
            chunks in prop::collection::btree_set(0u128..5, 0..5),
        ) {
            let (mut base, mut change) = (Hosts::default(), HostsChange::default());
            base.apply(&HostsChange { taken: used.iter().copied().collect(), ..HostsChange::default() });
            for n in changed.into_iter().chain(used.into_iter().step_by(2)) {
                if !change.take(&base, n) {
                    change.free(&base, n);
                }
            }
            let mut whole = base.clone();
            whole.apply(&change);
            let (mut parts, mut left) = (base.clone(), change.clone());
            for n in chunks {
                prop_assert!(parts.set_chunk(n, &base.chunk_with(&change, n)));
                left.drop_chunk(n);
            }
            prop_assert!(!parts.set_chunk(0, &[4096].into_iter().collect()));
            parts.apply(&left);
            prop_assert_eq!(parts, whole);
        }

        #[test]
        fn none_is_allocated_twice(steps in prop::collection::vec((0u8..4, 0u128..32), 0..200)) {
            let subnet = Subnet6::parse("fd00::/124").unwrap();
            let (mut hosts, mut change, mut model) = (Hosts::default(), HostsChange::default(), BTreeSet::new());
            let mut journal = HostsChange::default();
            for (what, n) in steps {
                let n = n & subnet.host_mask();
                match what {
                    0 => match change.next_free(&hosts, &subnet) {
                        Ok(host) => {
                            prop_assert!(host != 0 && model.insert(host));
                            change.take(&hosts, host);
                            change.last = Some(host);
                        }
                        Err(_) => prop_assert_eq!((1..16).find(|n| !model.contains(n)), None),
                    },
                    1 => prop_assert_eq!(change.take(&hosts, n), model.insert(n)),
                    2 => prop_assert_eq!(change.free(&hosts, n), model.remove(&n)),
                    _ => {
                        journal.merge(&change);
                        hosts.apply(&change);
                        change = HostsChange::default();
                        prop_assert_eq!((hosts.len(), hosts.iter().collect::<BTreeSet<_>>()), (model.len(), model.clone()));
                        let mut replayed = Hosts::default();
                        replayed.apply(&journal);
                        prop_assert_eq!(&replayed, &hosts);
                    }
                }
            }
            prop_assert_eq!(hosts.map_with(&change).len(), model.len());
        }
    }
}
