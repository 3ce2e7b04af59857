//! Metrics of `/metrics`.

mod commits;
mod database;
mod pools;
mod requests;

use std::fmt;

use contiv_daemon::metrics_page;
use contiv_model::{api, endpoint, group, network, node, registry};
use contiv_store::RequestMetrics as StoreMetrics;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::{counter::Counter, family::Family, gauge::ConstGauge, gauge::Gauge};
use prometheus_client::registry::Registry;

pub use commits::{CommitMetrics, CommitResult};
use pools::Pools;
pub use requests::RequestMetrics;

use crate::cache::ClusterCache;
use database::DatabaseMetrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Metrics since the start of this netmaster. Gauges are computed for each scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Endpoints released because their node is gone.
    pub released: Counter,
    /// Changes that needed more than one store transaction.
    pub large_changes: Counter,
    /// Keys restored when this netmaster became leader.
    pub restored: Counter,
    /// Entries of the audit log that could not be written.
    pub audit_lost: Counter,
    /// Bytes of large responses that clients have not taken yet.
    pub response_bytes: Gauge,
    /// Whether no endpoints are released because most nodes are gone.
    pub node_gc_stopped: Gauge,
    /// Database of the store.
    pub database: DatabaseMetrics,
    /// Elections of a leader that this netmaster has seen.
    pub leader_changes: Counter,
    /// Requests of clients.
    pub requests: RequestMetrics,
    /// Commits of this netmaster as leader.
    pub commits: CommitMetrics,
    /// Requests to the store.
    pub store: StoreMetrics,
}

/// What only a leader reports. It is encoded without the cache.
pub struct Leading {
    /// Name, help and value.
    gauges: [(&'static str, &'static str, usize); 9],
    pools: Pools,
}

impl Metrics {
    /// Metrics in OpenMetrics text format. `store_usable`: the store answers, and
    /// its watch is connected. `leading` is set while this netmaster leads.
    pub fn text(&self, store_usable: bool, leading: Option<Leading>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("contiv_netmaster");
        let counters = [
            ("endpoints_released", "Endpoints released because their node was gone", &self.released),
            ("large_changes", "Changes committed in more than one store transaction", &self.large_changes),
            ("restored_keys", "Keys restored when this netmaster became leader", &self.restored),
            (
                "leader_changes",
                "Elections of a leader that this netmaster has seen since its start",
                &self.leader_changes,
            ),
            ("audit_entries_lost", "Entries that could not be written to the audit log", &self.audit_lost),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "node_gc_stopped",
            "Whether endpoints of nodes that are gone are kept because most nodes are gone (1) or not (0)",
            self.node_gc_stopped.clone(),
        );
        registry.register(
            "response_bytes_in_flight",
            "Bytes of responses of more than 64 KiB that clients have not taken yet",
            self.response_bytes.clone(),
        );
        self.database.register(&mut registry);
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "Version of netmaster; value 1", build);
        self.requests.register(&mut registry);
        self.commits.register(&mut registry);
        self.store.register(&mut registry);
        let help = "Whether the store answers this netmaster (1) or not (0)";
        gauge(&mut registry, "store_connected", help, usize::from(store_usable));
        let help = "Whether this netmaster is the leader (1) or not (0)";
        gauge(&mut registry, "leading", help, usize::from(leading.is_some()));
        if let Some(leading) = leading {
            leading.register(&mut registry);
        }
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Leading {
    /// `queued`: changes that wait for the committer. `waiting`: bytes that wait for clients of watches.
    pub fn new(cache: &ClusterCache, queued: usize, waiting: usize) -> Leading {
        let agents = cache.all::<registry::ServiceInfo>().filter(|s| s.service_name == registry::VTEP);
        let gauges = [
            ("nodes", "Nodes with a registered agent", agents.count()),
            ("nodes_gone", "Nodes whose registration expired", cache.table::<node::Gone>().len()),
            ("networks", "Networks", cache.allocations::<network::State>().count()),
            ("groups", "Endpoint groups", cache.allocations::<group::State>().count()),
            ("endpoints", "Endpoints", cache.table::<endpoint::State>().len()),
            ("policies", "Policies", cache.table::<api::Policy>().len()),
            ("rules", "Policy rules", cache.table::<api::Rule>().len()),
            ("commit_queue_length", "Changes that wait for the committer of the leader", queued),
            ("watch_backlog_bytes", "Bytes of changes that wait for the clients of watches", waiting),
        ];
        Leading { gauges, pools: Pools::of(cache) }
    }

    fn register(&self, registry: &mut Registry) {
        for (name, help, value) in self.gauges {
            gauge(registry, name, help, value);
        }
        pools::register(registry, &self.pools);
    }
}

fn gauge(registry: &mut Registry, name: &str, help: &str, value: usize) {
    registry.register(name, help, ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)));
}

/// Page of the reference. Families without a sample are not encoded, so each has one here.
pub fn reference_page() -> Result<String, fmt::Error> {
    let metrics = Metrics::default();
    metrics.requests.sample();
    metrics.commits.sample();
    let read = Ok::<(), contiv_store::Error>(());
    metrics.store.record(contiv_store::Operation::Get, &read, std::time::Duration::ZERO);
    let cache = ClusterCache::default();
    let leading = Leading { pools: Pools::sample(), ..Leading::new(&cache, 0, 0) };
    Ok(metrics_page::page("Metrics of netmaster", &metrics.text(true, Some(leading))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn has(text: &str, line: &str) -> bool {
        text.lines().any(|l| l == line)
    }

    #[test]
    fn gauges_are_reported_by_the_leader_only() {
        let metrics = Metrics::default();
        metrics.released.inc_by(3);
        let following = metrics.text(false, None).unwrap();
        assert!(has(&following, "contiv_netmaster_leading 0"), "{following}");
        assert!(has(&following, "contiv_netmaster_store_connected 0"), "{following}");
        assert!(has(&following, "contiv_netmaster_endpoints_released_total 3"), "{following}");
        assert!(!following.contains("contiv_netmaster_networks"), "{following}");
        let cache = ClusterCache::default();
        let leading = metrics.text(true, Some(Leading::new(&cache, 7, 8))).unwrap();
        assert!(has(&leading, "contiv_netmaster_store_connected 1"), "{leading}");
        assert!(has(&leading, "contiv_netmaster_networks 0"), "{leading}");
        assert!(has(&leading, "contiv_netmaster_commit_queue_length 7"), "{leading}");
        assert!(has(&leading, "contiv_netmaster_watch_backlog_bytes 8"), "{leading}");
    }
}
