//! Stats for `/metrics`.

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

use crate::{
    datapath::telemetry::{Counters, ServiceCounters, Stats, Traffic},
    link::PodTraffic,
    reconcile::Status,
    state::{Reader, State},
};

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
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct By {
    by: &'static str,
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Rule {
    rule: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServicePort {
    service: String,
    protocol: String,
    port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceTraffic {
    service: String,
    protocol: String,
    port: u16,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Endpoint {
    endpoint: String,
    network: String,
    group: String,
    interface: String,
    direction: &'static str,
}

/// Rules, and ports of services, that have lines of their own; the sum of what is beyond, in the order of their names,
/// is `other`'s. Endpoints have a line each: a node has no more than its ports.
const LINES: usize = 1000;
/// Stands for those beyond.
const OTHER: &str = "other";

/// What is asked of the datapath and the kernel for a reading.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The datapath's own counts.
    pub counts: Stats,
    /// What packets have left behind.
    pub tallies: Counters,
    /// What pods have sent and received.
    pub pods: Vec<PodTraffic>,
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
    pub fn text(&self, status: &Status, measured: &Measured, reader: &Reader) -> Result<String, fmt::Error> {
        let Measured { counts, tallies, pods } = measured;
        let mut registry = Registry::with_prefix("contiv");
        let mut counter = |name, help, value: u64| registry.register(name, help, ConstCounter::new(value));
        counter("datapath_writes", "Changes made in the switch or kernel", status.writes);
        counter("datapath_ops", "Operations given to the datapath", status.ops);
        counter("datapath_ops_failed", "Operations that the datapath would not take", status.ops_failed);
        counter("datapath_observed", "Times that the datapath was measured as a whole", status.observed);
        let busy = ConstCounter::new(status.busy.as_secs_f64());
        registry.register(
            "datapath_busy_seconds",
            "Time for planning, measuring and making what is planned",
            busy,
        );
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
        let relayed = Family::<By, Counter>::default();
        for (by, count) in &counts.dsr_forwarded {
            relayed.get_or_create(&By { by }).inc_by(*count);
        }
        let help = "Packets to services that were sent on to the nodes of their backends";
        registry.register("datapath_relayed", help, relayed);
        let announced = Family::<Outcome, Counter>::default();
        for (outcome, count) in &counts.announcements {
            announced.get_or_create(&Outcome { outcome }).inc_by(*count);
        }
        let help = "Frames that tell the wire which services have come to this node";
        registry.register("datapath_announced", help, announced);
        let hooks = Family::<Hook, Gauge>::default();
        for (hook, mode) in &counts.hooks {
            hooks.get_or_create(&Hook { hook, mode: mode.clone() }).set(1);
        }
        registry.register("datapath_attached", "How programs are attached, 1 for each", hooks);
        let (drops, entries, room) = tables(counts, tallies);
        registry.register("datapath_drops", "Frames that went no further", drops);
        registry.register("datapath_table_entries", "What is in a table of the datapath", entries);
        registry.register("datapath_table_room", "What a table of the datapath holds at most", room);
        of_rules(&mut registry, tallies);
        of_services(&mut registry, tallies);
        reader.with(|state| of_endpoints(&mut registry, pods, state));
        registry.register("cni_duration_seconds", "How long CNI requests took", self.durations.clone());
        registry.register("cni_failures", "CNI requests that failed", self.failures.clone());
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// As families by reason and by table. There are as many as the programs have, whatever the cluster holds.
fn tables(
    counts: &Stats,
    tallies: &Counters,
) -> (Family<Drop, Counter>, Family<Table, Gauge>, Family<Table, Gauge>) {
    let (drops, entries, room) = (Family::default(), Family::default(), Family::default());
    for (reason, count) in &counts.drops {
        Family::<Drop, Counter>::get_or_create(&drops, &Drop { reason }).inc_by(*count);
    }
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    for fill in counts.tables.iter().chain(&tallies.tables) {
        let table = Table { table: fill.table };
        Family::<Table, Gauge>::get_or_create(&entries, &table).set(number(fill.entries));
        Family::<Table, Gauge>::get_or_create(&room, &table).set(number(fill.capacity));
    }
    (drops, entries, room)
}

type CounterFamily<L> = Family<L, Counter>;

fn of_rules(registry: &mut Registry, tallies: &Counters) {
    let (packets, bytes) = (CounterFamily::<Rule>::default(), CounterFamily::<Rule>::default());
    for (place, (id, traffic)) in tallies.rules.iter().enumerate() {
        let rule = Rule { rule: if place < LINES { id.to_string() } else { OTHER.to_owned() } };
        packets.get_or_create(&rule).inc_by(traffic.packets);
        bytes.get_or_create(&rule).inc_by(traffic.bytes);
    }
    let what = "Connections that a rule has let through, packets that it has stopped";
    registry.register("rule_packets", what, packets);
    registry.register("rule_bytes", "Bytes of what rules have decided on", bytes);
}

fn of_services(registry: &mut Registry, tallies: &Counters) {
    let connections = CounterFamily::<ServicePort>::default();
    let (packets, bytes) =
        (CounterFamily::<ServiceTraffic>::default(), CounterFamily::<ServiceTraffic>::default());
    for (place, (of, served)) in tallies.services.iter().enumerate() {
        let port = if place < LINES {
            let (service, protocol) = (of.service.to_string(), of.protocol.to_string().to_lowercase());
            ServicePort { service, protocol, port: of.port }
        } else {
            ServicePort { service: OTHER.to_owned(), ..ServicePort::default() }
        };
        let ServiceCounters { connections: begun, to_backends, to_clients } = *served;
        connections.get_or_create(&port).inc_by(begun);
        let ServicePort { service, protocol, port } = port;
        for (direction, traffic) in [(IN, to_backends), (OUT, to_clients)] {
            let (service, protocol) = (service.clone(), protocol.clone());
            let labels = ServiceTraffic { service, protocol, port, direction };
            packets.get_or_create(&labels).inc_by(traffic.packets);
            bytes.get_or_create(&labels).inc_by(traffic.bytes);
        }
    }
    registry.register("service_connections", "Connections of clients here to a service", connections);
    registry.register("service_packets", "What clients here have sent to a service (in), and back", packets);
    registry.register("service_bytes", "Bytes to a service (in), and back", bytes);
}

/// As seen from what has a name: to it.
const IN: &str = "in";
/// From it.
const OUT: &str = "out";

fn of_endpoints(registry: &mut Registry, pods: &[PodTraffic], state: &State) {
    let (packets, bytes) = (CounterFamily::<Endpoint>::default(), CounterFamily::<Endpoint>::default());
    let count = |pod: &PodTraffic, direction, traffic: Traffic| {
        let known = state.endpoint(&pod.attachment.endpoint);
        let group = known.and_then(|known| known.group.as_ref());
        let labels = Endpoint {
            endpoint: pod.attachment.endpoint.to_string(),
            network: known.map(|known| known.network.to_string()).unwrap_or_default(),
            group: group.map(ToString::to_string).unwrap_or_default(),
            interface: pod.attachment.port.clone(),
            direction,
        };
        packets.get_or_create(&labels).inc_by(traffic.packets);
        bytes.get_or_create(&labels).inc_by(traffic.bytes);
    };
    for pod in pods {
        count(pod, IN, pod.received);
        count(pod, OUT, pod.sent);
    }
    registry.register("endpoint_packets", "What a pod here was sent (in), and has sent", packets);
    registry.register("endpoint_bytes", "Bytes that a pod here was sent (in), and has sent", bytes);
}

#[cfg(test)]
mod tests {
    use contiv_model::service::Protocol;

    use super::*;
    use crate::{
        datapath::{
            Owner,
            telemetry::{self, TableUsage},
        },
        link::Attachment,
    };

    #[test]
    fn the_names_are_what_dashboards_know() {
        let metrics = Metrics::default();
        metrics.cni(Verb::Add, Duration::from_millis(3), false);
        let (_, _, reader, _) = crate::state::new([]);
        let counts = Stats {
            drops: vec![("policy", 3)],
            flows: vec![("made", 4)],
            tables: vec![TableUsage { table: "ctv_fdb", entries: 2, capacity: 9 }],
            dsr_forwarded: vec![("xdp", 5)],
            announcements: vec![("sent", 6)],
            hooks: vec![("xdp", "native".to_owned())],
        };
        let traffic = |packets| Traffic { packets, bytes: packets * 100 };
        let web = telemetry::ServicePort { service: "web:t".into(), protocol: Protocol::Tcp, port: 80 };
        let served = ServiceCounters { connections: 2, to_backends: traffic(12), to_clients: traffic(9) };
        let rule = |n: usize| (format!("rule-{n:04}").as_str().into(), traffic(1));
        let tallies = Counters {
            rules: (0..LINES + 3).map(rule).collect(),
            services: vec![(web, served)],
            tables: vec![TableUsage { table: "ctv_ct", entries: 5, capacity: 8 }],
        };
        let pods = vec![PodTraffic {
            attachment: Attachment { port: "vvport1".into(), endpoint: "n.t-c1".into(), owner: Owner::Pod },
            sent: traffic(7),
            received: traffic(8),
        }];
        let measured = Measured { counts, tallies, pods };
        let text = metrics.text(&Status { writes: 7, ..Status::default() }, &measured, &reader).unwrap();
        for line in [
            "contiv_datapath_writes_total 7",
            "contiv_state_rejected 0",
            r#"contiv_datapath_drops_total{reason="policy"} 3"#,
            r#"contiv_datapath_flows_total{event="made"} 4"#,
            r#"contiv_datapath_table_entries{table="ctv_fdb"} 2"#,
            r#"contiv_datapath_relayed_total{by="xdp"} 5"#,
            r#"contiv_datapath_announced_total{outcome="sent"} 6"#,
            r#"contiv_datapath_attached{hook="xdp",mode="native"} 1"#,
            r#"contiv_datapath_table_room{table="ctv_fdb"} 9"#,
            r#"contiv_datapath_table_entries{table="ctv_ct"} 5"#,
            r#"contiv_rule_packets_total{rule="rule-0999"} 1"#,
            r#"contiv_rule_bytes_total{rule="other"} 300"#,
            r#"contiv_service_connections_total{service="web:t",protocol="tcp",port="80"} 2"#,
            r#"contiv_service_packets_total{service="web:t",protocol="tcp",port="80",direction="in"} 12"#,
            r#"contiv_service_bytes_total{service="web:t",protocol="tcp",port="80",direction="out"} 900"#,
            r#"contiv_endpoint_packets_total{endpoint="n.t-c1",network="",group="",interface="vvport1",direction="in"} 8"#,
            r#"contiv_endpoint_bytes_total{endpoint="n.t-c1",network="",group="",interface="vvport1",direction="out"} 700"#,
            r#"contiv_cni_failures_total{verb="Add"} 1"#,
            r#"contiv_cni_duration_seconds_count{verb="Add"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert_eq!(text.matches("contiv_rule_packets_total{").count(), LINES + 1);
    }
}
