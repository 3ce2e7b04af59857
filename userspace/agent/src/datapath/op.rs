use std::{collections::BTreeSet, future::Future, sync::Arc};

use futures::future::BoxFuture;

use super::{
    connection::TrackedConnection,
    error::Error,
    object::{Desired, Object, ObjectId},
    telemetry::{Stats, Telemetry},
    trace::{Findings, Probe},
};

/// Comparison of the datapath's state with a [`Desired`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Desired objects that are present and equal in every detail.
    pub in_sync: BTreeSet<ObjectId>,
    /// Number of items (flows, ports, map entries) that belong to no desired object and are to be deleted.
    pub orphans: usize,
    /// Number of items that belong to no desired object and stay: see [`Datapath::retain_orphans`].
    pub retained: usize,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates the object, or replaces the object with the same id.
    Set(Object),
    /// Deletes the object.
    Delete(ObjectId),
    /// Deletes the orphans that the last `observe` counted, without those that are retained. Follows every `Set` of its batch.
    GarbageCollect,
}

impl Op {
    /// Object that the op changes; `None` if it can be any.
    pub fn target(&self) -> Option<ObjectId> {
        match self {
            Op::Set(object) => Some(object.id()),
            Op::Delete(id) => Some(id.clone()),
            Op::GarbageCollect => None,
        }
    }
}

/// An op that failed.
#[derive(Debug)]
pub struct FailedOp {
    /// Index in the ops given to [`Datapath::apply`].
    pub index: usize,
    /// Cause.
    pub error: Error,
}

/// What a datapath requires of the veth pairs that it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortRequirements {
    /// Disable TX checksum offload on the pod's end: the datapath cannot complete partial checksums.
    pub disable_tx_offload: bool,
}

/// Makes the forwarding of one node match a list of operations.
///
/// Forwarding state outlives the value: dropping a datapath, or the death of its process, removes nothing, and the
/// next instance adopts the state that it finds.
pub trait Datapath: Send {
    /// Prepares the first [`observe`](Self::observe) as far as possible without a change to what another datapath forwards, so
    /// that it takes less time. Fails where that would fail, and if the node lacks what this datapath needs to forward what the
    /// other one does.
    fn prepare(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// From the next [`observe`](Self::observe) on, the datapath does not forward, until it takes over: another one does, beside which
    /// this one is built.
    fn stand_by(&mut self) {}

    /// Whether the object can be set beside the other datapath.
    fn can_stand_by(&self, object: &Object) -> bool {
        let _ = object;
        true
    }

    /// Whether the object is to be set, perhaps again, when this datapath has taken over and the other one is gone: it lacks what that one
    /// had.
    fn is_completed_by_takeover(&self, object: &Object) -> bool {
        !self.can_stand_by(object)
    }

    /// Forwards, with the connections of the other datapath, which has stopped. The last [`apply`](Self::apply) has set
    /// all objects that can be set beside the other datapath.
    fn take_over(
        &mut self,
        connections: Vec<TrackedConnection>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = connections;
        async { Ok(()) }
    }

    /// If the datapath is still to take over, with the next [`observe`](Self::observe) and [`apply`](Self::apply), lets nothing pass
    /// any more: the other one is about to be removed.
    ///
    /// # Errors
    /// The state of the kernel does not change.
    fn hold(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Forwards after the next [`observe`](Self::observe) and the calls of [`apply`](Self::apply) for what that has found, with the
    /// connections of the other datapath, which is gone. Without, they are as any that are older than the datapath.
    fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        drop(connections);
    }

    /// If `retain` is set, what belongs to no desired object stays, from the next [`observe`](Self::observe) on: it may belong to
    /// objects that the caller cannot name. Other operations take nothing from it that it needs. A takeover from another datapath
    /// ends all the same, and one from another version if it has begun.
    fn retain_orphans(&mut self, retain: bool);

    /// If `retain` is set, the collection of garbage keeps the rules of all groups, until the next [`observe`](Self::observe): an
    /// endpoint that waits may have a group that is not desired. A datapath that knows the groups of its endpoints keeps those.
    fn retain_groups(&mut self, retain: bool) {
        let _ = retain;
    }

    /// Reads the state of the switch or kernel, including state of an earlier process, and compares it with `desired`.
    /// Must precede the first [`apply`](Self::apply).
    ///
    /// Writes nothing if everything is in sync. The first call creates missing infrastructure (bridges, devices,
    /// programs).
    ///
    /// # Errors
    /// If the state is that of another version, and orphans are retained, the error is [`Postponed`](super::Postponed): nothing
    /// has been changed, and nothing can be.
    fn observe(&mut self, desired: &Desired) -> impl Future<Output = Result<Observed, Error>> + Send;

    /// Executes the ops; their effects become visible in order. Idempotent: an op whose result already exists
    /// succeeds. Returns the ops that failed; all others are in effect.
    ///
    /// # Errors
    /// The state of the datapath is unknown; the caller must call [`observe`](Self::observe) next.
    fn apply(&mut self, ops: &[Op]) -> impl Future<Output = Result<Vec<FailedOp>, Error>> + Send;

    /// Resolves when the datapath's state may have been lost or changed by another process (the switch restarted, its
    /// connection closed). The caller runs [`observe`](Self::observe) soon.
    fn resync_needed(&mut self) -> impl Future<Output = ()> + Send;

    /// Number of writes to the switch or kernel since the value was created: database rows, flows, groups, map
    /// entries, program attachments. Reads do not count.
    fn writes(&self) -> u64;

    /// Requirements for veth pairs.
    fn port_requirements(&self) -> PortRequirements;

    /// Debug dump for `/inspect/driver`.
    fn inspect(&self) -> serde_json::Value;

    /// Statistics for `/metrics`.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Configuration that is not in effect as requested. One line each: what, why, and what to do.
    fn warnings(&self) -> Vec<String> {
        vec![]
    }

    /// Access to counters and packet events; `None` if the datapath provides neither.
    fn telemetry(&self) -> Option<Arc<dyn Telemetry>> {
        None
    }

    /// Follows a packet through the datapath as it is now. Forwards nothing, and leaves connections and counters as they are.
    /// The future does not depend on the value, so that operations need not wait for it.
    fn trace(&self, probe: Probe) -> BoxFuture<'static, Result<Findings, Error>>;

    /// Removes everything that any process created on this node for this datapath.
    fn cleanup(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}
