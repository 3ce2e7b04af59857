//! What a packet to a service costs, by the number of services and of live flows.
//!
//! Frames are given to the pinned program of a real agent by `BPF_PROG_TEST_RUN`, one call for each: a repeated call would
//! see the packet already translated. The kernel's clock around the program is part of what is measured, so the same
//! is done with an empty program in the same run.

use std::{
    cell::Cell,
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use etcd_client::{Client as Store, Txn, TxnOp};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::packet::{Packet, tcp_flags};

use super::loading::{BUSY, Loaded, OF_ALL, OF_FLOWS, OF_SERVICES, Start, bytes, start, wait_for};
use crate::{
    bench::{
        Report, network,
        pinned::{self, Target},
    },
    cluster::{Cluster, Encap, Node, Pod},
    interrupt,
    progress::step,
};

const FROM_POD: &str = "ctv_from_pod";
/// Of each service.
pub(super) const BACKENDS: usize = 4;
/// Of the first service, so that it alone can have many flows.
pub(super) const PORTS: u16 = 16;
/// Flows between two looks at whether the user has interrupted.
const FLOWS_AT_ONCE: usize = 10_000;
/// The first source port of connections that are kept.
const LIVE: u16 = 20_000;
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
    /// Bytes at the end, map by map.
    memory: Vec<(&'static str, u64)>,
    /// An agent that starts when the kernel has nothing, until it has all.
    start: Start,
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

pub(super) fn measure(options: &Options) -> Result<Lb> {
    let network = network();
    let mut cluster = step("cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let pods: Vec<Pod> = (0..=BACKENDS)
        .map(|number| Pod::add(node, &network, &format!("lb-{number}")))
        .collect::<Result<_>>()?;
    let borrowed: Vec<&Pod> = pods.iter().collect();
    let bench = Bench { node, pods: &borrowed, runtime: runtime()?, store: cluster.fabric.store_endpoint() };
    let empty = node.pins().join("empty");
    let (mut rows, mut there) = (vec![], 0);
    let neighbours = pinned::memory(node.pins(), OF_ALL)?;
    for services in &options.services {
        let loaded = step(&format!("{services} services"), || bench.load(there..*services))?;
        there = *services;
        let (change_writes, change_ms) = bench.change(*services)?;
        let [floor_ns, hot_ns, live_ns, new_ns] =
            node.netns().run(|| bench.packets(options, *services, &empty))?;
        let Loaded { store, behind, busy_s } = loaded;
        let grown = pinned::memory(node.pins(), OF_ALL)? - neighbours;
        rows.push(Row {
            services: *services,
            floor_ns,
            hot_ns,
            live_ns,
            new_ns,
            store_s: store.as_secs_f64(),
            behind_s: behind.as_secs_f64(),
            busy_s,
            change_writes,
            change_ms,
            services_bytes: bytes(node, &OF_SERVICES)? + grown,
            flows_bytes: bytes(node, &OF_FLOWS)?,
        });
    }
    let maps = OF_SERVICES.iter().chain([&OF_ALL]).chain(&OF_FLOWS);
    let memory = maps.map(|map| Ok((*map, pinned::memory(node.pins(), map)?))).collect::<Result<_>>()?;
    drop(bench);
    let node = cluster.nodes.first_mut().context("a cluster has nodes")?;
    let start = step("an agent that starts", || start(node, there))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    for pod in pods {
        pod.remove(node)?;
    }
    cluster.shut_down()?;
    Ok(Lb { calls: options.calls, flows: options.flows, rows, memory, start })
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
    node.netns().run(|| {
        runtime.block_on(async {
            let mut store = Store::connect([store], None).await.context("connect to the store")?;
            let mut keys = keys.iter().peekable();
            while keys.peek().is_some() {
                let (mut puts, mut bytes) = (vec![], 0);
                while puts.len() < PER_TRANSACTION
                    && bytes < FULL
                    && let Some((key, value)) = keys.next()
                {
                    let value = value.to_string();
                    bytes += value.len();
                    puts.push(TxnOp::put(key.as_str(), value, None));
                }
                store.txn(Txn::new().and_then(puts)).await.context("write to the store")?;
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

/// A connection through a service, as the client sends it.
#[derive(Clone, Copy)]
struct Flow {
    service: usize,
    port: u16,
    source_port: u16,
}

impl Bench<'_> {
    /// Writes services as netmaster does, and waits until the node has them. No two have a backend in common, the
    /// target ports being different.
    pub(super) fn load(&self, services: std::ops::Range<usize>) -> Result<Loaded> {
        let (end, before, start) = (services.end, self.node.metric(BUSY)?, Instant::now());
        self.put(services.flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let store = start.elapsed();
        wait_for(self.node, end)?;
        let behind = start.elapsed() - store;
        Ok(Loaded { store, behind, busy_s: self.node.metric(BUSY)? - before })
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

    /// Medians: floor, hot, live, new. The sides take turns.
    fn packets(&self, options: &Options, services: usize, empty: &Path) -> Result<[f64; 4]> {
        pinned::stay()?;
        let pin = pinned::find(self.node.pins(), FROM_POD)?;
        let client = Target::open(&pin, pinned::port_of(self.pods[0])?)?;
        let backends: Vec<(Ipv4Addr, Target)> = self.pods[1..]
            .iter()
            .map(|pod| Ok((pod.ip, Target::open(&pin, pinned::port_of(pod)?)?)))
            .collect::<Result<_>>()?;
        // All of the first service, which stays as it is; what is known of a flow is not looked up there again.
        let flows: Vec<Flow> = (0..options.flows)
            .map(|number| Flow {
                service: 0,
                port: 80 + (number % usize::from(PORTS)) as u16,
                source_port: LIVE + (number / usize::from(PORTS)) as u16,
            })
            .collect();
        let (mut frame, mut opening) = (self.frame(tcp_flags::ACK), self.frame(tcp_flags::SYN));
        let mut out = vec![0; 256];
        if !empty.exists() {
            pinned::pin_empty(empty)?;
            step(&format!("{} live flows", flows.len()), || {
                flows.chunks(FLOWS_AT_ONCE).try_for_each(|some| {
                    interrupt::check()?;
                    some.iter().try_for_each(|flow| self.establish(*flow, &mut out, &client, &backends))
                })
            })?;
        }
        let floor = Target::open(empty, pinned::port_of(self.pods[0])?)?;
        let calls = options.calls / options.rounds;
        let mut time = |target: &Target, frame: &mut [u8], at: &dyn Fn(usize) -> Flow| -> Result<f64> {
            let mut sum = Duration::ZERO;
            for call in 0..calls {
                address(frame, at(call));
                sum += target.give(frame, &mut out)?.1;
            }
            Ok(sum.as_nanos() as f64 / calls as f64)
        };
        // Comes to each flow, and is far from the last one in memory.
        let any = |call: usize| flows[call.wrapping_mul(7919) % flows.len()];
        // Never one that is known: of more client ports than the table of new flows has room for, none twice in a row.
        let spare: Vec<u16> = (1024..LIVE).chain(live_end(options.flows)..=u16::MAX).collect();
        let began = Cell::new(0_usize);
        let new = |_: usize| {
            let call = began.replace(began.get() + 1);
            let service = call.wrapping_mul(7919) % services;
            let (port, client) = match service {
                0 => (80 + (call % usize::from(PORTS)) as u16, call / usize::from(PORTS)),
                _ => (80, call),
            };
            Flow { service, port, source_port: spare[client % spare.len()] }
        };
        let mut series: [Vec<f64>; 4] = Default::default();
        for round in 1..=options.rounds {
            step(&format!("{services} services: packets, round {round} of {}", options.rounds), || {
                series[0].push(time(&floor, &mut frame, &|_| flows[0])?);
                series[1].push(time(&client, &mut frame, &|_| flows[0])?);
                series[2].push(time(&client, &mut frame, &any)?);
                series[3].push(time(&client, &mut opening, &new)?);
                Ok(())
            })?;
        }
        Ok(series.map(pinned::median))
    }

    fn frame(&self, flags: u8) -> Vec<u8> {
        // The checksums are not right for all that is written into it; the programs only add the difference.
        let client = self.pods[0];
        let mac = testkit::packet::mac(&client.mac);
        Packet::eth([2; 6], mac).ipv4(client.ip, vip(0)).tcp(0, 80, flags).payload(&[0; 10]).build()
    }

    /// Opens a connection, answers it from the backend that was chosen, and acknowledges that: one that is not
    /// acknowledged would be forgotten before the last row.
    fn establish(
        &self,
        flow: Flow,
        out: &mut [u8],
        client: &Target,
        backends: &[(Ipv4Addr, Target)],
    ) -> Result<()> {
        const REDIRECT: u32 = 7;
        let [mut opening, mut acknowledging] =
            [tcp_flags::SYN, tcp_flags::ACK].map(|flags| self.frame(flags));
        address(&mut opening, flow);
        address(&mut acknowledging, flow);
        let (code, _) = client.give(&opening, out)?;
        if code != REDIRECT {
            let inspected = self.node.client().get("/inspect/driver")?.json()?;
            bail!("the program says {code} to a connection to {}: {}", vip(flow.service), inspected["drops"]);
        }
        let chosen: [u8; 4] = out[30..34].try_into()?;
        let Some((_, backend)) = backends.iter().find(|(ip, _)| ip.octets() == chosen) else {
            bail!("sent to {}, which is no backend", Ipv4Addr::from(chosen));
        };
        // The same with its ends exchanged.
        let mut answer = out[..opening.len()].to_vec();
        for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            for at in 0..len {
                answer.swap(a + at, b + at);
            }
        }
        answer[47] = tcp_flags::SYN | tcp_flags::ACK;
        let (code, _) = backend.give(&answer, out)?;
        ensure!(code == REDIRECT, "the program says {code} to an answer");
        let (code, _) = client.give(&acknowledging, out)?;
        ensure!(code == REDIRECT, "the program says {code} to the answer's acknowledgement");
        Ok(())
    }
}

/// The first source port after those of connections that are kept.
fn live_end(flows: usize) -> u16 {
    LIVE.saturating_add(flows.div_ceil(usize::from(PORTS)) as u16)
}

/// Makes a frame one of the flow.
fn address(frame: &mut [u8], flow: Flow) {
    let vip = vip(flow.service).octets();
    frame[..2].copy_from_slice(&[2, 2]);
    frame[2..6].copy_from_slice(&vip);
    frame[30..34].copy_from_slice(&vip);
    frame[34..36].copy_from_slice(&flow.source_port.to_be_bytes());
    frame[36..38].copy_from_slice(&flow.port.to_be_bytes());
}

impl Report for Lb {
    fn title(&self) -> String {
        let total: u64 = self.memory.iter().map(|(_, bytes)| bytes).sum();
        let maps: Vec<String> =
            self.memory.iter().map(|(map, bytes)| format!("{map} {:.1}", *bytes as f64 / 1e6)).collect();
        format!(
            "Services on an eBPF node, {BACKENDS} backends each. Nanoseconds for a packet from client to service, \
             one call each, {} calls, {} live flows. \"behind\" is from the last write to the store until the node has the \
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
                format!("{:.2}", row.store_s),
                format!("{:.2}", row.behind_s),
                format!("{:.2}", row.busy_s),
                format!("{:.0}", row.change_writes),
                format!("{:.2}", row.change_ms),
                format!("{:.1}", row.services_bytes as f64 / 1e6),
                format!("{:.1}", row.flows_bytes as f64 / 1e6),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
