//! Counts for `/metrics`.

use std::{fmt, time::Duration};

use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeLabelValue, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{datapath::Counts, reconcile::Status, state::Reader};

/// What a runtime asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Verb {
    /// Attach.
    Add,
    /// Let go.
    Del,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    verb: Verb,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Drop {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Flow {
    event: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Table {
    table: &'static str,
}

/// What is counted as it happens. Everything else is looked up when it is asked for.
#[derive(Clone, Debug)]
pub struct Metrics {
    durations: Family<Request, Histogram>,
    failures: Family<Request, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        // 1 ms to 16 s.
        let buckets = || Histogram::new(exponential_buckets(0.001, 2.0, 15));
        Metrics { durations: Family::new_with_constructor(buckets), failures: Family::default() }
    }
}

impl Metrics {
    /// A request was answered.
    pub fn cni(&self, verb: Verb, took: Duration, done: bool) {
        self.durations.get_or_create(&Request { verb }).observe(took.as_secs_f64());
        if !done {
            self.failures.get_or_create(&Request { verb }).inc();
        }
    }

    /// The text that Prometheus reads.
    pub fn text(&self, status: &Status, counts: &Counts, reader: &Reader) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("contiv");
        let mut counter = |name, help, value: u64| registry.register(name, help, ConstCounter::new(value));
        counter("datapath_writes", "Changes made in the switch or kernel", status.writes);
        counter("datapath_ops", "Operations given to the datapath", status.ops);
        counter("datapath_ops_failed", "Operations that the datapath would not take", status.ops_failed);
        counter("datapath_observed", "Times that the datapath was measured as a whole", status.observed);
        let (endpoints, networks, attachments) = reader
            .with(|state| (state.endpoints().count(), state.networks().count(), state.attachments().count()));
        let unaccounted =
            reader.with(|state| state.attachments().filter(|(id, _)| state.endpoint(id).is_none()).count());
        let mut gauge = |name, help, value: i64| registry.register(name, help, ConstGauge::new(value));
        let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        gauge(
            "datapath_known",
            "1 when the datapath was measured and nothing broke since",
            i64::from(status.known),
        );
        gauge("datapath_objects", "Objects that should be in the datapath", count(status.objects));
        gauge(
            "datapath_failed",
            "Objects that are not in force: the datapath would not take them, or has no means for them",
            count(status.failures.count()),
        );
        gauge(
            "datapath_unsupported",
            "Objects that the datapath has no means for",
            count(status.failures.unsupported.values().sum()),
        );
        gauge("state_revision", "The newest store revision that changed something here", reader.revision());
        gauge("applied_revision", "The newest store revision that is in force", status.revision);
        gauge(
            "state_rejected",
            "Objects of the store that are not understood",
            count(reader.rejected_count()),
        );
        gauge("state_endpoints", "Endpoints of the cluster", count(endpoints));
        gauge("state_networks", "Networks of the cluster", count(networks));
        gauge("attachments", "Interfaces of pods on this node", count(attachments));
        gauge(
            "attachments_unaccounted",
            "Interfaces of pods whose endpoint is not in the store",
            count(unaccounted),
        );
        let flows = Family::<Flow, Counter>::default();
        for (event, count) in &counts.flows {
            flows.get_or_create(&Flow { event }).inc_by(*count);
        }
        registry.register("datapath_flows", "What has happened to flows", flows);
        let (drops, entries, room) = tables(counts);
        registry.register("datapath_drops", "Frames that went no further", drops);
        registry.register("datapath_table_entries", "What is in a table of the datapath", entries);
        registry.register("datapath_table_room", "What a table of the datapath holds at most", room);
        registry.register("cni_duration_seconds", "How long CNI requests took", self.durations.clone());
        registry.register("cni_failures", "CNI requests that failed", self.failures.clone());
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// As families by reason and by table. There are as many as the programs have, whatever the cluster holds.
fn tables(counts: &Counts) -> (Family<Drop, Counter>, Family<Table, Gauge>, Family<Table, Gauge>) {
    let (drops, entries, room) = (Family::default(), Family::default(), Family::default());
    for (reason, count) in &counts.drops {
        Family::<Drop, Counter>::get_or_create(&drops, &Drop { reason }).inc_by(*count);
    }
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    for fill in &counts.tables {
        let table = Table { table: fill.table };
        Family::<Table, Gauge>::get_or_create(&entries, &table).set(number(fill.entries));
        Family::<Table, Gauge>::get_or_create(&room, &table).set(number(fill.room));
    }
    (drops, entries, room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_what_dashboards_know() {
        let metrics = Metrics::default();
        metrics.cni(Verb::Add, Duration::from_millis(3), false);
        let (_, _, reader, _) = crate::state::new([]);
        let counts = Counts {
            drops: vec![("policy", 3)],
            flows: vec![("made", 4)],
            tables: vec![crate::datapath::Fill { table: "ctv_fdb", entries: 2, room: 9 }],
        };
        let text = metrics.text(&Status { writes: 7, ..Status::default() }, &counts, &reader).unwrap();
        for line in [
            "contiv_datapath_writes_total 7",
            "contiv_state_rejected 0",
            r#"contiv_datapath_drops_total{reason="policy"} 3"#,
            r#"contiv_datapath_flows_total{event="made"} 4"#,
            r#"contiv_datapath_table_entries{table="ctv_fdb"} 2"#,
            r#"contiv_datapath_table_room{table="ctv_fdb"} 9"#,
            r#"contiv_cni_failures_total{verb="Add"} 1"#,
            r#"contiv_cni_duration_seconds_count{verb="Add"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
    }
}
