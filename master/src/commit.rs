//! Every write of the leader goes through here, one transaction after the other.
//!
//! While a transaction is on its way to the store, requests queue; what has queued is planned together, each request
//! on top of the one before, and committed as one. So a request costs a share of a disk flush instead of one of its
//! own, and answers go out only when the store has what they say.

mod redo_log;

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::time::Duration;

use contiv_model::{group, key::POLICIES, network};
use contiv_store::election::Leadership;
use contiv_store::{Error, Guard, Outcome, Store, Txn};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::cache::{Change, Draft, Edited, Shared};
use crate::metrics::Metrics;
use crate::problem::{Answer, Problem, one_line};
pub use redo_log::HEAD as DECIDED;
use redo_log::{Done, Intent};

/// Changes a draft and gives the body of the answer; may be asked again, on another draft.
pub type Plan = Box<dyn Fn(&mut Draft<'_>) -> Answer + Send + Sync>;

struct Job {
    plan: Plan,
    /// Not together with others in one transaction: it makes or deletes what the others look at.
    alone: bool,
    answer: Option<oneshot::Sender<Answer>>,
}

/// Where requests wait.
#[derive(Clone)]
pub struct Queue(mpsc::Sender<Job>);

impl Queue {
    /// Plans, commits and answers. `alone`: the plan makes or deletes networks or groups.
    pub async fn submit(&self, plan: Plan, alone: bool) -> Answer {
        let (answer, answered) = oneshot::channel();
        let job = Job { plan, alone, answer: Some(answer) };
        self.0.send(job).await.map_err(|_| Problem::deposed())?;
        // Only a transaction that was on its way when the committer was ended loses its jobs.
        answered.await.map_err(|_| Problem::unavailable(CUT_OFF))?
    }
}

pub struct Committer {
    store: Store,
    world: Shared,
    jobs: mpsc::Receiver<Job>,
    /// Taken from the queue, and to be planned next.
    held: VecDeque<Job>,
    /// The journals seen at the last tick, by key, and their revisions: one that has not changed since is at rest.
    journals: HashMap<String, i64>,
    metrics: Metrics,
}

const QUEUE: usize = 1024;
/// Somebody else edits what we plan on: so often is it read again for one batch.
const ATTEMPTS: usize = 5;
/// A journal that rests so long is folded into its record.
const REST: Duration = Duration::from_secs(1);
const RETRY: Duration = Duration::from_millis(200);

const CUT_OFF: &str =
    "this netmaster stopped before the store had answered; the request may have been carried out";

/// The store says that another leads.
pub struct Deposed;

/// Why a change is not in the store.
#[derive(Debug, thiserror::Error)]
enum Unwritten {
    #[error("write to the store")]
    Store(#[from] Error),
    #[error("encode a record")]
    Encode(#[from] serde_json::Error),
}

impl Committer {
    pub fn new(store: Store, world: Shared, metrics: Metrics) -> (Queue, Committer) {
        let (sender, jobs) = mpsc::channel(QUEUE);
        (
            Queue(sender),
            Committer { store, world, jobs, held: VecDeque::new(), journals: HashMap::new(), metrics },
        )
    }

    /// Commits what is queued until deposed, or until told to stop; then what has queued by then is committed, too.
    pub async fn run(&mut self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Deposed> {
        let mut tick = interval(REST);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let job = match self.held.pop_front() {
                Some(job) => job,
                None => tokio::select! {
                    biased;
                    () = leadership.lost() => return Err(Deposed),
                    () = stop.cancelled(), if !self.jobs.is_closed() => {
                        self.jobs.close();
                        continue;
                    }
                    _ = tick.tick() => {
                        self.checkpoint(leadership, false).await?;
                        continue;
                    }
                    job = self.jobs.recv() => match job {
                        Some(job) => job,
                        None => return Ok(()),
                    },
                },
            };
            if leadership.is_lost() {
                return Err(Deposed);
            }
            self.batch(leadership, job).await?;
        }
    }

    /// Carries out what an earlier leader had decided. Before the store is read.
    pub async fn finish(store: &Store, leadership: &Leadership) -> Result<(), Deposed> {
        match redo_log::finish(store, leadership).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Deposed),
        }
    }

    /// One plan of our own.
    pub async fn commit(&mut self, leadership: &Leadership, plan: Plan) -> Result<Answer, Deposed> {
        let (answer, mut answered) = oneshot::channel();
        self.batch(leadership, Job { plan, alone: true, answer: Some(answer) }).await?;
        Ok(answered.try_recv().unwrap_or_else(|_| Err(Problem::unavailable("no answer"))))
    }

    /// Folds journals into their records: those at rest, or `all`.
    pub async fn checkpoint(&mut self, leadership: &Leadership, all: bool) -> Result<(), Deposed> {
        let journals = self.world.read().journals();
        let at_rest = |key: &String, revision: &i64| all || self.journals.get(key) == Some(revision);
        let due: Vec<String> = journals
            .iter()
            .filter(|(key, revision)| at_rest(key, revision))
            .map(|(key, _)| key.clone())
            .collect();
        self.journals = journals;
        for key in due {
            let plan = move |draft: &mut Draft<'_>| {
                checkpoint::<network::State>(draft, &key);
                checkpoint::<group::State>(draft, &key);
                Ok(vec![])
            };
            if let Err(problem) = self.commit(leadership, Box::new(plan)).await? {
                tracing::warn!(%problem, "could not write a network's record whole; its journal stays");
            }
        }
        Ok(())
    }

    async fn batch(&mut self, leadership: &Leadership, first: Job) -> Result<(), Deposed> {
        let mut jobs = vec![first];
        let world = self.world.clone();
        let _gate = world.gate().await;
        for attempt in 0..ATTEMPTS {
            let planned = self.plan(&mut jobs, attempt == 0);
            let (answers, txn, change) = match planned {
                Ok(planned) => planned,
                Err(error) => {
                    refuse(jobs, &Problem::unavailable(format!("encode a record: {error}")));
                    return Ok(());
                }
            };
            if txn.ops.is_empty() {
                return self.answer_from_view(leadership, jobs, answers).await;
            }
            let keys: Vec<String> = txn.guards.iter().map(|guard| key_of(guard).to_owned()).collect();
            let largest = largest(&txn);
            match self.write(leadership, txn).await {
                Ok(Done::Committed(revisions)) => {
                    self.world.write().commit(change, revisions);
                    answer(jobs, answers);
                    return Ok(());
                }
                Ok(Done::Conflict) => {
                    tracing::info!(attempt, ?keys, "changed in the store meanwhile; reading again");
                    if self.reread(leadership, &keys).await.is_break() {
                        refuse(jobs, &Problem::deposed());
                        return Err(Deposed);
                    }
                }
                Ok(Done::Deposed) => {
                    refuse(jobs, &Problem::deposed());
                    return Err(Deposed);
                }
                Err(Unwritten::Encode(error)) => {
                    refuse(jobs, &Problem::unavailable(format!("encode a record: {error}")));
                    return Ok(());
                }
                Err(Unwritten::Store(error)) if error.is_too_large() => {
                    self.refuse_too_large(jobs, &largest);
                    return Ok(());
                }
                Err(Unwritten::Store(error)) => {
                    tracing::error!(error = one_line(&error), "could not commit");
                    let done = if error.outcome_unknown() { "; it may have been carried out" } else { "" };
                    refuse(jobs, &Problem::unavailable(format!("store: {}{done}", one_line(&error))));
                    // Committed or not? The next plan has to know.
                    return match self.reread(leadership, &keys).await {
                        ControlFlow::Continue(()) => Ok(()),
                        ControlFlow::Break(()) => Err(Deposed),
                    };
                }
            }
        }
        refuse(jobs, &Problem::unavailable("the store keeps changing under this request; try again"));
        Ok(())
    }

    /// In one transaction, or what is too large for that in several: never half of it.
    async fn write(&mut self, leadership: &Leadership, txn: Txn) -> Result<Done, Unwritten> {
        if redo_log::fits(&txn) {
            match leadership.commit(txn.clone()).await {
                Ok(Outcome::Committed { revision }) => return Ok(Done::Committed(revision.into())),
                Ok(Outcome::Conflict) => return Ok(Done::Conflict),
                Err(error) if error.is_too_large() => {}
                Err(error) => return Err(error.into()),
            }
        }
        let number = self.metrics.large_changes.inc();
        let name = format!("{}-{number}", leadership.create_revision());
        tracing::debug!(name, ops = txn.ops.len(), "a change for more than one transaction");
        Ok(Intent::new(name, txn.ops)?.commit(&self.store, leadership, txn.guards).await?)
    }

    /// Nobody is refused for what others ask for in the same batch.
    fn refuse_too_large(&mut self, jobs: Vec<Job>, largest: &(String, usize)) {
        if jobs.len() > 1 {
            self.held.extend(jobs.into_iter().map(|job| Job { alone: true, ..job }));
            return;
        }
        let (key, bytes) = largest;
        let advice = match key.starts_with(POLICIES) {
            true => "spread the rules over several policies",
            false => "have fewer objects below it",
        };
        let error = format!(
            "{key} would have {bytes} bytes, more than the store takes at once (etcd: --max-request-bytes, 1.5 MB \
             unless set); {advice}"
        );
        refuse(jobs, &Problem::conflict(error));
    }

    /// The answers of plans that change nothing.
    async fn answer_from_view(
        &self,
        leadership: &Leadership,
        jobs: Vec<Job>,
        answers: Vec<Answer>,
    ) -> Result<(), Deposed> {
        match leadership.read_index().confirm().await {
            Ok(true) => answer(jobs, answers),
            Ok(false) => {
                refuse(jobs, &Problem::deposed());
                return Err(Deposed);
            }
            Err(error) => refuse(jobs, &Problem::unavailable(format!("store: {}", one_line(&error)))),
        }
        Ok(())
    }

    /// Reads anew what the watch could not keep current while another led.
    pub async fn catch_up(&mut self, leadership: &Leadership) -> Result<(), Deposed> {
        let stale = self.world.write().take_stale();
        match self.reread(leadership, &stale).await {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Deposed),
        }
    }

    /// Plans the jobs one on top of the other, and `more` that wait, as long as there is room.
    fn plan(&mut self, jobs: &mut Vec<Job>, more: bool) -> serde_json::Result<(Vec<Answer>, Txn, Change)> {
        let world = self.world.read();
        let mut draft = Draft::new(&world);
        let mut answers: Vec<Answer> = jobs.iter().map(|job| (job.plan)(&mut draft)).collect();
        while more && !jobs.iter().any(|job| job.alone) && !draft.is_full() {
            let Ok(job) = self.jobs.try_recv() else { break };
            if job.alone {
                self.held.push_back(job);
                break;
            }
            answers.push((job.plan)(&mut draft));
            jobs.push(job);
        }
        let (txn, change) = draft.finish()?;
        Ok((answers, txn, change))
    }

    /// Reads the keys anew, until the store answers. Breaks when this netmaster does not lead any more.
    async fn reread(&mut self, leadership: &Leadership, keys: &[String]) -> ControlFlow<()> {
        loop {
            if leadership.is_lost() {
                return ControlFlow::Break(());
            }
            match self.try_reread(leadership, keys).await {
                Ok(flow) => return flow,
                Err(error) => {
                    tracing::warn!(error = one_line(&error), "could not read again");
                    tokio::select! {
                        () = leadership.lost() => return ControlFlow::Break(()),
                        () = sleep(RETRY) => {}
                    }
                }
            }
        }
    }

    async fn try_reread(&self, leadership: &Leadership, keys: &[String]) -> Result<ControlFlow<()>, Error> {
        if !leadership.resolve_pending().await? {
            return Ok(ControlFlow::Break(()));
        }
        // Records before their journals.
        let mut keys: Vec<&String> = keys.iter().collect();
        keys.sort_by_key(|key| key.contains("/state/ipam/"));
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            found.push((key, self.store.get_with_revision(key).await?));
        }
        let mut world = self.world.write();
        for (key, (kv, at)) in found {
            world.reread(key, kv.as_ref(), at);
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Drop for Committer {
    /// What has not been begun is not going to be.
    fn drop(&mut self) {
        self.jobs.close();
        let mut rest: Vec<Job> = self.held.drain(..).collect();
        rest.extend(std::iter::from_fn(|| self.jobs.try_recv().ok()));
        refuse(rest, &Problem::deposed());
    }
}

fn checkpoint<B: Edited>(draft: &mut Draft<'_>, journal_key: &str) {
    let found = draft
        .world()
        .ledgers::<B>()
        .find(|ledger| B::journal_key(ledger.body.id()).to_string() == journal_key);
    if let Some(ledger) = found.filter(|ledger| ledger.is_journaled())
        && let Some((_, change)) = draft.ledger::<B>(ledger.body.id())
    {
        change.checkpoint = true;
    }
}

/// The key of the largest value, and its size with the key.
fn largest(txn: &Txn) -> (String, usize) {
    let op = txn.ops.iter().max_by_key(|op| redo_log::size(op));
    op.map(|op| (op.key().to_owned(), redo_log::size(op))).unwrap_or_default()
}

fn key_of(guard: &Guard) -> &str {
    match guard {
        Guard::ModRevision { key, .. } | Guard::CreateRevision { key, .. } => key,
    }
}

fn answer(jobs: Vec<Job>, answers: Vec<Answer>) {
    for (job, answer) in jobs.into_iter().zip(answers) {
        // A client that went away gets no answer, and what it asked for stands.
        let _gone = job.answer.map(|to| to.send(answer));
    }
}

fn refuse(jobs: Vec<Job>, problem: &Problem) {
    let answers = jobs.iter().map(|_| Err(problem.clone())).collect();
    answer(jobs, answers);
}
