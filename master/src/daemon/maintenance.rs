//! Background task that compacts etcd's history and observes its database.
//!
//! Every netmaster notes which revision the store has at which time, so that a new leader knows the
//! past and goes on compacting at once. The leader compacts.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use contiv_store::{Error, Position, Store};
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
        let mut failures = Failures::default();
        loop {
            tokio::select! {
                _ = sample.tick(), if self.history.is_some() => {
                    failures.note("compact the history of etcd", self.compact(&mut samples, history).await);
                }
                _ = observe.tick() => {
                    failures.note("read the alarms of etcd", self.read_alarms().await);
                    failures.note("read the size of etcd's database", self.read_size().await);
                }
            }
        }
    }

    async fn read_alarms(&self) -> Result<(), Error> {
        let alarms = self.store.alarms().await?;
        self.metrics.database.set_alarms(&alarms);
        self.health.set_alarms(alarms);
        Ok(())
    }

    async fn read_size(&self) -> Result<(), Error> {
        self.metrics.database.set_size(self.store.database().await?);
        Ok(())
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

/// Operations that etcd has refused to this user, which were logged: only an operator can change that.
#[derive(Default)]
struct Failures(BTreeSet<&'static str>);

impl Failures {
    fn note(&mut self, operation: &'static str, result: Result<(), Error>) {
        let Err(error) = result else {
            self.0.remove(operation);
            return;
        };
        if !error.is_permission_denied() {
            tracing::warn!(error = one_line(&error), "{operation}: failed; retrying");
        } else if self.0.insert(operation) {
            tracing::warn!(error = one_line(&error), "{operation}: the user of etcd needs the role root");
        }
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
