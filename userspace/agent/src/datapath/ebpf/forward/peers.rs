//! Tunnel peers, whose frames the programs accept, and the node's settings.

use std::net::IpAddr;

use aya::maps::{Array, MapData};
use contiv_abi::{
    Be16, FlowTableSize, Node, Phase, ServiceCountRows, Timeouts, Vtep,
    maps::{NODE, PEERS, PEERS_CAPACITY},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        maps::{pins::Pins, table::Table, writes::Writes},
    },
    telemetry::TableUsage,
};

/// `ctv_peers` and `ctv_node`.
pub(crate) struct Peers {
    peers: Table<Vtep, u32>,
    node: Array<MapData, Node>,
    writes: Writes,
}

/// Value of a peer's entry, which only needs to exist.
const PRESENT: u32 = 1;

impl Peers {
    pub(crate) fn open(pins: &Pins, writes: &Writes) -> Result<Self, Error> {
        Ok(Peers {
            peers: Table::new(PEERS, PEERS_CAPACITY, pins.open_map(PEERS)?, writes.clone()),
            node: pins.open_map(NODE)?,
            writes: writes.clone(),
        })
    }

    /// Reads the map.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.peers.read()
    }

    pub(crate) fn usage(&self) -> TableUsage {
        self.peers.usage()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Vtep> {
        self.peers.iter().map(|(vtep, _)| vtep)
    }

    pub(crate) fn contains(&self, vtep: &Vtep) -> bool {
        self.peers.get(vtep) == Some(&PRESENT)
    }

    pub(crate) fn insert(&mut self, vtep: Vtep) -> Result<(), Error> {
        self.peers.set(vtep, PRESENT)
    }

    pub(crate) fn remove(&mut self, vtep: &Vtep) -> Result<(), Error> {
        self.peers.remove(vtep)
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
        let vtep = vtep.map_or(Vtep::default(), Vtep::from);
        let node = Node { timeouts, bum_rate, vtep, tunnel_port: Be16::new(tunnel_port), ..before };
        if node == before { Ok(()) } else { self.set_node(node) }
    }

    /// Writes the layout of the service counters and the number of their slots unless they are equal.
    pub(crate) fn ensure_services(
        &mut self,
        service_counts: ServiceCountRows,
        service_slots: u32,
    ) -> Result<(), Error> {
        let node = self.node()?;
        let desired = Node { service_counts, service_slots, ..node };
        if node == desired { Ok(()) } else { self.set_node(desired) }
    }

    /// Copies the settings of the programs of a flow table of another size.
    pub(crate) fn copy_settings(&mut self, other: &Pins) -> Result<(), Error> {
        let other: Array<MapData, Node> = other.open_map(NODE)?;
        let other = other.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))?;
        // Connections that are forwarded to other nodes stay in their table, which is indexed with the secret of the
        // other programs. Flows that an interrupted process has imported are indexed with the secret of these programs.
        let own = self.node()?.seed;
        let seed = if own == 0 { other.seed } else { own };
        // If the other programs are in standby or stopped, these programs do not forward either. Any other phase may be
        // that of an interrupted import.
        let phase = if other.phase == Phase::RETIRED { Phase::RETIRED } else { Phase::RUNNING };
        self.set_node(Node { seed, phase, ..other })
    }

    /// The phase of the programs.
    pub(crate) fn phase(&self) -> Result<u32, Error> {
        Ok(self.node()?.phase)
    }

    /// Sets the phase of the programs unless they already have it.
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

/// An endpoint may use at most the flow table's size divided by this number.
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
    pub(crate) vtep: Option<IpAddr>,
    /// UDP port of the tunnels.
    pub(crate) tunnel_port: u16,
}
