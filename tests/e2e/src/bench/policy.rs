//! Rules on the group of a pod: what the first packet of a connection costs, and those that follow, by the number and sort of
//! rules; and what many groups with many rules take to load.

mod packets;
mod rules;

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
use super::{Report, Tell, lb, pinned};
use crate::{
    cluster::{Cluster, Encap, Network, Node, Pod},
    interrupt,
    progress::step,
};

const PATIENCE: Duration = Duration::from_secs(120);
const MAPS: [&str; 4] = ["ctv_groups", "ctv_rulesets", "ctv_rules", "ctv_rulecnt"];

/// Of a branch of a tree.
const BRANCH_BYTES: u64 = 128;
/// Groups on the node, when it has as many rules as it is to hold.
const GROUPS: usize = 100;

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Rules on the group that is compared with one of one rule, one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 100, 1000, 15_000])]
    rules: Vec<usize>,
    /// Sorts of rules, each on groups of its own
    #[arg(long, value_delimiter = ',', default_values = ["hosts", "prefixes", "protocols", "ports", "groups", "all"])]
    sorts: Vec<Sort>,
    /// Rules on the node, on 100 groups, at last; 0 for not
    #[arg(long, default_value_t = 100_000)]
    node: usize,
    /// Calls of each measurement
    #[arg(long, default_value_t = 200_000)]
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
    /// From the write of one more rule until the node has it.
    one_more_s: f64,
}

#[derive(Debug, Serialize)]
struct Loaded {
    rules_of_node: usize,
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
    rules: usize,
    /// Groups have numbers in the order in which they are made.
    groups: usize,
    /// Connections of pods.
    begun: usize,
}

/// A pod in a group of its own, which has so many rules.
struct Ruled {
    pod: Pod,
    group: usize,
    rules: usize,
}

pub(super) fn measure(options: &Options, tell: &mut Tell<'_>) -> Result<()> {
    let network = super::network();
    let cluster = step("cluster", || Cluster::ebpf(Encap::Vxlan, &network))?;
    let node = cluster.nodes.first().context("a cluster has nodes")?;
    let (runtime, store) = (lb::runtime()?, cluster.fabric.store_endpoint());
    let mut bench =
        Bench { cluster: &cluster, network: &network, node, runtime, store, rules: 0, groups: 0, begun: 0 };
    // The first group is what rules name.
    let member = bench.member("member")?.pod;
    let peers = Peers { server: Pod::add(node, &network, "server")?, member };
    let mut packets = Packets { calls: options.calls, rounds: options.rounds, rows: vec![] };
    let mut loading = Loading { rows: vec![], node: None };
    for sort in &options.sorts {
        bench.sort(options, *sort, &peers, &mut packets.rows, &mut loading.rows)?;
    }
    tell("policy", &packets)?;
    loading.node = if options.node > 0 { Some(bench.load(options.node)?) } else { None };
    tell("policy_loading", &loading)?;
    peers.server.remove(node)?;
    peers.member.remove(node)?;
    cluster.shut_down()
}

impl Bench<'_> {
    fn member(&mut self, name: &str) -> Result<Ruled> {
        let body = json!({"tenantName": "bench", "groupName": name, "networkName": "pods"});
        self.cluster.client().post_json(&format!("/api/v1/endpointGroups/bench:{name}/"), &body)?;
        self.groups += 1;
        let pod = Pod::add_to(self.node, self.network, Some(name), name)?;
        Ok(Ruled { pod, group: self.groups, rules: 0 })
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
            let bytes = loaded.branches * BRANCH_BYTES;
            let mut rounds: Vec<Round> = (0..options.rounds).map(|_| Round::default()).collect();
            // Then with the rules of each on the other, so that it is the same whose memory is where.
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
                // Never the same number of all rules before and after.
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

    /// As many rules as the node is to hold, on many groups.
    fn load(&mut self, rules: usize) -> Result<Loaded> {
        let members: Vec<Ruled> = step(&format!("{GROUPS} groups"), || {
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

    fn change(&mut self, sort: Sort, ruled: &mut Ruled, rules: usize) -> Result<Loaded> {
        let bodies = sort.change(ruled.group, ruled.rules, rules)?;
        let loaded = self.put(&bodies, self.rules - ruled.rules + rules)?;
        ruled.rules = rules;
        Ok(loaded)
    }

    /// Writes policies, and waits until the node has so many rules.
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

impl Report for Packets {
    fn title(&self) -> String {
        format!(
            "Packets of a pod of an eBPF node with so many rules on its group, beside those of a pod with one rule, call by call in \
             turns: nanoseconds for a packet, {} calls. \"more\" is the median of what it is more than with one rule, and the \
             least and most, of {} rounds, in half of which the pods have each other's rules. First packets make a flow, and \
             nothing is known of it before; denied ones are found by a rule, counted and dropped, to one end or to another each \
             time. A cold line is one look into an array as large as the rules' trees, between such packets",
            self.calls, self.rounds
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "rules about",
            "rules",
            "empty program",
            "known connection",
            "more",
            "first packet",
            "more",
            "denied",
            "more",
            "denied anywhere",
            "a cold line",
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
        "What it takes until an eBPF node has the rules".to_owned()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "rules about",
            "rules",
            "until the node has them s",
            "one more s",
            "branches in use",
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
