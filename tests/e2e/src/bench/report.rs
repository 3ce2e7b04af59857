//! Reports of benchmarks.

use anyhow::Result;
use comfy_table::Table;
use serde_json::Value;

/// Takes a report under its name in the JSON output.
pub(super) type ReportSink<'a> = dyn FnMut(&str, &dyn Report) -> Result<()> + 'a;

/// Results of a benchmark: a table for the terminal, a value for JSON.
pub(super) trait Report {
    fn title(&self) -> String;
    fn table(&self) -> Table;
    fn value(&self) -> Result<Value>;
}
