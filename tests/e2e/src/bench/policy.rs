//! Rules on the group of a pod: what the first packet of a connection costs, and those that follow, by the number and sort of
//! rules; and what many groups with many rules take to load.

use std::{
    net::Ipv4Addr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
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
    cluster::{Cluster, Encap, Network, Node, Pod},
    interrupt,
    progress::step,
};

const FROM_POD: &str = "ctv_from_pod";
const PATIENCE: Duration = Duration::from_secs(120);
/// In one policy, so that its body is no larger than a store takes.
const PER_POLICY: usize = 1000;
const MAPS: [&str; 4] = ["ctv_groups", "ctv_rulesets", "ctv_rules", "ctv_rulecnt"];

/// Groups on the node, when it has as many rules as it is to hold.
const GROUPS: usize = 100;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rules on the group, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 100, 1000, 15_000])]
    rules: Vec<usize>,
    /// Sorts of rules, each on a group of its own
    #[arg(long, value_delimiter = ',', default_values = ["hosts", "prefixes", "all"])]
    sorts: Vec<Sort>,
    /// Rules on the node, on 100 groups, at last; 0 for not
    #[arg(long, default_value_t = 100_000)]
    node: usize,
    /// Calls of each measurement
    #[arg(long, default_value_t = 1_000_000)]
    calls: usize,
    /// Of each measurement, the median of which is told
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rules: vec![0, 1, 100, 1000, 15_000],
            sorts: Sort::value_variants().to_vec(),
            node: 100_000,
            calls: 1_000_000,
            rounds: 5,
        }
    }
}

/// What rules are about. None denies what is sent here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum Sort {
    /// Single addresses
    Hosts,
    /// Prefixes of 8 to 32 bits, many of them in others, all over
    Prefixes,
    /// The same, for any protocol, for TCP, for a port of TCP; half of them for a group of the other end
    All,
}

impl Sort {
    fn name(self) -> &'static str {
        match self {
            Sort::Hosts => "hosts",
            Sort::Prefixes => "prefixes",
            Sort::All => "all",
        }
    }

    /// The rule with this number, for those who send to `server`.
    fn rule(self, number: usize, server: Ipv4Addr) -> Directed {
        let directed = Directed { priority: 1, action: "deny".to_owned(), ..Directed::default() };
        if self == Sort::Hosts {
            let dst_ip_addr = format!("172.16.{}.{}", number / 256 % 256, number % 256);
            return Directed { dst_ip_addr, ..directed };
        }
        let length = 8 + number as u32 % 25;
        let address = (number as u32).wrapping_mul(0x9e37_79b1);
        let allows = (address ^ server.to_bits()) >> (32 - length) == 0;
        let directed = Directed {
            dst_ip_addr: format!(
                "{}/{length}",
                Ipv4Addr::from_bits(address >> (32 - length) << (32 - length))
            ),
            action: if allows { "allow" } else { "deny" }.to_owned(),
            ..directed
        };
        if self == Sort::Prefixes {
            return directed;
        }
        let kind = number / 25;
        Directed {
            dst_endpoint_group: if kind.is_multiple_of(2) { 0 } else { 1 + number as i64 % 3 },
            ip_protocol: if kind.is_multiple_of(3) { 0 } else { 6 },
            dst_port: if kind % 3 == 2 { 1000 + number as u16 % 1000 } else { 0 },
            ..directed
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Cost {
    calls: usize,
    rows: Vec<Row>,
    node: Option<Loaded>,
}

#[derive(Debug, Serialize)]
struct Row {
    sort: Sort,
    rules: usize,
    floor_ns: f64,
    established_ns: f64,
    first_ns: f64,
    #[serde(flatten)]
    loaded: Loaded,
    /// From the write of one more rule until the node has it.
    one_more_s: f64,
}

#[derive(Debug, Serialize)]
struct Loaded {
    rules_of_node: u64,
    /// From the first write to the store until the node has all of them.
    load_s: f64,
    /// In use, of 128 bytes.
    branches: u64,
    /// Of the maps, full or not.
    memory_bytes: u64,
}

/// The cluster, and the rules that there are.
struct Bench<'a> {
    cluster: &'a Cluster,
    network: &'a Network,
    node: &'a Node,
    runtime: tokio::runtime::Runtime,
    store: String,
    /// On the node.
    rules: u64,
    /// Groups have numbers in the order in which they are made.
    groups: usize,
}

pub(super) fn measure(options: &Options) -> Result<Cost> {
    let network = super::network();
    let cluster = step("cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let server = Pod::add(node, &network, "server")?;
    let (runtime, store) = (lb::runtime()?, cluster.fabric.store_endpoint());
    let mut bench = Bench { cluster: &cluster, network: &network, node, runtime, store, rules: 0, groups: 0 };
    let mut rows = vec![];
    for sort in &options.sorts {
        rows.extend(bench.sort(options, *sort, &server)?);
    }
    let loaded = if options.node > 0 { Some(bench.load(options.node, &server)?) } else { None };
    server.remove(node)?;
    cluster.shut_down()?;
    Ok(Cost { calls: options.calls, rows, node: loaded })
}

impl Bench<'_> {
    /// A pod in a group of its own, and the group's number.
    fn member(&mut self, name: &str) -> Result<(Pod, usize)> {
        let body = json!({"tenantName": "bench", "groupName": name, "networkName": "pods"});
        self.cluster.client().post_json(&format!("/api/v1/endpointGroups/bench:{name}/"), &body)?;
        self.groups += 1;
        Ok((Pod::add_to(self.node, self.network, Some(name), name)?, self.groups))
    }

    fn sort(&mut self, options: &Options, sort: Sort, server: &Pod) -> Result<Vec<Row>> {
        let (client, group) = self.member(sort.name())?;
        let empty = self.node.pins().join(format!("empty-{}", sort.name()));
        let (mut rows, mut there) = (vec![], 0);
        for rules in options.rules.iter().copied() {
            let what = format!("{rules} rules, {}", sort.name());
            let loaded = step(&what, || {
                self.put(policies(group, there..rules, |number| sort.rule(number, server.ip))?)
            })?;
            there = rules;
            let [floor_ns, established_ns, first_ns] = step(&format!("{what}: packets"), || {
                self.node.netns().run(|| packets(options, self.node, [&client, server], &empty))
            })?;
            let one_more = there..there + 1;
            there = one_more.end;
            let one_more_s =
                self.put(policies(group, one_more, |number| sort.rule(number, server.ip))?)?.load_s;
            rows.push(Row { sort, rules, floor_ns, established_ns, first_ns, loaded, one_more_s });
        }
        // A node has no rules of groups that it has no pods of.
        client.remove(self.node)?;
        self.rules = 0;
        Ok(rows)
    }

    /// As many rules as the node is to hold, on many groups.
    fn load(&mut self, rules: usize, server: &Pod) -> Result<Loaded> {
        let members: Vec<(Pod, usize)> = step(&format!("{GROUPS} groups"), || {
            (0..GROUPS).map(|group| self.member(&format!("g{group}"))).collect()
        })?;
        let each = rules / GROUPS;
        let mut bodies = vec![];
        for (_, group) in &members {
            bodies.extend(policies(*group, 0..each, |number| {
                Sort::Prefixes.rule(group * each + number, server.ip)
            })?);
        }
        let loaded = step(&format!("{rules} rules on {GROUPS} groups"), || self.put(bodies))?;
        for (pod, _) in members {
            pod.remove(self.node)?;
        }
        Ok(loaded)
    }

    /// Writes policies, and waits until the node has them.
    fn put(&mut self, policies: Vec<Policy>) -> Result<Loaded> {
        let start = Instant::now();
        self.rules += policies.iter().map(|policy| policy.rules as u64).sum::<u64>();
        let bodies: Vec<(String, Value)> = policies.into_iter().map(|policy| policy.body).collect();
        lb::put(self.node, &self.runtime, &self.store, &bodies)?;
        let branches = loop {
            interrupt::check()?;
            let inspected = self.node.client().get("/inspect/driver")?.json()?;
            if inspected["rulesInForce"].as_u64() == Some(self.rules) {
                break inspected.pointer("/entries/ctv_rules").and_then(Value::as_u64);
            }
            ensure!(
                start.elapsed() < PATIENCE,
                "of {} rules there are {}",
                self.rules,
                inspected["rulesInForce"]
            );
            thread::sleep(Duration::from_millis(1));
        };
        let load_s = start.elapsed().as_secs_f64();
        let memory: Vec<u64> =
            MAPS.iter().map(|map| pinned::memory(self.node.pins(), map)).collect::<Result<_>>()?;
        let branches = branches.context("the node does not tell the entries of ctv_rules")?;
        Ok(Loaded { rules_of_node: self.rules, load_s, branches, memory_bytes: memory.iter().sum() })
    }
}

/// A policy as it is in the store.
struct Policy {
    rules: usize,
    body: (String, Value),
}

/// Policies on a group with the rules of these numbers, of which no policy has too many.
fn policies(
    group: usize,
    numbers: std::ops::Range<usize>,
    rule: impl Fn(usize) -> Directed,
) -> Result<Vec<Policy>> {
    let numbers: Vec<usize> = numbers.collect();
    numbers
        .chunks(PER_POLICY)
        .map(|part| {
            let id = format!("bench:g{group}:bench:p{}", part[0]);
            let rules = part.iter().map(|number| {
                let key = format!("bench:p{}:{number}", part[0]);
                let directed = Directed {
                    rule_id: format!("{id}:{key}:outTx"),
                    src_endpoint_group: group as i64,
                    ..rule(*number)
                };
                let mut expanded = Expanded::default();
                expanded.rule.key.clone_from(&key);
                expanded.rule.direction = "out".to_owned();
                expanded.directed.insert(directed.rule_id.clone(), directed);
                (key, expanded)
            });
            let body =
                Attached { id: id.clone(), key: id.clone(), group: group as i64, rules: rules.collect() };
            let body = (format!("/contiv.io/state/policy/{id}"), serde_json::to_value(body)?);
            Ok(Policy { rules: part.len(), body })
        })
        .collect()
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
            "rules about",
            "rules",
            "empty program ns",
            "known connection ns",
            "first packet ns",
            "until the node has them s",
            "one more s",
            "branches in use",
            "maps MB",
        ]);
        let loaded = |loaded: &Loaded| {
            let megabytes = format!("{:.1}", loaded.memory_bytes as f64 / 1e6);
            (format!("{:.2}", loaded.load_s), loaded.branches.to_string(), megabytes)
        };
        for row in &self.rows {
            let (load, branches, megabytes) = loaded(&row.loaded);
            table.add_row([
                row.sort.name().to_owned(),
                row.rules.to_string(),
                format!("{:.0}", row.floor_ns),
                format!("{:.0}", row.established_ns),
                format!("{:.0}", row.first_ns),
                load,
                format!("{:.3}", row.one_more_s),
                branches,
                megabytes,
            ]);
        }
        if let Some(node) = &self.node {
            let (load, branches, megabytes) = loaded(node);
            let rules = format!("{} on the node", node.rules_of_node);
            let none = String::new;
            let about = format!("prefixes, {GROUPS} groups");
            table.add_row([about, rules, none(), none(), none(), load, none(), branches, megabytes]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
