//! Tunnel peers, to which the programs flood frames of VXLAN networks, and the node's settings.

use std::net::Ipv4Addr;

use aya::maps::{Array, MapData};
use contiv_abi::{
    Be16, FlowTableSize, Node, Phase, Timeouts, Vtep,
    maps::{NODE, PEERS, PEERS_CAPACITY, VTEPS},
};

use super::dense_list::{DenseList, Step};
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{pins::Pins, table::Table, writes::Writes},
    },
    telemetry::TableUsage,
};

/// `ctv_vteps`, a dense list of the peers; `ctv_peers`, the slot of each peer; and `ctv_node`, which has the length of the
/// list.
pub(crate) struct Peers {
    slots: Table<Vtep, u32>,
    vteps: Array<MapData, Vtep>,
    node: Array<MapData, Node>,
    list: DenseList<Vtep>,
    writes: Writes,
}

impl Peers {
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        Ok(Peers {
            slots: Table::new(PEERS, PEERS_CAPACITY, pins.open_map(PEERS)?, writes.clone()),
            vteps: pins.open_map(VTEPS)?,
            node: pins.open_map(NODE)?,
            list: DenseList::default(),
            writes: writes.clone(),
        })
    }

    /// Reads the maps.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.slots.read()?;
        let slots = 0..self.node()?.peers.min(PEERS_CAPACITY as u32);
        let vtep =
            |slot| self.vteps.get(&slot, 0).map_err(|error| failed(format!("read the map {VTEPS}"), error));
        self.list = DenseList::from_slots(slots.map(vtep).collect::<Result<_, _>>()?);
        Ok(())
    }

    pub(crate) fn usage(&self) -> TableUsage {
        self.slots.usage()
    }

    /// Every peer that has an entry, also those that are not in the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vtep> {
        self.slots.iter().map(|(vtep, _)| vtep)
    }

    /// Whether the peer is in the list.
    pub(crate) fn contains(&self, vtep: &Vtep) -> bool {
        self.slot(vtep).is_some()
    }

    fn slot(&self, vtep: &Vtep) -> Option<u32> {
        let slot = *self.slots.get(vtep)?;
        (self.list.get(slot) == Some(*vtep)).then_some(slot)
    }

    /// Appends the peer to the list unless it is a member.
    pub(crate) fn insert(&mut self, vtep: Vtep) -> Result<(), Error> {
        if self.contains(&vtep) {
            return Ok(());
        }
        for step in self.list.plan_insert(vtep) {
            self.execute(step)?;
        }
        self.list.inserted(vtep);
        Ok(())
    }

    /// Removes the peer from the list, and its entry.
    pub(crate) fn remove(&mut self, vtep: &Vtep) -> Result<(), Error> {
        if let Some(slot) = self.slot(vtep) {
            self.remove_slot(slot)?;
        }
        self.slots.remove(vtep)
    }

    fn remove_slot(&mut self, slot: u32) -> Result<(), Error> {
        for step in self.list.plan_remove(slot) {
            self.execute(step)?;
        }
        self.list.removed(slot);
        Ok(())
    }

    fn execute(&mut self, step: Step<Vtep>) -> Result<(), Error> {
        match step {
            Step::Put { slot, member } => {
                self.writes.count();
                self.vteps.set(slot, member, 0).map_err(|error| {
                    failed(format!("write to the map {VTEPS} (capacity {PEERS_CAPACITY} nodes)"), error)
                })
            }
            Step::SetSlot { member, slot } => self.slots.set(member, slot),
            Step::SetLen(peers) => {
                let node = Node { peers, ..self.node()? };
                self.set_node(node)
            }
            // Array slots cannot be removed; programs read no slot beyond the length.
            Step::Clear { .. } => Ok(()),
        }
    }

    /// List slots whose peer has no entry, or an entry with another slot.
    fn orphan_slots(&self) -> Vec<u32> {
        let is_orphan = |(slot, vtep): &(u32, Vtep)| self.slots.get(vtep) != Some(slot);
        self.list.iter().filter(is_orphan).map(|(slot, _)| slot).collect()
    }

    /// Number of orphaned list slots.
    pub(crate) fn orphans(&self) -> usize {
        self.orphan_slots().len()
    }

    /// Removes orphaned list slots.
    pub(crate) fn collect_garbage(&mut self) -> Result<(), Error> {
        // From the end, because a removal moves the last member.
        for slot in self.orphan_slots().into_iter().rev() {
            self.remove_slot(slot)?;
        }
        Ok(())
    }

    fn node(&self) -> Result<Node, Error> {
        self.node.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))
    }

    fn set_node(&mut self, node: Node) -> Result<(), Error> {
        self.writes.count();
        self.node.set(0, node, 0).map_err(|error| failed(format!("write to the map {NODE}"), error))
    }

    /// Writes the settings of the node unless they are equal.
    pub(crate) fn ensure_settings(&mut self, settings: Settings) -> Result<(), Error> {
        let before = self.node()?;
        let Settings { timeouts, bum_rate, vtep, tunnel_port } = settings;
        let vtep = vtep.map_or([0; 4], |vtep| vtep.octets());
        let node = Node { timeouts, bum_rate, vtep, tunnel_port: Be16::new(tunnel_port), ..before };
        if node == before { Ok(()) } else { self.set_node(node) }
    }

    /// Copies the settings of the programs of a flow table of another size.
    pub(crate) fn copy_settings(&mut self, other: &Pins) -> Result<(), Error> {
        let other: Array<MapData, Node> = other.open_map(NODE)?;
        let other = other.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))?;
        // The secret is as old as the table.
        let seed = self.node()?.seed;
        self.set_node(Node { seed, phase: Phase::RUNNING, ..other })
    }

    /// Sets the phase of the programs unless they are in it.
    pub(crate) fn set_phase(&mut self, phase: u32) -> Result<(), Error> {
        let node = self.node()?;
        if node.phase == phase { Ok(()) } else { self.set_node(Node { phase, ..node }) }
    }

    /// Writes the size of the flow table and the quota of an endpoint unless they are equal, and creates the secret of its
    /// hashes if there is none: a new secret would make existing flows unreachable.
    pub(crate) fn ensure_flow_table(&mut self, flows: u32) -> Result<(), Error> {
        let node = self.node()?;
        let seed = if node.seed == 0 { random()? } else { node.seed };
        let flow_pages = FlowTableSize { flows }.pages();
        let flow_quota = (flows / QUOTA_SHARE).max(1);
        let desired = Node { seed, flows, flow_pages, flow_quota, ..node };
        if node == desired { Ok(()) } else { self.set_node(desired) }
    }
}

/// An endpoint may use one part in this number of the flow table.
const QUOTA_SHARE: u32 = 4;

/// A random number that is not zero.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is as long as the call says.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if read != bytes.len() as isize {
        return Err(failed("read random numbers", std::io::Error::last_os_error()));
    }
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// Settings of the node that the programs read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Timeouts of flows.
    pub(crate) timeouts: Timeouts,
    /// Limit of storm control, in frames per second and port; zero for none.
    pub(crate) bum_rate: u32,
    /// Tunnel address of this node.
    pub(crate) vtep: Option<Ipv4Addr>,
    /// UDP port of the tunnels.
    pub(crate) tunnel_port: u16,
}
