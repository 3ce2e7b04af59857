//! Load time of services on a node, and their memory.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::{bench::pinned, cluster::Node, interrupt};

pub(super) const APPLY_TIMEOUT: Duration = Duration::from_secs(120);
/// Ports of the first service, which has all persistent flows.
pub(super) const PORTS: u16 = 16;
/// Maps of services and of flows. `ctv_neigh` also has the addresses of endpoints; services account for its growth.
pub(super) const OF_SERVICES: [&str; 6] =
    ["ctv_svc", "ctv_svcslots", "ctv_ring", "ctv_backends", "ctv_affinity", "ctv_svcnt"];
pub(super) const OF_ALL: &str = "ctv_neigh";
pub(super) const OF_FLOWS: [&str; 3] = ["ctv_flows", "ctv_flowidx", "ctv_flowbits"];

#[derive(Debug, Serialize)]
pub(super) struct Start {
    /// Time from the start of the process.
    pub(super) seconds: f64,
    /// Part of it for planning and map writes.
    pub(super) busy_s: f64,
}

pub(super) fn bytes(node: &Node, maps: &[&str]) -> Result<u64> {
    maps.iter().map(|map| pinned::memory(node.pins(), map)).sum()
}

/// Removes all state of the datapath and starts the agent.
pub(super) fn start(node: &mut Node, services: usize) -> Result<Start> {
    node.kill_agent()?;
    node.clean_up()?;
    let began = Instant::now();
    node.restart_agent()?;
    wait_for(node, services)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Start { seconds, busy_s: node.metric(BUSY)? })
}

/// Waits until the node has applied the services.
pub(super) fn wait_for(node: &Node, services: usize) -> Result<()> {
    let (ports, start) = (services + usize::from(PORTS) - 1, Instant::now());
    loop {
        interrupt::check()?;
        let entries = node.metric(TABLE_ENTRIES)?;
        if entries == ports as f64 {
            return Ok(());
        }
        ensure!(start.elapsed() < APPLY_TIMEOUT, "{ports} service ports expected, {entries} applied");
        thread::sleep(Duration::from_millis(5));
    }
}

const TABLE_ENTRIES: &str = "contiv_datapath_table_entries{table=\"ctv_svc\"}";
pub(super) const BUSY: &str = "contiv_datapath_busy_seconds_total";

/// Time until services were applied.
pub(super) struct Loaded {
    pub(super) store: Duration,
    pub(super) behind: Duration,
    pub(super) busy_s: f64,
}

impl Loaded {
    /// Time from the first write to the store until the node has applied all services.
    pub(super) fn total(&self) -> Duration {
        self.store + self.behind
    }
}
