//! Pool of VLAN ids.

use contiv_model::{
    bitset::Bitset,
    global::{VlanPool, VlanPoolOper},
};

use super::{Range, list};
use crate::problem::Problem;

/// All VLAN ids of the pool and the free ones: `state/auto-vlan` and `oper/auto-vlan`.
#[derive(Clone, Debug, PartialEq)]
pub struct Vlans {
    all: Bitset,
    free: Bitset,
}

/// A VLAN id has 12 bits; 0 and 4095 are reserved.
const IDS: usize = 4096;

impl Vlans {
    /// A pool with all ids free.
    pub fn new(range: Range) -> Vlans {
        let all = ids(range);
        Vlans { free: all.clone(), all }
    }

    pub fn read(pool: &VlanPool, oper: &VlanPoolOper) -> Vlans {
        Vlans { all: pool.vlans.clone(), free: oper.free_vlans.clone() }
    }

    pub fn records(&self) -> (VlanPool, VlanPoolOper) {
        let id = || "global".to_owned();
        (
            VlanPool { id: id(), vlans: self.all.clone() },
            VlanPoolOper { id: id(), free_vlans: self.free.clone() },
        )
    }

    pub fn used(&self) -> impl Iterator<Item = usize> + '_ {
        self.all.iter().filter(|id| !self.free.contains(*id))
    }

    /// The pool with another range and the same allocations.
    pub fn with_range(&self, range: Range) -> Result<Vlans, Problem> {
        let all = ids(range);
        if self.used().any(|id| !all.contains(id)) {
            let used = list(self.used());
            let error = format!("cannot update the vlan range due to existing vlans {used}");
            return Err(Problem::conflict(error));
        }
        let mut free = all.clone();
        self.used().for_each(|id| {
            free.remove(id);
        });
        Ok(Vlans { all, free })
    }

    /// Allocates the `requested` VLAN id, or the lowest free one for 0.
    pub fn take(&mut self, requested: i64) -> Result<usize, Problem> {
        let id = match requested {
            0 => self.free.next_set(0).ok_or_else(|| Problem::conflict("no vlans available"))?,
            id => {
                // The original prints a negative tag converted to an unsigned number.
                let error =
                    || Problem::conflict(format!("requested vlan not available - vlan:{}", id as u64));
                usize::try_from(id).ok().filter(|id| self.free.contains(*id)).ok_or_else(error)?
            }
        };
        self.free.remove(id);
        Ok(id)
    }

    /// Frees a VLAN id.
    pub fn free_id(&mut self, id: i64) {
        if let Some(id) = usize::try_from(id).ok().filter(|id| self.all.contains(*id)) {
            self.free.insert(id);
        }
    }
}

fn ids(range: Range) -> Bitset {
    let mut ids = Bitset::new(IDS);
    ids.insert_range(range.min..(range.max + 1).min(IDS - 1));
    ids
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_have_the_originals_texts() {
        let mut vlans = Vlans::new(Range::vlans("1-4095").unwrap());
        assert_eq!(vlans.take(0), Ok(1));
        let text = |result: Result<usize, Problem>| result.unwrap_err().text;
        assert_eq!(text(vlans.take(1)), "requested vlan not available - vlan:1");
        assert_eq!(text(vlans.take(4095)), "requested vlan not available - vlan:4095");
        assert_eq!(text(vlans.take(-1)), "requested vlan not available - vlan:18446744073709551615");
        assert_eq!(vlans.take(500), Ok(500));
        let narrow = vlans.with_range(Range::vlans("600-700").unwrap());
        assert_eq!(narrow.unwrap_err().text, "cannot update the vlan range due to existing vlans 1, 500");
        let mut one = Vlans::new(Range { min: 7, max: 7 });
        assert_eq!((one.take(0), text(one.take(0))), (Ok(7), "no vlans available".into()));
        one.free_id(7);
        assert_eq!(one.take(0), Ok(7));
    }

    proptest! {
        #[test]
        fn the_lowest_is_allocated_and_none_twice(ops in prop::collection::vec((any::<bool>(), 0i64..40), 0..200)) {
            let mut vlans = Vlans::new(Range { min: 3, max: 30 });
            let mut used = BTreeSet::new();
            for (take, id) in ops {
                if take {
                    let free = |id: &i64| (3..=30).contains(id) && !used.contains(id);
                    let expected = if id == 0 { (3..=30).find(free) } else { Some(id).filter(free) };
                    prop_assert_eq!(vlans.take(id).ok().map(|id| id as i64), expected);
                    used.extend(expected);
                } else {
                    vlans.free_id(id);
                    used.remove(&id);
                }
                prop_assert_eq!(vlans.used().map(|id| id as i64).collect::<BTreeSet<_>>(), used.clone());
            }
            let (pool, oper) = vlans.records();
            prop_assert_eq!(Vlans::read(&pool, &oper), vlans);
        }
    }
}
