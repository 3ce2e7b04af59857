use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;

use super::report::Report;
use crate::faults;

impl Report for faults::Report {
    fn title(&self) -> String {
        self.summary()
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        if let Some(stalled) = &self.stalled {
            table.load_preset(presets::UTF8_BORDERS_ONLY).set_header(["what", "times", "", ""]);
            table.add_rows(stalled.rows());
            return table;
        }
        table.load_preset(presets::UTF8_BORDERS_ONLY).set_header([
            "fault",
            "times",
            "first write after p50 ms",
            "p99 ms",
            "etcd put after p50 ms",
            "p99 ms",
        ]);
        let text = |ms: Option<f64>| ms.map_or_else(|| "never".to_owned(), |ms| format!("{ms:.0}"));
        for recovery in &self.recoveries {
            table.add_row([
                recovery.fault.clone(),
                recovery.count.to_string(),
                text(recovery.p50_ms),
                text(recovery.p99_ms),
                text(recovery.etcd_p50_ms),
                text(recovery.etcd_p99_ms),
            ]);
        }
        table
    }

    fn value(&self) -> Result<Value> {
        Ok(serde_json::to_value(self)?)
    }
}
