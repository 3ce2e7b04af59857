//! Counts for `/metrics`.

use std::fmt;

use contiv_model::{api, endpoint, group, network, node, registry};
use prometheus_client::encoding::text;
use prometheus_client::metrics::{counter::Counter, gauge::ConstGauge};
use prometheus_client::registry::Registry;

use crate::cache::World;

/// What is counted as it happens, since this netmaster started. Everything else is looked up when it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Endpoints released because their node is gone.
    pub released: Counter,
    /// Changes that were too large for one transaction.
    pub large_changes: Counter,
    /// Keys that did not follow from the objects, mended when this netmaster began to lead.
    pub restored: Counter,
}

impl Metrics {
    /// The text that Prometheus reads; `world` of a netmaster that leads.
    pub fn text(&self, world: Option<&World>) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("contiv_netmaster");
        let counters = [
            ("endpoints_released", "Endpoints released because their node is gone", &self.released),
            ("large_changes", "Changes made in more than one transaction", &self.large_changes),
            ("restored_keys", "Keys mended when this netmaster began to lead", &self.restored),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let mut gauge = |name, help, n: usize| {
            registry.register(name, help, ConstGauge::new(i64::try_from(n).unwrap_or(i64::MAX)));
        };
        gauge("leading", "1 when this netmaster leads", usize::from(world.is_some()));
        if let Some(world) = world {
            let agents = world.all::<registry::ServiceInfo>().filter(|s| s.service_name == registry::VTEP);
            gauge("nodes", "Nodes whose agents are registered", agents.count());
            gauge("nodes_gone", "Nodes whose registrations have run out", world.all::<node::Gone>().count());
            gauge("networks", "Networks", world.ledgers::<network::State>().count());
            gauge("groups", "Endpoint groups", world.ledgers::<group::State>().count());
            gauge("endpoints", "Endpoints", world.all::<endpoint::State>().count());
            gauge("policies", "Policies", world.all::<api::Policy>().count());
            gauge("rules", "Rules of policies", world.all::<api::Rule>().count());
        }
        let mut text = String::new();
        text::encode(&mut text, &registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_leader_knows_the_world() {
        let metrics = Metrics::default();
        metrics.released.inc_by(3);
        let line = |text: &str, line: &str| text.lines().any(|l| l == line);
        let following = metrics.text(None).unwrap();
        assert!(line(&following, "contiv_netmaster_leading 0"), "{following}");
        assert!(line(&following, "contiv_netmaster_endpoints_released_total 3"), "{following}");
        assert!(!following.contains("contiv_netmaster_networks"), "{following}");
        let leading = metrics.text(Some(&World::default())).unwrap();
        assert!(line(&leading, "contiv_netmaster_networks 0"), "{leading}");
    }
}
