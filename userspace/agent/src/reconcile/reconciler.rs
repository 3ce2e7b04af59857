mod takeover;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use contiv_model::group::GroupNumber;
use futures::future::BoxFuture;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    diff::{ordered, repair, split_groups},
    memberships::Memberships,
    metrics::Metrics,
    retention::Retention,
    retries::Retries,
    status::{Handle, Inspection, Status, TraceError, Traced},
    waiters::Waiters,
};
use crate::{
    backoff::Backoff,
    datapath::{
        Datapath, Desired, Error, FailedOp, Object, ObjectId, Op,
        trace::{Findings, Probe},
    },
    error::one_line,
    plan::{self, Node, Unknown},
    state::{Changes, DirtySet, Reader},
};
pub use takeover::StandByError;

/// Maximum pause after a failed resync that took little time.
const MIN_RESYNC_PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause after a failed resync, as a multiple of its duration.
const PAUSE_PER_COST: u32 = 20;

/// Owns the datapath and runs the reconciliation loop.
pub struct Reconciler<D> {
    datapath: D,
    node: Node,
    reader: Reader,
    changes: Changes,
    waiters: Waiters,
    inspections: mpsc::Receiver<Inspection>,
    status: watch::Sender<Status>,
    desired: Desired,
    /// Groups of the plan whose settings are unknown, each with the reason.
    blocked: BTreeMap<GroupNumber, Unknown>,
    retention: Retention,
    retries: Retries,
    memberships: Memberships,
    /// Reason why the last garbage collection failed.
    garbage: Option<String>,
    /// Newest store revision that was applied, with or without failed operations.
    attempted: i64,
    /// Time of the next full resync.
    resync_at: Instant,
    /// Interval between periodic full resyncs.
    resync_interval: Duration,
    backoff: Backoff,
    metrics: Metrics,
    /// Receipt of the oldest change that is not in effect yet.
    pending_since: Option<Instant>,
}

impl<D: Datapath> Reconciler<D> {
    /// Creates a reconciler; [`run`](Self::run) starts it.
    pub fn new(
        datapath: D,
        node: Node,
        reader: Reader,
        changes: Changes,
        resync_interval: Duration,
    ) -> (Self, Handle) {
        let (status, statuses) = watch::channel(Status::default());
        let (inspect, inspections) = mpsc::channel(1);
        let waiters = Waiters::default();
        let metrics = Metrics::default();
        let handle = Handle { waiters: waiters.clone(), status: statuses, inspect, metrics: metrics.clone() };
        let reconciler = Reconciler {
            datapath,
            node,
            reader,
            changes,
            waiters,
            inspections,
            status,
            desired: Desired::default(),
            blocked: BTreeMap::new(),
            retention: Retention::default(),
            retries: Retries::default(),
            memberships: Memberships::default(),
            garbage: None,
            attempted: 0,
            resync_at: Instant::now(),
            resync_interval,
            backoff: Backoff::default(),
            metrics,
            pending_since: None,
        };
        (reconciler, handle)
    }

    /// Runs until `stop` is cancelled. The forwarding state is kept.
    pub async fn run(mut self, stop: CancellationToken) {
        // An incomplete plan would delete objects that an earlier process created.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.reader.synced() => {}
        }
        loop {
            let (in_sync, is_postponed) = {
                let status = self.status.borrow();
                (status.in_sync, status.postponed.is_some())
            };
            tokio::select! {
                () = stop.cancelled() => return,
                Some(inspection) = self.inspections.recv() => self.answer(inspection),
                () = tokio::time::sleep_until(self.resync_at) => {
                    let start = Instant::now();
                    self.resync(DirtySet::default()).await;
                    self.add_busy_since(start);
                }
                (dirty, revision) = self.changes.next(), if in_sync || is_postponed => {
                    let start = Instant::now();
                    self.add_pending();
                    if dirty.unreadable && self.retention.is_active() {
                        // A full resync finds the datapath's entries of a record that is now readable, and orphans.
                        self.resync(dirty).await;
                    } else if is_postponed {
                        self.update_plan(&dirty);
                        self.refuse_changes();
                    } else {
                        let ids = self.update_plan(&dirty);
                        self.change(ids, revision).await;
                    }
                    self.add_busy_since(start);
                }
                () = self.retries.due(), if in_sync => {
                    let ids = self.retries.take_due();
                    self.change(ids, self.attempted).await;
                }
                () = self.datapath.resync_needed(), if in_sync => {
                    tracing::info!("datapath state may be lost; starting a full resync");
                    self.resync_at = Instant::now();
                    self.status.send_modify(|status| status.in_sync = false);
                }
            }
        }
    }

    /// Answers a request; the receiver may have been dropped.
    fn answer(&self, inspection: Inspection) {
        match inspection {
            Inspection::Dump(reply) => drop(reply.send(self.datapath.inspect())),
            Inspection::Stats(reply) => drop(reply.send(self.datapath.stats())),
            Inspection::Trace(query, reply) => match Probe::resolve(&self.desired, &query) {
                // The datapath continues meanwhile. If the receiver is dropped, the task ends.
                Ok(probe) => drop(tokio::spawn(follow(self.datapath.trace(probe.clone()), probe, reply))),
                Err(error) => drop(reply.send(Err(error.into()))),
            },
        }
    }

    fn add_busy_since(&self, start: Instant) {
        self.status.send_modify(|status| status.busy += start.elapsed());
    }

    /// Updates the plan, and returns the ids of the objects that may have changed.
    fn update_plan(&mut self, dirty: &DirtySet) -> BTreeSet<ObjectId> {
        self.reader.with(|state| {
            self.blocked = plan::blocked_groups(state, &self.node);
            self.retention.update(&mut self.desired, (state, &self.node), dirty)
        })
    }

    /// Compares the whole datapath with the plan. `dirty` has already been taken from the changes.
    async fn resync(&mut self, mut dirty: DirtySet) {
        // The full plan includes the dirty objects.
        let (more, revision) = self.changes.take();
        dirty.merge(more);
        self.add_pending();
        let desired = self.reader.with(|state| {
            self.blocked = plan::blocked_groups(state, &self.node);
            let mut desired = plan::full(state, &self.node);
            self.retention.begin(&mut desired, (state, &self.node), (&self.desired, &dirty));
            desired
        });
        let start = Instant::now();
        let before = std::mem::replace(&mut self.desired, desired);
        self.retries.clear_unsupported(|id| before.get(id) != self.desired.get(id));
        let result = self.observe_and_apply(revision).await;
        match result {
            Ok(()) => {}
            Err(error) if error.is_postponed() => return self.postpone(&error),
            Err(error) => return self.schedule_resync(&error, start.elapsed()),
        }
        let pause = if self.garbage.is_none() {
            self.retention.resynced();
            self.backoff.reset();
            self.resync_interval
        } else {
            // Only another full resync finds the orphans.
            self.backoff.pause()
        };
        self.resync_at = Instant::now() + pause;
        self.status.send_modify(|status| {
            status.in_sync = true;
            status.error = None;
            status.garbage.clone_from(&self.garbage);
            status.retained = self.retention.condition();
            status.postponed = None;
        });
        self.waiters.notify_all(&self.desired, &self.retries, self.garbage.as_deref());
    }

    async fn observe_and_apply(&mut self, revision: i64) -> Result<(), Error> {
        let start = Instant::now();
        self.datapath.retain_orphans(self.retention.is_active());
        let observed = self.datapath.observe(&self.desired).await;
        self.metrics.record_observe(&observed, start.elapsed());
        let observed = observed?;
        self.retention.observed(observed.retained, &mut self.desired);
        self.memberships.observed(&observed, &self.desired);
        let mut ops = repair(&self.desired, &observed, self.retention.gone());
        // An unsupported object that has not changed would fail again.
        ops.retain(|op| !matches!(op, Op::Set(object) if self.retries.is_unsupported(&object.id())));
        tracing::debug!(
            objects = self.desired.len(),
            in_sync = observed.in_sync.len(),
            orphans = observed.orphans,
            retained = observed.retained,
            ops = ops.len(),
            "observed the datapath"
        );
        if !ops.is_empty() && self.status.borrow().resyncs > 0 {
            tracing::info!(ops = ops.len(), orphans = observed.orphans, "repairing the datapath");
        }
        let blocked = self.block_groups();
        self.retries.keep(|id| match (self.desired.get(id), id) {
            (Some(_), _) => !observed.in_sync.contains(id) || blocked.contains(id),
            // The group is deleted when its last endpoint has left it.
            (None, ObjectId::Group(group)) => self.memberships.leaving(*group, &self.desired).is_some(),
            (None, _) => false,
        });
        self.garbage = None;
        self.apply(&ops).await?;
        self.status.send_modify(|status| status.resyncs += 1);
        self.report(revision);
        Ok(())
    }

    /// Applies the plan for the objects `ids`.
    async fn change(&mut self, ids: BTreeSet<ObjectId>, revision: i64) {
        let start = Instant::now();
        let mut ops = ordered(&ids, &self.desired);
        ops.retain(|op| self.retention.allows(op));
        match self.apply(&ops).await {
            Ok(()) => {
                self.report(revision);
                self.waiters.notify(&ids, &self.desired, &self.retries, self.garbage.as_deref());
            }
            Err(error) => self.schedule_resync(&error, start.elapsed()),
        }
    }

    /// Blocks the planned groups whose settings are unknown and returns their ids. The datapath keeps its state of them,
    /// possibly from an earlier process. Endpoints that are not in the datapath yet remain pending.
    fn block_groups(&mut self) -> BTreeSet<ObjectId> {
        let mut blocked = BTreeSet::new();
        for (number, why) in &self.blocked {
            let id = ObjectId::Group((*number).into());
            if self.desired.get(&id).is_some() {
                if self.retries.block(id.clone(), why.to_string()) {
                    match why {
                        Unknown::Awaited => tracing::debug!("{id} waits: {why}"),
                        Unknown::Invalid(_) => {
                            tracing::warn!("{id} is not updated, and its new endpoints wait: {why}");
                        }
                    }
                }
                blocked.insert(id);
            }
        }
        blocked
    }

    /// Applies groups before their endpoints: an endpoint without its group's rules would accept all traffic, so it
    /// remains pending while its group fails. If the datapath does not support groups, endpoints are set without them and
    /// a warning is logged.
    ///
    /// Deletes groups after their endpoints have left them: an endpoint that is pending or has failed has the rules of
    /// its old group.
    async fn apply(&mut self, ops: &[Op]) -> Result<(), Error> {
        let (ops, deletions) = split_groups(ops);
        self.apply_sets(ops).await?;
        let mut ready = vec![];
        for op in deletions {
            match op {
                Op::Delete(id @ ObjectId::Group(group)) => {
                    match self.memberships.leaving(*group, &self.desired) {
                        Some(endpoint) => self.retries.wait_for(id.clone(), endpoint.clone()),
                        None => ready.push(op.clone()),
                    }
                }
                _ => ready.push(op.clone()),
            }
        }
        self.apply_batch(&ready).await
    }

    /// Applies ops that do not delete a group.
    async fn apply_sets(&mut self, ops: &[Op]) -> Result<(), Error> {
        let is_group = |op: &Op| matches!(op, Op::Set(Object::Group(_)));
        let (first, rest) = ops.split_at(ops.iter().rposition(is_group).map_or(0, |last| last + 1));
        let blocked = self.block_groups();
        if blocked.is_empty() {
            self.apply_batch(first).await?;
        } else {
            let is_blocked = |op: &Op| matches!(op, Op::Set(object) if blocked.contains(&object.id()));
            let allowed: Vec<Op> = first.iter().filter(|op| !is_blocked(op)).cloned().collect();
            self.apply_batch(&allowed).await?;
        }
        let mut waiting = BTreeMap::new();
        for op in rest {
            if let Op::Set(Object::Local(local)) = op
                && let Some(group) = local.identity.map(ObjectId::Group)
                && self.retries.is_retried(&group)
                && !self.turned_out_empty(&group)
            {
                waiting.insert(ObjectId::Local(local.id.clone()), group);
            }
        }
        self.datapath.retain_groups(!waiting.is_empty());
        if waiting.is_empty() {
            return self.apply_batch(rest).await;
        }
        let must_wait = |op: &Op| matches!(op, Op::Set(object) if waiting.contains_key(&object.id()));
        let ready: Vec<Op> = rest.iter().filter(|op| !must_wait(op)).cloned().collect();
        for (id, group) in waiting {
            self.retries.wait_for(id, group);
        }
        self.apply_batch(&ready).await
    }

    /// Reports whether the settings of a group were unknown before, and the group now has none.
    fn turned_out_empty(&self, group: &ObjectId) -> bool {
        self.retries.is_blocked(group) && self.desired.get(group).is_none()
    }

    async fn apply_batch(&mut self, ops: &[Op]) -> Result<(), Error> {
        if ops.is_empty() {
            return Ok(());
        }
        let start = Instant::now();
        let result = self.datapath.apply(ops).await;
        self.metrics.record_apply(ops, &result, start.elapsed());
        let failed = result?;
        let failed_count = failed.len() as u64;
        for FailedOp { index: op, error } in &failed {
            match ops.get(*op) {
                Some(Op::Set(object)) => {
                    self.memberships.failed(&object.id(), object);
                    self.retries.failed(object.id(), error);
                }
                Some(Op::Delete(id)) => self.retries.failed(id.clone(), error),
                Some(Op::GarbageCollect) => {
                    let why = format!("orphans: removal failed, retrying: {}", one_line(error));
                    tracing::warn!("{why}");
                    self.garbage = Some(why);
                }
                None => tracing::warn!("{}", one_line(error)),
            }
        }
        let failed: BTreeSet<usize> = failed.iter().map(|failed| failed.index).collect();
        for (_, op) in ops.iter().enumerate().filter(|(index, _)| !failed.contains(index)) {
            match op {
                Op::Set(object) => {
                    self.memberships.set(&object.id(), object);
                    self.retries.succeeded(&object.id());
                }
                Op::Delete(id) => {
                    self.memberships.deleted(id);
                    self.retries.succeeded(id);
                    self.retention.deleted(id);
                }
                Op::GarbageCollect if self.retention.is_active() => {}
                Op::GarbageCollect => self.memberships.collected(&self.desired),
            }
        }
        self.status.send_modify(|status| {
            status.ops += ops.len() as u64;
            status.ops_failed += failed_count;
        });
        Ok(())
    }

    /// Adds the changes that were just taken to those that are not in effect yet.
    fn add_pending(&mut self) {
        self.pending_since = self.pending_since.into_iter().chain(self.changes.received()).min();
    }

    /// Publishes the result of applying everything up to `revision`. The revision is in effect when no object is pending
    /// a retry.
    fn report(&mut self, revision: i64) {
        if let Some(received) = self.pending_since.take() {
            self.metrics.record_lag(received.elapsed());
        }
        self.attempted = revision;
        self.status.send_if_modified(|status| {
            let before = status.clone();
            if self.retries.counts().failed.is_empty() {
                status.revision = revision;
            }
            status.objects = self.desired.len();
            if status.failures != *self.retries.counts() {
                status.failures = self.retries.counts().clone();
            }
            status.warnings = self.datapath.warnings();
            status.writes = self.datapath.writes();
            *status != before
        });
    }

    /// Schedules the next attempt after one that took `took`. A cheap attempt, such as a refused connection, is repeated
    /// each second, so that a switch that becomes available is programmed soon. An expensive attempt is repeated with the
    /// whole backoff.
    fn schedule_resync(&mut self, error: &Error, took: Duration) {
        let wait = self.backoff.pause().min(MIN_RESYNC_PAUSE.max(took * PAUSE_PER_COST));
        tracing::warn!("{}; next full resync in {wait:?}", one_line(error));
        self.resync_at = Instant::now() + wait;
        self.status.send_modify(|status| {
            status.in_sync = false;
            status.error = Some(one_line(error));
            status.postponed = None;
            status.writes = self.datapath.writes();
        });
    }

    /// Publishes that nothing is changed because of `error`. The next attempt follows a change of the unreadable records.
    fn postpone(&mut self, error: &Error) {
        let why = self.retention.postponement(error);
        self.backoff.reset();
        self.resync_at = Instant::now() + self.resync_interval;
        if self.status.borrow().postponed.as_ref() != Some(&why) {
            tracing::warn!("{why}");
        }
        self.status.send_modify(|status| {
            status.in_sync = false;
            status.error = None;
            status.postponed = Some(why);
        });
        self.refuse_changes();
    }

    /// Notifies waiters while nothing is changed.
    fn refuse_changes(&self) {
        if let Some(why) = &self.status.borrow().postponed {
            self.waiters.refuse(&self.desired, why);
        }
    }
}

/// Runs a trace and sends the result.
async fn follow(
    trace: BoxFuture<'static, Result<Findings, Error>>,
    probe: Probe,
    mut reply: oneshot::Sender<Result<Traced, TraceError>>,
) {
    tokio::select! {
        () = reply.closed() => {}
        findings = trace => {
            let traced = findings.map(|findings| Traced { probe, findings }).map_err(TraceError::from);
            drop(reply.send(traced));
        }
    }
}
