//! Pool of VNIs, and of the local VLAN ids that nodes use for them.

use contiv_model::{
    bitset::Bitset,
    global::{VxlanPool, VxlanPoolOper},
};

use super::{Range, list};
use crate::problem::Problem;

/// All VNIs of the pool and the free ones: `state/auto-vxlan` and `oper/auto-vxlan`.
#[derive(Clone, Debug, PartialEq)]
pub struct Vxlans {
    /// Bit n is VNI `start + n`.
    all: Bitset,
    free: Bitset,
    start: usize,
    local: Bitset,
    free_local: Bitset,
}

/// Bits of the pool.
const SLOTS: usize = 1 << 14;

impl Vxlans {
    /// A pool with all VNIs free.
    pub fn new(range: Range) -> Vxlans {
        let (all, start) = slots(range);
        let mut local = Bitset::new(4096);
        local.insert_range(1..4095);
        Vxlans { free: all.clone(), all, start, free_local: local.clone(), local }
    }

    /// `start` is `freeVXLANsStart` of the global record. The original does not always set the one
    /// in the pool.
    pub fn read(pool: &VxlanPool, oper: &VxlanPoolOper, start: i64) -> Vxlans {
        Vxlans {
            all: pool.vxlans.clone(),
            free: oper.free_vxlans.clone(),
            start: usize::try_from(start).unwrap_or(0),
            local: pool.local_vlans.clone(),
            free_local: oper.free_local_vlans.clone(),
        }
    }

    pub fn records(&self) -> (VxlanPool, VxlanPoolOper) {
        let id = || "global".to_owned();
        (
            VxlanPool {
                id: id(),
                vxlans: self.all.clone(),
                local_vlans: self.local.clone(),
                free_vxlans_start: self.start as i64,
            },
            VxlanPoolOper {
                id: id(),
                free_vxlans: self.free.clone(),
                free_local_vlans: self.free_local.clone(),
            },
        )
    }

    pub fn start(&self) -> i64 {
        self.start as i64
    }

    pub fn used(&self) -> impl Iterator<Item = usize> + '_ {
        self.all.iter().filter(|slot| !self.free.contains(*slot)).map(|slot| self.start + slot)
    }

    /// The pool with another range and the same allocations.
    pub fn with_range(&self, range: Range) -> Result<Vxlans, Problem> {
        if self.used().any(|vni| !range.contains(vni)) {
            let used = list(self.used());
            let error = format!("cannot update the vxlan range due to existing vxlans {used}");
            return Err(Problem::conflict(error));
        }
        let (all, start) = slots(range);
        let mut free = all.clone();
        self.used().for_each(|vni| {
            free.remove(vni - start);
        });
        Ok(Vxlans { all, free, start, ..self.clone() })
    }

    /// Allocates the `requested` VNI, or the lowest free one for 0, and a local VLAN id.
    pub fn take(&mut self, requested: i64) -> Result<(usize, usize), Problem> {
        let slot = match requested {
            0 => self.free.next_set(0).ok_or_else(|| Problem::conflict("no vxlans available"))?,
            vni if (1..=self.start as i64).contains(&vni) => {
                return Err(Problem::conflict("requested vxlan is out of range"));
            }
            vni => usize::try_from(vni)
                .ok()
                .and_then(|vni| vni.checked_sub(self.start))
                .filter(|slot| self.free.contains(*slot))
                .ok_or_else(|| Problem::conflict("requested vxlan not available"))?,
        };
        let local =
            self.free_local.next_set(0).ok_or_else(|| Problem::conflict("no local vlans available"))?;
        self.free.remove(slot);
        self.free_local.remove(local);
        Ok((self.start + slot, local))
    }

    /// Allocates the tags of an existing network. Returns false if they are not free.
    pub fn claim(&mut self, vni: i64, local: i64) -> bool {
        let slot = usize::try_from(vni).ok().and_then(|vni| vni.checked_sub(self.start));
        let tags = slot.zip(usize::try_from(local).ok());
        tags.is_some_and(|(slot, local)| self.free.remove(slot) && self.free_local.remove(local))
    }

    /// Frees a VNI and its local VLAN id.
    pub fn free_tags(&mut self, vni: i64, local: i64) {
        let slot = usize::try_from(vni).ok().and_then(|vni| vni.checked_sub(self.start));
        if let Some(slot) = slot.filter(|slot| self.all.contains(*slot)) {
            self.free.insert(slot);
        }
        if let Some(local) = usize::try_from(local).ok().filter(|local| self.local.contains(*local)) {
            self.free_local.insert(local);
        }
    }
}

fn slots(range: Range) -> (Bitset, usize) {
    let start = range.min - 1;
    let mut slots = Bitset::new(SLOTS);
    slots.insert_range(1..range.max - start + 1);
    (slots, start)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_have_the_originals_texts() {
        let mut vxlans = Vxlans::new(Range::vxlans("3000-4000").unwrap());
        assert_eq!(vxlans.take(0), Ok((3000, 1)));
        let text = |result: Result<(usize, usize), Problem>| result.unwrap_err().text;
        assert_eq!(text(vxlans.take(3000)), "requested vxlan not available");
        assert_eq!(text(vxlans.take(2999)), "requested vxlan is out of range");
        assert_eq!(text(vxlans.take(20000)), "requested vxlan not available");
        assert_eq!(text(vxlans.take(-1)), "requested vxlan not available");
        assert_eq!(vxlans.take(3500), Ok((3500, 2)));
        let narrow = vxlans.with_range(Range::vxlans("3400-4000").unwrap());
        assert_eq!(
            narrow.unwrap_err().text,
            "cannot update the vxlan range due to existing vxlans 3000, 3500"
        );
        let mut wide = vxlans.with_range(Range::vxlans("1-10000").unwrap()).unwrap();
        assert_eq!(wide.used().collect::<Vec<_>>(), [3000, 3500]);
        assert_eq!(wide.take(0), Ok((1, 3)));
        wide.free_tags(3000, 1);
        assert_eq!(wide.take(3000), Ok((3000, 1)));
    }

    proptest! {
        #[test]
        fn the_lowest_is_allocated_and_none_twice(ops in prop::collection::vec((any::<bool>(), 0i64..60), 0..200)) {
            let mut vxlans = Vxlans::new(Range { min: 10, max: 40 });
            let mut used: BTreeSet<(i64, i64)> = BTreeSet::new();
            for (take, vni) in ops {
                if take {
                    let free = |vni: &i64| (10..=40).contains(vni) && !used.iter().any(|(v, _)| v == vni);
                    let vni = if vni == 0 { (10..=40).find(free) } else { Some(vni).filter(free) };
                    let local = (1..4095).find(|local| !used.iter().any(|(_, l)| l == local));
                    let expected = vni.zip(local);
                    let requested = vni.unwrap_or(9);
                    let given = vxlans.take(requested).ok().map(|(v, l)| (v as i64, l as i64));
                    prop_assert_eq!(given, expected);
                    used.extend(expected);
                } else if let Some(pair) = used.iter().find(|(v, _)| *v == vni).copied() {
                    vxlans.free_tags(pair.0, pair.1);
                    used.remove(&pair);
                }
            }
            let (pool, oper) = vxlans.records();
            prop_assert_eq!(Vxlans::read(&pool, &oper, vxlans.start()), vxlans);
        }
    }
}
