//! Background task that compacts etcd's history and observes its database.
//!
//! Every netmaster notes which revision the store has at which time, so that a new leader knows the
//! past and goes on compacting at once. The leader compacts.

use std::collections::VecDeque;
use std::time::Duration;

use contiv_store::{Database, Error, Position, Store};
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::leadership::{Role, Roles, StoreHealth};
use crate::metrics::Metrics;
use crate::problem::one_line;

/// Interval of reading size and alarms.
const OBSERVE_INTERVAL: Duration = Duration::from_secs(10);
/// Samples of the revision that are taken in the time of the history.
const SAMPLES: u32 = 10;

pub(super) struct Maintenance {
    pub(super) store: Store,
    pub(super) roles: Roles,
    pub(super) health: StoreHealth,
    pub(super) metrics: Metrics,
    /// History that is kept; none to leave compaction to the store.
    pub(super) history: Option<Duration>,
}

impl Maintenance {
    /// Runs until dropped.
    pub(super) async fn run(self) {
        // Without compaction this one only wakes up.
        let history = self.history.unwrap_or(OBSERVE_INTERVAL * SAMPLES);
        let mut samples = Samples::default();
        let mut sample = interval(history / SAMPLES);
        let mut observe = interval(OBSERVE_INTERVAL.min(history));
        sample.set_missed_tick_behavior(MissedTickBehavior::Delay);
        observe.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let result = tokio::select! {
                _ = sample.tick(), if self.history.is_some() => self.compact(&mut samples, history).await,
                _ = observe.tick() => self.store.database().await.map(|database| self.observe(&database)),
            };
            if let Err(error) = result {
                tracing::warn!(error = one_line(&error), "maintain the store; retrying");
            }
        }
    }

    fn observe(&self, database: &Database) {
        self.health.observe(database);
        self.metrics.database.observe(database);
    }

    async fn compact(&self, samples: &mut Samples, history: Duration) -> Result<(), Error> {
        samples.add(Instant::now(), self.store.position().await?);
        let Some(revision) = samples.take_older(Instant::now(), history) else { return Ok(()) };
        if let Role::Leading(_) = self.roles.now() {
            self.store.compact(revision).await?;
            self.metrics.database.compactions.inc();
            tracing::debug!(revision, "compacted the history of etcd");
        }
        Ok(())
    }
}

/// Revisions of the store at points in time, oldest first.
#[derive(Default)]
struct Samples {
    cluster: u64,
    seen: VecDeque<(Instant, i64)>,
}

impl Samples {
    /// Adds the revision of `now`. Forgets the samples of another or a restored store.
    fn add(&mut self, now: Instant, Position { cluster, revision }: Position) {
        if cluster != self.cluster || self.seen.back().is_some_and(|(_, last)| *last > revision) {
            self.seen.clear();
        }
        self.cluster = cluster;
        self.seen.push_back((now, revision));
    }

    /// Removes the samples that are older than `history`, and returns the last of their revisions.
    fn take_older(&mut self, now: Instant, history: Duration) -> Option<i64> {
        let older = self.seen.partition_point(|(at, _)| now.duration_since(*at) > history);
        self.seen.drain(..older).next_back().map(|(_, revision)| revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HISTORY: Duration = Duration::from_secs(60);

    fn at(cluster: u64, revision: i64) -> Position {
        Position { cluster, revision }
    }

    #[test]
    fn the_newest_revision_before_the_history_is_compacted() {
        let (mut samples, start) = (Samples::default(), Instant::now());
        let second = |n| start + Duration::from_secs(n);
        for (n, revision) in [(0, 10), (30, 20), (60, 20), (90, 50)] {
            samples.add(second(n), at(1, revision));
        }
        assert_eq!(samples.take_older(second(60), HISTORY), None);
        assert_eq!(samples.take_older(second(91), HISTORY), Some(20));
        assert_eq!(samples.take_older(second(91), HISTORY), None, "once");
        assert_eq!(samples.take_older(second(151), HISTORY), Some(50));
    }

    #[test]
    fn samples_of_an_earlier_store_are_forgotten() {
        let (mut samples, start) = (Samples::default(), Instant::now());
        let second = |n| start + Duration::from_secs(n);
        samples.add(second(0), at(1, 100));
        samples.add(second(1), at(2, 200));
        samples.add(second(2), at(2, 150));
        assert_eq!(samples.take_older(second(61), HISTORY), None);
        assert_eq!(samples.take_older(second(63), HISTORY), Some(150));
    }
}
