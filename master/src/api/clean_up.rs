//! `DELETE /debug/epcleanup`: deletes endpoints, and requests their nodes to remove the interfaces.

use tokio::time::{Instant, timeout_at};

use super::reclaim::Interfaces;
use crate::cache::StagedTxn;
use crate::commit::Queue;
use crate::leadership::Leader;
use crate::plugin::{self, Cleanup};
use crate::problem::Problem;

/// Cleans up the endpoints of `tenant`, `kind` and `name`, and answers by `answer_by`.
///
/// It goes on if the client disconnects: once the endpoints are deleted, only this request knows of
/// their interfaces.
pub(super) async fn clean_up(
    leader: &Leader,
    [tenant, kind, name]: [&str; 3],
    answer_by: Instant,
) -> Result<String, Problem> {
    let cleanup = Cleanup::read(tenant, kind, name)?;
    let run = {
        let cache = leader.cache.read();
        let endpoints = cleanup.find(&cache)?;
        let interfaces = Interfaces::of(&endpoints, &cache);
        Run { queue: leader.queue.clone(), endpoints, interfaces, answer_by }
    };
    match tokio::spawn(run.run()).await {
        Ok(result) => result.map(|()| cleanup.done()),
        Err(_) => Err(Problem::unknown_outcome("clean up endpoints: failed; see the log")),
    }
}

struct Run {
    queue: Queue,
    /// Ids, sorted.
    endpoints: Vec<String>,
    interfaces: Interfaces,
    answer_by: Instant,
}

/// What became of the endpoints.
struct Deletion<'e> {
    deleted: &'e [String],
    /// They may be deleted.
    unknown: &'e [String],
    /// Why the others are not deleted.
    failure: Option<Problem>,
}

impl Run {
    /// Fails if not all endpoints are deleted, or if interfaces may remain, and names those.
    async fn run(self) -> Result<(), Problem> {
        let Deletion { deleted, unknown, failure } = self.delete().await;
        let mut left = self.interfaces.reclaim(deleted, self.answer_by).await;
        left.extend(self.interfaces.lines(unknown, "the endpoint may be deleted"));
        let total = self.endpoints.len();
        let interfaces = format!(
            "{} of {total} interfaces may remain; repeat DELETE /debug/reclaimEndpoint/ENDPOINT on each node: {}",
            left.len(),
            left.join(", ")
        );
        let problem = match failure {
            None if left.is_empty() => return Ok(()),
            None => Problem::unavailable(format!("endpoints and addresses are deleted, but {interfaces}")),
            // Nothing was done: a follower may send the request to the next leader.
            Some(problem) if deleted.is_empty() && unknown.is_empty() => return Err(problem),
            Some(Problem { kind, text }) => {
                let done = deleted.len();
                let mut text = format!(
                    "{done} of {total} endpoints are deleted: {text}; repeat the request for the others"
                );
                if !left.is_empty() {
                    text += &format!("; {interfaces}");
                }
                Problem { kind, text }
            }
        };
        // The client may have disconnected.
        tracing::warn!(%problem, "clean up endpoints");
        Err(problem)
    }

    /// Deletes the endpoints in batches, each endpoint atomically, until one fails.
    async fn delete(&self) -> Deletion<'_> {
        // The other half of the time is for the nodes.
        let start = Instant::now();
        let until = start + self.answer_by.saturating_duration_since(start) / 2;
        let mut done = 0;
        for batch in self.endpoints.chunks(Cleanup::BATCH) {
            if let Err(problem) = self.delete_batch(batch.to_vec(), until).await {
                let unknown: &[String] = if problem.is_unknown_outcome() { batch } else { &[] };
                return Deletion { deleted: &self.endpoints[..done], unknown, failure: Some(problem) };
            }
            done += batch.len();
        }
        Deletion { deleted: &self.endpoints, unknown: &[], failure: None }
    }

    async fn delete_batch(&self, batch: Vec<String>, until: Instant) -> Result<(), Problem> {
        const LATE: &str = "the time limit of the request is reached";
        if Instant::now() >= until {
            return Err(Problem::unavailable(LATE));
        }
        let plan = move |staged: &mut StagedTxn<'_>| plugin::clean_up(&batch, staged);
        match timeout_at(until, self.queue.submit(Box::new(plan), true)).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(Problem::unknown_outcome(LATE)),
        }
    }
}
