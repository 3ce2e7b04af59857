//! The programs and maps in the kernel: adopted where an earlier run pinned them, else loaded.

use aya::{
    EbpfLoader,
    maps::{Array, MapData, PerCpuArray},
    programs::{ProgramError, SchedClassifier, Xdp},
};
use aya_obj::programs::XdpAttachType;
use contiv_abi::{
    DropCount, DropReason, DsrHook, FdbEntry, FdbKey, FloodKey, FlowEvent, NeighEntry, NeighKey, Node, Port,
    Segment, SegmentEntry, Timeouts, Vip, Vtep,
    maps::{
        ALL, BACKENDS, BACKENDS_CAPACITY, BUILD, BUILD_LEN, DROPS, DSR_STATS, EPOCHS, FDB, FDB_CAPACITY,
        FLOOD, FLOOD_CAPACITY, FLOW_STATS, FLOWS, GROUPS, METERS, NEIGH, NEIGH_CAPACITY, NODE, PEERS,
        PEERS_CAPACITY, PORTS, PORTS_CAPACITY, RING, RING_CAPACITY, RULE_COUNTS, RULE_SETS,
        RULE_SETS_CAPACITY, RULES, RULES_CAPACITY, SEGMENTS, SEGMENTS_CAPACITY, SERVICE_COUNTS, SERVICES,
        SERVICES_CAPACITY, VIPS, VIPS_CAPACITY, VTEPS, XDP,
    },
    policy::{GROUP_NUMBERS, Meter, MeterKey},
};

use crate::datapath::{
    Error,
    ebpf::{
        failure::{errno, failed},
        maps::usage,
        maps::{
            batch::BatchMap,
            generation::Epochs,
            names::{RuleNames, ServiceNames},
            pins::Pins,
            table::Table,
            writes::Writes,
        },
        policy::{Policies, Sets},
        programs::{
            tc::{Hooks, Role},
            xdp::XdpHook,
        },
        service::{
            counts::{self, Counts},
            table::Services,
        },
    },
    telemetry::TableUsage,
};

/// The compiled programs and maps, as `build.rs` made them, for the loader and for those who measure them.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/contiv-ebpf"));

/// A program is handed to the verifier so often before the agent gives up.
const LOADS: usize = 5;

/// What is in the kernel.
pub(crate) struct Kernel {
    pub(crate) ports: Table<u32, Port>,
    pub(crate) segments: Table<Segment, SegmentEntry>,
    pub(crate) flood: Table<FloodKey, u32>,
    pub(crate) fdb: Table<FdbKey, FdbEntry>,
    pub(crate) neigh: Table<NeighKey, NeighEntry>,
    pub(crate) peers: Table<Vtep, u32>,
    pub(crate) policies: Policies,
    pub(crate) meters: BatchMap<MeterKey, Meter>,
    pub(crate) services: Services,
    pub(crate) vips: Table<NeighKey, Vip>,
    vteps: Array<MapData, Vtep>,
    node: Array<MapData, Node>,
    drops: PerCpuArray<MapData, DropCount>,
    pub(crate) epochs: Epochs,
    flow_stats: PerCpuArray<MapData, u64>,
    relay_stats: PerCpuArray<MapData, DropCount>,
    from_pod: SchedClassifier,
    from_queue: SchedClassifier,
    from_overlay: SchedClassifier,
    from_uplink: SchedClassifier,
    xdp: Xdp,
    /// Room for flows: what is wanted, or what there was before and is not empty.
    flows: u32,
    writes: Writes,
}

impl Kernel {
    /// Adopts what is pinned if it comes from this very build; else loads, into the pinned maps, and
    /// replaces the programs in place.
    pub(crate) fn open(
        pins: &Pins,
        hooks: &Hooks,
        xdp: &XdpHook,
        (rules, served): (&RuleNames, &ServiceNames),
        flows: u32,
        writes: &Writes,
    ) -> Result<Kernel, Error> {
        pins.prepare()?;
        let flows = size_of_flows(pins, flows, writes)?;
        let adopted = pinned_build(pins)? == Some(build_id());
        if !adopted {
            load(pins, hooks, xdp, flows, writes)?;
        }
        let kernel = Kernel {
            ports: Table::new(PORTS, PORTS_CAPACITY, pins.open_map(PORTS)?, writes.clone()),
            segments: Table::new(SEGMENTS, SEGMENTS_CAPACITY, pins.open_map(SEGMENTS)?, writes.clone()),
            flood: Table::new(FLOOD, FLOOD_CAPACITY, pins.open_map(FLOOD)?, writes.clone()),
            fdb: Table::new(FDB, FDB_CAPACITY, pins.open_map(FDB)?, writes.clone()),
            neigh: Table::new(NEIGH, NEIGH_CAPACITY, pins.open_map(NEIGH)?, writes.clone()),
            peers: Table::new(PEERS, PEERS_CAPACITY, pins.open_map(PEERS)?, writes.clone()),
            policies: open_policies(pins, rules, writes)?,
            meters: BatchMap::new(METERS, pins.open_data(METERS)?, writes.clone())?,
            services: Services::new(
                Table::new(SERVICES, SERVICES_CAPACITY, pins.open_map(SERVICES)?, writes.clone()),
                pins.open_data(RING)?,
                pins.open_data(BACKENDS)?,
                Counts::new(pins.open_data(SERVICE_COUNTS)?)?,
                served.clone(),
                writes.clone(),
            )?,
            vips: Table::new(VIPS, VIPS_CAPACITY, pins.open_map(VIPS)?, writes.clone()),
            flow_stats: pins.open_map(FLOW_STATS)?,
            relay_stats: pins.open_map(DSR_STATS)?,
            vteps: pins.open_map(VTEPS)?,
            node: pins.open_map(NODE)?,
            drops: pins.open_map(DROPS)?,
            epochs: Epochs::new(pins.open_data(EPOCHS)?, writes.clone())?,
            from_pod: open_program(pins, Role::Pod)?,
            from_queue: open_program(pins, Role::Queue)?,
            from_overlay: open_program(pins, Role::Overlay)?,
            from_uplink: open_program(pins, Role::Uplink)?,
            xdp: open_xdp(pins)?,
            flows,
            writes: writes.clone(),
        };
        if !adopted {
            // Last: a crash before this line makes the next start load again.
            set_build(pins, writes)?;
        }
        Ok(kernel)
    }

    pub(crate) fn program(&mut self, role: Role) -> &mut SchedClassifier {
        match role {
            Role::Pod => &mut self.from_pod,
            Role::Queue => &mut self.from_queue,
            Role::Overlay => &mut self.from_overlay,
            Role::Uplink => &mut self.from_uplink,
        }
    }

    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    pub(crate) fn xdp(&mut self) -> &mut Xdp {
        &mut self.xdp
    }

    /// The tables that we fill, how much is in them, and how much they hold. Of those that packets fill: `tallies`.
    pub(crate) fn fill(&self) -> Vec<TableUsage> {
        let [groups, sets, rules] = self.policies.sizes();
        let [services, blocks, backends] = self.services.fill();
        vec![
            self.ports.fill(),
            self.segments.fill(),
            self.flood.fill(),
            self.fdb.fill(),
            self.neigh.fill(),
            self.peers.fill(),
            TableUsage { table: GROUPS, entries: groups, capacity: GROUP_NUMBERS },
            TableUsage { table: RULE_SETS, entries: sets, capacity: RULE_SETS_CAPACITY },
            TableUsage { table: RULES, entries: rules, capacity: RULES_CAPACITY },
            TableUsage { table: SERVICES, entries: services, capacity: SERVICES_CAPACITY },
            TableUsage { table: RING, entries: blocks, capacity: RING_CAPACITY },
            TableUsage { table: BACKENDS, entries: backends, capacity: BACKENDS_CAPACITY },
            self.vips.fill(),
        ]
    }

    /// Reads every table.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.segments.read()?;
        self.flood.read()?;
        self.fdb.read()?;
        self.neigh.read()?;
        self.peers.read()?;
        self.policies.read()?;
        self.services.read()?;
        self.vips.read()
    }

    /// What has happened to flows since the maps were made, by the names of `FlowEvent::ALL`.
    pub(crate) fn flow_events(&self) -> Result<Vec<(&'static str, u64)>, Error> {
        let count = |event: FlowEvent| {
            let per_cpu = self
                .flow_stats
                .get(&(event as u32), 0)
                .map_err(|error| failed(format!("read the map {FLOW_STATS}"), error))?;
            Ok(per_cpu.iter().sum())
        };
        FlowEvent::ALL.iter().map(|(event, name)| Ok((*name, count(*event)?))).collect()
    }

    /// Frames of services' clients that were sent on to other nodes, by the program that did it.
    pub(crate) fn relayed(&self) -> Result<Vec<(&'static str, DropCount)>, Error> {
        let count = |by: DsrHook| {
            let per_cpu = self.relay_stats.get(&(by as u32), 0);
            per_cpu
                .map(|counts| sum(&counts))
                .map_err(|error| failed(format!("read the map {DSR_STATS}"), error))
        };
        DsrHook::ALL.iter().map(|(by, name)| Ok((*name, count(*by)?))).collect()
    }

    /// The list of peers that flooding walks.
    pub(crate) fn peer_list(&self) -> Result<Vec<Vtep>, Error> {
        let what = || format!("read the map {VTEPS}");
        let slots = 0..self.node()?.peers.min(PEERS_CAPACITY as u32);
        slots.map(|slot| self.vteps.get(&slot, 0).map_err(|error| failed(what(), error))).collect()
    }

    pub(crate) fn set_peer_slot(&mut self, slot: u32, vtep: Vtep) -> Result<(), Error> {
        self.writes.count();
        self.vteps.set(slot, vtep, 0).map_err(|error| {
            failed(format!("write to the map {VTEPS} (room for {PEERS_CAPACITY} nodes)"), error)
        })
    }

    pub(crate) fn set_peer_count(&mut self, peers: u32) -> Result<(), Error> {
        let node = Node { peers, ..self.node()? };
        self.set_node(node)
    }

    fn node(&self) -> Result<Node, Error> {
        self.node.get(&0, 0).map_err(|error| failed(format!("read the map {NODE}"), error))
    }

    fn set_node(&mut self, node: Node) -> Result<(), Error> {
        self.writes.count();
        self.node.set(0, node, 0).map_err(|error| failed(format!("write to the map {NODE}"), error))
    }

    /// Sees to it that flows are remembered for so long.
    pub(crate) fn ensure_timeouts(&mut self, timeouts: Timeouts) -> Result<(), Error> {
        let node = self.node()?;
        if node.timeouts == timeouts { Ok(()) } else { self.set_node(Node { timeouts, ..node }) }
    }

    /// How many entries there is room for in the table of flows.
    pub(crate) fn flows(&self) -> u32 {
        self.flows
    }

    /// What was dropped since the maps were made, by reason; zeros are left out.
    pub(crate) fn drops(&self) -> Result<Vec<(DropReason, DropCount)>, Error> {
        let mut counts = vec![];
        for reason in DropReason::ALL {
            let per_cpu = self
                .drops
                .get(&(*reason as u32), 0)
                .map_err(|error| failed(format!("read the map {DROPS}"), error))?;
            let total = sum(&per_cpu);
            if total.packets > 0 {
                counts.push((*reason, total));
            }
        }
        Ok(counts)
    }
}

fn sum(per_cpu: &[DropCount]) -> DropCount {
    per_cpu.iter().fold(DropCount::default(), |sum, count| DropCount {
        packets: sum.packets + count.packets,
        bytes: sum.bytes + count.bytes,
    })
}

/// Tells one build of the object from another (FNV-1a; nobody attacks it).
pub(crate) fn build_id() -> [u8; BUILD_LEN] {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = OBJECT.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
    hash.to_be_bytes()
}

fn pinned_build(pins: &Pins) -> Result<Option<[u8; BUILD_LEN]>, Error> {
    let complete = ALL.iter().all(|name| pins.map(name).exists())
        && Role::ALL.iter().map(|role| role.program()).chain([XDP]).all(|name| pins.program(name).exists());
    if !complete {
        return Ok(None);
    }
    let build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    build.get(&0, 0).map(Some).map_err(|error| failed(format!("read the map {BUILD}"), error))
}

/// The size that the table of flows will have: a table of another size than is wanted is made anew; but not one that holds
/// flows, which would be lost.
fn size_of_flows(pins: &Pins, wanted: u32, writes: &Writes) -> Result<u32, Error> {
    let path = pins.map(FLOWS);
    if !path.exists() {
        return Ok(wanted);
    }
    let TableUsage { entries, capacity: room, .. } = usage::flows(pins)?;
    let room = room as u32;
    if room == wanted || entries > 0 {
        return Ok(room);
    }
    tracing::info!("change the size of the map {FLOWS} from {room} to {wanted}");
    writes.count();
    // The programs that run have it until they are replaced, which is next.
    pins.unpin(&path)?;
    Ok(wanted)
}

fn set_build(pins: &Pins, writes: &Writes) -> Result<(), Error> {
    let mut build: Array<MapData, [u8; BUILD_LEN]> = pins.open_map(BUILD)?;
    writes.count();
    build.set(0, build_id(), 0).map_err(|error| failed(format!("write to the map {BUILD}"), error))
}

/// Loads the object with its maps pinned (those that are pinned already are used), pins the programs,
/// and puts them where older ones run.
fn load(pins: &Pins, hooks: &Hooks, xdp: &XdpHook, flows: u32, writes: &Writes) -> Result<(), Error> {
    let mut loader = EbpfLoader::new();
    for name in ALL {
        loader.map_pin_path(name, pins.map(name));
        writes.count();
    }
    loader.map_max_entries(FLOWS, flows);
    loader.map_max_entries(SERVICE_COUNTS, counts::size()? as u32);
    let mut object = loader.load(OBJECT).map_err(|error| failed("load the eBPF object", error))?;
    for role in Role::ALL {
        let what = || format!("load the program {}", role.program());
        let missing = || failed(what(), "the object has no such program");
        let program = object.program_mut(role.program()).ok_or_else(missing)?;
        let program: &mut SchedClassifier = program.try_into().map_err(|error| failed(what(), error))?;
        writes.count();
        verified(|| program.load()).map_err(|error| failed(what(), error))?;
        hooks.replace(role, program)?;
        let path = pins.program(role.program());
        pins.unpin(&path)?;
        program.pin(&path).map_err(|error| failed(format!("pin {}", path.display()), error))?;
    }
    let what = || format!("load the program {XDP}");
    let program = object.program_mut(XDP).ok_or_else(|| failed(what(), "the object has no such program"))?;
    let program: &mut Xdp = program.try_into().map_err(|error| failed(what(), error))?;
    writes.count();
    verified(|| program.load()).map_err(|error| failed(what(), error))?;
    xdp.replace(program)?;
    let path = pins.program(XDP);
    pins.unpin(&path)?;
    program.pin(&path).map_err(|error| failed(format!("pin {}", path.display()), error))
}

/// The verifier gives up with EAGAIN when the thread has a signal to see to (`bpf_check` in kernel/bpf/verifier.c), which
/// says nothing about the program.
fn verified(mut load: impl FnMut() -> Result<(), ProgramError>) -> Result<(), ProgramError> {
    let interrupted = |error: &ProgramError| errno(error) == Some(libc::EAGAIN);
    for _ in 1..LOADS {
        match load() {
            Err(error) if interrupted(&error) => {}
            loaded => return loaded,
        }
    }
    load()
}

fn open_xdp(pins: &Pins) -> Result<Xdp, Error> {
    let path = pins.program(XDP);
    Xdp::from_pin(&path, XdpAttachType::Interface)
        .map_err(|error| failed(format!("open the program {}", path.display()), error))
}

fn open_program(pins: &Pins, role: Role) -> Result<SchedClassifier, Error> {
    let path = pins.program(role.program());
    SchedClassifier::from_pin(&path)
        .map_err(|error| failed(format!("open the program {}", path.display()), error))
}

fn open_policies(pins: &Pins, names: &RuleNames, writes: &Writes) -> Result<Policies, Error> {
    let sets = Sets::new(pins.open_data(RULE_SETS)?, pins.open_data(RULES)?, writes.clone())?;
    let counts = pins.open_map(RULE_COUNTS)?;
    Policies::new(&pins.open_data(GROUPS)?, sets, counts, names.clone(), writes.clone())
}
