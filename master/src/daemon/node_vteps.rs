//! Background task that writes the records of VTEPs of nodes whose agents do not.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::cache::{SharedCache, StagedTxn};
use crate::commit::Queue;
use crate::plugin::{nodes_with_outdated_vtep, write_vteps};

/// An agent of an earlier release keeps its registration for longer than this after it has stopped.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Records in one transaction.
const BATCH: usize = 64;

/// Checks nodes until dropped.
pub(super) async fn run(cache: SharedCache, queue: Queue) {
    let mut tick = interval(CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let hosts = nodes_with_outdated_vtep(&cache.read());
        for part in hosts.chunks(BATCH).map(<[_]>::to_vec) {
            tracing::info!(nodes = part.len(), "write VTEPs of nodes with agents of an earlier release");
            let plan = move |staged: &mut StagedTxn<'_>| write_vteps(&part, staged);
            if let Err(problem) = queue.submit(Box::new(plan), true).await {
                tracing::warn!(%problem, "write VTEPs of nodes: failed; retrying");
            }
        }
    }
}
