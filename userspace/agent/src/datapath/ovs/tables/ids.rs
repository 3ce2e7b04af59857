//! Numbers of objects in the switch.
//!
//! The numbers are in flows, and in the labels and zones of connections, which the kernel keeps when ovs-vswitchd and the
//! agent restart. So each process derives the number of an owner from a hash of its name. If this first choice is taken,
//! the owner gets the next free number. The database stores these few exceptions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use contiv_model::vrf::Vrf;

use super::cookie::Cookie;
use crate::datapath::ovs::{hash::hash, pipeline};

/// Number of removed owners whose numbers are not reused yet, because connections still have them for some time.
const REMOVED: usize = 1024;

/// Numbers of services, and of the VRFs of tenants.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectNumbers {
    pub(crate) services: Numbers<Cookie>,
    pub(crate) vrfs: Numbers<Vrf>,
}

/// An owner of a number.
pub(crate) trait Owner: Clone + Ord {
    /// Highest number.
    const MAX: u32;

    /// Returns a hash that is the same in every process and version.
    fn stable_hash(&self) -> u64;

    /// Returns the number that the owner gets unless it is taken.
    fn first_choice(&self) -> u32 {
        (self.stable_hash() % u64::from(Self::MAX)) as u32 + 1
    }
}

impl Owner for Cookie {
    const MAX: u32 = pipeline::MAX_SERVICE;

    fn stable_hash(&self) -> u64 {
        self.0
    }
}

impl Owner for Vrf {
    const MAX: u32 = pipeline::MAX_VRF;

    fn stable_hash(&self) -> u64 {
        hash(&self.to_string())
    }
}

/// Numbers of owners, starting at 1.
#[derive(Clone, Debug)]
pub(crate) struct Numbers<K> {
    numbers: BTreeMap<K, u32>,
    /// Owners that do not have their first choice.
    displaced: BTreeMap<K, u32>,
    taken: BTreeSet<u32>,
    /// Numbers of unknown owners.
    reserved: BTreeSet<u32>,
    /// Numbers of removed owners, the most recent one last.
    removed: VecDeque<(K, u32)>,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers {
            numbers: BTreeMap::new(),
            displaced: BTreeMap::new(),
            taken: BTreeSet::new(),
            reserved: BTreeSet::new(),
            removed: VecDeque::new(),
        }
    }
}

impl<K: Owner> Numbers<K> {
    /// Returns the numbers of installed owners. If two owners have the same number, one of them will get another.
    pub(crate) fn of(installed: impl IntoIterator<Item = (K, u32)>) -> Self {
        let mut numbers = Numbers::default();
        for (owner, number) in installed {
            if number != 0 && number <= K::MAX {
                numbers.insert(owner, number);
            }
        }
        numbers
    }

    /// Keeps the numbers of `owners` in `previous` that the switch has lost, because its connection tracking may still
    /// have them. Numbers of other owners become free, but are not reused at once.
    pub(crate) fn keep(&mut self, previous: &Self, owners: impl IntoIterator<Item = K>) {
        for owner in owners {
            if let Some(number) = previous.get(&owner) {
                self.insert(owner, number);
            }
        }
        let gone = previous.numbers.iter().filter(|(owner, _)| !self.numbers.contains_key(*owner));
        let gone = gone.map(|(owner, number)| (owner.clone(), *number));
        let removed: Vec<_> = previous.removed.iter().cloned().chain(gone).collect();
        self.removed.extend(removed);
        let excess = self.removed.len().saturating_sub(REMOVED);
        self.removed.drain(..excess);
    }

    /// Excludes these numbers from assignment to new owners.
    pub(crate) fn reserve(&mut self, numbers: BTreeSet<u32>) {
        self.reserved = numbers;
    }

    /// Returns the number of an owner. A new owner gets its first choice, or else the next free number. Returns `None` if
    /// no number is free.
    pub(crate) fn assign(&mut self, owner: K) -> Option<u32> {
        if let Some(number) = self.get(&owner) {
            return Some(number);
        }
        let first = owner.first_choice();
        let is_free = |number: &u32| !self.taken.contains(number) && !self.reserved.contains(number);
        let was_others =
            |number: u32| self.removed.iter().any(|(other, theirs)| *theirs == number && *other != owner);
        let mut choices = (first..=K::MAX).chain(1..first);
        let unused = choices.find(|number| is_free(number) && !was_others(*number));
        let number = unused.or_else(|| self.removed.iter().map(|(_, number)| *number).find(is_free))?;
        self.insert(owner, number);
        Some(number)
    }

    pub(crate) fn get(&self, owner: &K) -> Option<u32> {
        self.numbers.get(owner).copied()
    }

    pub(crate) fn remove(&mut self, owner: &K) {
        if let Some((owner, number)) = self.numbers.remove_entry(owner) {
            self.displaced.remove(&owner);
            self.taken.remove(&number);
            self.removed.push_back((owner, number));
            if self.removed.len() > REMOVED {
                self.removed.pop_front();
            }
        }
    }

    /// Returns the numbers that cannot be derived from their owners' names.
    pub(crate) fn displaced(&self) -> impl Iterator<Item = (&K, u32)> {
        self.displaced.iter().map(|(owner, number)| (owner, *number))
    }

    /// Gives an owner a number if it has none and the number is free.
    fn insert(&mut self, owner: K, number: u32) {
        if self.numbers.contains_key(&owner) || !self.taken.insert(number) {
            return;
        }
        if number != owner.first_choice() {
            self.displaced.insert(owner.clone(), number);
        }
        self.numbers.insert(owner, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first choice is the last digit, at most 4, and 1 for 0.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct Few(u8);

    impl Owner for Few {
        const MAX: u32 = 4;

        fn stable_hash(&self) -> u64 {
            u64::from(self.0 % 10).saturating_sub(1)
        }
    }

    fn displaced(numbers: &Numbers<Few>) -> Vec<(u8, u32)> {
        numbers.displaced().map(|(owner, number)| (owner.0, number)).collect()
    }

    #[test]
    fn numbers_depend_on_names_and_what_is_displaced() {
        let mut numbers = Numbers::default();
        assert_eq!([3, 22, 12].map(|owner| numbers.assign(Few(owner))), [Some(3), Some(2), Some(4)]);
        assert_eq!(displaced(&numbers), [(12, 4)]);
        // All flows are lost. The different order would give a different result without the stored numbers.
        let stored = Numbers::of(numbers.displaced().map(|(owner, number)| (*owner, number)));
        let mut restarted = Numbers::default();
        restarted.keep(&stored, [3, 12, 22].map(Few));
        assert_eq!([12, 22, 3].map(|owner| restarted.assign(Few(owner))), [Some(4), Some(2), Some(3)]);
        assert_eq!(displaced(&restarted), [(12, 4)]);
        restarted.remove(&Few(12));
        assert_eq!(displaced(&restarted), Vec::<(u8, u32)>::new());
        assert_eq!(Numbers::of([(Few(2), 5), (Few(3), 0)]).numbers, BTreeMap::new());
    }

    #[test]
    fn numbers_are_those_of_the_range() {
        let mut services = Numbers::default();
        let mut vrfs = Numbers::default();
        for n in 0..2000_u64 {
            let vrf = Vrf::Tenant(format!("tenant{n}").parse().unwrap());
            let assigned = [services.assign(Cookie(hash(&n.to_string()))), vrfs.assign(vrf)];
            let [service, vrf] = assigned.map(Option::unwrap);
            assert!((1..=pipeline::MAX_SERVICE).contains(&service) && (1..=pipeline::MAX_VRF).contains(&vrf));
        }
        // The database stores only a small part.
        assert!(services.displaced().count() < 20 && vrfs.displaced().count() < 600);
    }

    #[test]
    fn numbers_outlive_the_flows_of_the_switch() {
        let mut before = Numbers::of([(Few(31), 1), (Few(12), 2)]);
        before.assign(Few(22));
        let mut numbers = Numbers::default();
        numbers.keep(&before, [31, 22, 14].map(Few));
        let number = |owner| numbers.get(&Few(owner));
        assert_eq!([31, 22, 14].map(number), [Some(1), Some(3), None]);
        // The number of the unwanted owner becomes free again, after others.
        assert_eq!(number(12), None);
        assert_eq!([32, 42].map(|owner| numbers.assign(Few(owner))), [Some(4), Some(2)]);
        // The numbers in the switch take precedence.
        let mut numbers = Numbers::of([(Few(10), 3)]);
        numbers.keep(&before, [Few(22)]);
        assert_eq!(numbers.get(&Few(22)), None);
    }

    #[test]
    fn a_number_of_a_removed_owner_is_not_that_of_another_one_at_once() {
        let mut numbers = Numbers::of([(Few(1), 1), (Few(2), 2), (Few(3), 2)]);
        assert_eq!((numbers.get(&Few(1)), numbers.get(&Few(3))), (Some(1), None));
        assert_eq!(numbers.assign(Few(3)), Some(3));
        numbers.remove(&Few(1));
        assert_eq!(numbers.assign(Few(11)), Some(4));
        // A returning owner gets its number again, and otherwise other owners get it before the numbers run out.
        assert_eq!(numbers.assign(Few(1)), Some(1));
        numbers.remove(&Few(1));
        assert_eq!(numbers.assign(Few(21)), Some(1));
        assert_eq!(numbers.assign(Few(31)), None);
    }

    #[test]
    fn numbers_of_unknown_owners_are_not_assigned() {
        let mut numbers = Numbers::of([(Few(1), 1)]);
        numbers.reserve([1, 3].into());
        assert_eq!(numbers.get(&Few(1)), Some(1));
        assert_eq!([11, 21, 31].map(|owner| numbers.assign(Few(owner))), [Some(2), Some(4), None]);
        // A removed owner leaves the number to the others.
        numbers.remove(&Few(1));
        assert_eq!(numbers.assign(Few(31)), None);
    }
}
