//! State that outlives the agent, with fault injection and drift for tests.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{
    forward::{Delivery, Origin},
    trace::trace,
    traffic::Traffic,
};
use crate::datapath::{
    Desired, Object, ObjectId, Op, Unsupported,
    trace::{Findings, Probe},
};

/// Forwarding state of a node. Clones share it.
#[derive(Clone, Default)]
pub struct Switch {
    state: Arc<Mutex<SwitchState>>,
    resync_request: Arc<Notify>,
}

#[derive(Clone, Debug, Default)]
struct SwitchState {
    objects: Desired,
    traffic: Traffic,
    /// Number of items that are not objects.
    foreign: usize,
    /// The state was written by an agent of another version.
    is_of_other_version: bool,
    faults: Faults,
    changes: Vec<Op>,
}

/// Injected faults.
#[derive(Clone, Debug, Default)]
struct Faults {
    /// Number of calls of `observe` that fail.
    observes: usize,
    /// Number of calls of `apply` that fail.
    applies: usize,
    /// Number of ops that fail.
    ops: usize,
    objects: BTreeSet<ObjectId>,
    missing_interfaces: BTreeSet<String>,
    only_forwarding: bool,
}

/// Reason of a failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Injected by the test.
    #[error("injected fault")]
    Injected,
    /// The veth pair of a pod does not exist.
    #[error("no interface {0}")]
    NoInterface(String),
    /// The caller did not observe after the start or the last error.
    #[error("observe must precede apply")]
    NotObserved,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}

impl Switch {
    /// Returns a switch with the same state, which it does not share.
    pub fn copy(&self) -> Switch {
        Switch { state: Arc::new(Mutex::new(self.lock().clone())), resync_request: Arc::default() }
    }

    /// Returns all objects.
    pub fn objects(&self) -> Desired {
        self.lock().objects.clone()
    }

    /// Returns the number of items that are not objects.
    pub fn foreign_items(&self) -> usize {
        self.lock().foreign
    }

    /// Forwards a frame; returns the copies that leave the node.
    pub fn deliver(&self, frame: &[u8], from: &Origin) -> Vec<Delivery> {
        let state = &mut *self.lock();
        state.traffic.forward(&state.objects, frame, from)
    }

    /// Traces a packet. Changes nothing.
    pub(super) fn trace(&self, probe: &Probe) -> Findings {
        let state = self.lock();
        trace(&state.traffic, &state.objects, probe)
    }

    /// Removes the connection that a frame belongs to.
    pub fn end_connection(&self, frame: &[u8], from: &Origin) {
        let state = &mut *self.lock();
        state.traffic.end(&state.objects, frame, from);
    }

    /// Removes all connections.
    pub fn forget_connections(&self) {
        self.lock().traffic = Traffic::default();
    }

    /// Returns the changes by agents, in order, without ops that had no effect.
    pub fn changes(&self) -> Vec<Op> {
        self.lock().changes.clone()
    }

    /// Makes the next `count` calls of `observe` fail.
    pub fn fail_observe(&self, count: usize) {
        self.lock().faults.observes = count;
    }

    /// Makes the next `count` calls of `apply` fail.
    pub fn fail_apply(&self, count: usize) {
        self.lock().faults.applies = count;
    }

    /// Makes the next `count` ops fail.
    pub fn fail_ops(&self, count: usize) {
        self.lock().faults.ops = count;
    }

    /// Makes ops on this object fail until [`Switch::clear_faults`].
    pub fn fail_object(&self, id: ObjectId) {
        self.lock().faults.objects.insert(id);
    }

    /// Makes the interface unavailable until [`Switch::clear_faults`].
    pub fn remove_interface(&self, name: &str) {
        self.lock().faults.missing_interfaces.insert(name.to_owned());
    }

    /// Rejects groups and services as unsupported until [`Switch::clear_faults`].
    pub fn support_only_forwarding(&self) {
        self.lock().faults.only_forwarding = true;
    }

    /// Removes all injected faults.
    pub fn clear_faults(&self) {
        self.lock().faults = Faults::default();
    }

    /// Drift: removes an object; returns whether it existed.
    pub fn drop_object(&self, id: &ObjectId) -> bool {
        self.lock().objects.remove(id).is_some()
    }

    /// Drift: adds or replaces an object.
    pub fn put_object(&self, object: Object) {
        self.lock().objects.insert(object);
    }

    /// Drift: adds items that are not objects, such as foreign flows.
    pub fn add_foreign_items(&self, count: usize) {
        self.lock().foreign += count;
    }

    /// Marks the state as that of an agent of another version, which no later agent can change, because it has its own
    /// state.
    pub fn set_other_version(&self) {
        self.lock().is_of_other_version = true;
    }

    /// Returns whether the state is that of an agent of another version.
    pub fn is_of_other_version(&self) -> bool {
        self.lock().is_of_other_version
    }

    /// Replaces the state of another version by an empty one.
    pub(super) fn upgrade(&self) {
        let mut state = self.lock();
        state.is_of_other_version = false;
        state.objects = Desired::default();
        state.foreign = 0;
    }

    /// Resolves a pending `resync_needed`, or the next one.
    pub fn request_resync(&self) {
        self.resync_request.notify_one();
    }

    pub(super) async fn wait_for_resync_request(&self) {
        self.resync_request.notified().await;
    }

    pub(super) fn fault_in_observe(&self) -> Result<(), Fault> {
        consume(&mut self.lock().faults.observes)
    }

    pub(super) fn fault_in_apply(&self) -> Result<(), Fault> {
        consume(&mut self.lock().faults.applies)
    }

    pub(super) fn fault_in_op(&self, op: &Op) -> Result<(), Fault> {
        let faults = &mut self.lock().faults;
        consume(&mut faults.ops)?;
        let id = match op {
            Op::Set(object) => object.id(),
            Op::Delete(id) => id.clone(),
            Op::GarbageCollect => return Ok(()),
        };
        if faults.objects.contains(&id) {
            return Err(Fault::Injected);
        }
        match op {
            Op::Set(Object::Local(local)) if faults.missing_interfaces.contains(&local.port) => {
                Err(Fault::NoInterface(local.port.clone()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn support(&self, object: &Object) -> Result<(), Unsupported> {
        match object {
            Object::Route(route) if route.private_subnet().is_none() => Err(Unsupported::Object),
            Object::Subnet(subnet) if subnet.is_routed() && !subnet.has_node_router() => {
                Err(Unsupported::ROUTER)
            }
            Object::Remote(remote) if !remote.next_hop.is_on(remote.encap) => Err(Unsupported::NEXT_HOP),
            Object::Group(_) | Object::Service(_) if self.lock().faults.only_forwarding => {
                Err(Unsupported::Object)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the object changed.
    pub(super) fn set(&self, object: &Object) -> bool {
        let mut state = self.lock();
        let changed = state.objects.insert(object.clone()).as_ref() != Some(object);
        if changed {
            state.changes.push(Op::Set(object.clone()));
        }
        changed
    }

    /// Returns whether the object existed.
    pub(super) fn delete(&self, id: &ObjectId) -> bool {
        let mut state = self.lock();
        let changed = state.objects.remove(id).is_some();
        if changed {
            state.changes.push(Op::Delete(id.clone()));
        }
        changed
    }

    /// Returns whether one of these endpoints has this group.
    pub(super) fn has_members(&self, group: &ObjectId, endpoints: &BTreeSet<ObjectId>) -> bool {
        let state = self.lock();
        endpoints.iter().any(|id| match state.objects.get(id) {
            Some(Object::Local(local)) => local.identity.map(ObjectId::Group).as_ref() == Some(group),
            _ => false,
        })
    }

    /// Removes at most `count` items; returns how many.
    pub(super) fn remove_foreign_items(&self, count: usize) -> usize {
        let mut state = self.lock();
        let cleared = count.min(state.foreign);
        state.foreign -= cleared;
        cleared
    }

    /// Removes everything; returns the number of objects and items.
    pub(super) fn clear(&self) -> usize {
        let mut state = self.lock();
        let cleared = state.objects.len() + state.foreign;
        state.objects = Desired::default();
        state.foreign = 0;
        cleared
    }

    fn lock(&self) -> MutexGuard<'_, SwitchState> {
        // Each change is a single step, so that the state is consistent after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn consume(faults: &mut usize) -> Result<(), Fault> {
    match faults.checked_sub(1) {
        Some(left) => {
            *faults = left;
            Err(Fault::Injected)
        }
        None => Ok(()),
    }
}
