//! A list without gaps, stored in a map: the members occupy slots 0 to length - 1. Each member stores its slot, so
//! insertion and removal take constant time.

/// The members, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DenseList<T> {
    slots: Vec<T>,
}

/// One map write. Between any two steps of a plan, a reader of the list finds every member that stays in the list, and
/// at most one member twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// Write the member into the slot.
    Put { slot: u32, member: T },
    /// Store the slot with the member.
    SetSlot { member: T, slot: u32 },
    /// Set the length of the list.
    SetLen(u32),
    /// Clear a slot beyond the end of the list.
    Clear { slot: u32 },
}

impl<T: Copy + PartialEq> DenseList<T> {
    pub(crate) fn from_slots(slots: Vec<T>) -> Self {
        DenseList { slots }
    }

    pub(crate) fn len(&self) -> u32 {
        // The length is limited by the capacity of the map, a few thousand.
        self.slots.len() as u32
    }

    pub(crate) fn get(&self, slot: u32) -> Option<T> {
        self.slots.get(slot as usize).copied()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, T)> + ExactSizeIterator {
        self.slots.iter().enumerate().map(|(slot, member)| (slot as u32, *member))
    }

    /// Steps that append `member`. Call [`inserted`](Self::inserted) after their execution.
    pub(crate) fn plan_insert(&self, member: T) -> Vec<Step<T>> {
        let slot = self.len();
        vec![Step::Put { slot, member }, Step::SetSlot { member, slot }, Step::SetLen(slot + 1)]
    }

    /// Steps that remove the member in `slot`: the last member moves into the slot. Call [`removed`](Self::removed) after
    /// their execution.
    pub(crate) fn plan_remove(&self, slot: u32) -> Vec<Step<T>> {
        let Some((last, member)) = self.iter().next_back() else { return vec![] };
        if slot > last {
            return vec![];
        }
        let mut steps = vec![];
        if slot != last {
            steps.extend([Step::Put { slot, member }, Step::SetSlot { member, slot }]);
        }
        steps.extend([Step::SetLen(last), Step::Clear { slot: last }]);
        steps
    }

    /// Records that the steps of [`plan_insert`](Self::plan_insert) are done.
    pub(crate) fn inserted(&mut self, member: T) {
        self.slots.push(member);
    }

    /// Records that the steps of [`plan_remove`](Self::plan_remove) are done.
    pub(crate) fn removed(&mut self, slot: u32) {
        if (slot as usize) < self.slots.len() {
            self.slots.swap_remove(slot as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    /// The maps in the kernel.
    #[derive(Default)]
    struct Maps {
        slots: BTreeMap<u32, u32>,
        slot_of: BTreeMap<u32, u32>,
        len: u32,
    }

    impl Maps {
        fn execute(&mut self, step: Step<u32>) {
            match step {
                Step::Put { slot, member } => drop(self.slots.insert(slot, member)),
                Step::SetSlot { member, slot } => drop(self.slot_of.insert(member, slot)),
                Step::SetLen(len) => self.len = len,
                Step::Clear { slot } => drop(self.slots.remove(&slot)),
            }
        }

        fn reachable(&self) -> BTreeSet<u32> {
            (0..self.len).filter_map(|slot| self.slots.get(&slot).copied()).collect()
        }
    }

    proptest! {
        #[test]
        fn members_that_stay_are_reachable_between_any_two_writes(
            changes in prop::collection::vec((any::<bool>(), 0..20_u32), 0..80)
        ) {
            let mut list = DenseList::default();
            let mut maps = Maps::default();
            for (inserts, member) in changes {
                let slot = list.iter().find(|(_, m)| *m == member).map(|(slot, _)| slot);
                let (before, steps) = (maps.reachable(), match (inserts, slot) {
                    (true, None) => list.plan_insert(member),
                    (false, Some(slot)) => list.plan_remove(slot),
                    _ => continue,
                });
                for step in steps {
                    maps.execute(step);
                    prop_assert!(before.iter().filter(|m| **m != member).all(|m| maps.reachable().contains(m)));
                }
                match slot {
                    None => list.inserted(member),
                    Some(slot) => list.removed(slot),
                }
                prop_assert_eq!(maps.reachable().contains(&member), inserts);
                prop_assert_eq!(maps.len, list.len());
                for (slot, member) in list.iter() {
                    prop_assert_eq!(maps.slot_of[&member], slot);
                    prop_assert_eq!(maps.slots[&slot], member);
                }
                prop_assert_eq!(maps.slots.len(), list.len() as usize);
            }
        }
    }
}
