//! What a packet to a service costs, by the number of services and of live flows.
//!
//! Frames are given to the pinned program of a real agent by `BPF_PROG_TEST_RUN`, one call for each: a repeated call would
//! see the packet already translated. The kernel's clock around the program is part of what is measured, so the same
//! is done with an empty program in the same run.

use std::{
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

use crate::{
    bench::{
        Report, network,
        pinned::{self, Target},
    },
    cluster::{Cluster, Datapath, Encap, Node, Pod, Shape, StoreKind},
    interrupt,
    progress::step,
};

const FROM_POD: &str = "ctv_from_pod";
/// Of each service.
pub(super) const BACKENDS: usize = 4;
/// Of the first service, so that it alone can have many flows.
const PORTS: u16 = 16;
/// The first source port of connections that are kept.
const LIVE: u16 = 20_000;
const PATIENCE: Duration = Duration::from_secs(120);
/// Service in a transaction: two keys each, and the store takes 128.
const PER_TRANSACTION: usize = 60;
const MAPS: [&str; 7] =
    ["ctv_svc", "ctv_ring", "ctv_backends", "ctv_affinity", "ctv_neigh", "ctv_ct", "ctv_new"];

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
    memory: Vec<(&'static str, u64)>,
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
    /// From the first write to the store until the node has all of them.
    load_s: f64,
    /// Writes to maps for one backend that goes.
    change_writes: f64,
}

pub(super) fn measure(options: &Options) -> Result<Lb> {
    let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = step("cluster", || Cluster::build(shape))?;
    cluster.start_agents()?;
    let network = network();
    cluster.create_network(&network)?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let pods: Vec<Pod> = (0..=BACKENDS)
        .map(|number| Pod::add(node, &network, &format!("lb-{number}")))
        .collect::<Result<_>>()?;
    let borrowed: Vec<&Pod> = pods.iter().collect();
    let bench = Bench { node, pods: &borrowed, runtime: runtime()?, store: cluster.fabric.store_endpoint() };
    let empty = node.pins().join("empty");
    let (mut rows, mut there) = (vec![], 0);
    for services in &options.services {
        let load = step(&format!("{services} services"), || bench.load(there..*services))?;
        there = *services;
        let change_writes = bench.change(*services)?;
        let [floor_ns, hot_ns, live_ns, new_ns] = step(&format!("{services} services: packets"), || {
            node.netns().run(|| bench.packets(options, *services, &empty))
        })?;
        let load_s = load.as_secs_f64();
        rows.push(Row { services: *services, floor_ns, hot_ns, live_ns, new_ns, load_s, change_writes });
    }
    let memory =
        MAPS.iter().map(|map| Ok((*map, pinned::memory(node.pins(), map)?))).collect::<Result<_>>()?;
    drop(bench);
    for pod in pods {
        pod.remove(node)?;
    }
    cluster.shut_down()?;
    Ok(Lb { calls: options.calls, flows: options.flows, rows, memory })
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
            for part in keys.chunks(2 * PER_TRANSACTION) {
                let puts: Vec<_> = part
                    .iter()
                    .map(|(key, value)| TxnOp::put(key.as_str(), value.to_string(), None))
                    .collect();
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
    pub(super) fn load(&self, services: std::ops::Range<usize>) -> Result<Duration> {
        let end = services.end;
        let start = Instant::now();
        self.put(services.flat_map(|service| self.bodies(service, BACKENDS)).collect())?;
        let ports = end + usize::from(PORTS) - 1;
        loop {
            interrupt::check()?;
            let inspected = self.node.client().get("/inspect/driver")?.json()?;
            if inspected.pointer("/entries/ctv_svc").and_then(Value::as_u64) == Some(ports as u64) {
                return Ok(start.elapsed());
            }
            ensure!(start.elapsed() < PATIENCE, "{end} services are not there: {}", inspected["entries"]);
            thread::sleep(Duration::from_millis(5));
        }
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

    /// Writes to the node's maps when the last service loses a backend.
    fn change(&self, services: usize) -> Result<f64> {
        const WRITES: &str = "contiv_datapath_writes_total";
        const CALM: Duration = Duration::from_millis(500);
        thread::sleep(CALM);
        let before = self.node.metric(WRITES)?;
        self.put(self.bodies(services - 1, BACKENDS - 1).to_vec())?;
        let start = Instant::now();
        while self.node.metric(WRITES)? == before {
            ensure!(start.elapsed() < PATIENCE, "a change has not come to the maps");
            thread::sleep(Duration::from_millis(5));
        }
        thread::sleep(CALM);
        let after = self.node.metric(WRITES)?;
        self.put(self.bodies(services - 1, BACKENDS).to_vec())?;
        thread::sleep(CALM);
        Ok(after - before)
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
            for flow in &flows {
                self.establish(*flow, &mut opening, &mut out, &client, &backends)?;
            }
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
        let step = |call: usize| flows[call.wrapping_mul(7919) % flows.len()];
        let new = |call: usize| {
            let service = call.wrapping_mul(7919) % services;
            let port = if service == 0 { 80 + (call % usize::from(PORTS)) as u16 } else { 80 };
            Flow { service, port, source_port: 1024 + (call % usize::from(LIVE - 1024)) as u16 }
        };
        let mut series: [Vec<f64>; 4] = Default::default();
        for _ in 0..options.rounds {
            interrupt::check()?;
            series[0].push(time(&floor, &mut frame, &|_| flows[0])?);
            series[1].push(time(&client, &mut frame, &|_| flows[0])?);
            series[2].push(time(&client, &mut frame, &step)?);
            series[3].push(time(&client, &mut opening, &new)?);
        }
        Ok(series.map(pinned::median))
    }

    fn frame(&self, flags: u8) -> Vec<u8> {
        // The checksums are not right for all that is written into it; the programs only add the difference.
        let client = self.pods[0];
        let mac = testkit::packet::mac(&client.mac);
        Packet::eth([2; 6], mac).ipv4(client.ip, vip(0)).tcp(0, 80, flags).payload(&[0; 10]).build()
    }

    /// Opens a connection, and answers it from the backend that was chosen.
    fn establish(
        &self,
        flow: Flow,
        frame: &mut [u8],
        out: &mut [u8],
        client: &Target,
        backends: &[(Ipv4Addr, Target)],
    ) -> Result<()> {
        const REDIRECT: u32 = 7;
        address(frame, flow);
        let (code, _) = client.give(frame, out)?;
        if code != REDIRECT {
            let inspected = self.node.client().get("/inspect/driver")?.json()?;
            bail!("the program says {code} to a connection to {}: {}", vip(flow.service), inspected["drops"]);
        }
        let chosen: [u8; 4] = out[30..34].try_into()?;
        let Some((_, backend)) = backends.iter().find(|(ip, _)| ip.octets() == chosen) else {
            bail!("sent to {}, which is no backend", Ipv4Addr::from(chosen));
        };
        // The same with its ends exchanged.
        let mut answer = out[..frame.len()].to_vec();
        for (a, b, len) in [(0, 6, 6), (26, 30, 4), (34, 36, 2)] {
            for at in 0..len {
                answer.swap(a + at, b + at);
            }
        }
        answer[47] = tcp_flags::SYN | tcp_flags::ACK;
        let (code, _) = backend.give(&answer, out)?;
        ensure!(code == REDIRECT, "the program says {code} to an answer");
        Ok(())
    }
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
             one call each, {} calls, {} live flows. Megabytes of maps at the end: {:.1} ({})",
            self.calls,
            self.flows,
            total as f64 / 1e6,
            maps.join(", ")
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
            "until the node has them s",
            "writes of one change",
        ]);
        for row in &self.rows {
            table.add_row([
                row.services.to_string(),
                format!("{:.0}", row.floor_ns),
                format!("{:.0}", row.hot_ns),
                format!("{:.0}", row.live_ns),
                format!("{:.0}", row.new_ns),
                format!("{:.2}", row.load_s),
                format!("{:.0}", row.change_writes),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
