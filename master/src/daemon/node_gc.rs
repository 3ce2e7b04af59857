//! Releases the endpoints of nodes that are gone.

use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval};

use crate::cache::{Draft, Shared};
use crate::commit::Queue;
use crate::metrics::Metrics;
use crate::plugin::{Cleanup, Round, release};
use crate::problem::Problem;

/// How often the nodes are looked at: a small part of the patience, within these.
const PERIOD: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Looks after the nodes, until dropped. Without `patience`, nodes that are gone are noted and their endpoints stay.
pub(super) async fn look_after(world: Shared, queue: Queue, metrics: Metrics, patience: Option<Duration>) {
    let period = patience.map_or(PERIOD.1, |patience| (patience / 20).clamp(PERIOD.0, PERIOD.1));
    let mut tick = interval(period);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let round = Round::look(&world.read(), SystemTime::now(), patience);
        if let Err(problem) = carry_out(&queue, &metrics, round).await {
            tracing::warn!(%problem, "could not see to the nodes that are gone; trying again");
        }
    }
}

async fn carry_out(queue: &Queue, metrics: &Metrics, round: Round) -> Result<(), Problem> {
    if !round.vanished.is_empty() || !round.back.is_empty() {
        for host in &round.vanished {
            tracing::warn!(host, "the node's registration has run out");
        }
        for host in &round.back {
            tracing::info!(host, "the node is back, or forgotten");
        }
        let noted = round.clone();
        let plan = move |draft: &mut Draft<'_>| noted.note(SystemTime::now(), draft);
        queue.submit(Box::new(plan), true).await?;
    }
    for (host, endpoints) in round.due {
        tracing::warn!(host, endpoints = endpoints.len(), "the node stayed away: its endpoints are released");
        let mut parts: Vec<Vec<String>> = endpoints.chunks(Cleanup::AT_ONCE).map(<[_]>::to_vec).collect();
        if parts.is_empty() {
            parts.push(vec![]);
        }
        let last = parts.len();
        for (n, part) in (1..).zip(parts) {
            let host = host.clone();
            let plan = move |draft: &mut Draft<'_>| release(&host, &part, n == last, draft);
            let released = queue.submit(Box::new(plan), true).await?;
            metrics.released.inc_by(serde_json::from_slice(&released).unwrap_or_default());
        }
    }
    Ok(())
}
