//! Networks, the ports on them, and the flood list of each network.

use std::collections::HashMap;

use contiv_abi::{
    Domain, FloodKey, Port, Segment, SegmentEntry,
    maps::{FLOOD, FLOOD_CAPACITY, PORT_SLOTS, PORTS, PORTS_CAPACITY, SEGMENTS, SEGMENTS_CAPACITY},
};

use super::{
    dense_list::{DenseList, Step},
    port_slots::PortSlots,
};
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{pins::Pins, table::Table, writes::Writes},
    },
    telemetry::TableUsage,
};

/// `ctv_segments`, `ctv_ports` with `ctv_portslots`, and `ctv_flood` with a dense list of ports per network. The length of the list is in the
/// entry of the network, the slot in the entry of the port.
pub(crate) struct Ports {
    segments: Table<Segment, SegmentEntry>,
    ports: Table<u32, Port>,
    slots: PortSlots,
    flood: Table<FloodKey, u32>,
    lists: HashMap<Segment, DenseList<u32>>,
}

impl Ports {
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        Ok(Ports {
            segments: Table::new(SEGMENTS, SEGMENTS_CAPACITY, pins.open_map(SEGMENTS)?, writes.clone()),
            ports: Table::new(PORTS, PORTS_CAPACITY, pins.open_map(PORTS)?, writes.clone()),
            slots: PortSlots::new(pins.open_data(PORT_SLOTS)?, writes.clone())?,
            flood: Table::new(FLOOD, FLOOD_CAPACITY, pins.open_map(FLOOD)?, writes.clone()),
            lists: HashMap::new(),
        })
    }

    /// Reads the maps.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.slots.reset(self.ports.iter());
        self.segments.read()?;
        self.flood.read()?;
        self.lists.clear();
        for (segment, entry) in self.segments.iter() {
            // A crash can leave a slot without an entry; interface index 0 never exists.
            let member = |slot| self.flood.get(&FloodKey { segment: *segment, slot }).copied().unwrap_or(0);
            self.lists.insert(*segment, DenseList::from_slots((0..entry.ports).map(member).collect()));
        }
        Ok(())
    }

    pub(crate) fn usage(&self) -> [TableUsage; 3] {
        [self.ports.usage(), self.segments.usage(), self.flood.usage()]
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = (&Segment, &SegmentEntry)> {
        self.segments.iter()
    }

    pub(crate) fn segment(&self, segment: &Segment) -> Option<&SegmentEntry> {
        self.segments.get(segment)
    }

    /// The domains of all networks, with repetitions.
    pub(crate) fn domains(&self) -> impl Iterator<Item = Domain> {
        self.segments.iter().map(|(_, entry)| entry.domain)
    }

    /// Writes a network; the length of its flood list is kept.
    pub(crate) fn set_segment(&mut self, segment: Segment, entry: SegmentEntry) -> Result<(), Error> {
        let ports = self.lists.entry(segment).or_default().len();
        self.segments.set(segment, SegmentEntry { ports, ..entry })
    }

    /// Writes the length of a network's list of peers, if the network has an entry.
    pub(crate) fn set_members(&mut self, segment: &Segment, members: u32) -> Result<(), Error> {
        match self.segments.get(segment).copied() {
            Some(entry) => self.segments.set(*segment, SegmentEntry { members, ..entry }),
            None => Ok(()),
        }
    }

    /// Writes whether the frames of a network stay on the node, if the network has an entry.
    pub(crate) fn set_on_node(&mut self, segment: Segment, is_on_node: bool) -> Result<(), Error> {
        let Some(entry) = self.segments.get(&segment).copied() else { return Ok(()) };
        let others = entry.flags & !SegmentEntry::ON_NODE;
        let flags = if is_on_node { others | SegmentEntry::ON_NODE } else { others };
        self.segments.set(segment, SegmentEntry { flags, ..entry })
    }

    pub(crate) fn remove_segment(&mut self, segment: &Segment) -> Result<(), Error> {
        self.segments.remove(segment)
    }

    /// Every port, by interface index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&u32, &Port)> {
        self.ports.iter()
    }

    pub(crate) fn get(&self, ifindex: u32) -> Option<&Port> {
        self.ports.get(&ifindex)
    }

    /// Writes the entry of a port without a change of its flood list.
    pub(crate) fn update(&mut self, ifindex: u32, port: Port) -> Result<(), Error> {
        // After a crash between the writes, the stages process the port's frames, and no program reads an old copy of the
        // entry.
        if self.ports.get(&ifindex) != Some(&port) {
            self.slots.remove(ifindex);
        }
        self.ports.set(ifindex, port)?;
        self.slots.set(ifindex, port);
        Ok(())
    }

    /// The network whose flood list contains the port.
    pub(crate) fn flooded_in(&self, ifindex: u32) -> Option<Segment> {
        let port = self.ports.get(&ifindex)?;
        let member = self.lists.get(&port.segment).and_then(|list| list.get(port.slot));
        (member == Some(ifindex)).then_some(port.segment)
    }

    /// Writes a port, and inserts it into the flood list of its network. The slot and the queue of an existing port stay.
    pub(crate) fn set(&mut self, ifindex: u32, desired: Port) -> Result<(), Error> {
        let segment = desired.segment;
        if self.segments.get(&segment).is_none() {
            let cause = "the network must be set before its endpoints";
            return Err(failed(format!("add a port to the network {segment}"), cause));
        }
        match (self.flooded_in(ifindex), self.ports.get(&ifindex).copied()) {
            (Some(current), Some(Port { slot, class, queue, .. })) if current == segment => {
                return self.update(ifindex, Port { slot, class, queue, ..desired });
            }
            (Some(previous), Some(port)) => self.remove_slot(previous, port.slot)?,
            _ => {}
        }
        for step in self.lists.entry(segment).or_default().plan_insert(ifindex) {
            self.execute(segment, Some(desired), step)?;
        }
        self.lists.entry(segment).or_default().inserted(ifindex);
        Ok(())
    }

    /// Removes the port from its flood list.
    pub(crate) fn stop_flooding(&mut self, ifindex: u32) -> Result<(), Error> {
        match (self.flooded_in(ifindex), self.ports.get(&ifindex)) {
            (Some(segment), Some(port)) => self.remove_slot(segment, port.slot),
            _ => Ok(()),
        }
    }

    /// Removes the entry of a port that is in no flood list.
    pub(crate) fn remove(&mut self, ifindex: u32) -> Result<(), Error> {
        self.slots.remove(ifindex);
        self.ports.remove(&ifindex)
    }

    fn remove_slot(&mut self, segment: Segment, slot: u32) -> Result<(), Error> {
        for step in self.lists.entry(segment).or_default().plan_remove(slot) {
            self.execute(segment, None, step)?;
        }
        self.lists.entry(segment).or_default().removed(slot);
        Ok(())
    }

    /// `new` is the port to insert, which may have no entry yet.
    fn execute(&mut self, segment: Segment, new: Option<Port>, step: Step<u32>) -> Result<(), Error> {
        match step {
            Step::Put { slot, member } => self.flood.set(FloodKey { segment, slot }, member),
            Step::SetSlot { member, slot } => match new.or(self.ports.get(&member).copied()) {
                Some(port) => self.update(member, Port { segment, slot, ..port }),
                // The member is an orphan without a port entry; garbage collection removes it next.
                None => Ok(()),
            },
            Step::SetLen(ports) => match self.segments.get(&segment).copied() {
                Some(entry) => self.segments.set(segment, SegmentEntry { ports, ..entry }),
                None => Ok(()),
            },
            Step::Clear { slot } => self.flood.remove(&FloodKey { segment, slot }),
        }
    }

    /// List slots whose port has no entry, or an entry with another network or slot.
    fn orphan_slots(&self) -> Vec<(Segment, u32)> {
        let all = self
            .lists
            .iter()
            .flat_map(|(segment, list)| list.iter().map(move |(slot, ifindex)| (*segment, slot, ifindex)));
        let is_orphan = |(segment, slot, ifindex): &(Segment, u32, u32)| {
            let port = self.ports.get(ifindex);
            !port.is_some_and(|port| port.segment == *segment && port.slot == *slot)
        };
        let mut slots: Vec<_> = all.filter(is_orphan).map(|(segment, slot, _)| (segment, slot)).collect();
        slots.sort_unstable();
        slots
    }

    /// Flood entries beyond the end of their list, or of a network without a list.
    fn orphan_flood(&self) -> impl Iterator<Item = (&FloodKey, &u32)> {
        let in_list = |key: &FloodKey| self.lists.get(&key.segment).is_some_and(|list| key.slot < list.len());
        self.flood.iter().filter(move |(key, _)| !in_list(key))
    }

    /// Number of orphaned list slots and flood entries, without flood entries of ports that `is_removed` selects: they
    /// are removed with the port.
    pub(crate) fn orphans(&self, is_removed: impl Fn(u32) -> bool) -> usize {
        let flood = self.orphan_flood().filter(|(_, ifindex)| !is_removed(**ifindex)).count();
        self.orphan_slots().len() + flood
    }

    /// Removes orphaned list slots.
    pub(crate) fn collect_slots(&mut self) -> Result<(), Error> {
        // From the end, because a removal moves the last member.
        for (segment, slot) in self.orphan_slots().into_iter().rev() {
            self.remove_slot(segment, slot)?;
        }
        Ok(())
    }

    /// Removes orphaned flood entries. Must be called after [`collect_slots`](Self::collect_slots).
    pub(crate) fn collect_flood(&mut self) -> Result<(), Error> {
        let orphans: Vec<FloodKey> = self.orphan_flood().map(|(key, _)| *key).collect();
        orphans.iter().try_for_each(|key| self.flood.remove(key))
    }
}
