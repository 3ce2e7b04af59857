//! Families with a series per object: rules, services and endpoints.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

use super::{IN, OUT, series::CounterSeries};
use crate::{
    attach::link::PodTraffic,
    datapath::telemetry::{self, ServiceCounters, Traffic},
    state::State,
};

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

type CounterFamily<L> = Family<L, Counter>;

/// Label value for the rules or services without a separate series.
const OTHER: &str = "other";

pub(super) fn register_rules(registry: &mut Registry, counters: &CounterSeries) {
    let (packets, bytes) = (CounterFamily::<Rule>::default(), CounterFamily::<Rule>::default());
    let count = |rule, traffic: Traffic| {
        let rule = Rule { rule };
        packets.get_or_create(&rule).inc_by(traffic.packets);
        bytes.get_or_create(&rule).inc_by(traffic.bytes);
    };
    for (id, traffic) in &counters.rules.named {
        count(id.to_string(), *traffic);
    }
    if let Some(traffic) = counters.rules.other {
        count(OTHER.to_owned(), traffic);
    }
    let what = "Connections that a rule allowed, or packets that it denied";
    registry.register("rule_packets", what, packets);
    registry.register("rule_bytes", "Bytes of the packets that a rule decided", bytes);
}

impl From<&telemetry::ServicePort> for ServicePort {
    fn from(key: &telemetry::ServicePort) -> ServicePort {
        let (service, protocol) = (key.service.to_string(), key.protocol.to_string().to_lowercase());
        ServicePort { service, protocol, port: key.port }
    }
}

pub(super) fn register_services(registry: &mut Registry, counters: &CounterSeries) {
    let connections = CounterFamily::<ServicePort>::default();
    let (packets, bytes) =
        (CounterFamily::<ServiceTraffic>::default(), CounterFamily::<ServiceTraffic>::default());
    let count = |labels: ServicePort, counters: ServiceCounters| {
        let ServiceCounters { connections: opened, to_backends, to_clients } = counters;
        connections.get_or_create(&labels).inc_by(opened);
        let ServicePort { service, protocol, port } = labels;
        for (direction, traffic) in [(IN, to_backends), (OUT, to_clients)] {
            let (service, protocol) = (service.clone(), protocol.clone());
            let labels = ServiceTraffic { service, protocol, port, direction };
            packets.get_or_create(&labels).inc_by(traffic.packets);
            bytes.get_or_create(&labels).inc_by(traffic.bytes);
        }
    };
    for (key, served) in &counters.services.named {
        count(key.into(), *served);
    }
    if let Some(served) = counters.services.other {
        count(ServicePort { service: OTHER.to_owned(), ..ServicePort::default() }, served);
    }
    registry.register("service_connections", "Connections opened by local clients to a service", connections);
    registry.register(
        "service_packets",
        "Packets from local clients to a service (in), and replies (out)",
        packets,
    );
    registry.register(
        "service_bytes",
        "Bytes from local clients to a service (in), and of replies (out)",
        bytes,
    );
}

pub(super) fn register_endpoints(registry: &mut Registry, pods: &[PodTraffic], state: &State) {
    let (packets, bytes) = (CounterFamily::<Endpoint>::default(), CounterFamily::<Endpoint>::default());
    let count = |pod: &PodTraffic, direction, traffic: Traffic| {
        let record = state.endpoint(&pod.port.endpoint);
        let group = record.and_then(|record| record.group.as_ref());
        let labels = Endpoint {
            endpoint: pod.port.endpoint.to_string(),
            network: record.map(|record| record.network.to_string()).unwrap_or_default(),
            group: group.map(ToString::to_string).unwrap_or_default(),
            interface: pod.port.port.clone(),
            direction,
        };
        packets.get_or_create(&labels).inc_by(traffic.packets);
        bytes.get_or_create(&labels).inc_by(traffic.bytes);
    };
    for pod in pods {
        count(pod, IN, pod.received);
        count(pod, OUT, pod.sent);
    }
    registry.register(
        "endpoint_packets",
        "Packets that an endpoint on this node received (in) and sent (out)",
        packets,
    );
    registry.register(
        "endpoint_bytes",
        "Bytes that an endpoint on this node received (in) and sent (out)",
        bytes,
    );
}
