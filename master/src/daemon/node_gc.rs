//! Background task that releases the endpoints of nodes that are gone.

use std::time::{Duration, Instant, SystemTime};

use prometheus_client::metrics::gauge::Gauge;
use tokio::time::{MissedTickBehavior, interval};

use crate::cache::{SharedCache, StagedTxn};
use crate::commit::Queue;
use crate::metrics::Metrics;
use crate::plugin::{GoneClock, NodeGcPlan, most_nodes_are_gone, release_batches, release_endpoints};
use crate::problem::Problem;

/// Shortest and longest check interval.
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Checks nodes until dropped. Without `gone_after`, nodes are marked as gone and their endpoints
/// are kept.
pub(super) async fn run(cache: SharedCache, queue: Queue, metrics: Metrics, gone_after: Option<Duration>) {
    let period = gone_after
        .map_or(CHECK_INTERVAL.1, |gone_after| (gone_after / 20).clamp(CHECK_INTERVAL.0, CHECK_INTERVAL.1));
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut clock, mut stop) = (GoneClock::default(), Stop::new(metrics.node_gc_stopped.clone()));
    loop {
        tick.tick().await;
        let gc = {
            let cache = cache.read();
            clock.advance(&cache, Instant::now());
            stop.set(most_nodes_are_gone(&cache));
            NodeGcPlan::new(&cache, &clock, gone_after)
        };
        if let Err(problem) = execute(&queue, &metrics, gc).await {
            tracing::warn!(%problem, "collect nodes that are gone: failed; retrying");
        }
    }
}

/// Whether releasing is stopped because most nodes are gone. Only a leader reports it.
struct Stop {
    gauge: Gauge,
    active: bool,
}

impl Stop {
    fn new(gauge: Gauge) -> Stop {
        Stop { gauge, active: false }
    }

    /// Logs when it begins and when it ends.
    fn set(&mut self, active: bool) {
        self.gauge.set(i64::from(active));
        match (self.active, active) {
            (false, true) => {
                tracing::error!(
                    "more than half of the nodes are gone; their endpoints are kept until some return; delete those that do not (netctl node rm)"
                );
            }
            (true, false) => {
                tracing::info!(
                    "enough nodes have returned or are deleted; endpoints of the others are released in time"
                );
            }
            (false, false) | (true, true) => {}
        }
        self.active = active;
    }
}

impl Drop for Stop {
    /// The next leader reports it from now on.
    fn drop(&mut self) {
        self.gauge.set(0);
    }
}

async fn execute(queue: &Queue, metrics: &Metrics, gc: NodeGcPlan) -> Result<(), Problem> {
    if gc.changes_marks() {
        for host in &gc.newly_gone {
            tracing::warn!(host, "node is gone: its registration expired");
        }
        for host in &gc.returned {
            tracing::info!(host, "node registered again, or was deleted");
        }
        let marks = gc.clone();
        let plan = move |staged: &mut StagedTxn<'_>| marks.mark(SystemTime::now(), staged);
        queue.submit(Box::new(plan), true).await?;
    }
    for (host, endpoints) in gc.expired {
        tracing::warn!(
            host,
            endpoints = endpoints.len(),
            "node is gone for longer than --node-gone-after; releasing its endpoints"
        );
        let parts = release_batches(&endpoints);
        let last = parts.len();
        for (n, part) in (1..).zip(parts) {
            let host = host.clone();
            let plan = move |staged: &mut StagedTxn<'_>| release_endpoints(&host, &part, n == last, staged);
            let released = queue.submit(Box::new(plan), true).await?;
            metrics.released.inc_by(serde_json::from_slice(&released).unwrap_or_default());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_netmaster_that_leads_no_more_reports_nothing() {
        let gauge = Gauge::default();
        let mut stop = Stop::new(gauge.clone());
        stop.set(true);
        assert_eq!(gauge.get(), 1);
        stop.set(false);
        assert_eq!(gauge.get(), 0);
        stop.set(true);
        drop(stop);
        assert_eq!(gauge.get(), 0);
    }
}
