//! Background task that releases the endpoints of nodes that are gone.

use std::time::{Duration, Instant, SystemTime};

use tokio::time::{MissedTickBehavior, interval};

use crate::cache::{SharedCache, StagedTxn};
use crate::commit::Queue;
use crate::metrics::Metrics;
use crate::plugin::{Cleanup, GoneClock, NodeGcPlan, most_nodes_are_gone, release_endpoints};
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
    let (mut clock, mut stopped) = (GoneClock::default(), false);
    loop {
        tick.tick().await;
        let gc = {
            let cache = cache.read();
            clock.advance(&cache, Instant::now());
            report(&metrics, &mut stopped, most_nodes_are_gone(&cache));
            NodeGcPlan::new(&cache, &clock, gone_after)
        };
        if let Err(problem) = execute(&queue, &metrics, gc).await {
            tracing::warn!(%problem, "collect nodes that are gone: failed; retrying");
        }
    }
}

/// Logs when releasing stops because most nodes are gone, and when it goes on.
fn report(metrics: &Metrics, stopped: &mut bool, now: bool) {
    metrics.node_gc_stopped.set(i64::from(now));
    if now && !*stopped {
        tracing::error!("more than half of the nodes are gone; their endpoints are kept until some return");
    } else if *stopped && !now {
        tracing::info!("enough nodes have returned; endpoints of the others are released in time");
    }
    *stopped = now;
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
        let mut parts: Vec<Vec<String>> = endpoints.chunks(Cleanup::BATCH).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(vec![]);
        }
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
