//! What outlives the agent, and what a test does to it behind the agent's back.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::{Delivery, Desired, Object, ObjectId, Op, Origin, traffic::Traffic};

/// A node's forwarding state. Clones are the same switch.
#[derive(Clone, Default)]
pub struct Switch {
    inside: Arc<Mutex<Inside>>,
    disturbance: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Inside {
    objects: Desired,
    traffic: Traffic,
    debris: usize,
    faults: Faults,
    changes: Vec<Op>,
}

/// What will go wrong.
#[derive(Debug, Default)]
struct Faults {
    observes: usize,
    applies: usize,
    ops: usize,
    objects: BTreeSet<ObjectId>,
    missing_interfaces: BTreeSet<String>,
    only_forwarding: bool,
}

/// Why the switch refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// A test wanted it so.
    #[error("it was told to fail")]
    Ordered,
    /// As when a pod's veth pair is gone.
    #[error("there is no interface {0}")]
    NoInterface(String),
    /// The caller's fault.
    #[error("nothing was observed since the start or the last error")]
    NotObserved,
}

impl fmt::Debug for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}

impl Switch {
    /// All that it holds.
    pub fn objects(&self) -> Desired {
        self.lock().objects.clone()
    }

    /// How many things are in it that are no objects.
    pub fn debris(&self) -> usize {
        self.lock().debris
    }

    /// What happens to a frame.
    pub fn deliver(&self, frame: &[u8], from: &Origin) -> Vec<Delivery> {
        let inside = &mut *self.lock();
        inside.traffic.carry(&inside.objects, frame, from)
    }

    /// The changes that agents made, in their order and without those that changed nothing.
    pub fn changes(&self) -> Vec<Op> {
        self.lock().changes.clone()
    }

    /// The next `count` observes fail.
    pub fn fail_observe(&self, count: usize) {
        self.lock().faults.observes = count;
    }

    /// The next `count` applies fail as a whole.
    pub fn fail_apply(&self, count: usize) {
        self.lock().faults.applies = count;
    }

    /// The next `count` ops fail.
    pub fn fail_ops(&self, count: usize) {
        self.lock().faults.ops = count;
    }

    /// Ops on this object fail until [`Switch::heal`].
    pub fn fail_object(&self, id: ObjectId) {
        self.lock().faults.objects.insert(id);
    }

    /// The interface of this name is missing until [`Switch::heal`].
    pub fn lose_interface(&self, name: &str) {
        self.lock().faults.missing_interfaces.insert(name.to_owned());
    }

    /// It knows no groups and no services, as a datapath that is not finished, until [`Switch::heal`].
    pub fn support_only_forwarding(&self) {
        self.lock().faults.only_forwarding = true;
    }

    /// Nothing fails any more.
    pub fn heal(&self) {
        self.lock().faults = Faults::default();
    }

    /// Drift: removes an object; false when it was not there.
    pub fn lose(&self, id: &ObjectId) -> bool {
        self.lock().objects.remove(id).is_some()
    }

    /// Drift: an object is there, or is another one than the agent made.
    pub fn tamper(&self, object: Object) {
        self.lock().objects.insert(object);
    }

    /// Drift: things that are no objects, as a flow of nobody's.
    pub fn litter(&self, count: usize) {
        self.lock().debris += count;
    }

    /// Resolves the agent's `disturbed`; if nobody waits, that of the next to wait.
    pub fn disturb(&self) {
        self.disturbance.notify_one();
    }

    pub(super) async fn wait_for_disturbance(&self) {
        self.disturbance.notified().await;
    }

    pub(super) fn trouble_in_observe(&self) -> Result<(), Trouble> {
        spend(&mut self.lock().faults.observes)
    }

    pub(super) fn trouble_in_apply(&self) -> Result<(), Trouble> {
        spend(&mut self.lock().faults.applies)
    }

    pub(super) fn trouble_with(&self, op: &Op) -> Result<(), Trouble> {
        let faults = &mut self.lock().faults;
        spend(&mut faults.ops)?;
        let id = match op {
            Op::Set(object) => object.id(),
            Op::Delete(id) => id.clone(),
            Op::GarbageCollect => return Ok(()),
        };
        if faults.objects.contains(&id) {
            return Err(Trouble::Ordered);
        }
        match op {
            Op::Set(Object::Local(local)) if faults.missing_interfaces.contains(&local.port) => {
                Err(Trouble::NoInterface(local.port.clone()))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn supports(&self, object: &Object) -> bool {
        !(self.lock().faults.only_forwarding && matches!(object, Object::Group(_) | Object::Service(_)))
    }

    /// Whether that changed anything.
    pub(super) fn set(&self, object: &Object) -> bool {
        let mut inside = self.lock();
        let changed = inside.objects.insert(object.clone()).as_ref() != Some(object);
        if changed {
            inside.changes.push(Op::Set(object.clone()));
        }
        changed
    }

    /// Whether there was anything.
    pub(super) fn delete(&self, id: &ObjectId) -> bool {
        let mut inside = self.lock();
        let changed = inside.objects.remove(id).is_some();
        if changed {
            inside.changes.push(Op::Delete(id.clone()));
        }
        changed
    }

    /// How much of it there was.
    pub(super) fn clear_debris(&self, count: usize) -> usize {
        let mut inside = self.lock();
        let cleared = count.min(inside.debris);
        inside.debris -= cleared;
        cleared
    }

    /// How much there was.
    pub(super) fn clear(&self) -> usize {
        let mut inside = self.lock();
        let cleared = inside.objects.len() + inside.debris;
        inside.objects = Desired::default();
        inside.debris = 0;
        cleared
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        // Every change is one step, so a panic elsewhere leaves nothing half done.
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn spend(faults: &mut usize) -> Result<(), Trouble> {
    match faults.checked_sub(1) {
        Some(left) => {
            *faults = left;
            Err(Trouble::Ordered)
        }
        None => Ok(()),
    }
}
