//! In-memory datapath for tests: stores objects, forwards frames accordingly, and injects faults.
//!
//! ```
//! use netplugin::datapath::{Datapath as _, Desired, fake::Fake};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mut first = Fake::new();
//! let switch = first.switch().clone();
//! first.observe(&Desired::default()).await?;
//! drop(first); // the agent stops, the switch remains
//! assert_eq!(Fake::reopen(&switch).writes(), 0);
//! # Ok::<_, netplugin::datapath::Error>(())
//! # }).unwrap();
//! ```

mod connection;
mod external;
mod forward;
mod guard;
mod host;
mod inspect;
mod network;
mod route;
mod switch;
mod trace;
mod traffic;

use std::{collections::BTreeSet, future::Future};

use futures::future::BoxFuture;

pub use forward::{Delivery, Origin, Target, deliver};
pub use switch::{Fault, Switch};

use super::{
    Datapath, Desired, Error, FailedOp, Kind, Object, ObjectId, Observed, Op, PortRequirements, Postponed,
    host_end,
    trace::{Findings, Probe},
};

/// Connection of an agent to a [`Switch`].
#[derive(Debug, Default)]
pub struct Fake {
    switch: Switch,
    writes: u64,
    /// `None` before the first `observe` and after an error.
    observation: Option<Observation>,
    retains_orphans: bool,
}

/// Orphans that the last `observe` found.
#[derive(Debug, Default)]
struct Observation {
    /// Objects that are not desired.
    orphans: BTreeSet<ObjectId>,
    /// Endpoints whose desired group differs from their group.
    leaving: BTreeSet<ObjectId>,
    /// Number of items that are not objects.
    foreign: usize,
}

impl Fake {
    /// Returns a datapath with a new, empty switch.
    pub fn new() -> Fake {
        Fake::default()
    }

    /// Returns a datapath with an existing switch, as after a restart of the agent.
    pub fn reopen(switch: &Switch) -> Fake {
        Fake { switch: switch.clone(), ..Fake::default() }
    }

    /// Returns the switch. Its clones share its state.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    fn compare(&mut self, desired: &Desired) -> Result<Observed, Error> {
        self.observation = None;
        self.switch.fault_in_observe().map_err(|fault| failed("observe", fault))?;
        if self.switch.is_of_other_version() {
            if self.retains_orphans {
                return Err(failed("upgrade", Postponed));
            }
            self.switch.upgrade();
        }
        let objects = self.switch.objects();
        let mut observed = Observed::default();
        let mut observation = Observation { foreign: self.switch.foreign_items(), ..Observation::default() };
        for (id, object) in objects.iter() {
            match desired.get(id) {
                Some(wanted) if wanted == object => {
                    observed.in_sync.insert(id.clone());
                }
                // Out of sync: the agent replaces it.
                Some(Object::Local(wanted)) => {
                    if matches!(object, Object::Local(local) if local.identity != wanted.identity) {
                        observation.leaving.insert(id.clone());
                    }
                }
                Some(_) => {}
                None => {
                    observation.orphans.insert(id.clone());
                }
            }
        }
        let orphans = observation.orphans.len() + observation.foreign;
        if self.retains_orphans {
            (observed.retained, observation) = (orphans, Observation::default());
        } else {
            observed.orphans = orphans;
        }
        self.observation = Some(observation);
        Ok(observed)
    }

    fn execute(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        if let Err(fault) = self.switch.fault_in_apply() {
            self.observation = None;
            return Err(failed("apply", fault));
        }
        let Some(mut observation) = self.observation.take() else {
            return Err(failed("apply", Fault::NotObserved));
        };
        let mut failures = vec![];
        for (at, op) in ops.iter().enumerate() {
            match self.execute_op(op, &mut observation) {
                Ok(writes) => self.writes += writes,
                Err(error) => failures.push(FailedOp { index: at, error }),
            }
        }
        self.observation = Some(observation);
        Ok(failures)
    }

    /// Executes one op; returns the number of writes.
    fn execute_op(&self, op: &Op, observation: &mut Observation) -> Result<u64, Error> {
        let operation = match op {
            Op::Set(object) => format!("set {}", object.id()),
            Op::Delete(id) => format!("delete {id}"),
            Op::GarbageCollect => "remove orphans".to_owned(),
        };
        if let Op::Set(object) = op
            && let Err(unsupported) = self.switch.support(object)
        {
            return Err(Error::unsupported(Kind::Fake, object, unsupported));
        }
        self.switch.fault_in_op(op).map_err(|fault| failed(operation, fault))?;
        Ok(match op {
            Op::Set(object) => {
                observation.orphans.remove(&object.id());
                u64::from(self.switch.set(object))
            }
            Op::Delete(id) => {
                observation.orphans.remove(id);
                u64::from(self.switch.delete(id))
            }
            Op::GarbageCollect => {
                let garbage = std::mem::take(observation);
                let (groups, others): (Vec<_>, Vec<_>) =
                    garbage.orphans.iter().partition(|id| matches!(id, ObjectId::Group(_)));
                let deleted = others.into_iter().filter(|id| self.switch.delete(id)).count();
                let unused = groups.into_iter().filter(|id| !self.switch.has_members(id, &garbage.leaving));
                let objects = deleted + unused.filter(|id| self.switch.delete(id)).count();
                (objects + self.switch.remove_foreign_items(garbage.foreign)) as u64
            }
        })
    }
}

fn failed(operation: impl Into<String>, fault: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Fake, operation, fault)
}

impl Datapath for Fake {
    fn retain_orphans(&mut self, retain: bool) {
        self.retains_orphans = retain;
    }

    fn observe(&mut self, desired: &Desired) -> impl Future<Output = Result<Observed, Error>> + Send {
        std::future::ready(self.compare(desired))
    }

    async fn apply(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        let mut failures = self.execute(ops)?;
        for (index, op) in ops.iter().enumerate() {
            let Op::Set(Object::Local(local)) = op else { continue };
            if failures.iter().any(|failed| failed.index == index) {
                continue;
            }
            // Like other datapaths. In most tests the interface does not exist.
            if let Err(error) = host_end::set_up(&local.port).await {
                failures.push(FailedOp { index, error: failed(format!("set {} up", local.port), error) });
            }
        }
        Ok(failures)
    }

    fn resync_needed(&mut self) -> impl Future<Output = ()> + Send {
        self.switch.wait_for_resync_request()
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn port_requirements(&self) -> PortRequirements {
        PortRequirements::default()
    }

    fn inspect(&self) -> serde_json::Value {
        inspect::switch(&self.switch)
    }

    fn trace(&self, probe: Probe) -> BoxFuture<'static, Result<Findings, Error>> {
        Box::pin(std::future::ready(Ok(self.switch.trace(&probe))))
    }

    fn cleanup(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        self.observation = None;
        self.writes += self.switch.clear() as u64;
        std::future::ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
