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
    /// Number of items (flows, ports, map entries) that belong to no desired object and will be deleted.
    pub orphans: usize,
    /// Number of items that belong to no desired object and are retained: see [`Datapath::retain_orphans`].
    pub retained: usize,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Creates the object, or replaces the object with the same id.
    Set(Object),
    /// Deletes the object.
    Delete(ObjectId),
    /// Deletes the orphans that the last `observe` counted, except retained ones. Follows every `Set` of its batch.
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

/// A failed op.
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
    /// Prepares the first [`observe`](Self::observe) as far as possible without changing what another datapath forwards,
    /// so that `observe` takes less time. Fails if `observe` would fail, and if the node lacks something that this
    /// datapath needs to replace the other one.
    fn prepare(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// From the next [`observe`](Self::observe) on, the datapath is in standby until it takes over: it is built while
    /// another datapath forwards.
    fn stand_by(&mut self) {}

    /// Reports whether the object can be set while the other datapath forwards.
    fn can_stand_by(&self, object: &Object) -> bool {
        let _ = object;
        true
    }

    /// Reports whether the object must be set, perhaps again, after this datapath has taken over and the other one has
    /// been removed: until then it lacks resources of the other datapath.
    fn is_completed_by_takeover(&self, object: &Object) -> bool {
        !self.can_stand_by(object)
    }

    /// Starts to forward, with the connections of the other datapath, which has stopped. The last [`apply`](Self::apply)
    /// has set all objects that can be set while the other datapath forwards.
    fn take_over(
        &mut self,
        connections: Vec<TrackedConnection>,
    ) -> impl Future<Output = Result<(), Error>> + Send {
        let _ = connections;
        async { Ok(()) }
    }

    /// Drops all frames if the datapath has yet to take over with the next [`observe`](Self::observe) and
    /// [`apply`](Self::apply), because the other datapath is about to be removed.
    ///
    /// # Errors
    ///
    /// The state of the kernel does not change.
    fn hold(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Forwards after the next [`observe`](Self::observe) and the calls of [`apply`](Self::apply) for its result, with
    /// the connections of the other datapath, which has been removed. Without this call, connections are handled like
    /// those that are older than the datapath.
    fn inherit(&mut self, connections: Vec<TrackedConnection>) {
        drop(connections);
    }

    /// If `retain` is set, items that belong to no desired object are kept, from the next [`observe`](Self::observe) on:
    /// they may belong to objects that the caller cannot identify. Other operations do not remove anything that these
    /// items need. A takeover from another datapath completes nevertheless, and one from another version completes if it
    /// has begun.
    fn retain_orphans(&mut self, retain: bool);

    /// If `retain` is set, garbage collection keeps the rules of all groups, until the next [`observe`](Self::observe): a
    /// pending endpoint may have a group that is not desired. A datapath that reads the groups of its endpoints back
    /// always keeps those groups.
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
    ///
    /// If the state belongs to another version, and orphans are retained, the error is
    /// [`Postponed`](super::Postponed): nothing has been changed, and nothing can be.
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

    /// Traces a packet through the current state of the datapath. Forwards nothing, and does not change connections and
    /// counters. The future does not borrow the value, so that operations need not wait for it.
    fn trace(&self, probe: Probe) -> BoxFuture<'static, Result<Findings, Error>>;

    /// Removes everything that any process created on this node for this datapath.
    fn cleanup(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}
