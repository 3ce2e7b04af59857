//! How services come to a node: how long it takes, and what memory they have there.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::packets::{PATIENCE, PORTS};
use crate::{bench::pinned, cluster::Node, interrupt};

/// What there is for services alone, and for flows. Of `ctv_neigh`, which has the addresses of endpoints, too, the services'
/// part is what it grows by.
pub(super) const OF_SERVICES: [&str; 5] =
    ["ctv_svc", "ctv_ring", "ctv_backends", "ctv_affinity", "ctv_svcnt"];
pub(super) const OF_ALL: &str = "ctv_neigh";
pub(super) const OF_FLOWS: [&str; 2] = ["ctv_ct", "ctv_new"];

#[derive(Debug, Serialize)]
pub(super) struct Start {
    /// From the start of the process.
    pub(super) seconds: f64,
    /// Of these, planning and writing to maps.
    pub(super) busy_s: f64,
}

pub(super) fn bytes(node: &Node, maps: &[&str]) -> Result<u64> {
    maps.iter().map(|map| pinned::memory(node.pins(), map)).sum()
}

/// Takes away all that the datapath has, and starts the agent.
pub(super) fn start(node: &mut Node, services: usize) -> Result<Start> {
    node.kill_agent()?;
    node.clean_up()?;
    let began = Instant::now();
    node.restart_agent()?;
    wait_for(node, services)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Start { seconds, busy_s: node.metric(BUSY)? })
}

/// Until the node has so many services.
pub(super) fn wait_for(node: &Node, services: usize) -> Result<()> {
    let (ports, start) = (services + usize::from(PORTS) - 1, Instant::now());
    loop {
        interrupt::check()?;
        let entries = node.metric(PORTS_THERE)?;
        if entries == ports as f64 {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "of {ports} ports of services {entries} are there");
        thread::sleep(Duration::from_millis(5));
    }
}

const PORTS_THERE: &str = "contiv_datapath_table_entries{table=\"ctv_svc\"}";
pub(super) const BUSY: &str = "contiv_datapath_busy_seconds_total";

/// What it took until services were in force.
pub(super) struct Loaded {
    pub(super) store: Duration,
    pub(super) behind: Duration,
    pub(super) busy_s: f64,
}

impl Loaded {
    /// From the first write to the store until the node had all.
    pub(super) fn total(&self) -> Duration {
        self.store + self.behind
    }
}
