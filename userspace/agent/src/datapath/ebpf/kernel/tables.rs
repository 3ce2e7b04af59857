//! All maps and programs in the kernel.

use aya::maps::{Array, MapData, PerCpuArray};
use contiv_abi::{
    Domain, DropCount, DropReason, DsrHook, FlowEvent, NeighEntry, NeighKey, RouteEntry, Segment, Subnet,
    maps::{
        DROPS, DSR_STATS, FLOW_STATS, GROUPS, KERNEL_PORT, METERS, PORT_NUMBERS, PORT_NUMBERS_CAPACITY,
        REVISION, ROUTES, ROUTES_CAPACITY, RULE_COUNTS, RULE_SETS, RULE_SETS_CAPACITY, RULES, SUBNETS,
        SUBNETS_CAPACITY,
    },
    policy::{GROUP_NUMBERS, Meter, MeterKey},
};
use contiv_model::vrf::Vrf;

use super::resize;
use crate::datapath::{
    Error,
    ebpf::{
        failure::failed,
        forward::{
            domains::Domains,
            fdb::Fdb,
            members::Members,
            peers::{Peers, Settings},
            ports::Ports,
            prefixes::PrefixTable,
        },
        maps::{
            batch::BatchMap,
            flows::{self, Prepared},
            names::{RuleNames, ServiceNames},
            pins::Pins,
            sizes::Sizes,
            table::Table,
            writes::Writes,
        },
        policy::{Policies, RuleSets},
        programs::{
            load::{self, Capacities, OBJECT, Programs, log_object},
            stage_log::{LogEndpoint, StageLog},
            tc::TcHooks,
            xdp::XdpHook,
        },
        service::{ports::ServicePorts, vips::Vips},
    },
    telemetry::TableUsage,
};

/// The maps and programs.
pub(crate) struct Kernel {
    pub(crate) ports: Ports,
    pub(crate) peers: Peers,
    pub(crate) members: Members,
    pub(crate) fdb: Fdb,
    pub(crate) domains: Domains,
    pub(crate) subnets: PrefixTable<Subnet>,
    pub(crate) routes: PrefixTable<RouteEntry>,
    pub(crate) numbers: Table<u32, u32>,
    kernel_port: Array<MapData, u32>,
    pub(crate) vips: Vips,
    pub(crate) services: ServicePorts,
    pub(crate) policies: Policies,
    pub(crate) meters: BatchMap<MeterKey, Meter>,
    pub(crate) programs: Programs,
    /// Set if the programs log their stages.
    pub(crate) stage_log: Option<StageLog>,
    drops: PerCpuArray<MapData, DropCount>,
    flow_stats: PerCpuArray<MapData, u64>,
    relay_stats: PerCpuArray<MapData, DropCount>,
    flow_capacity: u32,
    sizes: Sizes,
    writes: Writes,
}

/// Options of the maps and programs.
pub(crate) struct KernelOptions<'a> {
    /// Desired capacity of the flow table.
    pub(crate) flows: u32,
    /// Sizes of maps that do not exist yet.
    pub(crate) sizes: Sizes,
    /// Endpoint whose stages are logged. The programs that log are then always loaded.
    pub(crate) logged: Option<&'a LogEndpoint>,
}

impl Kernel {
    /// Adopts the pinned maps and programs if they come from this build. Otherwise loads the programs with the pinned
    /// maps, and replaces the attached programs in place.
    pub(crate) async fn open(
        pins: &Pins,
        hooks: &TcHooks,
        xdp: &XdpHook,
        (rules, services): (&RuleNames, &ServiceNames),
        options: KernelOptions<'_>,
        writes: &Writes,
    ) -> Result<Kernel, Error> {
        pins.prepare()?;
        let KernelOptions { flows, sizes, logged } = options;
        let Prepared { capacity: flow_capacity, resized } = flows::prepare(pins, flows, writes)?;
        let sizes = sizes.of_pinned(pins)?;
        let current = logged.is_none() && resized.is_none() && load::is_current(pins)?;
        let file = if logged.is_some() { log_object()? } else { OBJECT };
        let loaded = if current {
            None
        } else {
            Some(load::load(pins, (file, Capacities { flows: flow_capacity, sizes }), writes)?)
        };
        let mut peers = Peers::open(pins, writes)?;
        if let Some(resized) = &resized {
            peers.copy_settings(resized)?;
        }
        // Must happen before a program is attached.
        peers.ensure_flow_table(flow_capacity)?;
        peers.ensure_services(sizes.service_counts()?, sizes.service_slots())?;
        let object = match (loaded, resized) {
            (Some(loaded), Some(resized)) => {
                Some(resize::replace(pins, &resized, || loaded.replace(pins, hooks, xdp), writes).await?)
            }
            (Some(loaded), None) => Some(loaded.replace(pins, hooks, xdp).await?),
            (None, _) => None,
        };
        let stage_log = match (object, logged) {
            (Some(mut object), Some(endpoint)) => Some(StageLog::new(endpoint.clone(), &mut object)?),
            _ => None,
        };
        if !current {
            flows::reset_collector(pins, writes)?;
        }
        let kernel = Kernel {
            ports: Ports::open(pins, writes)?,
            peers,
            members: Members::open(pins, writes)?,
            fdb: Fdb::open(pins, &sizes, writes)?,
            domains: Domains::open(pins, writes)?,
            subnets: PrefixTable::open(SUBNETS, SUBNETS_CAPACITY, pins, writes)?,
            routes: PrefixTable::open(ROUTES, ROUTES_CAPACITY, pins, writes)?,
            kernel_port: pins.open_map(KERNEL_PORT)?,
            numbers: Table::new(
                PORT_NUMBERS,
                PORT_NUMBERS_CAPACITY,
                pins.open_map(PORT_NUMBERS)?,
                writes.clone(),
            ),
            vips: Vips::open(pins, &sizes, writes)?,
            services: ServicePorts::open(pins, &sizes, services.clone(), writes)?,
            policies: open_policies(pins, &sizes, rules, writes)?,
            meters: BatchMap::new(METERS, pins.open_data(METERS)?, writes.clone())?,
            programs: Programs::open(pins)?,
            stage_log,
            drops: pins.open_map(DROPS)?,
            flow_stats: pins.open_map(FLOW_STATS)?,
            relay_stats: pins.open_map(DSR_STATS)?,
            flow_capacity,
            sizes,
            writes: writes.clone(),
        };
        if !current {
            load::set_current(file, pins, writes)?;
            load::trim_heap();
        }
        Ok(kernel)
    }

    pub(crate) fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Capacity of the flow table, which may differ from the desired capacity while the table has entries.
    pub(crate) fn flow_capacity(&self) -> u32 {
        self.flow_capacity
    }

    /// Sizes of the maps that the agent fills.
    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Usage of the maps that the agent fills.
    pub(crate) fn usage(&self) -> Vec<TableUsage> {
        let [groups, sets, nodes] = self.policies.usage();
        let [ports, segments, flood] = self.ports.usage();
        let [neighbours, vips] = self.vips.usage();
        let [services, tables, backends] = self.services.usage();
        vec![
            ports,
            segments,
            flood,
            self.fdb.usage(),
            neighbours,
            self.subnets.usage(),
            self.routes.usage(),
            self.numbers.usage(),
            self.domains.usage(),
            self.peers.usage(),
            self.members.usage(),
            TableUsage { table: GROUPS, entries: groups, capacity: GROUP_NUMBERS },
            TableUsage { table: RULE_SETS, entries: sets, capacity: RULE_SETS_CAPACITY },
            TableUsage { table: RULES, entries: nodes, capacity: self.sizes.rules as usize },
            services,
            tables,
            backends,
            vips,
        ]
    }

    /// Reads all maps that the agent fills.
    pub(crate) fn read(&mut self) -> Result<(), Error> {
        self.ports.read()?;
        self.peers.read()?;
        self.members.read(&self.ports)?;
        self.fdb.read()?;
        self.subnets.read()?;
        self.routes.read()?;
        self.numbers.read()?;
        self.policies.read()?;
        self.services.read()?;
        self.vips.read()
    }

    /// Returns the domain of a network, or of a VRF whose networks share one. Returns `None` if it has no number yet, or,
    /// without a network, if no network of this node is in it.
    pub(crate) fn domain(&self, vrf: &Vrf, network: Option<Segment>) -> Option<Domain> {
        match network {
            Some(segment) => self.domains.of_network(vrf, segment),
            None => {
                self.domains.of_vrf(vrf).filter(|domain| self.ports.domains().any(|used| used == *domain))
            }
        }
    }

    pub(crate) fn ensure_settings(&mut self, settings: Settings) -> Result<(), Error> {
        self.peers.ensure_settings(settings)
    }

    /// Writes or removes a neighbour entry. When an address no longer belongs to a service, its connections with backends
    /// on other nodes end at once: the address may pass to an endpoint.
    pub(crate) fn set_neighbour(
        &mut self,
        key: NeighKey,
        neighbour: Option<NeighEntry>,
    ) -> Result<(), Error> {
        let is_service = |entry: &NeighEntry| entry.flags & NeighEntry::SERVICE != 0;
        let was_service = self.vips.neighbours().get(&key).is_some_and(is_service);
        self.vips.set_neighbour(key, neighbour)?;
        if was_service && !neighbour.as_ref().is_some_and(is_service) {
            self.fdb.invalidate();
        }
        Ok(())
    }

    /// Writes the index of the interface to the node's kernel for VLAN networks that the node routes, unless it is equal;
    /// zero for none.
    pub(crate) fn ensure_kernel_port(&mut self, ifindex: u32) -> Result<(), Error> {
        let before = self.kernel_port.get(&0, 0);
        if before.map_err(|error| failed(format!("read the map {KERNEL_PORT}"), error))? == ifindex {
            return Ok(());
        }
        self.writes.count();
        let written = self.kernel_port.set(0, ifindex, 0);
        written.map_err(|error| failed(format!("write to the map {KERNEL_PORT}"), error))
    }

    /// Flow events since the maps were created, by the names in `FlowEvent::ALL`.
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

    /// Service frames that were forwarded to the nodes of their backends (DSR), by program.
    pub(crate) fn dsr_forwarded(&self) -> Result<Vec<(&'static str, DropCount)>, Error> {
        let count = |by: DsrHook| {
            let per_cpu = self.relay_stats.get(&(by as u32), 0);
            per_cpu
                .map(|counts| sum(&counts))
                .map_err(|error| failed(format!("read the map {DSR_STATS}"), error))
        };
        DsrHook::ALL.iter().map(|(by, name)| Ok((*name, count(*by)?))).collect()
    }

    /// Dropped frames since the maps were created, by reason.
    pub(crate) fn drops(&self) -> Result<Vec<(DropReason, DropCount)>, Error> {
        let count = |reason: DropReason| {
            let per_cpu = self.drops.get(&(reason as u32), 0);
            per_cpu.map(|counts| sum(&counts)).map_err(|error| failed(format!("read the map {DROPS}"), error))
        };
        DropReason::ALL.iter().map(|reason| Ok((*reason, count(*reason)?))).collect()
    }
}

fn sum(per_cpu: &[DropCount]) -> DropCount {
    per_cpu.iter().fold(DropCount::default(), |sum, count| DropCount {
        packets: sum.packets + count.packets,
        bytes: sum.bytes + count.bytes,
    })
}

fn open_policies(pins: &Pins, sizes: &Sizes, names: &RuleNames, writes: &Writes) -> Result<Policies, Error> {
    let mut sets = RuleSets::new(
        pins.open_data(RULE_SETS)?,
        pins.open_data(RULES)?,
        pins.open_data(REVISION)?,
        sizes.rules,
        writes.clone(),
    )?;
    for other in pins.other_abi_versions() {
        if other.map(REVISION).exists() {
            let revision: Array<MapData, u64> = other.open_map(REVISION)?;
            let next =
                revision.get(&0, 0).map_err(|error| failed(format!("read the map {REVISION}"), error))?;
            sets.reserve(next);
        }
    }
    let counts = pins.open_map(RULE_COUNTS)?;
    Policies::new(&pins.open_data(GROUPS)?, sets, counts, names.clone(), writes.clone())
}
