//! Rules on the group of a pod: what the first packet of a connection costs, and those that follow, by the number of rules.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use contiv_model::policy::{Attached, Directed, Expanded};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::packet::{Packet, mac, tcp_flags};

use super::{
    Report, lb,
    pinned::{self, Target},
};
use crate::{
    cluster::{Cluster, Datapath, Encap, Node, Pod, Shape, StoreKind},
    interrupt,
    progress::step,
};

const FROM_POD: &str = "ctv_from_pod";
const PATIENCE: Duration = Duration::from_secs(120);
/// In one policy, so that its body is no larger than a store takes.
const PER_POLICY: usize = 1000;
const MAPS: [&str; 4] = ["ctv_groups", "ctv_rulesets", "ctv_rules", "ctv_rulecnt"];

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rules on the group, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 100, 1000, 15_000])]
    rules: Vec<usize>,
    /// Calls of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    calls: usize,
    /// Of each measurement, the median of which is told
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options { rules: vec![0, 1, 100, 1000, 15_000], calls: 1_000_000, rounds: 5 }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Cost {
    calls: usize,
    rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    rules: usize,
    floor_ns: f64,
    established_ns: f64,
    first_ns: f64,
    /// From the first write to the store until the node has all of them.
    load_s: f64,
    memory_bytes: u64,
}

pub(super) fn measure(options: &Options) -> Result<Cost> {
    let shape = Shape { datapaths: [Datapath::Ebpf; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
    let mut cluster = step("cluster", || Cluster::build(shape))?;
    cluster.start_agents()?;
    let network = super::network();
    cluster.create_network(&network)?;
    let body = json!({"tenantName": "bench", "groupName": "g", "networkName": "pods"});
    cluster.client().post_json("/api/v1/endpointGroups/bench:g/", &body)?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let client = Pod::add_to(node, &network, Some("g"), "client")?;
    let server = Pod::add(node, &network, "server")?;
    let (runtime, store) = (lb::runtime()?, cluster.fabric.store_endpoint());
    let empty = node.pins().join("empty");
    let (mut rows, mut there) = (vec![], 0);
    for rules in &options.rules {
        let start = Instant::now();
        step(&format!("{rules} rules"), || {
            lb::put(node, &runtime, &store, &bodies(there, *rules)?)?;
            wait(node, *rules)
        })?;
        let load_s = start.elapsed().as_secs_f64();
        there = *rules;
        let [floor_ns, established_ns, first_ns] = step(&format!("{rules} rules: packets"), || {
            node.netns().run(|| packets(options, node, [&client, &server], &empty))
        })?;
        let memory: Vec<u64> =
            MAPS.iter().map(|map| pinned::memory(node.pins(), map)).collect::<Result<_>>()?;
        let memory_bytes = memory.iter().sum();
        rows.push(Row { rules: *rules, floor_ns, established_ns, first_ns, load_s, memory_bytes });
    }
    for pod in [client, server] {
        pod.remove(node)?;
    }
    cluster.shut_down()?;
    Ok(Cost { calls: options.calls, rows })
}

/// The policies that make `have` rules `wanted`. All are about single addresses to which nothing is sent here, so that every
/// search ends without a rule. The group is the first of the cluster.
fn bodies(have: usize, wanted: usize) -> Result<Vec<(String, Value)>> {
    let numbers: Vec<usize> = (have..wanted).collect();
    numbers
        .chunks(PER_POLICY)
        .map(|part| {
            let id = format!("bench:g:bench:p{}", part[0]);
            let rules = part.iter().map(|number| {
                let rule = format!("bench:p{}:{number}", part[0]);
                let directed = Directed {
                    rule_id: format!("{id}:{rule}:outTx"),
                    priority: 1,
                    src_endpoint_group: 1,
                    dst_ip_addr: format!("172.16.{}.{}", number / 256, number % 256),
                    action: "deny".to_owned(),
                    ..Directed::default()
                };
                let mut expanded = Expanded::default();
                expanded.rule.key.clone_from(&rule);
                expanded.rule.direction = "out".to_owned();
                expanded.directed.insert(directed.rule_id.clone(), directed);
                (rule, expanded)
            });
            let body = Attached { id: id.clone(), key: id.clone(), group: 1, rules: rules.collect() };
            Ok((format!("/contiv.io/state/policy/{id}"), serde_json::to_value(body)?))
        })
        .collect()
}

/// Until the node has entries for so many rules, each of which has one.
fn wait(node: &Node, rules: usize) -> Result<()> {
    let start = Instant::now();
    loop {
        interrupt::check()?;
        let inspected = node.client().get("/inspect/driver")?.json()?;
        let entries = inspected.pointer("/entries/ctv_rules").and_then(Value::as_u64);
        if entries.is_some_and(|entries| entries >= rules as u64) {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "{rules} rules are not there: {}", inspected["entries"]);
        thread::sleep(Duration::from_millis(5));
    }
}

/// Medians: floor, a packet of a known connection, the first of a new one. The sides take turns.
fn packets(options: &Options, node: &Node, pods: [&Pod; 2], empty: &Path) -> Result<[f64; 3]> {
    pinned::stay()?;
    let [client, server] = pods;
    let pin = pinned::find(node.pins(), FROM_POD)?;
    let (from, back) =
        (Target::open(&pin, pinned::port_of(client)?)?, Target::open(&pin, pinned::port_of(server)?)?);
    if !empty.exists() {
        pinned::pin_empty(empty)?;
    }
    let floor = Target::open(empty, pinned::port_of(client)?)?;
    let (ours, theirs) = (mac(&client.mac), mac(&server.mac));
    let sent = |flags| Packet::eth(theirs, ours).ipv4(client.ip, server.ip).tcp(999, 80, flags).build();
    let syn_ack = tcp_flags::SYN | tcp_flags::ACK;
    let answer = Packet::eth(ours, theirs).ipv4(server.ip, client.ip).tcp(80, 999, syn_ack).build();
    let mut out = vec![0; 256];
    for (target, frame) in [(&from, sent(tcp_flags::SYN)), (&back, answer)] {
        let (code, _) = target.give(&frame, &mut out)?;
        ensure!(code == 7, "the program says {code} to a connection that may be");
    }
    let known = sent(tcp_flags::ACK);
    let calls = options.calls / options.rounds;
    let mut new = 0_u32;
    let mut series: [Vec<f64>; 3] = Default::default();
    for _ in 0..options.rounds {
        interrupt::check()?;
        for (target, side, changes) in [(&floor, 0, false), (&from, 1, false), (&from, 2, true)] {
            let mut frame = if changes { sent(tcp_flags::SYN) } else { known.clone() };
            let mut sum = Duration::ZERO;
            for _ in 0..calls {
                if changes {
                    new = new.wrapping_add(1);
                    // Both ports; the checksum is not looked at.
                    frame[34..38].copy_from_slice(&new.wrapping_mul(2_654_435_761).to_be_bytes());
                }
                sum += target.give(&frame, &mut out)?.1;
            }
            series[side].push(sum.as_nanos() as f64 / calls as f64);
        }
    }
    Ok(series.map(pinned::median))
}

impl Report for Cost {
    fn title(&self) -> String {
        format!(
            "Rules on the group of a pod of an eBPF node. Nanoseconds for a packet, one call each, {} calls",
            self.calls
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "rules",
            "empty program ns",
            "known connection ns",
            "first packet ns",
            "until the node has them s",
            "maps MB",
        ]);
        for row in &self.rows {
            table.add_row([
                row.rules.to_string(),
                format!("{:.0}", row.floor_ns),
                format!("{:.0}", row.established_ns),
                format!("{:.0}", row.first_ns),
                format!("{:.2}", row.load_s),
                format!("{:.1}", row.memory_bytes as f64 / 1e6),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
