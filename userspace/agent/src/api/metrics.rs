//! Metrics for `/metrics` in the OpenMetrics text format.

mod bgp;
mod objects;
mod reference;
mod series;

use std::fmt;

use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::Registry,
};

use objects::{register_endpoints, register_rules, register_services};
pub use reference::reference_page;
pub use series::{CounterSeries, SeriesTables};

use crate::{
    attach::{RequestMetrics, link::PodTraffic},
    bgp::Report,
    datapath::{Kind, telemetry::Stats},
    reconcile::{self, Status},
    state::Reader,
    sysctl::Tracking,
};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    datapath: String,
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
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Program {
    program: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hook {
    hook: &'static str,
    mode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Table {
    table: &'static str,
}

/// Direction towards the labelled object.
const IN: &str = "in";
/// Direction from the labelled object.
const OUT: &str = "out";

/// Values read from the datapath and the kernel for one scrape.
#[derive(Clone, Debug, Default)]
pub struct Measurements {
    /// Datapath's statistics.
    pub stats: Stats,
    /// Datapath's packet counters.
    pub counters: CounterSeries,
    /// Traffic of the endpoints on this node.
    pub pods: Vec<PodTraffic>,
    /// The kernel's table of connections; `None` if it has none.
    pub tracking: Option<Tracking>,
}

/// Metrics that the parts of the agent record. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// CNI requests.
    pub requests: RequestMetrics,
    /// Work of the reconciler.
    pub reconciler: reconcile::Metrics,
    /// Requests to the store.
    pub store: contiv_store::RequestMetrics,
    /// Series of rules and services.
    pub series: SeriesTables,
}

/// Condition of the agent at a scrape.
#[derive(Clone, Copy, Debug)]
pub struct Condition<'a> {
    /// Datapath of the node.
    pub datapath: Kind,
    /// Status of the reconciler.
    pub status: &'a Status,
    /// Number of degraded conditions.
    pub degraded: usize,
    /// Number of attachments that CNI requests are creating or deleting, or have left to be deleted.
    pub unfinished: usize,
    /// BGP session.
    pub bgp: &'a Report,
    /// The store is regressed.
    pub regressed: bool,
    /// All watches of the store are connected.
    pub store_connected: bool,
}

/// Encodes all metrics.
pub fn encode(
    recorded: &Recorded,
    condition: &Condition<'_>,
    measurements: &Measurements,
    reader: &Reader,
) -> Result<String, fmt::Error> {
    let Measurements { stats, counters, pods, tracking } = measurements;
    let Condition { datapath, status, degraded, unfinished, bgp, regressed, store_connected } = *condition;
    let mut registry = Registry::with_prefix("contiv");
    let build = Family::<Build, Gauge>::default();
    build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION"), datapath: datapath.to_string() }).set(1);
    registry.register("build_info", "Version of netplugin and datapath of the node; value 1", build);
    let mut counter = |name, help, value: u64| registry.register(name, help, ConstCounter::new(value));
    counter("datapath_writes", "Writes to the switch or kernel", status.writes);
    counter("datapath_ops", "Operations executed by the datapath", status.ops);
    counter("datapath_ops_failed", "Operations that failed", status.ops_failed);
    counter("datapath_resyncs", "Full resyncs of the datapath", status.resyncs);
    let busy = ConstCounter::new(status.busy.as_secs_f64());
    registry.register(
        "datapath_busy_seconds",
        "Time spent on planning, observing and applying, in seconds",
        busy,
    );
    let (endpoints, networks, attachments) = reader
        .with(|state| (state.endpoints().count(), state.networks().count(), state.attachments().count()));
    let orphaned = reader.with(|state| state.orphaned_interfaces().count());
    let mut gauge = |name, help, value: i64| registry.register(name, help, ConstGauge::new(value));
    let count = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    gauge(
        "datapath_in_sync",
        "1 if the last full resync succeeded and no error occurred since, else 0",
        i64::from(status.in_sync),
    );
    gauge(
        "store_regressed",
        "1 if the store lost data that the agent knows, so that the agent ignores it, else 0",
        i64::from(regressed),
    );
    gauge(
        "store_connected",
        "1 if all watches of the store are connected, else 0",
        i64::from(store_connected),
    );
    gauge(
        "datapath_upgrade_postponed",
        "1 if the programs of another ABI version forward and nothing is changed, because objects in the store are invalid, else 0",
        i64::from(status.postponed.is_some()),
    );
    gauge("degraded_conditions", "Degraded conditions of the node, which /readyz lists", count(degraded));
    gauge("datapath_objects", "Desired objects", count(status.objects));
    gauge(
        "datapath_objects_failed",
        "Desired objects that failed or are not supported",
        count(status.failures.count()),
    );
    gauge(
        "datapath_objects_unsupported",
        "Desired objects that the datapath does not support",
        count(status.failures.unsupported.values().sum()),
    );
    gauge("state_revision", "Newest store revision that changed the state", reader.revision());
    gauge(
        "applied_revision",
        "Newest store revision that is in effect; failed operations hold it back",
        status.revision,
    );
    gauge("state_invalid_objects", "Invalid objects in the store", count(reader.rejected_count()));
    gauge(
        "state_endpoints",
        "Endpoints in the state: those of the networks that the node needs",
        count(endpoints),
    );
    gauge("state_networks", "Networks in the cluster", count(networks));
    gauge("attachments", "Endpoint interfaces on this node", count(attachments));
    gauge(
        "attachments_orphaned",
        "Endpoint interfaces on this node whose endpoint is not in the store",
        count(orphaned),
    );
    gauge(
        "attachments_unfinished",
        "Attachments that CNI requests are making or deleting, or that failed or interrupted ones have left to be deleted",
        count(unfinished),
    );
    if let Some(Tracking { used, max }) = *tracking {
        gauge(
            "node_connections",
            "Connections that the node's kernel tracks (nf_conntrack_count)",
            used.into(),
        );
        let help =
            "Maximum number of connections that the node's kernel tracks (nf_conntrack_max); 0: no limit";
        gauge("node_connections_max", help, max.into());
    }
    let flows = Family::<Flow, Counter>::default();
    for (event, count) in &stats.flows {
        flows.get_or_create(&Flow { event }).inc_by(*count);
    }
    registry.register("datapath_flow_events", "Events of flow entries, by kind", flows);
    let forwarded = Family::<Program, Counter>::default();
    for (program, count) in &stats.dsr_forwarded {
        forwarded.get_or_create(&Program { program }).inc_by(*count);
    }
    let help = "Service packets of external clients forwarded to the nodes of the backends (DSR), by program";
    registry.register("datapath_dsr_packets", help, forwarded);
    let mut announcements = |name, help, counts: &[(&'static str, u64)]| {
        let family = Family::<Outcome, Counter>::default();
        for (outcome, count) in counts {
            family.get_or_create(&Outcome { outcome }).inc_by(*count);
        }
        registry.register(name, help, family);
    };
    let help = "GARP and ND announcements of service addresses, by outcome";
    announcements("datapath_announcements", help, &stats.announcements);
    let help = "GARP and ND announcements of endpoints of VLAN networks, by outcome";
    announcements("datapath_endpoint_announcements", help, &stats.endpoint_announcements);
    let hooks = Family::<Hook, Gauge>::default();
    for (hook, mode) in &stats.hooks {
        hooks.get_or_create(&Hook { hook, mode: mode.clone() }).set(1);
    }
    registry.register("datapath_programs_attached", "Attach mode of the programs at a hook; value 1", hooks);
    let (drops, entries, capacity) = tables(stats, counters);
    registry.register("datapath_drops", "Dropped frames, by reason", drops);
    registry.register("datapath_table_entries", "Entries in a table of the datapath", entries);
    registry.register(
        "datapath_table_capacity",
        "Maximum number of entries in a table of the datapath",
        capacity,
    );
    register_rules(&mut registry, counters);
    register_services(&mut registry, counters);
    reader.with(|state| register_endpoints(&mut registry, pods, state));
    bgp::register(&mut registry, bgp);
    recorded.requests.register(&mut registry);
    recorded.reconciler.register(&mut registry);
    recorded.store.register(&mut registry);
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

/// Families by drop reason and by table. Their size depends on the programs, not on the cluster.
fn tables(
    stats: &Stats,
    counters: &CounterSeries,
) -> (Family<Drop, Counter>, Family<Table, Gauge>, Family<Table, Gauge>) {
    let (drops, entries, capacity) = (Family::default(), Family::default(), Family::default());
    for (reason, count) in stats.drops.iter().chain(&counters.drops) {
        Family::<Drop, Counter>::get_or_create(&drops, &Drop { reason }).inc_by(*count);
    }
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    for usage in stats.tables.iter().chain(&counters.tables) {
        let table = Table { table: usage.table };
        Family::<Table, Gauge>::get_or_create(&entries, &table).set(number(usage.entries));
        Family::<Table, Gauge>::get_or_create(&capacity, &table).set(number(usage.capacity));
    }
    (drops, entries, capacity)
}

#[cfg(test)]
mod tests {
    use super::{series::MAX_SERIES, *};

    #[test]
    fn metric_names_are_stable() {
        let (recorded, status, measurements) = reference::sample(MAX_SERIES + 3);
        let (_, _, reader, _) = crate::state::new([]);
        let session = reference::session();
        let condition = reference::condition(&status, &session);
        let text = encode(&recorded, &condition, &measurements, &reader).unwrap();
        for line in [
            "contiv_datapath_writes_total 7",
            "contiv_state_invalid_objects 0",
            "contiv_degraded_conditions 1",
            "contiv_attachments_unfinished 2",
            r#"contiv_datapath_drops_total{reason="policy"} 3"#,
            r#"contiv_datapath_flow_events_total{event="made"} 4"#,
            r#"contiv_datapath_table_entries{table="ctv_fdb"} 2"#,
            r#"contiv_datapath_dsr_packets_total{program="xdp"} 5"#,
            r#"contiv_datapath_announcements_total{outcome="sent"} 6"#,
            r#"contiv_datapath_endpoint_announcements_total{outcome="sent"} 8"#,
            r#"contiv_datapath_programs_attached{hook="xdp",mode="native"} 1"#,
            r#"contiv_datapath_table_capacity{table="ctv_fdb"} 9"#,
            r#"contiv_datapath_table_entries{table="ctv_flows"} 5"#,
            r#"contiv_rule_packets_total{rule="rule-0999"} 1"#,
            r#"contiv_rule_bytes_total{rule="other"} 300"#,
            r#"contiv_service_connections_total{service="web:t",protocol="tcp",port="80"} 2"#,
            r#"contiv_service_packets_total{service="web:t",protocol="tcp",port="80",direction="in"} 12"#,
            r#"contiv_service_bytes_total{service="web:t",protocol="tcp",port="80",direction="out"} 900"#,
            r#"contiv_endpoint_packets_total{endpoint="n.t-c1",network="",group="",interface="vvport1",direction="in"} 8"#,
            r#"contiv_endpoint_bytes_total{endpoint="n.t-c1",network="",group="",interface="vvport1",direction="out"} 700"#,
            r#"contiv_bgp_session_established{neighbor="50.1.1.2"} 1"#,
            r#"contiv_bgp_sessions_total{neighbor="50.1.1.2"} 2"#,
            r#"contiv_bgp_messages_total{neighbor="50.1.1.2",direction="in"} 3"#,
            r#"contiv_bgp_malformed_updates_total{neighbor="50.1.1.2"} 5"#,
            r#"contiv_bgp_ignored_prefixes_total{neighbor="50.1.1.2"} 6"#,
            r#"contiv_bgp_routes{neighbor="50.1.1.2",table="advertised"} 6"#,
            r#"contiv_cni_failures_total{verb="Add"} 1"#,
            r#"contiv_cni_duration_seconds_count{verb="Add",result="failed"} 1"#,
            r#"contiv_watch_lag_seconds_count 1"#,
            r#"contiv_datapath_call_duration_seconds_count{call="observe",result="ok"} 1"#,
            r#"contiv_datapath_call_duration_seconds_count{call="apply",result="ok"} 1"#,
            r#"contiv_datapath_object_ops_total{operation="garbage-collect",object="orphan",result="ok"} 1"#,
            r#"contiv_store_request_duration_seconds_count{operation="get",result="ok"} 1"#,
            "contiv_store_connected 1",
            "contiv_node_connections 10",
            "contiv_node_connections_max 11",
            concat!(r#"contiv_build_info{version=""#, env!("CARGO_PKG_VERSION"), r#"",datapath="ebpf"} 1"#),
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert_eq!(text.matches("contiv_rule_packets_total{").count(), MAX_SERIES + 1);
    }
}
