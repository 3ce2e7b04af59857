use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;

use super::{Scale, State};
use crate::bench::{memory::Memory, report::Report};

/// A row of the table: what it shows, the digits after the point, and the value in a state.
type Row = (&'static str, usize, fn(&State) -> Option<f64>);

const ROWS: &[Row] = &[
    ("keys below /contiv.io", 0, |state| Some(state.keys as f64)),
    ("size of keys and values, MB", 0, |state| Some(state.megabytes)),
    ("simulated agents", 0, |state| Some(state.agents as f64)),
    ("connect all agents, s", 2, |state| Some(state.connect_seconds)),
    ("change to all agents, p50 ms", 1, |state| Some(state.arrival.p50_ms)),
    ("p99 ms", 1, |state| Some(state.arrival.p99_ms)),
    ("max ms", 1, |state| Some(state.arrival.max_ms)),
    ("createEndpoint /s", 0, |state| Some(state.create_endpoint.per_second)),
    ("p50 ms", 1, |state| Some(state.create_endpoint.p50_ms)),
    ("p99 ms", 1, |state| Some(state.create_endpoint.p99_ms)),
    ("store transactions /s (bound)", 0, |state| Some(state.transaction.per_second)),
    ("all agents caught up after, ms", 0, |state| Some(state.catch_up_ms)),
    ("netmaster RSS, MB", 0, |state| Some(state.master.resident)),
    ("netmaster peak RSS, MB", 0, |state| Some(state.master.peak)),
    ("read all keys, ms (bound of a start)", 0, |state| Some(state.read_ms)),
    ("start of netmaster, ms", 0, |state| Some(state.start_ms)),
    ("etcd RSS, MB", 0, |state| Some(state.etcd.resident)),
    ("etcd database, MB", 0, |state| Some(state.database_megabytes)),
    ("watches in etcd", 0, |state| Some(state.watches)),
    ("all proxies RSS, MB", 0, |state| state.proxies.as_ref().map(|Memory { resident, .. }| *resident)),
    ("a real agent: RSS, MB", 0, |state| state.agent.as_ref().map(|Memory { resident, .. }| *resident)),
    ("a real agent: peak RSS, MB", 0, |state| state.agent.as_ref().map(|Memory { peak, .. }| *peak)),
    ("a real agent: ready after, ms", 0, |state| state.agent_ready_ms),
];

impl Report for Scale {
    fn title(&self) -> String {
        format!(
            "A large cluster, filled by requests to netmaster in {:.0} s: {}; in brackets: times the empty cluster\n\
             {} clients create endpoints; {} changes, from the request until an agent has it. etcd with fsync, netmaster, \
             the simulated agents (watches from a revision, one registration each, in one process) and the clients share \
             the processors. The real agent has endpoints in 3 networks and the fake datapath.",
            self.fill_seconds,
            serde_json::to_string(&self.sizes).unwrap_or_default(),
            self.clients,
            self.changes
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        let names = self.states.iter().map(|state| state.name.clone());
        table
            .load_preset(presets::UTF8_BORDERS_ONLY)
            .set_header(std::iter::once("state of the cluster".to_owned()).chain(names));
        for (what, digits, value) in ROWS {
            let empty = self.states.first().and_then(value);
            let cells = self.states.iter().map(|state| cell(value(state), empty, *digits));
            table.add_row(std::iter::once((*what).to_owned()).chain(cells));
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

/// A value, and its ratio to that of the empty cluster.
fn cell(value: Option<f64>, empty: Option<f64>, digits: usize) -> String {
    match (value, empty) {
        (None, _) => String::new(),
        (Some(value), Some(empty)) if empty > 0.0 => format!("{value:.digits$} ({:.2})", value / empty),
        (Some(value), _) => format!("{value:.digits$}"),
    }
}
