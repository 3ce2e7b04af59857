//! What a packet to a service costs, by the number of services and of live flows; and what it takes to load and change them.

use std::{
    net::Ipv4Addr,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use etcd_client::{Client as Store, Txn, TxnOp};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    clients::{Clients, Took},
    loading::{BUSY, Loaded, OF_ALL, OF_FLOWS, OF_SERVICES, Start, bytes, start, wait_for},
};
use crate::{
    bench::{Report, network, pinned},
    cluster::{Cluster, Encap, Node, Pod},
    progress::step,
};

/// Of each service.
pub(super) const BACKENDS: usize = 4;
/// Of the first service, so that it alone can have many flows.
pub(super) const PORTS: u16 = 16;
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// Keys in a transaction: the store takes 128.
const PER_TRANSACTION: usize = 120;
/// Bytes after which a transaction is full: the store takes two million.
const FULL: usize = 1_000_000;

#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Services, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 1000, 10_000, 30_000])]
    services: Vec<usize>,
    /// Calls of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    calls: usize,
    /// Connections that are alive
    #[arg(long, default_value_t = 500_000)]
    flows: usize,
    /// Of each measurement, the median of which is told
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
    /// The largest median of all rows over that of the first, less one.
    growth: Growth,
    /// Bytes at the end, map by map.
    memory: Vec<(&'static str, u64)>,
    /// An agent that starts when the kernel has nothing, until it has all.
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
    /// Nanoseconds for a call of an empty program, measured between the others.
    floor_ns: f64,
    /// One flow, all the time.
    hot_ns: f64,
    /// Each call another flow.
    live_ns: f64,
    /// Each call the first packet of a connection to another service.
    new_ns: f64,
    /// Each call the first packet of a connection straight to a backend, in turns with those.
    direct_ns: f64,
    /// One look into an array as large as what there is of the services for the programs, in turns with those.
    line_ns: f64,
    /// How long it took to write them to the store.
    store_s: f64,
    /// From the last such write until the node had all of them.
    behind_s: f64,
    /// How long the agent planned and wrote to maps, all together.
    busy_s: f64,
    /// Writes to maps for one backend that goes.
    change_writes: f64,
    /// How long the agent took for that.
    change_ms: f64,
    /// Bytes of maps: of services, and of flows.
    services_bytes: u64,
    flows_bytes: u64,
}

/// What is known of a number of services before packets are measured.
struct Size {
    services: usize,
    loaded: Loaded,
    change_writes: f64,
    change_ms: f64,
    services_bytes: u64,
    rounds: Vec<Took>,
}

pub(super) fn measure(options: &Options) -> Result<Lb> {
    let network = network();
    let mut cluster = step("cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let pods: Vec<Pod> = (0..=BACKENDS)
        .map(|number| Pod::add(node, &network, &format!("lb-{number}")))
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
    let mut clients = node.netns().run(|| Clients::new(&bench, options.flows))?;
    let flows_bytes = bytes(node, &OF_FLOWS)?;
    // Rounds outermost, and there and back again: what the machine does meanwhile is shared by all.
    for round in 1..=options.rounds {
        sizes.reverse();
        for size in &mut sizes {
            let services = size.services;
            step(&format!("{services} services: packets, round {round} of {}", options.rounds), || {
                bench.resize(there, services)?;
                there = services;
                let calls = options.calls / options.rounds;
                size.rounds.push(node.netns().run(|| clients.round(services, calls))?);
                Ok::<_, anyhow::Error>(())
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
    let start = step("an agent that starts", || start(node, most))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    for pod in pods {
        pod.remove(node)?;
    }
    cluster.shut_down()?;
    let growth = Growth::of(&rows);
    Ok(Lb { calls: options.calls, flows: options.flows, rows, growth, memory, start })
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

pub(in crate::bench) fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Writes to the store as netmaster does.
pub(in crate::bench) fn put(
    node: &Node,
    runtime: &tokio::runtime::Runtime,
    store: &str,
    keys: &[(String, Value)],
) -> Result<()> {
    transactions(
        node,
        runtime,
        store,
        keys.iter().map(|(key, value)| {
            let value = value.to_string();
            (value.len(), TxnOp::put(key.as_str(), value, None))
        }),
    )
}

/// Operations with how many bytes they bring.
fn transactions(
    node: &Node,
    runtime: &tokio::runtime::Runtime,
    store: &str,
    operations: impl Iterator<Item = (usize, TxnOp)> + Send,
) -> Result<()> {
    let mut operations = operations.peekable();
    node.netns().run(move || {
        runtime.block_on(async {
            let mut store = Store::connect([store], None).await.context("connect to the store")?;
            while operations.peek().is_some() {
                let (mut transaction, mut bytes) = (vec![], 0);
                while transaction.len() < PER_TRANSACTION
                    && bytes < FULL
                    && let Some((length, operation)) = operations.next()
                {
                    bytes += length;
                    transaction.push(operation);
                }
                store.txn(Txn::new().and_then(transaction)).await.context("write to the store")?;
            }
            Ok(())
        })
    })
}

/// A service as netmaster writes it.
pub(super) fn bodies(service: usize, ports: &[String], backends: &[Ipv4Addr]) -> [(String, Value); 2] {
    let id = format!("s{service}:bench");
    let state = json!({"id": id, "servicename": format!("s{service}"), "tenantname": "bench",
        "subnet": "pods", "ports": ports, "selectors": {"a": "b"}, "ipaddress": vip(service),
        "providers": {}});
    let providers = json!({"id": id, "ServiceName": id, "Providers": backends});
    [
        (format!("/contiv.io/state/serviceLB/{id}"), state),
        (format!("/contiv.io/state/provider/{id}"), providers),
    ]
}

pub(super) fn vip(service: usize) -> Ipv4Addr {
    let first = u32::from(Ipv4Addr::new(10, 1, 128, 0));
    Ipv4Addr::from(first + service as u32)
}

/// The first 1000 ports are the services' own.
pub(super) fn target_port(service: usize) -> u16 {
    1000 + service as u16
}

pub(super) struct Bench<'a> {
    pub(super) node: &'a Node,
    /// The client, then the backends.
    pub(super) pods: &'a [&'a Pod],
    pub(super) runtime: tokio::runtime::Runtime,
    pub(super) store: String,
}

impl Bench<'_> {
    /// Writes services as netmaster does, and waits until the node has them. No two have a backend in common, the
    /// target ports being different.
    pub(super) fn load(&self, services: Range<usize>) -> Result<Loaded> {
        let (end, before, start) = (services.end, self.node.metric(BUSY)?, Instant::now());
        self.put(services.flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let store = start.elapsed();
        wait_for(self.node, end)?;
        let behind = start.elapsed() - store;
        Ok(Loaded { store, behind, busy_s: self.node.metric(BUSY)? - before })
    }

    /// Writes or removes services, and waits until the node has so many.
    fn resize(&self, before: usize, after: usize) -> Result<()> {
        self.put((before..after).flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let gone = (after..before).flat_map(|service| self.bodies(service, BACKENDS));
        let gone = gone.map(|(key, _)| (0, TxnOp::delete(key, None)));
        transactions(self.node, &self.runtime, &self.store, gone)?;
        wait_for(self.node, after)
    }

    fn bodies(&self, service: usize, backends: usize) -> [(String, Value); 2] {
        let ports: Vec<String> = match service {
            // Each to another target, so that one client port can be used for all.
            0 => (0..PORTS).map(|port| format!("{}:{}:TCP", 80 + port, 60_000 + port)).collect(),
            _ => vec![format!("80:{}:TCP", target_port(service))],
        };
        let addresses: Vec<Ipv4Addr> = self.pods[1..=backends].iter().map(|pod| pod.ip).collect();
        bodies(service, &ports, &addresses)
    }

    fn put(&self, keys: Vec<(String, Value)>) -> Result<()> {
        put(self.node, &self.runtime, &self.store, &keys)
    }

    /// Writes to the node's maps when the last service loses a backend, and the milliseconds that the agent took.
    fn change(&self, services: usize) -> Result<(f64, f64)> {
        const WRITES: &str = "contiv_datapath_writes_total";
        const CALM: Duration = Duration::from_millis(500);
        // Meanwhile the agent may measure everything, as it does each minute: then it is done again.
        const OBSERVED: &str = "contiv_datapath_observed_total";
        loop {
            thread::sleep(CALM);
            let observed = self.node.metric(OBSERVED)?;
            let (before, busy) = (self.node.metric(WRITES)?, self.node.metric(BUSY)?);
            self.put(self.bodies(services - 1, BACKENDS - 1).to_vec())?;
            let start = Instant::now();
            while self.node.metric(WRITES)? == before {
                ensure!(start.elapsed() < PATIENCE, "a change has not come to the maps");
                thread::sleep(Duration::from_millis(5));
            }
            thread::sleep(CALM);
            let took = (self.node.metric(WRITES)? - before, (self.node.metric(BUSY)? - busy) * 1e3);
            let again = self.node.metric(OBSERVED)? != observed;
            self.put(self.bodies(services - 1, BACKENDS).to_vec())?;
            thread::sleep(CALM);
            if !again {
                return Ok(took);
            }
        }
    }
}

impl Report for Lb {
    fn title(&self) -> String {
        let total: u64 = self.memory.iter().map(|(_, bytes)| bytes).sum();
        let maps: Vec<String> =
            self.memory.iter().map(|(map, bytes)| format!("{map} {:.1}", *bytes as f64 / 1e6)).collect();
        format!(
            "Services on an eBPF node, {BACKENDS} backends each. Nanoseconds for a packet from client to service, \
             one call each, {} calls, {} live flows; the numbers of services take turns, up and down. Beside new connections there are \
             those straight to a backend and, as one cold line, a look into an array as large as what the programs have of the \
             services. \"behind\" is from the last write to the store until the node has the \
             services, \"agent\" what it plans and writes to maps. Megabytes of maps at the end: {:.1} ({}). An agent that \
             starts with nothing in the kernel has all after {:.2} s, {:.2} of them planning and writing",
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
            "straight to pods ns",
            "a cold line ns",
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
        let mut last = vec!["most over fewest".to_owned(), String::new()];
        last.extend([hot, live, new, direct].map(percent));
        table.add_row(last);
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
