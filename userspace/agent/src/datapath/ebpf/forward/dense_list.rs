//! A list without gaps in a map that has no lists: members in slots 0 to length - 1, each of which
//! knows its slot, so that joining and leaving cost the same however long the list is.

/// The members, by slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roster<T> {
    slots: Vec<T>,
}

/// One write. The order of a plan's steps is such that whoever reads the list between two of them
/// finds every member that stays; at worst one of them twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    /// The slot holds this member.
    Put { slot: u32, member: T },
    /// The member knows this as its slot.
    Seat { member: T, slot: u32 },
    /// The list has this many slots.
    Len(u32),
    /// The slot, which is beyond the end now, holds nobody.
    Clear { slot: u32 },
}

impl<T: Copy + PartialEq> Roster<T> {
    /// The list as it was found.
    pub(crate) fn from_slots(slots: Vec<T>) -> Self {
        Roster { slots }
    }

    pub(crate) fn len(&self) -> u32 {
        // A list longer than its map's capacity (a few thousand) cannot be.
        self.slots.len() as u32
    }

    pub(crate) fn at(&self, slot: u32) -> Option<T> {
        self.slots.get(slot as usize).copied()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u32, T)> + ExactSizeIterator {
        self.slots.iter().enumerate().map(|(slot, member)| (slot as u32, *member))
    }

    /// How `member` joins.
    pub(crate) fn plan_join(&self, member: T) -> Vec<Step<T>> {
        let slot = self.len();
        vec![Step::Put { slot, member }, Step::Seat { member, slot }, Step::Len(slot + 1)]
    }

    /// How whoever sits in `slot` leaves: the last member takes the place.
    pub(crate) fn plan_leave(&self, slot: u32) -> Vec<Step<T>> {
        let Some((last, member)) = self.iter().next_back() else { return vec![] };
        if slot > last {
            return vec![];
        }
        let mut steps = vec![];
        if slot != last {
            steps.extend([Step::Put { slot, member }, Step::Seat { member, slot }]);
        }
        steps.extend([Step::Len(last), Step::Clear { slot: last }]);
        steps
    }

    /// The steps have been taken.
    pub(crate) fn joined(&mut self, member: T) {
        self.slots.push(member);
    }

    /// The steps have been taken.
    pub(crate) fn left(&mut self, slot: u32) {
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

    /// What the kernel holds.
    #[derive(Default)]
    struct Maps {
        slots: BTreeMap<u32, u32>,
        seats: BTreeMap<u32, u32>,
        len: u32,
    }

    impl Maps {
        fn take(&mut self, step: Step<u32>) {
            match step {
                Step::Put { slot, member } => drop(self.slots.insert(slot, member)),
                Step::Seat { member, slot } => drop(self.seats.insert(member, slot)),
                Step::Len(len) => self.len = len,
                Step::Clear { slot } => drop(self.slots.remove(&slot)),
            }
        }

        fn reached(&self) -> BTreeSet<u32> {
            (0..self.len).filter_map(|slot| self.slots.get(&slot).copied()).collect()
        }
    }

    proptest! {
        #[test]
        fn whoever_stays_is_reached_between_any_two_writes(
            changes in prop::collection::vec((any::<bool>(), 0..20_u32), 0..80)
        ) {
            let mut roster = Roster::default();
            let mut maps = Maps::default();
            for (joins, member) in changes {
                let slot = roster.iter().find(|(_, m)| *m == member).map(|(slot, _)| slot);
                let (before, steps) = (maps.reached(), match (joins, slot) {
                    (true, None) => roster.plan_join(member),
                    (false, Some(slot)) => roster.plan_leave(slot),
                    _ => continue,
                });
                for step in steps {
                    maps.take(step);
                    prop_assert!(before.iter().filter(|m| **m != member).all(|m| maps.reached().contains(m)));
                }
                match slot {
                    None => roster.joined(member),
                    Some(slot) => roster.left(slot),
                }
                prop_assert_eq!(maps.reached().contains(&member), joins);
                prop_assert_eq!(maps.len, roster.len());
                for (slot, member) in roster.iter() {
                    prop_assert_eq!(maps.seats[&member], slot);
                    prop_assert_eq!(maps.slots[&slot], member);
                }
                prop_assert_eq!(maps.slots.len(), roster.len() as usize);
            }
        }
    }
}
