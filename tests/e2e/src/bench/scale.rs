//! A large cluster on a real etcd, compared with an empty one.

mod agents;
mod contents;
mod node;
mod report;

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use testkit::etcd::{Etcd, Proxy};

use self::{
    agents::Agents,
    contents::{NODE, Sizes, create_endpoint, create_network, create_tenant},
};
use super::{
    latency::{Latency, Spread, in_parallel},
    memory::Memory,
    raw,
};
use crate::{
    http::Client,
    master::{Master, Options as MasterOptions, Store},
    progress::step,
};

const ENDPOINTS: &str = "/contiv.io/state/eps/";
/// Network of the endpoints whose creation the agents are observed to receive.
const PROBES: &str = "probes";
const PROBE_KEYS: &str = "/contiv.io/state/eps/probes.scale-";
const PROBE_SUBNET: &str = "10.255.0.0/16";
/// Interval between two probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Longest time for netmaster to load the state and lead.
const START_LIMIT: Duration = Duration::from_secs(180);
/// Networks of the endpoints that clients create, one for each state of the cluster.
const FIRST_RATE_NETWORK: usize = 210;
/// Agents that begin with one proxy, as the documentation advises.
const AGENTS_PER_PROXY: usize = 1000;
/// File descriptors of an agent in this process, in etcd, or in the proxy.
const DESCRIPTORS_PER_AGENT: u64 = 2;
const OTHER_DESCRIPTORS: u64 = 500;

#[derive(Debug, Args)]
pub(super) struct Options {
    #[command(flatten)]
    sizes: Sizes,
    /// Also measure with one `etcd grpc-proxy` for each 1,000 agents between agents and etcd
    #[arg(long)]
    proxy: bool,
    /// Duration of each measurement of a rate in seconds
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=8))]
    seconds: u64,
    /// Number of clients that create endpoints
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// Number of changes whose arrival at the agents is measured
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    changes: u16,
    /// Longest time for a change to reach all agents, in seconds
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    arrival_limit: u64,
}

/// Results for the states of the cluster, the first of which is empty.
#[derive(Debug, Serialize)]
pub(super) struct Scale {
    sizes: Sizes,
    clients: u16,
    changes: u16,
    fill_seconds: f64,
    states: Vec<State>,
}

/// A state of the cluster.
#[derive(Debug, Serialize)]
struct State {
    name: String,
    agents: usize,
    keys: usize,
    megabytes: f64,
    /// Reading all keys without processing: the lower bound of a start.
    read_ms: f64,
    /// Until the watches of all agents were open.
    connect_seconds: f64,
    /// From the request that creates an endpoint until an agent has it.
    arrival: Spread,
    create_endpoint: Latency,
    /// Transactions with the writes of one createEndpoint, sent to the store directly: the lower bound.
    transaction: Latency,
    /// After the last of the created endpoints: until all agents have a later change.
    catch_up_ms: f64,
    master: Memory,
    etcd: Memory,
    /// Of all proxies.
    proxies: Option<Memory>,
    /// Size of etcd's database file.
    database_megabytes: f64,
    watches: f64,
    /// From the start of the netmaster process until it responds as leader.
    start_ms: f64,
    /// A real agent: memory, and time from its start until it is ready.
    agent: Option<Memory>,
    agent_ready_ms: Option<f64>,
}

/// etcd and a netmaster.
struct Cluster {
    master: Master,
    raw: raw::Store,
    etcd: Etcd,
}

/// Measures one state after the other. An error ends this; the states before it are in the results.
pub(super) fn measure(options: &Options) -> (Scale, Result<()>) {
    let Options { sizes, clients, changes, .. } = options;
    let mut results = Scale {
        sizes: sizes.clone(),
        clients: *clients,
        changes: *changes,
        fill_seconds: 0.0,
        states: vec![],
    };
    let ended = results.measure(options);
    (results, ended)
}

impl Scale {
    fn measure(&mut self, options: &Options) -> Result<()> {
        allow_descriptors(options.sizes.agents())?;
        self.states.push({
            let mut empty = Cluster::start()?;
            create_tenant(empty.master.client())?;
            empty.prepare()?;
            for network in 0..contents::NETWORKS_OF_NODE {
                let name = format!("net{network}");
                create_network(empty.master.client(), &name, &format!("10.{network}.0.0/16"))?;
                create_endpoint(empty.master.client(), &name, "", &format!("{NODE}-{network}"), NODE)?;
            }
            empty.measure("empty", 0, 1, vec![], options)?
        });
        let mut full = Cluster::start()?;
        let start = Instant::now();
        options.sizes.fill(full.master.client())?;
        self.fill_seconds = start.elapsed().as_secs_f64();
        full.prepare()?;
        self.states.push(full.measure("full", 1, 1, vec![], options)?);
        let agents = options.sizes.agents();
        self.states.push(full.measure(&format!("{agents} agents"), 2, agents, vec![], options)?);
        if options.proxy {
            let start = |_| Proxy::start(full.etcd.address());
            let proxies = (0..agents.div_ceil(AGENTS_PER_PROXY)).map(start).collect::<Result<Vec<_>>>()?;
            let name = format!("{agents} by {} proxies", proxies.len());
            self.states.push(full.measure(&name, 3, agents, proxies, options)?);
        }
        Ok(())
    }
}

impl Cluster {
    fn start() -> Result<Cluster> {
        // With fsync, as in production.
        let etcd = Etcd::options().fsync(true).argument("--quota-backend-bytes=8589934592").start()?;
        let store = Store::Etcd { endpoint: etcd.endpoint() };
        let options = MasterOptions { netmode: "vxlan", ..MasterOptions::alone(store)? };
        let master = Master::start(options)?;
        Ok(Cluster { master, raw: raw::Store::connect(&etcd.endpoint())?, etcd })
    }

    fn prepare(&self) -> Result<()> {
        create_network(self.master.client(), PROBES, PROBE_SUBNET)
    }

    /// Measures the cluster with so many agents, which connect through the proxies if there are any.
    fn measure(
        &mut self,
        name: &str,
        number: usize,
        agents: usize,
        mut proxies: Vec<Proxy>,
        options: &Options,
    ) -> Result<State> {
        let start = Instant::now();
        let (keys, bytes) = self.raw.read_all("/contiv.io/")?;
        let read_ms = milliseconds(start.elapsed());
        let endpoints = match proxies.is_empty() {
            true => vec![self.etcd.endpoint()],
            false => proxies.iter().map(Proxy::endpoint).collect(),
        };
        let start = Instant::now();
        let observers = step(&format!("{name}: connect agents"), || {
            Agents::start(agents, &options.sizes, &endpoints, PROBE_KEYS)
        })?;
        let connect_seconds = start.elapsed().as_secs_f64();
        let arrival = step(&format!("{name}: changes"), || self.arrivals(number, &observers, options))?;
        let (create_endpoint, transaction) =
            step(&format!("{name}: endpoints"), || self.rates(number, options))?;
        let catch_up = step(&format!("{name}: catch up"), || {
            self.probe(&format!("{number}-last"), &observers, options)
        })?;
        let slowest = catch_up.into_iter().max().unwrap_or_default();
        let watches = metric(&self.etcd, "etcd_debugging_mvcc_watcher_total")?;
        let database = metric(&self.etcd, "etcd_mvcc_db_total_size_in_bytes")?;
        let memory = |process: &mut testkit::Process| Memory::of(process.pid());
        let (master, etcd) = (memory(self.master.process())?, memory(self.etcd.process())?);
        let of_proxies =
            proxies.iter_mut().map(|proxy| memory(proxy.process())).collect::<Result<Vec<_>>>()?;
        let start_ms = step(&format!("{name}: start of netmaster"), || self.restart())?;
        drop((observers, proxies));
        let agent = match agents {
            1 => Some(step(&format!("{name}: agent"), || node::measure(self.etcd.address()))?),
            _ => None,
        };
        Ok(State {
            name: name.to_owned(),
            agents,
            keys,
            megabytes: bytes as f64 / 1e6,
            read_ms,
            connect_seconds,
            arrival,
            create_endpoint,
            transaction,
            catch_up_ms: milliseconds(slowest),
            master,
            etcd,
            proxies: (!of_proxies.is_empty()).then(|| of_proxies.into_iter().sum()),
            database_megabytes: database / 1e6,
            watches,
            start_ms,
            agent: agent.map(|(memory, _)| memory),
            agent_ready_ms: agent.map(|(_, ready)| milliseconds(ready)),
        })
    }

    fn arrivals(&self, number: usize, agents: &Agents, options: &Options) -> Result<Spread> {
        let mut delays = vec![];
        for change in 0..options.changes {
            delays.extend(self.probe(&format!("{number}-{change}"), agents, options)?);
            thread::sleep(PROBE_INTERVAL);
        }
        Spread::of(delays).context("no change was measured")
    }

    /// Creates an endpoint and returns the time until each agent has it.
    fn probe(&self, id: &str, agents: &Agents, options: &Options) -> Result<Vec<Duration>> {
        let start = Instant::now();
        create_endpoint(self.master.client(), PROBES, "", id, "host0")?;
        agents.delays(&format!("{PROBE_KEYS}{id}"), start, Duration::from_secs(options.arrival_limit))
    }

    /// Rate of createEndpoint, and of the same writes without netmaster.
    fn rates(&self, number: usize, options: &Options) -> Result<(Latency, Latency)> {
        let client = self.master.client();
        let (network, octet) = (format!("rate{number}"), FIRST_RATE_NETWORK + number);
        create_network(client, &network, &format!("10.{octet}.0.0/16"))?;
        let create = |client: &Client, id: &str| create_endpoint(client, &network, "", id, "host0");
        let writes = self.raw.observe("/contiv.io/", ENDPOINTS, || create(client, "first"))?;
        let (clients, duration) = (usize::from(options.clients), Duration::from_secs(options.seconds));
        let created =
            in_parallel(clients, duration, |number, round| create(client, &format!("{number}-{round}")))?;
        Ok((created, self.raw.transactions(&writes, clients, duration)?))
    }

    /// Stops netmaster in order and starts it again; returns the time of the start in milliseconds.
    fn restart(&mut self) -> Result<f64> {
        self.master.stop()?;
        let start = Instant::now();
        self.master.relaunch()?;
        self.master.wait_leading_for(START_LIMIT)?;
        Ok(milliseconds(start.elapsed()))
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Value of a metric of etcd.
fn metric(etcd: &Etcd, name: &str) -> Result<f64> {
    let response = Client::new(etcd.address()).get("/metrics")?;
    let value = response.body.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    value.with_context(|| format!("etcd has no metric {name}"))
}

/// Raises the limit of open files of this process, which its children inherit.
fn allow_descriptors(agents: usize) -> Result<()> {
    let needed = agents as u64 * DESCRIPTORS_PER_AGENT + OTHER_DESCRIPTORS;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("get the limit of open files")?;
    if hard < needed {
        bail!("{agents} agents need {needed} open files, the limit is {hard}; use a smaller --agents");
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("set the limit of open files")
}
