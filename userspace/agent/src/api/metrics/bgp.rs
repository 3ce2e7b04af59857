use contiv_bgp::State;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::{IN, OUT};
use crate::bgp::Report;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Neighbor {
    neighbor: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Messages {
    neighbor: String,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Routes {
    neighbor: String,
    table: &'static str,
}

/// Registers the metrics of the session; they have no samples if no speaker runs.
pub(super) fn register(registry: &mut Registry, report: &Report) {
    let established = Family::<Neighbor, Gauge>::default();
    let [sessions, malformed, ignored] = [(); 3].map(|()| Family::<Neighbor, Counter>::default());
    let (messages, updates) =
        (Family::<Messages, Counter>::default(), Family::<Messages, Counter>::default());
    let routes = Family::<Routes, Gauge>::default();
    if let Some(running) = report.running() {
        let (status, counters) = (&running.status, running.status.counters);
        let neighbor = Neighbor { neighbor: status.neighbor.to_string() };
        established.get_or_create(&neighbor).set(i64::from(status.state == State::Established));
        sessions.get_or_create(&neighbor).inc_by(counters.established);
        malformed.get_or_create(&neighbor).inc_by(counters.updates_malformed);
        ignored.get_or_create(&neighbor).inc_by(counters.prefixes_ignored);
        for (family, received, sent) in [
            (&messages, counters.received, counters.sent),
            (&updates, counters.updates_received, counters.updates_sent),
        ] {
            for (direction, count) in [(IN, received), (OUT, sent)] {
                let labels = Messages { neighbor: neighbor.neighbor.clone(), direction };
                family.get_or_create(&labels).inc_by(count);
            }
        }
        for (table, count) in
            [("received", status.received), ("stale", status.stale), ("advertised", status.advertised)]
        {
            let labels = Routes { neighbor: neighbor.neighbor.clone(), table };
            routes.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }
    registry.register("bgp_session_established", "1 if the BGP session is established, else 0", established);
    registry.register("bgp_sessions", "BGP sessions that were established", sessions);
    registry.register("bgp_messages", "BGP messages received (in) and sent (out)", messages);
    registry.register("bgp_updates", "BGP UPDATE messages received (in) and sent (out)", updates);
    registry.register(
        "bgp_malformed_updates",
        "BGP UPDATE messages with malformed attributes, whose routes were treated as withdrawn",
        malformed,
    );
    registry.register(
        "bgp_ignored_prefixes",
        "Announced prefixes that were ignored: of loopback, link-local, multicast or broadcast addresses",
        ignored,
    );
    registry.register(
        "bgp_routes",
        "Prefixes received from the neighbor, those of them kept during its restart (stale), and prefixes advertised to it",
        routes,
    );
}
