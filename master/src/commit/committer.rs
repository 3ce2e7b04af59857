//! The committer: plans queued jobs and writes them to the store.

mod reload;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use contiv_model::{group, network};
use contiv_store::election::Leadership;
use contiv_store::{Error, Guard, Outcome, Store, Txn};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::large_value::too_large;
use super::queue::{Job, Plan, QUEUE_LENGTH, Queue, answer, fail_all};
use super::redo_log::{self, LogOutcome, RedoLog};
use super::store_problem::store_problem;
use crate::cache::{Change, DerivedKeys, SharedCache, Stageable, StagedTxn};
use crate::metrics::{CommitResult, Metrics};
use crate::problem::{Answer, Problem, one_line};
use crate::repair;

/// Plans, commits and answers queued jobs while this netmaster leads.
pub struct Committer {
    store: Store,
    cache: SharedCache,
    jobs: mpsc::Receiver<Job>,
    /// Jobs taken from the queue that are planned next.
    deferred: VecDeque<Job>,
    /// Keys and revisions of the journals at the last tick. A journal with the same revision at the
    /// next tick is idle.
    journals: HashMap<String, i64>,
    /// Idle journals that are to be merged into their records.
    idle: Vec<String>,
    /// There was a job since the last tick.
    busy: bool,
    metrics: Metrics,
}

/// Attempts to commit a batch when other programs change the same keys, or derived records must be read first.
const MAX_ATTEMPTS: usize = 6;
/// An idle journal is merged into its record after this time without jobs. A record may be large, and
/// jobs would wait for it.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a change is committed again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Another netmaster holds the leader lock.
pub struct Deposed;

/// Outcome of a batch of jobs.
enum BatchOutcome {
    /// They were answered: carried out, or refused for a reason of their own. Several jobs may have been split instead.
    Answered,
    /// The store has refused the change, or did not answer.
    StoreFailed,
}

/// What jobs come to: their answers, and one transaction.
struct Planned {
    answers: Vec<Answer>,
    txn: Txn,
    change: Change,
}

/// What jobs come to without derived records that they need.
struct Unread(BTreeSet<DerivedKeys>);

/// Reason why a change was not written.
#[derive(Debug, thiserror::Error)]
enum CommitError {
    #[error("write to the store")]
    Store(#[from] Error),
    #[error("encode a record")]
    Encode(#[from] serde_json::Error),
}

impl Committer {
    pub fn new(store: Store, cache: SharedCache, metrics: Metrics) -> (Queue, Committer) {
        let (sender, jobs) = mpsc::channel(QUEUE_LENGTH);
        let (deferred, journals, idle) = Default::default();
        let busy = false;
        (Queue(sender), Committer { store, cache, jobs, deferred, journals, idle, busy, metrics })
    }

    /// Commits queued jobs until leadership is lost. After `stop`, commits the jobs queued by then
    /// and returns.
    pub async fn run(&mut self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Deposed> {
        let mut tick = interval(CHECKPOINT_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let job = match self.deferred.pop_front() {
                Some(job) => job,
                None => tokio::select! {
                    biased;
                    () = leadership.lost() => return Err(Deposed),
                    () = stop.cancelled(), if !self.jobs.is_closed() => {
                        self.jobs.close();
                        continue;
                    }
                    _ = tick.tick() => {
                        self.find_idle_journals();
                        continue;
                    }
                    job = self.jobs.recv() => match job {
                        Some(job) => job,
                        None => return Ok(()),
                    },
                    () = std::future::ready(()), if !self.idle.is_empty() => {
                        if let Some(key) = self.idle.pop() {
                            self.merge(leadership, key).await?;
                        }
                        continue;
                    }
                },
            };
            if leadership.is_lost() {
                return Err(Deposed);
            }
            self.busy = true;
            self.idle.clear();
            self.batch(leadership, job).await?;
        }
    }

    /// Applies the committed redo log of an earlier leader. Must run before the store is read.
    pub async fn recover(store: &Store, leadership: &Leadership) -> Result<(), Deposed> {
        match redo_log::recover(store, leadership).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Deposed),
        }
    }

    /// Commits a plan of this netmaster itself.
    pub async fn commit(&mut self, leadership: &Leadership, plan: Plan) -> Result<Answer, Deposed> {
        Ok(self.try_commit(leadership, plan).await?.0)
    }

    async fn try_commit(
        &mut self,
        leadership: &Leadership,
        plan: Plan,
    ) -> Result<(Answer, BatchOutcome), Deposed> {
        let (answer, mut answered) = oneshot::channel();
        let outcome = self.batch(leadership, Job { plan, exclusive: true, answer: Some(answer) }).await?;
        let answer = answered.try_recv().unwrap_or_else(|_| Err(Problem::unavailable("no answer")));
        Ok((answer, outcome))
    }

    /// Commits what later plans rely on: again and again while the store fails.
    pub async fn commit_or_retry<P>(&mut self, leadership: &Leadership, plan: P) -> Result<Answer, Deposed>
    where
        P: Fn(&mut StagedTxn<'_>) -> Answer + Clone + Send + Sync + 'static,
    {
        loop {
            match self.try_commit(leadership, Box::new(plan.clone())).await? {
                (Err(problem), BatchOutcome::StoreFailed) => {
                    tracing::warn!(%problem, "write what a term begins with: failed; retrying");
                    tokio::select! {
                        () = leadership.lost() => return Err(Deposed),
                        () = sleep(RETRY_INTERVAL) => {}
                    }
                }
                (answer, _) => return Ok(answer),
            }
        }
    }

    /// Merges all journals into their records.
    pub async fn checkpoint(&mut self, leadership: &Leadership) -> Result<(), Deposed> {
        let journals = self.cache.read().journals();
        for key in journals.into_keys() {
            self.merge(leadership, key).await?;
        }
        Ok(())
    }

    /// Finds the journals that have not changed since the last tick, unless there were jobs.
    fn find_idle_journals(&mut self) {
        let before = std::mem::replace(&mut self.journals, self.cache.read().journals());
        let is_idle = |(key, revision): &(&String, &i64)| before.get(*key) == Some(*revision);
        self.idle = match std::mem::take(&mut self.busy) {
            true => vec![],
            false => self.journals.iter().filter(is_idle).map(|(key, _)| key.clone()).collect(),
        };
    }

    /// Merges a journal into its record.
    async fn merge(&mut self, leadership: &Leadership, key: String) -> Result<(), Deposed> {
        let plan = move |staged: &mut StagedTxn<'_>| {
            checkpoint::<network::State>(staged, &key);
            checkpoint::<group::State>(staged, &key);
            Ok(vec![])
        };
        if let Err(problem) = self.commit(leadership, Box::new(plan)).await? {
            tracing::warn!(%problem, "write a checkpoint of an allocation record: failed; keeping its journal");
        }
        Ok(())
    }

    async fn batch(&mut self, leadership: &Leadership, first: Job) -> Result<BatchOutcome, Deposed> {
        let mut jobs = vec![first];
        let cache = self.cache.clone();
        let _lock = cache.lock_commits().await;
        for attempt in 0..MAX_ATTEMPTS {
            let planned = self.plan(&mut jobs, attempt == 0);
            let Planned { answers, txn, change } = match planned {
                Ok(Ok(planned)) => planned,
                Ok(Err(Unread(keys))) => {
                    if self.complete(leadership, keys).await.is_break() {
                        fail_all(jobs, &Problem::deposed());
                        return Err(Deposed);
                    }
                    continue;
                }
                Err(error) => {
                    fail_all(jobs, &Problem::unavailable(format!("encode a record: {error}")));
                    return Ok(BatchOutcome::Answered);
                }
            };
            if txn.ops.is_empty() {
                return self.answer_read_only(leadership, jobs, answers).await;
            }
            let keys: Vec<String> = txn.guards.iter().map(|guard| key_of(guard).to_owned()).collect();
            let largest = largest(&txn);
            let start = Instant::now();
            let written = self.write(leadership, txn).await;
            self.metrics.commits.record(result_of(&written), jobs.len(), start.elapsed());
            match written {
                Ok(LogOutcome::Committed(revisions)) => {
                    self.cache.write().commit(change, revisions);
                    answer(jobs, answers);
                    return Ok(BatchOutcome::Answered);
                }
                Ok(LogOutcome::Conflict) => {
                    let first = keys.first().map(String::as_str);
                    tracing::info!(
                        attempt,
                        keys = keys.len(),
                        first,
                        "keys changed in the store; reading them again"
                    );
                    if self.reload(leadership, &keys).await.is_break() {
                        fail_all(jobs, &Problem::deposed());
                        return Err(Deposed);
                    }
                    // One of the jobs may conflict whatever was read.
                    if attempt > 0 && jobs.len() > 1 {
                        self.split(jobs);
                        return Ok(BatchOutcome::Answered);
                    }
                }
                Ok(LogOutcome::Decided) => {
                    // Carried out: a follower must not send these requests to the next leader.
                    answer(jobs, answers);
                    return Err(Deposed);
                }
                Err(CommitError::Encode(error)) => {
                    fail_all(jobs, &Problem::unavailable(format!("encode a record: {error}")));
                    return Ok(BatchOutcome::Answered);
                }
                Err(CommitError::Store(error)) if error.is_too_large() => {
                    self.refuse_too_large(jobs, &largest);
                    return Ok(BatchOutcome::Answered);
                }
                Err(CommitError::Store(error)) => {
                    tracing::error!(error = one_line(&error), "commit a transaction");
                    let problem = store_problem(&error);
                    let is_unknown = error.outcome_unknown() || error.is_out_of_space();
                    fail_all(jobs, &if is_unknown { Problem::unknown_outcome(problem) } else { problem });
                    // The next plan needs the outcome, so the keys are read again.
                    return match self.reload(leadership, &keys).await {
                        ControlFlow::Continue(()) => Ok(BatchOutcome::StoreFailed),
                        ControlFlow::Break(()) => Err(Deposed),
                    };
                }
            }
        }
        fail_all(
            jobs,
            &Problem::unavailable("commit: the keys of this request keep changing in the store; retry"),
        );
        Ok(BatchOutcome::Answered)
    }

    /// Writes the changes atomically: in one transaction, or through the redo log if they are too
    /// large for one.
    async fn write(&mut self, leadership: &Leadership, txn: Txn) -> Result<LogOutcome, CommitError> {
        if redo_log::fits_one_txn(&txn) {
            match leadership.commit(txn.clone()).await {
                Ok(Outcome::Committed { revision }) => return Ok(LogOutcome::Committed(revision.into())),
                Ok(Outcome::Conflict) => return Ok(LogOutcome::Conflict),
                Err(error) if error.is_too_large() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let number = self.metrics.large_changes.inc();
        let name = format!("{}-{number}", leadership.create_revision());
        tracing::debug!(name, ops = txn.ops.len(), "committing a large change through the redo log");
        Ok(RedoLog::new(name, txn.ops)?.commit(&self.store, leadership, txn.guards).await?)
    }

    /// Fails a single job that is too large. A batch is split, so that one large job does not fail
    /// the others.
    fn refuse_too_large(&mut self, jobs: Vec<Job>, largest: &(String, usize)) {
        if jobs.len() > 1 {
            return self.split(jobs);
        }
        let (key, bytes) = largest;
        fail_all(jobs, &too_large(key, *bytes));
    }

    /// Plans each of the jobs next in a transaction of its own, in their order.
    fn split(&mut self, jobs: Vec<Job>) {
        for job in jobs.into_iter().rev() {
            self.deferred.push_front(Job { exclusive: true, ..job });
        }
    }

    /// Answers plans that stage no change.
    async fn answer_read_only(
        &self,
        leadership: &Leadership,
        jobs: Vec<Job>,
        answers: Vec<Answer>,
    ) -> Result<BatchOutcome, Deposed> {
        match leadership.read_index().confirm().await {
            Ok(true) => {
                answer(jobs, answers);
                Ok(BatchOutcome::Answered)
            }
            Ok(false) => {
                fail_all(jobs, &Problem::deposed());
                Err(Deposed)
            }
            Err(error) => {
                tracing::warn!(error = one_line(&error), "confirm leadership");
                fail_all(jobs, &store_problem(&error));
                Ok(BatchOutcome::StoreFailed)
            }
        }
    }

    /// Reads again the keys that the watch could not keep current while another netmaster led.
    pub async fn reload_stale(&mut self, leadership: &Leadership) -> Result<(), Deposed> {
        let stale = self.cache.write().take_stale();
        match self.reload(leadership, &stale).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Deposed),
        }
    }

    /// Plans the jobs on top of each other. With `more`, adds queued jobs while the transaction has
    /// capacity.
    fn plan(&mut self, jobs: &mut Vec<Job>, more: bool) -> serde_json::Result<Result<Planned, Unread>> {
        let cache = self.cache.read();
        let mut staged = StagedTxn::new(&cache);
        repair::replace_unreadable_journals(&mut staged);
        let mut answers: Vec<Answer> = jobs.iter().map(|job| (job.plan)(&mut staged)).collect();
        while more && !jobs.iter().any(|job| job.exclusive) && !staged.is_full() {
            let Ok(job) = self.jobs.try_recv() else { break };
            if job.exclusive {
                self.deferred.push_back(job);
                break;
            }
            answers.push((job.plan)(&mut staged));
            jobs.push(job);
        }
        if !staged.unread().is_empty() {
            return Ok(Err(Unread(staged.unread().clone())));
        }
        let (txn, change) = staged.finish()?;
        Ok(Ok(Planned { answers, txn, change }))
    }
}

impl Drop for Committer {
    /// Fails the jobs that were not started.
    fn drop(&mut self) {
        self.jobs.close();
        let mut unstarted: Vec<Job> = self.deferred.drain(..).collect();
        unstarted.extend(std::iter::from_fn(|| self.jobs.try_recv().ok()));
        fail_all(unstarted, &Problem::deposed());
    }
}

fn checkpoint<B: Stageable>(staged: &mut StagedTxn<'_>, journal_key: &str) {
    let found = staged
        .cache()
        .allocations::<B>()
        .find(|record| B::journal_key(record.body.id()).to_string() == journal_key);
    if let Some(record) = found.filter(|record| record.is_journaled())
        && let Some((_, change)) = staged.allocation::<B>(record.body.id())
    {
        change.checkpoint = true;
    }
}

fn result_of(written: &Result<LogOutcome, CommitError>) -> CommitResult {
    match written {
        Ok(LogOutcome::Committed(_)) => CommitResult::Committed,
        Ok(LogOutcome::Conflict) => CommitResult::Conflict,
        Ok(LogOutcome::Decided) => CommitResult::Decided,
        Err(_) => CommitResult::Failed,
    }
}

/// Key of the largest operation, and the size of key and value in bytes.
fn largest(txn: &Txn) -> (String, usize) {
    let op = txn.ops.iter().max_by_key(|op| redo_log::size(op));
    op.map(|op| (op.key().to_owned(), redo_log::size(op))).unwrap_or_default()
}

fn key_of(guard: &Guard) -> &str {
    match guard {
        Guard::ModRevision { key, .. } | Guard::CreateRevision { key, .. } => key,
        Guard::NotPutSince { first, .. } => first,
    }
}
