//! The measured node: loads objects, restarts, and changes one of them.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    Change, Load, Options, Row,
    objects::{GROUPS, Objects},
};
use crate::{
    bench::{applied, lb, memory::Memory, pinned::median},
    cluster::{Cluster, Datapath, Encap, Network, Node, Pod, Shape, StoreKind},
    progress::step,
};

/// The agent does other work for a change after it is in effect, such as its status.
const QUIET_TIME: Duration = Duration::from_millis(200);
const BUSY: &str = "contiv_datapath_busy_seconds_total";
const WRITES: &str = "contiv_datapath_writes_total";
const RESYNCS: &str = "contiv_datapath_resyncs_total";
const BRIDGES: [&str; 2] = ["contivVlanBridge", "contivVxlanBridge"];

pub(super) struct Bench {
    cluster: Cluster,
    objects: Objects,
    pods: Vec<Pod>,
    runtime: tokio::runtime::Runtime,
    store: String,
    changes: u16,
}

/// Counters of the agent.
struct Figures {
    busy: f64,
    writes: f64,
    resyncs: f64,
}

type Keys = [(String, Value)];

impl Bench {
    /// Two nodes, of which the second only lends its name: its agent ends. The first has a pod in each of two groups.
    pub(super) fn start(datapath: Datapath, changes: u16) -> Result<Bench> {
        step(&format!("{}: start the cluster", datapath.name()), || {
            let shape = Shape { datapaths: [datapath; 2], encap: Encap::Vxlan, store: StoreKind::Embedded };
            let mut cluster = Cluster::build(shape)?;
            cluster.start_agents()?;
            let network = Network::bench();
            cluster.create_network(&network)?;
            for group in GROUPS {
                let body = json!({"tenantName": "bench", "groupName": group, "networkName": "pods"});
                cluster.client().post_json(&format!("/api/v1/endpointGroups/bench:{group}/"), &body)?;
            }
            let [first, second] = &mut cluster.nodes[..] else { anyhow::bail!("a cluster has two nodes") };
            let objects = Objects { host: second.name.clone(), vtep: second.underlay_address() };
            let pods = GROUPS[..2].iter().map(|group| Pod::add_to(first, &network, Some(group), group));
            let pods = pods.collect::<Result<_>>()?;
            second.kill_agent()?;
            let store = cluster.fabric.store_endpoint();
            Ok(Bench { cluster, objects, pods, runtime: lb::runtime()?, store, changes })
        })
    }

    pub(super) fn run(mut self, options: &Options) -> Result<Vec<Row>> {
        let Options { endpoints, services, rules, .. } = *options;
        let all = (0..endpoints).map(|number| self.objects.endpoint(number)).collect::<Result<Vec<_>>>()?;
        let stages = [
            (format!("{endpoints} endpoints"), all),
            (format!("{services} services"), Objects::services(services.into())),
            (format!("{rules} rules"), Objects::rules(rules.into())?),
        ];
        // What one change replaces, or adds to.
        let base = [Objects::service(usize::from(services), lb::BACKENDS), Objects::one_rule(0, 1)?].concat();
        self.load(&base)?;
        let mut rows = vec![self.row("2 pods".to_owned(), None, options)?];
        for (added, keys) in stages {
            let what = format!("{}: {added}", self.node()?.datapath.name());
            let load = step(&what, || self.load(&keys))?;
            rows.push(self.row(added, Some(load), options)?);
        }
        self.shut_down()?;
        Ok(rows)
    }

    fn node(&self) -> Result<&Node> {
        self.cluster.nodes.first().context("a cluster has nodes")
    }

    fn row(&mut self, added: String, load: Option<Load>, options: &Options) -> Result<Row> {
        let services = usize::from(options.services);
        let endpoint = self.objects.endpoint(options.endpoints)?;
        let gone = [endpoint.0.clone()];
        let fewer = Objects::service(services, lb::BACKENDS - 1);
        let again = Objects::service(services, lb::BACKENDS);
        let (two, one) = (Objects::one_rule(1, 2)?, Objects::one_rule(2, 1)?);
        let what = |kind| format!("{kind} with {added}");
        let endpoint = step(&what("one endpoint"), || {
            self.change(&[endpoint], |bench| lb::delete(bench.node()?, &bench.runtime, &bench.store, &gone))
        })?;
        let service = step(&what("one service"), || self.change(&fewer, |bench| bench.put(&again)))?;
        let rule = step(&what("one rule"), || self.change(&two, |bench| bench.put(&one)))?;
        let (start_s, start_busy_s) = step(&what("start"), || self.start_again())?;
        let node = self.node()?;
        let vswitchd = node.switch().and_then(|switch| switch.vswitchd());
        let switch = vswitchd.map(|process| Memory::of(process.pid())).transpose()?;
        let entries = entries(node)?;
        let first = self.cluster.nodes.first_mut().context("a cluster has nodes")?;
        let agent = Memory::of(first.agent()?.pid())?;
        let datapath = first.datapath.name();
        Ok(Row {
            datapath,
            added,
            load,
            start_s,
            start_busy_s,
            entries,
            agent,
            switch,
            endpoint,
            service,
            rule,
        })
    }

    fn put(&self, keys: &Keys) -> Result<i64> {
        lb::put(self.node()?, &self.runtime, &self.store, keys)
    }

    fn load(&self, keys: &Keys) -> Result<Load> {
        let (busy, start) = (self.node()?.metric(BUSY)?, Instant::now());
        let revision = self.put(keys)?;
        let store = start.elapsed();
        self.wait_for(revision)?;
        let applied = start.elapsed();
        thread::sleep(QUIET_TIME);
        Ok(Load {
            store_s: store.as_secs_f64(),
            applied_s: applied.as_secs_f64(),
            busy_s: self.node()?.metric(BUSY)? - busy,
        })
    }

    fn wait_for(&self, revision: i64) -> Result<()> {
        applied::wait_for(self.node()?, revision)
    }

    fn figures(&self) -> Result<Figures> {
        let node = self.node()?;
        Ok(Figures { busy: node.metric(BUSY)?, writes: node.metric(WRITES)?, resyncs: node.metric(RESYNCS)? })
    }

    /// Measures a change, and undoes it.
    fn change(&self, keys: &Keys, undo: impl Fn(&Bench) -> Result<i64>) -> Result<Change> {
        let (mut times, mut stored, mut busy, mut writes) = (vec![], vec![], vec![], vec![]);
        while times.len() < usize::from(self.changes) {
            let before = self.figures()?;
            let start = Instant::now();
            let revision = self.put(keys)?;
            let store = start.elapsed();
            self.wait_for(revision)?;
            let took = start.elapsed();
            thread::sleep(QUIET_TIME);
            let after = self.figures()?;
            self.wait_for(undo(self)?)?;
            thread::sleep(QUIET_TIME);
            // The periodic resync of the agent came between.
            if after.resyncs != before.resyncs {
                continue;
            }
            times.push(took.as_secs_f64() * 1e3);
            stored.push(store.as_secs_f64() * 1e3);
            busy.push((after.busy - before.busy) * 1e3);
            writes.push(after.writes - before.writes);
        }
        let (applied_ms, store_ms) = (median(times), median(stored));
        Ok(Change { applied_ms, store_ms, busy_ms: median(busy), writes: median(writes) })
    }

    /// Removes all state of the datapath but the interfaces, and starts the agent. Returns the time until it is ready, and the
    /// part of it for planning and writing.
    fn start_again(&mut self) -> Result<(f64, f64)> {
        let node = self.cluster.nodes.first_mut().context("a cluster has nodes")?;
        node.kill_agent()?;
        node.clean_up_with(&[])?;
        let start = Instant::now();
        node.restart_agent()?;
        Ok((start.elapsed().as_secs_f64(), node.metric(BUSY)?))
    }

    fn shut_down(self) -> Result<()> {
        let Bench { mut cluster, pods, .. } = self;
        for pod in pods {
            pod.remove(cluster.nodes.first().context("a cluster has nodes")?)?;
        }
        let second = cluster.nodes.last_mut().context("a cluster has nodes")?;
        second.restart_agent()?;
        cluster.shut_down()
    }
}

/// Flows of both bridges, or entries of all tables.
fn entries(node: &Node) -> Result<u64> {
    let Some(switch) = node.switch() else {
        let metrics = node.client().get("/metrics")?.body;
        let entries = metrics.lines().filter(|line| line.starts_with("contiv_datapath_table_entries{"));
        let number = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
        return Ok(entries.filter_map(number).sum::<f64>() as u64);
    };
    BRIDGES.iter().try_fold(0, |sum, bridge| {
        let text = switch.ofctl("dump-aggregate", bridge, &[])?;
        let count = text.split("flow_count=").nth(1).and_then(|rest| rest.split_whitespace().next());
        let count: u64 = count.with_context(|| format!("no number of flows: {text}"))?.parse()?;
        Ok(sum + count)
    })
}
