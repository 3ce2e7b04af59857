//! Objects on an OVS node, compared with an eBPF node: time to program them, one change on top, entries and memory.

mod measure;
mod objects;
mod report;

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use self::measure::Bench;
use super::memory::Memory;
use crate::cluster::Datapath;

#[derive(Debug, Clone, Args)]
#[group(skip)]
pub(super) struct Options {
    /// Datapath to measure [default: both]
    #[arg(long, value_enum)]
    datapath: Option<Datapath>,
    /// Number of endpoints on another node
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(4..=25_000))]
    endpoints: u32,
    /// Number of services with 4 backends each
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u16).range(1..=25_000))]
    services: u16,
    /// Number of rules on the group of a pod
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(1..=50_000))]
    rules: u16,
    /// Number of changes of each kind; the results are medians
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..))]
    changes: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { datapath: None, endpoints: 10_000, services: 5_000, rules: 10_000, changes: 9 }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Ovs {
    changes: u16,
    rows: Vec<Row>,
}

/// One node with a number of objects.
#[derive(Debug, Serialize)]
struct Row {
    datapath: &'static str,
    /// What was added last.
    added: String,
    /// How it was added to a running node; `None` for what the node has at first.
    load: Option<Load>,
    /// From the start of the agent, without any state of the datapath, until all objects are in effect.
    start_s: f64,
    /// Part of it for planning and writing.
    start_busy_s: f64,
    /// Flows of the bridges, or entries of the maps.
    entries: u64,
    agent: Memory,
    /// Memory of ovs-vswitchd.
    switch: Option<Memory>,
    endpoint: Change,
    service: Change,
    rule: Change,
}

#[derive(Debug, Serialize)]
struct Load {
    /// Until the store had all objects.
    store_s: f64,
    /// From the first write to the store until all objects were in effect.
    applied_s: f64,
    /// Part of it for planning and writing.
    busy_s: f64,
}

/// Medians of one more object.
#[derive(Debug, Serialize)]
struct Change {
    /// From the write to the store until it is in effect.
    applied_ms: f64,
    /// Until the store had it.
    store_ms: f64,
    /// Part of it for planning and writing.
    busy_ms: f64,
    /// Writes to the switch or kernel.
    writes: f64,
}

pub(super) fn measure(options: &Options) -> Result<Ovs> {
    let datapaths = match options.datapath {
        Some(datapath) => vec![datapath],
        None => vec![Datapath::Ovs, Datapath::Ebpf],
    };
    let mut rows = vec![];
    for datapath in datapaths {
        rows.extend(Bench::start(datapath, options.changes)?.run(options)?);
    }
    Ok(Ovs { changes: options.changes, rows })
}
