//! Neighbour entries, and the services for which this node answers ARP and ND on the VLAN uplink.
//!
//! On a VLAN, the node of one of a service's backends, the speaker, answers for the service. A node recognises its own
//! endpoints by the neighbour entry of the speaker.

use std::collections::{BTreeSet, HashMap, HashSet};

use contiv_abi::{
    NeighEntry, NeighKey, Vip, VipKey,
    maps::{NEIGH, VIPS},
};

use crate::datapath::{
    Error,
    ebpf::maps::{pins::Pins, sizes::Sizes, table::Table, writes::Writes},
    telemetry::TableUsage,
};

/// `ctv_neigh` and `ctv_vips`.
pub(crate) struct Vips {
    neighbours: Table<NeighKey, NeighEntry>,
    vips: Table<VipKey, Vip>,
    /// Services by the address of their speaker.
    by_speaker: HashMap<NeighKey, BTreeSet<VipKey>>,
    /// Services whose answering node may have changed.
    changed: BTreeSet<VipKey>,
}

impl Vips {
    pub(crate) fn open(pins: &Pins, sizes: &Sizes, writes: &Writes) -> Result<Self, Error> {
        Ok(Vips {
            neighbours: Table::new(NEIGH, sizes.of(NEIGH)?, pins.open_map(NEIGH)?, writes.clone()),
            vips: Table::new(VIPS, sizes.of(VIPS)?, pins.open_map(VIPS)?, writes.clone()),
            by_speaker: HashMap::new(),
            changed: BTreeSet::new(),
        })
    }

    /// Reads the maps.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.neighbours.read()?;
        self.vips.read()?;
        self.by_speaker.clear();
        self.changed.clear();
        for (service, vip) in self.vips.iter() {
            self.by_speaker.entry(speaker(vip)).or_default().insert(*service);
        }
        Ok(())
    }

    pub(crate) fn neighbours(&self) -> &Table<NeighKey, NeighEntry> {
        &self.neighbours
    }

    pub(crate) fn vips(&self) -> &Table<VipKey, Vip> {
        &self.vips
    }

    pub(crate) fn usage(&self) -> [TableUsage; 2] {
        [self.neighbours.usage(), self.vips.usage()]
    }

    /// Services for which this node answers.
    pub(crate) fn answered(&self) -> HashSet<VipKey> {
        self.vips.iter().map(|(service, _)| *service).filter(|service| self.is_answered(service)).collect()
    }

    /// Services whose answering node may have changed since the last call, and whether this node answers for them.
    pub(crate) fn take_changed(&mut self) -> Vec<(VipKey, bool)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|service| (service, self.is_answered(&service))).collect()
    }

    fn is_answered(&self, service: &VipKey) -> bool {
        let vip = self.vips.get(service);
        let first = vip.and_then(|vip| self.neighbours.get(&speaker(vip)));
        first.is_some_and(|neighbour| neighbour.ifindex != 0)
    }

    /// Writes or removes a service.
    pub(crate) fn set_vip(&mut self, service: VipKey, vip: Option<Vip>) -> Result<(), Error> {
        let before = self.vips.get(&service).map(speaker);
        if let Some(before) = before
            && let Some(services) = self.by_speaker.get_mut(&before)
        {
            services.remove(&service);
            if services.is_empty() {
                self.by_speaker.remove(&before);
            }
        }
        self.changed.insert(service);
        match vip {
            Some(vip) => {
                self.by_speaker.entry(speaker(&vip)).or_default().insert(service);
                self.vips.set(service, vip)
            }
            None => self.vips.remove(&service),
        }
    }

    /// Writes or removes a neighbour entry.
    pub(crate) fn set_neighbour(
        &mut self,
        key: NeighKey,
        neighbour: Option<NeighEntry>,
    ) -> Result<(), Error> {
        self.changed.extend(self.by_speaker.get(&key).into_iter().flatten());
        match neighbour {
            Some(neighbour) => self.neighbours.set(key, neighbour),
            None => self.neighbours.remove(&key),
        }
    }
}

/// Neighbour key of a service's speaker.
fn speaker(vip: &Vip) -> NeighKey {
    NeighKey::new(vip.domain, vip.speaker)
}
