//! The table of the results.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;

use super::{Change, Ovs, Row};
use crate::bench::report::Report;

impl Report for Ovs {
    fn title(&self) -> String {
        format!(
            "Objects on a node, each row with those of the rows above it. \"live\": added to a running node; \"start\": the agent \
             starts without any state of the datapath. \"busy\": planning and writing. One more endpoint, one backend less of a \
             service, one more rule: medians of {} changes, from the write to the store until the change is in effect; of it until \
             the store has it; planning and writing; writes to the switch or kernel",
            self.changes
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "datapath",
            "with",
            "live s",
            "of it store",
            "busy",
            "start s",
            "busy",
            "flows or entries",
            "agent MiB",
            "switch MiB",
            "endpoint ms (store, busy, writes)",
            "service ms",
            "rule ms",
        ]);
        for row in &self.rows {
            table.add_row(cells(row));
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}

fn cells(row: &Row) -> Vec<String> {
    let change = |Change { applied_ms, store_ms, busy_ms, writes }: &Change| {
        format!("{applied_ms:.1} ({store_ms:.1}, {busy_ms:.1}, {writes:.0})")
    };
    let seconds = |pick: fn(&super::Load) -> f64| {
        row.load.as_ref().map(|load| format!("{:.2}", pick(load))).unwrap_or_default()
    };
    vec![
        row.datapath.to_owned(),
        row.added.clone(),
        seconds(|load| load.applied_s),
        seconds(|load| load.store_s),
        seconds(|load| load.busy_s),
        format!("{:.2}", row.start_s),
        format!("{:.2}", row.start_busy_s),
        row.entries.to_string(),
        format!("{:.0}", row.agent.resident),
        row.switch.map(|memory| format!("{:.0}", memory.resident)).unwrap_or_default(),
        change(&row.endpoint),
        change(&row.service),
        change(&row.rule),
    ]
}
