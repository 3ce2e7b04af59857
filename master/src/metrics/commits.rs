//! Commits of the leader.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// How an attempt to commit a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommitResult {
    Committed,
    /// Another program changed the same keys; the batch is planned again.
    Conflict,
    /// Leadership was lost before the whole change was applied; the next leader applies it.
    Decided,
    /// The store refused the batch, or did not answer.
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Attempt {
    result: &'static str,
}

/// Sizes of batches and durations of commits.
#[derive(Clone, Debug)]
pub struct CommitMetrics {
    batch_sizes: Histogram,
    durations: Family<Attempt, Histogram>,
}

impl Default for CommitMetrics {
    fn default() -> CommitMetrics {
        // 0.5 ms to 8 s.
        let buckets = || Histogram::new(exponential_buckets(0.0005, 2.0, 15));
        CommitMetrics {
            // The queue holds 1,024 changes.
            batch_sizes: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            durations: Family::new_with_constructor(buckets),
        }
    }
}

impl CommitMetrics {
    /// Records an attempt to commit a batch of `size` changes.
    #[expect(clippy::cast_precision_loss, reason = "the queue bounds the size")]
    pub fn record(&self, result: CommitResult, size: usize, duration: Duration) {
        if result == CommitResult::Committed {
            self.batch_sizes.observe(size as f64);
        }
        self.durations.get_or_create(&Attempt { result: result.label() }).observe(duration.as_secs_f64());
    }

    pub(super) fn sample(&self) {
        self.record(CommitResult::Committed, 1, Duration::ZERO);
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("commit_batch_size", "Changes in a committed batch", self.batch_sizes.clone());
        let help = "Duration of the write of a batch to the store in seconds, by result (committed, conflict, decided, failed)";
        registry.register("commit_duration_seconds", help, self.durations.clone());
    }
}

impl CommitResult {
    fn label(self) -> &'static str {
        match self {
            CommitResult::Committed => "committed",
            CommitResult::Conflict => "conflict",
            CommitResult::Decided => "decided",
            CommitResult::Failed => "failed",
        }
    }
}
