use std::time::Duration;

use contiv_model::trace::Query;
use tokio::sync::{mpsc, oneshot, watch};

use super::{metrics::Metrics, retries::Failures, waiters::Waiters};
use crate::datapath::{
    Error,
    telemetry::Stats,
    trace::{Findings, Probe, Unresolved},
};

/// State of the reconciler and its datapath.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether a full resync has succeeded and no error has occurred since.
    pub in_sync: bool,
    /// Newest store revision that is in effect as a whole. A failed object that is retried delays it.
    pub revision: i64,
    /// Number of desired objects.
    pub objects: usize,
    /// Desired objects that failed or are not supported.
    pub failures: Failures,
    /// [`Datapath::warnings`](crate::datapath::Datapath::warnings).
    pub warnings: Vec<String>,
    /// Why the last full resync could not remove all orphans.
    pub garbage: Option<String>,
    /// Reason why the last full resync has not removed orphans: records are unreadable.
    pub retained: Option<String>,
    /// Reason why nothing is changed: records are unreadable, and the datapath belongs to another version. It forwards as
    /// before, and no endpoint is set.
    pub postponed: Option<String>,
    /// [`Datapath::writes`](crate::datapath::Datapath::writes).
    pub writes: u64,
    /// Ops executed since the start.
    pub ops: u64,
    /// Ops that failed since the start.
    pub ops_failed: u64,
    /// Full resyncs since the start.
    pub resyncs: u64,
    /// Time spent on planning, observing and applying since the start.
    pub busy: Duration,
    /// Last error that affected the datapath as a whole.
    pub error: Option<String>,
}

impl Status {
    /// Degraded conditions for operators: one line for each kind of failed objects, then those of orphans and of an upgrade, then
    /// the datapath's warnings.
    pub fn degraded(&self) -> Vec<String> {
        let others = self.garbage.iter().chain(&self.retained).chain(&self.postponed);
        let others = others.chain(&self.warnings).cloned();
        self.failures.lines().into_iter().chain(others).collect()
    }
}

/// Request to the datapath's owner.
#[derive(Debug)]
pub enum Inspection {
    /// Requests [`Datapath::inspect`](crate::datapath::Datapath::inspect).
    Dump(oneshot::Sender<serde_json::Value>),
    /// Requests [`Datapath::stats`](crate::datapath::Datapath::stats).
    Stats(oneshot::Sender<Stats>),
    /// Requests [`Datapath::trace`](crate::datapath::Datapath::trace).
    Trace(Box<Query>, oneshot::Sender<Result<Traced, TraceError>>),
}

/// A traced packet and the findings.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Packet, completed from the objects of the node.
    pub probe: Probe,
    /// Stages and outputs.
    pub findings: Findings,
}

/// A packet cannot be traced.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The query does not match this node.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// The datapath does not support traces, or the trace failed.
    #[error(transparent)]
    Datapath(#[from] Error),
}

/// Interface of the reconciler to other tasks.
#[derive(Clone, Debug)]
pub struct Handle {
    /// Waits for single endpoints.
    pub waiters: Waiters,
    /// Current status.
    pub status: watch::Receiver<Status>,
    /// Sends requests to the datapath's owner.
    pub inspect: mpsc::Sender<Inspection>,
    /// Durations and results since the start.
    pub metrics: Metrics,
}
