//! Cost of packets to services by number of services and flows; cost of loading and changing services.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::{
    clients::{Clients, Took},
    loading::{Loaded, OF_ALL, OF_FLOWS, OF_SERVICES, Start, bytes, start},
    services::{BACKENDS, Bench, runtime},
};
use crate::{
    bench::{pinned, report::Report},
    cluster::{Cluster, Encap, Network, Node, Pod},
    progress::step,
};

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Numbers of services, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000, 30_000])]
    services: Vec<usize>,
    /// Number of calls of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    calls: usize,
    /// Number of persistent connections
    #[arg(long, default_value_t = 500_000)]
    flows: usize,
    /// Number of rounds; the results are medians
    #[arg(long, default_value_t = 5)]
    pub(super) rounds: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { services: vec![1, 1000, 10_000, 30_000], calls: 1_000_000, flows: 500_000, rounds: 5 }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Lb {
    calls: usize,
    flows: usize,
    rows: Vec<Row>,
    /// Largest relative increase of a median over that of the first row.
    growth: Growth,
    /// Memory of each map at the end, in bytes.
    memory: Vec<(&'static str, u64)>,
    /// Start of an agent without state in the kernel, until all services are applied.
    start: Start,
}

#[derive(Debug, Serialize)]
struct Growth {
    hot: f64,
    live: f64,
    new: f64,
    direct: f64,
}

impl Growth {
    fn of(rows: &[Row]) -> Growth {
        let growth = |cost: fn(&Row) -> f64| {
            let first = rows.first().map_or(f64::NAN, cost);
            rows.iter().map(cost).fold(first, f64::max) / first - 1.0
        };
        Growth {
            hot: growth(|row| row.hot_ns),
            live: growth(|row| row.live_ns),
            new: growth(|row| row.new_ns),
            direct: growth(|row| row.direct_ns),
        }
    }
}

#[derive(Debug, Serialize)]
struct Row {
    services: usize,
    /// Empty program, interleaved with the others; all times per packet in nanoseconds.
    floor_ns: f64,
    /// Packets of one flow.
    hot_ns: f64,
    /// Packets of a different flow each time.
    live_ns: f64,
    /// First packets of connections to a different service each time.
    new_ns: f64,
    /// First packets of connections to a backend directly, interleaved with those.
    direct_ns: f64,
    /// Cache miss in an array with the size of the service tables, interleaved with those.
    line_ns: f64,
    /// Time to write the services to the store.
    store_s: f64,
    /// Time from the last write until the node has applied all services.
    behind_s: f64,
    /// Total time of the agent for planning and map writes.
    busy_s: f64,
    /// Map writes for the removal of one backend.
    change_writes: f64,
    /// Time of the agent for it.
    change_ms: f64,
    /// Memory of the service maps and of the flow maps, in bytes.
    services_bytes: u64,
    flows_bytes: u64,
}

/// Load results for a number of services.
struct Size {
    services: usize,
    loaded: Loaded,
    change_writes: f64,
    change_ms: f64,
    services_bytes: u64,
    rounds: Vec<Took>,
}

pub(super) fn measure(options: &Options) -> Result<Lb> {
    let network = Network::bench();
    let mut cluster = step("start the cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    // The table is empty, so it is replaced. New connections are unreplied, and make room for those of the next round.
    let new = 2 * options.calls / options.rounds;
    let capacity = (2 * options.flows.max(new)).next_multiple_of(1 << 20).to_string();
    let opening = format!("{}s", OPENING.as_secs());
    let node = cluster.nodes.first_mut().context("a cluster has nodes")?;
    node.restart_agent_with(&["--conntrack-max", &capacity, "--conntrack-timeout-tcp-opening", &opening])?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let pods: Vec<Pod> = (0..=BACKENDS)
        .map(|number| Pod::add(node, &network, &format!("lb-{number}")))
        .collect::<Result<_>>()?;
    // A quarter of the table is for one endpoint.
    let others: Vec<Pod> = (1..CLIENTS)
        .map(|number| Pod::add(node, &network, &format!("lb-client-{number}")))
        .collect::<Result<_>>()?;
    let borrowed: Vec<&Pod> = pods.iter().collect();
    let bench = Bench { node, pods: &borrowed, runtime: runtime()?, store: cluster.fabric.store_endpoint() };
    let neighbours = pinned::memory(node.pins(), OF_ALL)?;
    let (mut sizes, mut there): (Vec<Size>, usize) = (vec![], 0);
    for services in options.services.iter().copied() {
        let loaded = step(&format!("{services} services"), || bench.load(there..services))?;
        there = services;
        let (change_writes, change_ms) = bench.change(services)?;
        let grown = pinned::memory(node.pins(), OF_ALL)? - neighbours;
        let services_bytes = bytes(node, &OF_SERVICES)? + grown;
        sizes.push(Size { services, loaded, change_writes, change_ms, services_bytes, rounds: vec![] });
    }
    let clients: Vec<&Pod> = pods.iter().take(1).chain(&others).collect();
    let mut clients = node.netns().run(|| Clients::new(&bench, &clients, options.flows))?;
    let flows_bytes = bytes(node, &OF_FLOWS)?;
    // Rounds are the outer loop, in alternating order, so that disturbances affect all rows.
    for round in 1..=options.rounds {
        sizes.reverse();
        for size in &mut sizes {
            let services = size.services;
            step(&format!("{services} services: packets, round {round} of {}", options.rounds), || {
                bench.resize(there, services)?;
                there = services;
                let calls = options.calls / options.rounds;
                size.rounds.push(node.netns().run(|| clients.round(services, calls))?);
                wait_for_expiry(node, options.flows)
            })?;
        }
    }
    sizes.sort_by_key(|size| size.services);
    let most = sizes.last().map_or(1, |size| size.services);
    bench.resize(there, most)?;
    let rows: Vec<Row> = sizes.into_iter().map(|size| size.row(flows_bytes)).collect();
    let maps = OF_SERVICES.iter().chain([&OF_ALL]).chain(&OF_FLOWS);
    let memory = maps.map(|map| Ok((*map, pinned::memory(node.pins(), map)?))).collect::<Result<_>>()?;
    drop(clients);
    drop(bench);
    let node = cluster.nodes.first_mut().context("a cluster has nodes")?;
    let start = step("start the agent", || start(node, most))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    for pod in pods.into_iter().chain(others) {
        pod.remove(node)?;
    }
    cluster.shut_down()?;
    let growth = Growth::of(&rows);
    Ok(Lb { calls: options.calls, flows: options.flows, rows, growth, memory, start })
}

/// Clients that share the persistent connections.
const CLIENTS: usize = 4;
/// Timeout of connections before the first reply.
const OPENING: Duration = Duration::from_secs(1);

/// Used records of the flow table.
const FLOWS: &str = "contiv_datapath_table_entries{table=\"ctv_flows\"}";

/// Waits until the flow table has no more than the persistent connections.
fn wait_for_expiry(node: &Node, flows: usize) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(60);
    let start = Instant::now();
    while node.metric(FLOWS)? > flows as f64 {
        ensure!(start.elapsed() < LIMIT, "connections without a reply do not expire");
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

impl Size {
    fn row(self, flows_bytes: u64) -> Row {
        let median = |cost: fn(&Took) -> f64| pinned::median(self.rounds.iter().map(cost).collect());
        Row {
            services: self.services,
            floor_ns: median(|took| took.floor),
            hot_ns: median(|took| took.hot),
            live_ns: median(|took| took.live),
            new_ns: median(|took| took.new),
            direct_ns: median(|took| took.direct),
            line_ns: median(|took| took.line),
            store_s: self.loaded.store.as_secs_f64(),
            behind_s: self.loaded.behind.as_secs_f64(),
            busy_s: self.loaded.busy_s,
            change_writes: self.change_writes,
            change_ms: self.change_ms,
            services_bytes: self.services_bytes,
            flows_bytes,
        }
    }
}

impl Report for Lb {
    fn title(&self) -> String {
        let total: u64 = self.memory.iter().map(|(_, bytes)| bytes).sum();
        let maps: Vec<String> =
            self.memory.iter().map(|(map, bytes)| format!("{map} {:.1}", *bytes as f64 / 1e6)).collect();
        format!(
            "Services on an eBPF node, {BACKENDS} backends each. Nanoseconds per packet from client to service, \
             one call each, {} calls, {} established flows of {CLIENTS} pods; the numbers of services alternate. \"direct\" are new connections to a \
             backend, \"cache miss\" is a read from an array with the size of the service tables. \"behind\" is from the last write to the store until the node has applied the \
             services, \"agent\" the time for planning and map writes. Megabytes of maps at the end: {:.1} ({}). A starting agent \
             without state in the kernel has applied all after {:.2} s, {:.2} s of it planning and map writes",
            self.calls,
            self.flows,
            total as f64 / 1e6,
            maps.join(", "),
            self.start.seconds,
            self.start.busy_s
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "services",
            "empty program ns",
            "one hot flow ns",
            "live flows ns",
            "new connections ns",
            "direct to pods ns",
            "cache miss ns",
            "to the store s",
            "behind s",
            "agent s",
            "one change: writes",
            "agent ms",
            "MB of services",
            "MB of flows",
        ]);
        for row in &self.rows {
            table.add_row([
                row.services.to_string(),
                format!("{:.0}", row.floor_ns),
                format!("{:.0}", row.hot_ns),
                format!("{:.0}", row.live_ns),
                format!("{:.0}", row.new_ns),
                format!("{:.0}", row.direct_ns),
                format!("{:.0}", row.line_ns),
                format!("{:.2}", row.store_s),
                format!("{:.2}", row.behind_s),
                format!("{:.2}", row.busy_s),
                format!("{:.0}", row.change_writes),
                format!("{:.2}", row.change_ms),
                format!("{:.1}", row.services_bytes as f64 / 1e6),
                format!("{:.1}", row.flows_bytes as f64 / 1e6),
            ]);
        }
        let Growth { hot, live, new, direct } = self.growth;
        let percent = |growth: f64| format!("{:+.1} %", growth * 100.0);
        let mut last = vec!["largest increase".to_owned(), String::new()];
        last.extend([hot, live, new, direct].map(percent));
        table.add_row(last);
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
