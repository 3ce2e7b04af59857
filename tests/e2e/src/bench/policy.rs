//! Policy rules: cost of the first packet and of later packets of a connection, by number and kind of rules; load time of
//! many groups with many rules.

mod packets;
pub(super) mod rules;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum as _};
use comfy_table::{Table, presets};
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    packets::{Compared, Medians, Round},
    rules::{Peers, Sort},
};
use super::{
    lb, pinned,
    report::{Report, ReportSink},
};
use crate::{
    cluster::{Cluster, Encap, Network, Node, Pod},
    interrupt,
    progress::step,
};

const APPLY_TIMEOUT: Duration = Duration::from_secs(120);
const MAPS: [&str; 4] = ["ctv_groups", "ctv_rulesets", "ctv_rules", "ctv_rulecnt"];

/// Size of a tree node in bytes.
const NODE_BYTES: u64 = 128;
/// Number of groups in the measurement of a full node.
const GROUPS: usize = 100;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Numbers of rules to compare with one rule, comma-separated
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 100, 1000, 15_000])]
    rules: Vec<usize>,
    /// Kinds of rules, each on separate groups, comma-separated
    #[arg(long, value_delimiter = ',', default_values = ["hosts", "prefixes", "protocols", "ports", "groups", "all"])]
    sorts: Vec<Sort>,
    /// Number of rules in the measurement of a full node with 100 groups; 0 skips it
    #[arg(long, default_value_t = 100_000)]
    node: usize,
    /// Number of calls of each measurement
    #[arg(long, default_value_t = 200_000)]
    calls: usize,
    /// Number of rounds; the results are medians
    #[arg(long, default_value_t = 5)]
    rounds: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            rules: vec![0, 1, 100, 1000, 15_000],
            sorts: Sort::value_variants().to_vec(),
            node: 100_000,
            calls: 200_000,
            rounds: 5,
        }
    }
}

#[derive(Debug, Serialize)]
struct Packets {
    calls: usize,
    rounds: usize,
    rows: Vec<Cost>,
}

#[derive(Debug, Serialize)]
struct Cost {
    sort: Sort,
    rules: usize,
    #[serde(flatten)]
    medians: Medians,
}

#[derive(Debug, Serialize)]
struct Loading {
    rows: Vec<Load>,
    node: Option<Loaded>,
}

#[derive(Debug, Serialize)]
struct Load {
    sort: Sort,
    rules: usize,
    #[serde(flatten)]
    loaded: Loaded,
    /// From the write of an additional rule until the node has applied it.
    one_more_s: f64,
}

#[derive(Debug, Serialize)]
struct Loaded {
    rules_of_node: usize,
    /// From the first write to the store until the node has applied all rules.
    load_s: f64,
    /// Number of tree nodes in use, 128 bytes each.
    branches: u64,
    /// Allocated memory of the maps in bytes.
    memory_bytes: u64,
}

/// The cluster and the current rules.
struct Bench<'a> {
    cluster: &'a Cluster,
    network: &'a Network,
    node: &'a Node,
    runtime: tokio::runtime::Runtime,
    store: String,
    /// Number of rules on the node.
    rules: usize,
    /// Number of groups; group ids follow the order of creation.
    groups: usize,
    /// Number of connections so far.
    begun: usize,
}

/// A pod in a separate group with `rules` rules.
struct GroupPod {
    pod: Pod,
    group: usize,
    rules: usize,
}

pub(super) fn measure(options: &Options, report: &mut ReportSink<'_>) -> Result<()> {
    let network = Network::bench();
    let cluster = step("start the cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let (runtime, store) = (lb::runtime()?, cluster.fabric.store_endpoint());
    let mut bench =
        Bench { cluster: &cluster, network: &network, node, runtime, store, rules: 0, groups: 0, begun: 0 };
    // Rules reference the first group.
    let member = bench.member("member")?.pod;
    let peers = Peers { server: Pod::add(node, &network, "server")?, member };
    let mut packets = Packets { calls: options.calls, rounds: options.rounds, rows: vec![] };
    let mut loading = Loading { rows: vec![], node: None };
    for sort in &options.sorts {
        bench.sort(options, *sort, &peers, &mut packets.rows, &mut loading.rows)?;
    }
    report("policy", &packets)?;
    loading.node = if options.node > 0 { Some(bench.load(options.node)?) } else { None };
    report("policy_loading", &loading)?;
    peers.server.remove(node)?;
    peers.member.remove(node)?;
    cluster.shut_down()
}

impl Bench<'_> {
    /// Adds a pod in a group of its own, which has the name that is in the keys of its policies.
    fn member(&mut self, name: &str) -> Result<GroupPod> {
        self.groups += 1;
        let group = rules::group_name(self.groups);
        let body = json!({"tenantName": "bench", "groupName": group, "networkName": "pods"});
        self.cluster.client().post_json(&format!("/api/v1/endpointGroups/bench:{group}/"), &body)?;
        let pod = Pod::add_to(self.node, self.network, Some(&group), name)?;
        Ok(GroupPod { pod, group: self.groups, rules: 0 })
    }

    fn sort(
        &mut self,
        options: &Options,
        sort: Sort,
        peers: &Peers<Pod>,
        packets: &mut Vec<Cost>,
        loading: &mut Vec<Load>,
    ) -> Result<()> {
        let mut few = self.member(&format!("{}-a", sort.name()))?;
        let mut many = self.member(&format!("{}-b", sort.name()))?;
        self.change(sort, &mut few, 1)?;
        for rules in options.rules.iter().copied() {
            let what = format!("{rules} rules, {}", sort.name());
            let loaded = step(&what, || self.change(sort, &mut many, rules))?;
            let bytes = loaded.branches * NODE_BYTES;
            let mut rounds: Vec<Round> = (0..options.rounds).map(|_| Round::default()).collect();
            // Then with swapped rules, which cancels the effect of memory locations.
            for arrangement in 1..=2 {
                step(&format!("{what}: packets, {arrangement} of 2"), || {
                    let clients = [&few.pod, &many.pod];
                    let peers = Peers { server: &peers.server, member: &peers.member };
                    let node = self.node;
                    let before = self.begun;
                    let packets = packets::Bench { node, sort, clients, peers, rules, before, bytes };
                    let calls = options.calls / options.rounds / 2;
                    self.begun += calls * options.rounds;
                    node.netns().run(|| packets.measure(&mut rounds, calls))
                })?;
                // The total number of rules must change.
                self.change(sort, &mut many, 0)?;
                self.change(sort, &mut few, 0)?;
                std::mem::swap(&mut few, &mut many);
                self.change(sort, &mut few, 1)?;
                if rules > 0 {
                    self.change(sort, &mut many, rules)?;
                }
            }
            packets.push(Cost { sort, rules, medians: Round::medians(&rounds) });
            let one_more_s = self.change(sort, &mut many, rules + 1)?.load_s;
            loading.push(Load { sort, rules, loaded, one_more_s });
        }
        for mut ruled in [few, many] {
            self.change(sort, &mut ruled, 0)?;
            ruled.pod.remove(self.node)?;
        }
        Ok(())
    }

    /// Loads the rules of a full node, on many groups.
    fn load(&mut self, rules: usize) -> Result<Loaded> {
        let members: Vec<GroupPod> = step(&format!("{GROUPS} groups"), || {
            (0..GROUPS).map(|group| self.member(&format!("g{group}"))).collect()
        })?;
        let groups: Vec<usize> = members.iter().map(|member| member.group).collect();
        let each = rules / GROUPS;
        let loaded = step(&format!("{rules} rules on {GROUPS} groups"), || {
            self.put(&Sort::Prefixes.among(&groups, each)?, self.rules + GROUPS * each)
        })?;
        for member in members {
            member.pod.remove(self.node)?;
        }
        Ok(loaded)
    }

    fn change(&mut self, sort: Sort, ruled: &mut GroupPod, rules: usize) -> Result<Loaded> {
        let bodies = sort.change(ruled.group, ruled.rules, rules)?;
        let loaded = self.put(&bodies, self.rules - ruled.rules + rules)?;
        ruled.rules = rules;
        Ok(loaded)
    }

    /// Writes policies, and waits until the node has applied the rules.
    fn put(&mut self, bodies: &[(String, Value)], rules: usize) -> Result<Loaded> {
        let start = Instant::now();
        self.rules = rules;
        lb::put(self.node, &self.runtime, &self.store, bodies)?;
        let branches = loop {
            interrupt::check()?;
            let inspected = self.node.client().get("/inspect/driver")?.json()?;
            if inspected["rulesInForce"].as_u64() == Some(self.rules as u64) {
                break inspected.pointer("/entries/ctv_rules").and_then(Value::as_u64);
            }
            ensure!(
                start.elapsed() < APPLY_TIMEOUT,
                "{} rules expected, {} applied",
                self.rules,
                inspected["rulesInForce"]
            );
            thread::sleep(Duration::from_millis(1));
        };
        let load_s = start.elapsed().as_secs_f64();
        let memory: Vec<u64> =
            MAPS.iter().map(|map| pinned::memory(self.node.pins(), map)).collect::<Result<_>>()?;
        let branches = branches.context("no number of entries of ctv_rules")?;
        Ok(Loaded { rules_of_node: self.rules, load_s, branches, memory_bytes: memory.iter().sum() })
    }
}

impl Report for Packets {
    fn title(&self) -> String {
        format!(
            "Packets of a pod on an eBPF node, by number of rules of its group, interleaved with packets of a pod with one rule: \
             nanoseconds per packet, {} calls. \"more\" is the median of what it is more than with one rule, and the \
             least and most, of {} rounds, in half of which the pods have each other's rules. First packets make a flow, and \
             nothing is known of it before; denied ones are found by a rule, counted and dropped, to one end or to another each \
             time. A cold line is one look into an array as large as the rules' trees, between such packets",
            self.calls, self.rounds
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "kind of rules",
            "rules",
            "empty program",
            "established connection",
            "more",
            "first packet",
            "more",
            "denied",
            "more",
            "denied, other destinations",
            "cache miss",
        ]);
        for Cost { sort, rules, medians } in &self.rows {
            let one = |number: Option<f64>| number.map(|number| format!("{number:.0}")).unwrap_or_default();
            let cells = |compared: &Compared| {
                if compared.more.is_nan() {
                    return [String::new(), String::new()];
                }
                let Compared { more, more_least, more_most, .. } = compared;
                [format!("{:.0}", compared.many), format!("{more:+.0} ({more_least:+.0} to {more_most:+.0})")]
            };
            let [known, first, denied] =
                [&medians.known_ns, &medians.first_ns, &medians.denied_ns].map(cells);
            let mut row = vec![sort.name().to_owned(), rules.to_string(), one(Some(medians.floor_ns))];
            row.extend([known, first, denied].into_iter().flatten());
            row.extend([one(medians.denied_anywhere_ns), one(medians.line_ns)]);
            table.add_row(row);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

impl Report for Loading {
    fn title(&self) -> String {
        "Time until an eBPF node has applied the rules".to_owned()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "kind of rules",
            "rules",
            "applied after s",
            "one rule more s",
            "tree nodes",
            "maps MB",
        ]);
        let mut row = |about: String, rules: String, loaded: &Loaded, one_more_s: Option<f64>| {
            table.add_row([
                about,
                rules,
                format!("{:.2}", loaded.load_s),
                one_more_s.map(|seconds| format!("{seconds:.3}")).unwrap_or_default(),
                loaded.branches.to_string(),
                format!("{:.1}", loaded.memory_bytes as f64 / 1e6),
            ]);
        };
        for Load { sort, rules, loaded, one_more_s } in &self.rows {
            row(sort.name().to_owned(), rules.to_string(), loaded, Some(*one_more_s));
        }
        if let Some(node) = &self.node {
            let (about, rules) =
                (format!("prefixes, {GROUPS} groups"), format!("{} on the node", node.rules_of_node));
            row(about, rules, node, None);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
