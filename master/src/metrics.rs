//! Metrics of `/metrics`.

use std::fmt;

use contiv_daemon::metrics_page;
use contiv_model::{api, endpoint, group, network, node, registry};
use prometheus_client::encoding::text;
use prometheus_client::metrics::{counter::Counter, gauge::ConstGauge};
use prometheus_client::registry::Registry;

use crate::cache::ClusterCache;

/// Counters since the start of this netmaster. Gauges are computed from the cache for each scrape.
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
}

impl Metrics {
    /// Metrics in OpenMetrics text format. `cache` is set while this netmaster leads.
    pub fn text(&self, cache: Option<&ClusterCache>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("contiv_netmaster");
        let counters = [
            ("endpoints_released", "Endpoints released because their node was gone", &self.released),
            ("large_changes", "Changes committed in more than one store transaction", &self.large_changes),
            ("restored_keys", "Keys restored when this netmaster became leader", &self.restored),
            ("audit_entries_lost", "Entries that could not be written to the audit log", &self.audit_lost),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let mut gauge = |name, help, n: usize| {
            registry.register(name, help, ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX)));
        };
        gauge("leading", "Whether this netmaster is the leader (1) or not (0)", usize::from(cache.is_some()));
        if let Some(cache) = cache {
            let agents = cache.all::<registry::ServiceInfo>().filter(|s| s.service_name == registry::VTEP);
            gauge("nodes", "Nodes with a registered agent", agents.count());
            gauge("nodes_gone", "Nodes whose registration expired", cache.all::<node::Gone>().count());
            gauge("networks", "Networks", cache.allocations::<network::State>().count());
            gauge("groups", "Endpoint groups", cache.allocations::<group::State>().count());
            gauge("endpoints", "Endpoints", cache.all::<endpoint::State>().count());
            gauge("policies", "Policies", cache.all::<api::Policy>().count());
            gauge("rules", "Policy rules", cache.all::<api::Rule>().count());
        }
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

/// Page of the reference.
pub fn reference_page() -> String {
    let text = Metrics::default().text(Some(&ClusterCache::default())).unwrap_or_default();
    metrics_page::page("Metrics of netmaster", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_reported_by_the_leader_only() {
        let metrics = Metrics::default();
        metrics.released.inc_by(3);
        let line = |text: &str, line: &str| text.lines().any(|l| l == line);
        let following = metrics.text(None).unwrap();
        assert!(line(&following, "contiv_netmaster_leading 0"), "{following}");
        assert!(line(&following, "contiv_netmaster_endpoints_released_total 3"), "{following}");
        assert!(!following.contains("contiv_netmaster_networks"), "{following}");
        let leading = metrics.text(Some(&ClusterCache::default())).unwrap();
        assert!(line(&leading, "contiv_netmaster_networks 0"), "{leading}");
    }
}
