//! Makes the datapath hold what is planned, and goes on until it does.
//!
//! Ordinary changes become ops for the objects that they concern. At the start, after an error, when the datapath was
//! disturbed, and from time to time, everything is measured instead: restart and drift are repaired by the same code.

mod order;
mod retries;
mod settled;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use contiv_model::{key::Key, name::PolicyId};
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use order::{diff, ordered};
pub use retries::Failures;
pub use settled::{Presence, Settled};

use crate::{
    backoff::Backoff,
    datapath::{Datapath, Desired, Error, FailedOp, Object, ObjectId, Op, telemetry::Stats},
    error::one_line,
    plan::{self, Node},
    state::{Changes, Reader},
};
use retries::Retries;

/// How the datapath is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Everything was measured and what was missing was made, and nothing broke since.
    pub known: bool,
    /// The newest revision of the state that is in force.
    pub revision: i64,
    /// Objects that should be there.
    pub objects: usize,
    /// Objects that the datapath would not take, or has no means for.
    pub failures: Failures,
    /// [`Datapath::warnings`].
    pub warnings: Vec<String>,
    /// Everything that was written since the start.
    pub writes: u64,
    /// Ops carried out since the start.
    pub ops: u64,
    /// Ops that failed since the start.
    pub ops_failed: u64,
    /// Times that everything was measured.
    pub observed: u64,
    /// How long planning, measuring and making took, all together.
    pub busy: Duration,
    /// What the datapath said last when it failed as a whole.
    pub error: Option<String>,
}

impl Status {
    /// What is not in force, or not as it was asked for, a line for each sort.
    pub fn degraded(&self) -> Vec<String> {
        self.failures.lines().into_iter().chain(self.warnings.iter().cloned()).collect()
    }
}

/// What the datapath is asked for.
#[derive(Debug)]
pub enum Inspection {
    /// [`Datapath::inspect`].
    Inside(oneshot::Sender<serde_json::Value>),
    /// [`Datapath::counts`].
    Stats(oneshot::Sender<Stats>),
}

/// Owns the datapath.
pub struct Reconciler<D> {
    datapath: D,
    node: Node,
    reader: Reader,
    changes: Changes,
    settled: Settled,
    inspections: mpsc::Receiver<Inspection>,
    status: watch::Sender<Status>,
    desired: Desired,
    retries: Retries,
    /// When everything is to be measured.
    measure: Instant,
    /// How often that is done without a reason.
    period: Duration,
    backoff: Backoff,
}

impl<D: Datapath> Reconciler<D> {
    /// Nothing happens before [`run`](Self::run).
    pub fn new(
        datapath: D,
        node: Node,
        reader: Reader,
        changes: Changes,
        period: Duration,
    ) -> (Self, Handle) {
        let (status, statuses) = watch::channel(Status::default());
        let (inspect, inspections) = mpsc::channel(1);
        let settled = Settled::default();
        let handle = Handle { settled: settled.clone(), status: statuses, inspect };
        let reconciler = Reconciler {
            datapath,
            node,
            reader,
            changes,
            settled,
            inspections,
            status,
            desired: Desired::default(),
            retries: Retries::default(),
            measure: Instant::now(),
            period,
            backoff: Backoff::default(),
        };
        (reconciler, handle)
    }

    /// Until told to stop. What is in force stays in force.
    pub async fn run(mut self, stop: CancellationToken) {
        // An incomplete plan would remove what an earlier run made.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.reader.synced() => {}
        }
        loop {
            let known = self.status.borrow().known;
            tokio::select! {
                () = stop.cancelled() => return,
                Some(inspection) = self.inspections.recv() => self.answer(inspection),
                () = tokio::time::sleep_until(self.measure) => {
                    let began = Instant::now();
                    self.measure_all().await;
                    self.worked_since(began);
                }
                (touched, revision) = self.changes.next(), if known => {
                    let began = Instant::now();
                    let ids = self.reader.with(|state| plan::update(&mut self.desired, state, &self.node, &touched));
                    self.change(ids, revision).await;
                    self.worked_since(began);
                }
                () = self.retries.due(), if known => {
                    let (ids, revision) = (self.retries.take_due(), self.status.borrow().revision);
                    self.change(ids, revision).await;
                }
                () = self.datapath.resync_needed(), if known => {
                    tracing::info!("the datapath was disturbed: measuring it");
                    self.measure = Instant::now();
                    self.status.send_modify(|status| status.known = false);
                }
            }
        }
    }

    /// Whoever asked may have gone.
    fn answer(&self, inspection: Inspection) {
        match inspection {
            Inspection::Inside(reply) => drop(reply.send(self.datapath.inspect())),
            Inspection::Stats(reply) => drop(reply.send(self.datapath.stats())),
        }
    }

    fn worked_since(&self, began: Instant) {
        self.status.send_modify(|status| status.busy += began.elapsed());
    }

    async fn measure_all(&mut self) {
        // The full plan has it all.
        let (_, revision) = self.changes.take();
        let desired = self.reader.with(|state| plan::full(state, &self.node));
        let before = std::mem::replace(&mut self.desired, desired);
        self.retries.forget_unsupported(|id| before.get(id) != self.desired.get(id));
        let result = self.measure_and_make(revision).await;
        if let Err(error) = result {
            self.broke(&error);
            return;
        }
        self.backoff.reset();
        self.measure = Instant::now() + self.period;
        self.status.send_modify(|status| {
            status.known = true;
            status.error = None;
        });
        self.settled.tell_all(&self.desired, &self.retries);
    }

    async fn measure_and_make(&mut self, revision: i64) -> Result<(), Error> {
        let observed = self.datapath.observe(&self.desired).await?;
        let mut ops = diff(&self.desired, &observed);
        // What the datapath has no means for and did not change is no news.
        ops.retain(|op| !matches!(op, Op::Set(object) if self.retries.is_unsupported(&object.id())));
        tracing::debug!(
            objects = self.desired.len(),
            right = observed.in_sync.len(),
            strays = observed.orphans,
            ops = ops.len(),
            "measured"
        );
        if !ops.is_empty() && self.status.borrow().observed > 0 {
            tracing::info!(ops = ops.len(), strays = observed.orphans, "repairing the datapath");
        }
        let unread = self.block_unread();
        self.retries.keep(|id| {
            self.desired.get(id).is_some() && (!observed.in_sync.contains(id) || unread.contains(id))
        });
        self.apply(&ops).await?;
        self.status.send_modify(|status| status.observed += 1);
        self.report(revision);
        Ok(())
    }

    /// Makes what stands under `ids` so.
    async fn change(&mut self, ids: BTreeSet<ObjectId>, revision: i64) {
        let ops = ordered(&ids, &self.desired);
        match self.apply(&ops).await {
            Ok(()) => {
                self.report(revision);
                self.settled.tell(&ids, &self.desired, &self.retries);
            }
            Err(error) => self.broke(&error),
        }
    }

    /// Groups with a policy that was never understood: what the datapath has of them, which may be what an earlier run
    /// understood, stays, and endpoints that are not in the datapath yet wait.
    fn block_unread(&mut self) -> BTreeSet<ObjectId> {
        let unread: Vec<_> = self.reader.with(|state| {
            let named = |(number, policy): (_, &PolicyId)| (ObjectId::Group(number), policy.clone());
            state.unread_policies().map(named).collect()
        });
        let wanted = unread.into_iter().filter(|(id, _)| self.desired.get(id).is_some());
        let wanted: Vec<_> = wanted.collect();
        wanted
            .into_iter()
            .map(|(id, policy)| {
                let key = Key::Policy(policy);
                self.retries.block(id.clone(), format!("{key} is not understood: see /inspect/driver"));
                id
            })
            .collect()
    }

    /// Endpoints come after what holds for their groups: one whose policy could not be put in force would be open to
    /// all. Where the datapath knows no policies at all, it is said that they are not enforced, and pods go on.
    async fn apply(&mut self, ops: &[Op]) -> Result<(), Error> {
        let is_group = |op: &Op| matches!(op, Op::Set(Object::Group(_)));
        let (first, rest) = ops.split_at(ops.iter().rposition(is_group).map_or(0, |last| last + 1));
        let unread = self.block_unread();
        if unread.is_empty() {
            self.apply_some(first).await?;
        } else {
            let stays = |op: &Op| matches!(op, Op::Set(object) if unread.contains(&object.id()));
            let known: Vec<Op> = first.iter().filter(|op| !stays(op)).cloned().collect();
            self.apply_some(&known).await?;
        }
        let mut held = BTreeMap::new();
        for op in rest {
            if let Op::Set(Object::Local(local)) = op
                && let Some(group) = local.group.map(ObjectId::Group)
                && self.retries.is_awaited(&group)
            {
                held.insert(ObjectId::Local(local.id.clone()), group);
            }
        }
        if held.is_empty() {
            return self.apply_some(rest).await;
        }
        let is_held = |op: &Op| matches!(op, Op::Set(object) if held.contains_key(&object.id()));
        let free: Vec<Op> = rest.iter().filter(|op| !is_held(op)).cloned().collect();
        for (id, group) in held {
            self.retries.hold(id, group);
        }
        self.apply_some(&free).await
    }

    async fn apply_some(&mut self, ops: &[Op]) -> Result<(), Error> {
        if ops.is_empty() {
            return Ok(());
        }
        let failed = self.datapath.apply(ops).await?;
        let failed_count = failed.len() as u64;
        for FailedOp { index: op, error } in &failed {
            match ops.get(*op) {
                Some(Op::Set(object)) => self.retries.failed(object.id(), error),
                Some(Op::Delete(id)) => self.retries.failed(id.clone(), error),
                // Counted again by the next measuring.
                Some(Op::GarbageCollect) | None => tracing::warn!("{}", one_line(error)),
            }
        }
        let places: BTreeSet<usize> = failed.iter().map(|failed| failed.index).collect();
        for (_, op) in ops.iter().enumerate().filter(|(place, _)| !places.contains(place)) {
            match op {
                Op::Set(object) => self.retries.succeeded(&object.id()),
                Op::Delete(id) => self.retries.succeeded(id),
                Op::GarbageCollect => {}
            }
        }
        self.status.send_modify(|status| {
            status.ops += ops.len() as u64;
            status.ops_failed += failed_count;
        });
        Ok(())
    }

    fn report(&self, revision: i64) {
        self.status.send_if_modified(|status| {
            let before = status.clone();
            status.revision = revision;
            status.objects = self.desired.len();
            if status.failures != *self.retries.counts() {
                status.failures = self.retries.counts().clone();
            }
            status.warnings = self.datapath.warnings();
            status.writes = self.datapath.writes();
            *status != before
        });
    }

    fn broke(&mut self, error: &Error) {
        let wait = self.backoff.pause();
        tracing::warn!("{}; measuring again in {wait:?}", one_line(error));
        self.measure = Instant::now() + wait;
        self.status.send_modify(|status| {
            status.known = false;
            status.error = Some(one_line(error));
            status.writes = self.datapath.writes();
        });
    }
}

/// What others need of the reconciler.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Waits for single endpoints.
    pub settled: Settled,
    /// How it is doing.
    pub status: watch::Receiver<Status>,
    /// Asks the datapath for its inside.
    pub inspect: mpsc::Sender<Inspection>,
}

#[cfg(test)]
mod tests;
