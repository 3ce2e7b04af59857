//! Numbers of objects in the switch.

use std::collections::{BTreeMap, BTreeSet};

use contiv_model::vrf::Vrf;

use super::cookie::Cookie;

/// Numbers of services, and of the VRFs of tenants.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectNumbers {
    pub(crate) services: Numbers<Cookie>,
    pub(crate) vrfs: Numbers<Vrf>,
}

/// Numbers of owners, 1 or more. They are in flows, and in the labels and zones of connections, so a restarted agent reads them
/// from the switch.
#[derive(Clone, Debug)]
pub(crate) struct Numbers<K> {
    numbers: BTreeMap<K, u32>,
    taken: BTreeSet<u32>,
    /// Numbers of unknown owners.
    reserved: BTreeSet<u32>,
    /// The last number that was assigned: for some time the number of a removed owner is in connections.
    last: u32,
}

impl<K> Default for Numbers<K> {
    fn default() -> Self {
        Numbers { numbers: BTreeMap::new(), taken: BTreeSet::new(), reserved: BTreeSet::new(), last: 0 }
    }
}

impl<K: Ord> Numbers<K> {
    /// The numbers of installed owners. Of two with one number, one will get another.
    pub(crate) fn of(installed: impl IntoIterator<Item = (K, u32)>) -> Self {
        let mut numbers = Numbers::default();
        for (owner, number) in installed {
            if number != 0 && !numbers.numbers.contains_key(&owner) && numbers.taken.insert(number) {
                numbers.numbers.insert(owner, number);
                numbers.last = numbers.last.max(number);
            }
        }
        numbers
    }

    /// Keeps the numbers of `owners` in `previous` that the switch has lost. Its connection tracking may still have them. Numbers of other
    /// owners are free, but not used again at once.
    pub(crate) fn keep(&mut self, previous: &Self, owners: impl IntoIterator<Item = K>) {
        for owner in owners {
            let Some(number) = previous.get(&owner) else { continue };
            if !self.numbers.contains_key(&owner) && self.taken.insert(number) {
                self.numbers.insert(owner, number);
            }
        }
        self.last = self.last.max(previous.last);
    }

    /// Assigns these numbers to no owner that has none.
    pub(crate) fn reserve(&mut self, numbers: BTreeSet<u32>) {
        self.reserved = numbers;
    }

    /// The number of an owner. A new one gets the next free number up to `max`; `None` without one.
    pub(crate) fn assign(&mut self, owner: K, max: u32) -> Option<u32> {
        if let Some(number) = self.numbers.get(&owner) {
            return Some(*number);
        }
        let mut next = (self.last.saturating_add(1)..=max).chain(1..=self.last.min(max));
        let number = next.find(|number| !self.taken.contains(number) && !self.reserved.contains(number))?;
        self.last = number;
        self.taken.insert(number);
        self.numbers.insert(owner, number);
        Some(number)
    }

    pub(crate) fn get(&self, owner: &K) -> Option<u32> {
        self.numbers.get(owner).copied()
    }

    pub(crate) fn remove(&mut self, owner: &K) {
        if let Some(number) = self.numbers.remove(owner) {
            self.taken.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outlive_the_flows_of_the_switch() {
        let mut before = Numbers::of([(Cookie(7), 1), (Cookie(9), 2)]);
        before.assign(Cookie(8), 9);
        let mut numbers = Numbers::default();
        numbers.keep(&before, [7, 8, 12].map(Cookie));
        let number = |owner| numbers.get(&Cookie(owner));
        assert_eq!([7, 8, 12].map(number), [Some(1), Some(3), None]);
        // That of the one which is not wanted any more is free again, after others.
        assert_eq!(number(9), None);
        assert_eq!([10, 11].map(|owner| numbers.assign(Cookie(owner), 4)), [Some(4), Some(2)]);
        // What the switch has goes first.
        let mut numbers = Numbers::of([(Cookie(10), 3)]);
        numbers.keep(&before, [Cookie(8)]);
        assert_eq!(numbers.get(&Cookie(8)), None);
    }

    #[test]
    fn a_number_is_not_used_again_at_once() {
        let mut numbers = Numbers::of([(Cookie(7), 1), (Cookie(8), 2), (Cookie(9), 2)]);
        assert_eq!((numbers.get(&Cookie(7)), numbers.get(&Cookie(9))), (Some(1), None));
        assert_eq!(numbers.assign(Cookie(9), 4), Some(3));
        numbers.remove(&Cookie(7));
        assert_eq!(numbers.assign(Cookie(10), 4), Some(4));
        assert_eq!(numbers.assign(Cookie(11), 4), Some(1));
        assert_eq!(numbers.assign(Cookie(12), 4), None);
        assert_eq!(numbers.assign(Cookie(8), 4), Some(2));
    }

    #[test]
    fn numbers_of_unknown_owners_are_not_assigned() {
        let mut numbers = Numbers::of([(Cookie(7), 1)]);
        numbers.reserve([1, 3].into());
        assert_eq!(numbers.get(&Cookie(7)), Some(1));
        assert_eq!([8, 9, 10].map(|owner| numbers.assign(Cookie(owner), 4)), [Some(2), Some(4), None]);
        // An owner that goes leaves the number to the others.
        numbers.remove(&Cookie(7));
        assert_eq!(numbers.assign(Cookie(10), 4), None);
    }
}
