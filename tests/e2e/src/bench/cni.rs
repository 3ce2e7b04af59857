use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::Value;
use testkit::{Netns, ovs::Switch};

use super::{latency::Latency, report::Report};
use crate::{
    cluster::{Call, Cluster, Datapath, Encap, Network, Node, Shape, StoreKind},
    interrupt,
    progress::step,
};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Number of pods on the node in the second measurement
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(2..=2000))]
    pods: u16,
    /// Number of ADD and DEL calls per measurement
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..=10000))]
    rounds: u16,
    /// Datapath to measure [default: all]
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
}

impl Default for Options {
    fn default() -> Options {
        Options { pods: 200, rounds: 40, datapath: None }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Cni {
    rows: Vec<Row>,
    floor: Floor,
}

/// Lower bounds of ADD and DEL.
#[derive(Debug, Serialize)]
struct Floor {
    /// VERSION, which does not call the agent: the cost of starting the process.
    plugin: Latency,
    /// Creation and removal of a veth pair by `ip`.
    veth_add: Latency,
    veth_del: Latency,
}

#[derive(Debug, Serialize)]
struct Row {
    datapath: &'static str,
    /// Number of pods on the node, including the measured one.
    pods: u16,
    add: Latency,
    del: Latency,
    /// `ovs-vsctl add-port` in the same switch, which waits for ovs-vswitchd like ADD.
    switch_add_port: Option<Latency>,
}

pub(super) fn measure(options: &Options) -> Result<Cni> {
    let datapaths = match options.datapath {
        Some(datapath) => vec![datapath],
        None => vec![Datapath::Ovs, Datapath::Ebpf],
    };
    let mut rows = vec![];
    let mut floor = None;
    for datapath in datapaths {
        let shape = Shape { datapaths: [datapath; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
        let mut cluster = step(&format!("{}: start the cluster", datapath.name()), || Cluster::build(shape))?;
        cluster.start_agents()?;
        let network = Network::bench();
        cluster.create_network(&network)?;
        let node = cluster.nodes.first().context("a cluster has nodes")?;
        step(&format!("{}: 1 pod", datapath.name()), || {
            rows.push(measure_row(node, &network, 1, options.rounds)?);
            floor = Some(measure_floor(node, &network, options.rounds)?);
            Ok(())
        })?;
        let pods = step(&format!("{}: {} pods", datapath.name(), options.pods), || {
            fill(node, &network, options.pods - 1)
        })?;
        rows.push(measure_row(node, &network, options.pods, options.rounds)?);
        for (call, _netns) in &pods {
            call.expect(node, "DEL")?;
        }
        cluster.delete_network(&network)?;
        cluster.shut_down()?;
    }
    Ok(Cni { rows, floor: floor.context("no datapath was measured")? })
}

fn fill(node: &Node, network: &Network, count: u16) -> Result<Vec<(Call, Netns)>> {
    let mut pods = vec![];
    for number in 0..count {
        interrupt::check()?;
        let netns = Netns::new("pod")?;
        let call = Call::new(node, network, &format!("fill-{number}"), &netns);
        call.expect(node, "ADD")?;
        pods.push((call, netns));
    }
    Ok(pods)
}

/// Measures ADD and DEL of one pod; its namespace exists already, as for kubelet.
fn measure_row(node: &Node, network: &Network, pods: u16, rounds: u16) -> Result<Row> {
    let (mut adds, mut dels) = (vec![], vec![]);
    for round in 0..rounds {
        interrupt::check()?;
        let netns = Netns::new("measured")?;
        let call = Call::new(node, network, &format!("measured-{round}"), &netns);
        adds.push(timed(|| call.expect(node, "ADD"))?);
        dels.push(timed(|| call.expect(node, "DEL"))?);
    }
    Ok(Row {
        datapath: node.datapath.name(),
        pods,
        add: Latency::of_series(adds).context("no ADD was measured")?,
        del: Latency::of_series(dels).context("no DEL was measured")?,
        switch_add_port: node.switch().map(|switch| measure_switch(node, switch, rounds)).transpose()?,
    })
}

/// Uses a separate bridge, which the agent does not manage.
fn measure_switch(node: &Node, switch: &Switch, rounds: u16) -> Result<Latency> {
    const BRIDGE: &str = "br-bench";
    const PORT: &str = "bench0";
    switch.vsctl(&["add-br", BRIDGE, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])?;
    node.netns().ip(&format!("link add {PORT} type veth peer name bench1"))?;
    node.netns().up(PORT)?;
    let mut adds = vec![];
    for _ in 0..rounds {
        interrupt::check()?;
        adds.push(timed(|| switch.vsctl(&["add-port", BRIDGE, PORT]))?);
        switch.vsctl(&["del-port", BRIDGE, PORT])?;
    }
    node.netns().ip(&format!("link del {PORT}"))?;
    switch.vsctl(&["del-br", BRIDGE])?;
    Latency::of_series(adds).context("no port was added")
}

fn measure_floor(node: &Node, network: &Network, rounds: u16) -> Result<Floor> {
    let netns = Netns::new("floor")?;
    let call = Call::new(node, network, "floor", &netns);
    let (mut plugin, mut adds, mut dels) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        interrupt::check()?;
        plugin.push(timed(|| call.expect(node, "VERSION"))?);
        adds.push(timed(|| node.netns().veth("floor0", &netns, "eth0"))?);
        dels.push(timed(|| node.netns().ip("link del floor0"))?);
    }
    Ok(Floor {
        plugin: Latency::of_series(plugin).context("no VERSION was measured")?,
        veth_add: Latency::of_series(adds).context("no veth pair was created")?,
        veth_del: Latency::of_series(dels).context("no veth pair was removed")?,
    })
}

fn timed<T>(work: impl FnOnce() -> Result<T>) -> Result<Duration> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed())
}

impl Report for Cni {
    fn title(&self) -> String {
        let Floor { plugin, veth_add, veth_del } = &self.floor;
        format!(
            "CNI calls. Lower bounds: plugin process (VERSION) p50 {:.2} ms; kernel (ip link): \
             create a veth pair p50 {:.2} ms, delete p50 {:.2} ms",
            plugin.p50_ms, veth_add.p50_ms, veth_del.p50_ms
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "datapath",
            "pods",
            "ADD p50 ms",
            "p99 ms",
            "DEL p50 ms",
            "p99 ms",
            "ovs-vsctl add-port p50 ms",
            "rounds",
        ]);
        for row in &self.rows {
            table.add_row([
                row.datapath.to_owned(),
                row.pods.to_string(),
                format!("{:.2}", row.add.p50_ms),
                format!("{:.2}", row.add.p99_ms),
                format!("{:.2}", row.del.p50_ms),
                format!("{:.2}", row.del.p99_ms),
                row.switch_add_port.map(|add| format!("{:.2}", add.p50_ms)).unwrap_or_default(),
                row.add.count.to_string(),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
