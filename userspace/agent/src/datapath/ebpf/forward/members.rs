//! The peers that have each VXLAN network, to which the programs send copies of its broadcasts, multicasts and unknown
//! unicasts.

use std::collections::{BTreeSet, HashMap};

use contiv_abi::{
    Address, FloodKey, Segment, Vtep,
    maps::{MEMBERS, MEMBERS_CAPACITY},
};

use super::{
    dense_list::{DenseList, Step},
    ports::Ports,
};
use crate::datapath::{
    Error,
    ebpf::maps::{pins::Pins, table::Table, writes::Writes},
    telemetry::TableUsage,
};

/// `ctv_members` with a dense list of peers per network. The length of the list is in the entry of the network; a list may
/// exist before its network.
pub(crate) struct Members {
    slots: Table<FloodKey, Vtep>,
    lists: HashMap<Segment, DenseList<Vtep>>,
    /// Slot of each member.
    index: HashMap<(Segment, Vtep), u32>,
}

/// A slot without an entry, as a crash can leave it.
const MISSING: Vtep = Address([0; 16]);

impl Members {
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        Ok(Members {
            slots: Table::new(MEMBERS, MEMBERS_CAPACITY, pins.open_map(MEMBERS)?, writes.clone()),
            lists: HashMap::new(),
            index: HashMap::new(),
        })
    }

    /// Reads the map, after the networks.
    pub(crate) fn read(&mut self, ports: &Ports) -> Result<(), Error> {
        self.slots.read()?;
        self.lists.clear();
        self.index.clear();
        let listed = self.slots.iter().map(|(key, _)| key.segment);
        let segments: BTreeSet<Segment> =
            ports.segments().map(|(segment, _)| *segment).chain(listed).collect();
        for segment in segments {
            let member = |slot| self.slots.get(&FloodKey { segment, slot }).copied();
            let list: Vec<Vtep> = match ports.segment(&segment) {
                Some(entry) => (0..entry.members).map(|slot| member(slot).unwrap_or(MISSING)).collect(),
                None => (0..).map_while(member).collect(),
            };
            for (slot, vtep) in (0..).zip(&list).filter(|(_, vtep)| **vtep != MISSING) {
                self.index.entry((segment, *vtep)).or_insert(slot);
            }
            self.lists.insert(segment, DenseList::from_slots(list));
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> TableUsage {
        self.slots.usage()
    }

    /// Every member of every list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Segment, Vtep)> {
        self.index.keys().copied()
    }

    /// Whether the peer is in the list of the network.
    pub(crate) fn contains(&self, segment: Segment, vtep: Vtep) -> bool {
        self.slot(segment, vtep).is_some()
    }

    fn slot(&self, segment: Segment, vtep: Vtep) -> Option<u32> {
        let slot = *self.index.get(&(segment, vtep))?;
        (self.lists.get(&segment)?.get(slot) == Some(vtep)).then_some(slot)
    }

    /// Length of the list of a network.
    pub(crate) fn len(&self, segment: &Segment) -> u32 {
        self.lists.get(segment).map_or(0, DenseList::len)
    }

    /// Appends the peer to the list of the network unless it is a member.
    pub(crate) fn insert(&mut self, segment: Segment, vtep: Vtep, ports: &mut Ports) -> Result<(), Error> {
        if self.contains(segment, vtep) {
            return Ok(());
        }
        for step in self.lists.entry(segment).or_default().plan_insert(vtep) {
            self.execute(segment, step, ports)?;
        }
        self.lists.entry(segment).or_default().inserted(vtep);
        Ok(())
    }

    /// Removes the peer from the list of the network.
    pub(crate) fn remove(&mut self, segment: Segment, vtep: Vtep, ports: &mut Ports) -> Result<(), Error> {
        if let Some(slot) = self.slot(segment, vtep) {
            self.remove_slot(segment, slot, ports)?;
        }
        self.index.remove(&(segment, vtep));
        Ok(())
    }

    fn remove_slot(&mut self, segment: Segment, slot: u32, ports: &mut Ports) -> Result<(), Error> {
        for step in self.lists.entry(segment).or_default().plan_remove(slot) {
            self.execute(segment, step, ports)?;
        }
        let list = self.lists.entry(segment).or_default();
        list.removed(slot);
        if list.len() == 0 {
            self.lists.remove(&segment);
        }
        Ok(())
    }

    fn execute(&mut self, segment: Segment, step: Step<Vtep>, ports: &mut Ports) -> Result<(), Error> {
        match step {
            Step::Put { slot, member } => self.slots.set(FloodKey { segment, slot }, member),
            Step::SetSlot { member, slot } => {
                self.index.insert((segment, member), slot);
                Ok(())
            }
            Step::SetLen(members) => ports.set_members(&segment, members),
            Step::Clear { slot } => self.slots.remove(&FloodKey { segment, slot }),
        }
    }

    /// List slots without an entry, or whose member has an earlier slot.
    fn orphan_slots(&self) -> Vec<(Segment, u32)> {
        let all = self
            .lists
            .iter()
            .flat_map(|(segment, list)| list.iter().map(move |(slot, vtep)| (*segment, slot, vtep)));
        let is_orphan =
            |(segment, slot, vtep): &(Segment, u32, Vtep)| self.index.get(&(*segment, *vtep)) != Some(slot);
        let mut slots: Vec<_> = all.filter(is_orphan).map(|(segment, slot, _)| (segment, slot)).collect();
        slots.sort_unstable();
        slots
    }

    /// Entries beyond the end of their list.
    fn orphan_entries(&self) -> impl Iterator<Item = &FloodKey> {
        self.slots.iter().map(|(key, _)| key).filter(|key| key.slot >= self.len(&key.segment))
    }

    /// Number of orphaned list slots and entries.
    pub(crate) fn orphans(&self) -> usize {
        self.orphan_slots().len() + self.orphan_entries().count()
    }

    /// Removes orphaned list slots and entries.
    pub(crate) fn collect_garbage(&mut self, ports: &mut Ports) -> Result<(), Error> {
        // From the end, because a removal moves the last member.
        for (segment, slot) in self.orphan_slots().into_iter().rev() {
            self.remove_slot(segment, slot, ports)?;
        }
        let orphans: Vec<FloodKey> = self.orphan_entries().copied().collect();
        orphans.iter().try_for_each(|key| self.slots.remove(key))
    }
}
