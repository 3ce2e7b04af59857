//! Copies of the entries of ports for the fast path.

use std::{
    collections::HashMap,
    sync::atomic::{Ordering, fence},
};

use aya::maps::MapData;
use bytemuck::Zeroable as _;
use contiv_abi::{
    Port, PortSlot,
    maps::{PORT_SLOTS, PORT_SLOTS_CAPACITY},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{mmap::MmapArray, rcu, writes::Writes},
    },
};

/// `ctv_portslots`. Frames of a port without a slot, because another port has it, are processed by the stages.
pub(crate) struct PortSlots {
    slots: MmapArray<PortSlot>,
    writes: Writes,
}

impl PortSlots {
    pub(crate) fn new(map: MapData, writes: Writes) -> Result<Self, Error> {
        let slots = MmapArray::new(map, PORT_SLOTS_CAPACITY)
            .map_err(|error| failed(format!("map {PORT_SLOTS} into memory"), error))?;
        Ok(PortSlots { slots, writes })
    }

    /// Replaces the slots with those of these ports.
    pub(crate) fn reset<'a>(&mut self, ports: impl Iterator<Item = (&'a u32, &'a Port)>) {
        let ports: HashMap<u32, Port> = ports.map(|(ifindex, port)| (*ifindex, *port)).collect();
        for number in self.slots.occupied() {
            let ifindex = self.slot(number).ifindex;
            if !ports.contains_key(&ifindex) {
                self.remove(ifindex);
            }
        }
        let mut ports: Vec<(u32, Port)> = ports.into_iter().collect();
        ports.sort_unstable_by_key(|(ifindex, _)| *ifindex);
        for (ifindex, port) in ports {
            self.set(ifindex, port);
        }
    }

    /// Writes the slot of a port, unless another port has it. Must follow the write of the entry in `ctv_ports`.
    pub(crate) fn set(&mut self, ifindex: u32, port: Port) {
        let number = PortSlot::number(ifindex);
        let current = self.slot(number);
        let desired = PortSlot::new(ifindex, &port);
        if current == desired || current.ifindex != 0 && current.ifindex != ifindex {
            return;
        }
        if current.ifindex == 0 {
            let known = (current.mac, current.segment) == (desired.mac, desired.segment);
            if current != PortSlot::zeroed() && !known {
                // A program may have read the interface index of the previous port and be about to read the other fields.
                rcu::synchronize();
            }
            self.write(number, PortSlot { ifindex: 0, ..desired });
        }
        self.write(number, desired);
    }

    /// Frees the slot of a port. Must precede a change or the removal of the entry in `ctv_ports`.
    pub(crate) fn remove(&mut self, ifindex: u32) {
        let number = PortSlot::number(ifindex);
        let current = self.slot(number);
        if ifindex != 0 && current.ifindex == ifindex {
            self.write(number, PortSlot { ifindex: 0, ..current });
        }
    }

    fn slot(&self, number: u32) -> PortSlot {
        self.slots.get(number).unwrap_or_else(PortSlot::zeroed)
    }

    /// Writes a slot after all previous writes. If the interface index does not change, programs may read a mix of the
    /// old and the new values.
    fn write(&mut self, number: u32, slot: PortSlot) {
        fence(Ordering::SeqCst);
        if self.slots.set(number, slot) {
            self.writes.count();
        }
        fence(Ordering::SeqCst);
    }
}
