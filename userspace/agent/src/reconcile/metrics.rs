use std::{collections::BTreeMap, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::datapath::{Error, FailedOp, ObjectKind, Observed, Op};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    call: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ObjectOp {
    operation: &'static str,
    object: &'static str,
    result: &'static str,
}

/// Durations of the reconciler's work, and the ops that it passed to the datapath. Clones share the values.
#[derive(Clone, Debug)]
pub struct Metrics {
    watch_lag: Histogram,
    calls: Family<Call, Histogram>,
    ops: Family<ObjectOp, Counter>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        // 0.5 ms to 16 s.
        let buckets = || Histogram::new(exponential_buckets(0.0005, 2.0, 16));
        Metrics { watch_lag: buckets(), calls: Family::new_with_constructor(buckets), ops: Family::default() }
    }
}

impl Metrics {
    /// Records that a batch of changes is in effect. `lag` is the time since its oldest change was received.
    pub fn record_lag(&self, lag: Duration) {
        self.watch_lag.observe(lag.as_secs_f64());
    }

    /// Records a call of [`Datapath::observe`](crate::datapath::Datapath::observe).
    pub fn record_observe(&self, result: &Result<Observed, Error>, duration: Duration) {
        self.record_call("observe", if result.is_ok() { "ok" } else { "error" }, duration);
    }

    /// Records a call of [`Datapath::apply`](crate::datapath::Datapath::apply) with `ops`.
    pub fn record_apply(&self, ops: &[Op], result: &Result<Vec<FailedOp>, Error>, duration: Duration) {
        let whole = match result {
            Ok(failed) if failed.is_empty() => "ok",
            Ok(_) => "partial",
            Err(_) => "error",
        };
        self.record_call("apply", whole, duration);
        let failed: BTreeMap<usize, &Error> =
            result.iter().flatten().map(|failed| (failed.index, &failed.error)).collect();
        for (index, op) in ops.iter().enumerate() {
            let result = match (result, failed.get(&index)) {
                (Err(_), _) => "unknown",
                (Ok(_), None) => "ok",
                (Ok(_), Some(error)) if error.is_unsupported() => "unsupported",
                (Ok(_), Some(_)) => "failed",
            };
            let (operation, object) = labels(op);
            self.ops.get_or_create(&ObjectOp { operation, object, result }).inc();
        }
    }

    fn record_call(&self, call: &'static str, result: &'static str, duration: Duration) {
        self.calls.get_or_create(&Call { call, result }).observe(duration.as_secs_f64());
    }

    /// Registers the metrics with their current values.
    pub fn register(&self, registry: &mut Registry) {
        let help = "Time from the receipt of a change of the store until it is in effect in seconds; one value per batch, for its oldest change";
        registry.register("watch_lag_seconds", help, self.watch_lag.clone());
        let help = "Duration of calls of the datapath in seconds: observe reads its whole state, apply executes a batch of operations; by result (ok, partial, error)";
        registry.register("datapath_call_duration_seconds", help, self.calls.clone());
        let help = "Operations on objects of the datapath, by operation, kind of object and result (ok, failed, unsupported, unknown)";
        registry.register("datapath_object_ops", help, self.ops.clone());
    }
}

fn labels(op: &Op) -> (&'static str, &'static str) {
    match op {
        Op::Set(object) => ("set", kind_label(object.id().kind())),
        Op::Delete(id) => ("delete", kind_label(id.kind())),
        Op::GarbageCollect => ("garbage-collect", "orphan"),
    }
}

fn kind_label(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::Peer => "peer",
        ObjectKind::Network => "network",
        ObjectKind::Subnet => "subnet",
        ObjectKind::Route => "route",
        ObjectKind::Group => "group",
        ObjectKind::Remote => "remote-endpoint",
        ObjectKind::Service => "service",
        ObjectKind::Local => "local-endpoint",
    }
}
