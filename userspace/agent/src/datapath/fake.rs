//! A datapath in memory, for tests: it holds objects, forwards frames by them, and breaks when told to.
//!
//! ```
//! use netplugin::datapath::{Datapath as _, Desired, fake::Fake};
//!
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let mut first = Fake::new();
//! let switch = first.switch().clone();
//! first.observe(&Desired::default()).await?;
//! drop(first); // the agent dies, the switch lives
//! assert_eq!(Fake::reopen(&switch).writes(), 0);
//! # Ok::<_, netplugin::datapath::Error>(())
//! # }).unwrap();
//! ```

mod forward;
mod frame;
mod inspect;
mod packet;
mod switch;
mod traffic;

use std::{collections::BTreeSet, future::Future};

pub use forward::{Delivery, Origin, Target, deliver};
pub use switch::{Switch, Trouble};

use super::{Datapath, Desired, Error, FailedOp, Kind, Object, ObjectId, Observed, Op, PortRequirements};

/// An agent's connection to a [`Switch`].
#[derive(Debug, Default)]
pub struct Fake {
    switch: Switch,
    writes: u64,
    known: Option<Known>,
}

/// What the last `observe` found.
#[derive(Debug, Default)]
struct Known {
    /// Objects there that were not desired.
    strays: BTreeSet<ObjectId>,
    /// Things there that are no objects.
    debris: usize,
}

impl Fake {
    /// With a new and empty switch.
    pub fn new() -> Fake {
        Fake::default()
    }

    /// With a switch that is there already, as after a restart of the agent.
    pub fn reopen(switch: &Switch) -> Fake {
        Fake { switch: switch.clone(), ..Fake::default() }
    }

    /// What this value is connected to. Clones of it show and change the same switch.
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    fn measure(&mut self, desired: &Desired) -> Result<Observed, Error> {
        self.known = None;
        self.switch.trouble_in_observe().map_err(|trouble| failed("observe", trouble))?;
        let held = self.switch.objects();
        let mut observed = Observed::default();
        let mut known = Known { debris: self.switch.debris(), ..Known::default() };
        for (id, object) in held.iter() {
            match desired.get(id) {
                Some(wanted) if wanted == object => {
                    observed.in_sync.insert(id.clone());
                }
                // It will be replaced, so it is no stray.
                Some(_) => {}
                None => {
                    known.strays.insert(id.clone());
                }
            }
        }
        observed.orphans = known.strays.len() + known.debris;
        self.known = Some(known);
        Ok(observed)
    }

    fn carry_out(&mut self, ops: &[Op]) -> Result<Vec<FailedOp>, Error> {
        if let Err(trouble) = self.switch.trouble_in_apply() {
            self.known = None;
            return Err(failed("apply", trouble));
        }
        let Some(mut known) = self.known.take() else {
            return Err(failed("apply", Trouble::NotObserved));
        };
        let mut failures = vec![];
        for (at, op) in ops.iter().enumerate() {
            match self.carry_out_one(op, &mut known) {
                Ok(writes) => self.writes += writes,
                Err(error) => failures.push(FailedOp { index: at, error }),
            }
        }
        self.known = Some(known);
        Ok(failures)
    }

    /// The number of writes.
    fn carry_out_one(&self, op: &Op, known: &mut Known) -> Result<u64, Error> {
        let what = match op {
            Op::Set(object) => format!("set {}", object.id()),
            Op::Delete(id) => format!("delete {id}"),
            Op::GarbageCollect => "sweep".to_owned(),
        };
        if let Op::Set(object) = op
            && !self.switch.supports(object)
        {
            return Err(Error::unsupported(Kind::Fake, object));
        }
        self.switch.trouble_with(op).map_err(|trouble| failed(what, trouble))?;
        Ok(match op {
            Op::Set(object) => {
                known.strays.remove(&object.id());
                u64::from(self.switch.set(object))
            }
            Op::Delete(id) => {
                known.strays.remove(id);
                u64::from(self.switch.delete(id))
            }
            Op::GarbageCollect => {
                let strays = std::mem::take(known);
                let objects = strays.strays.iter().filter(|id| self.switch.delete(id)).count();
                (objects + self.switch.clear_debris(strays.debris)) as u64
            }
        })
    }
}

fn failed(operation: impl Into<String>, trouble: Trouble) -> Error {
    Error::new(Kind::Fake, operation, trouble)
}

impl Datapath for Fake {
    fn observe(&mut self, desired: &Desired) -> impl Future<Output = Result<Observed, Error>> + Send {
        std::future::ready(self.measure(desired))
    }

    fn apply(&mut self, ops: &[Op]) -> impl Future<Output = Result<Vec<FailedOp>, Error>> + Send {
        std::future::ready(self.carry_out(ops))
    }

    fn resync_needed(&mut self) -> impl Future<Output = ()> + Send {
        self.switch.wait_for_disturbance()
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

    fn cleanup(&mut self) -> impl Future<Output = Result<(), Error>> + Send {
        self.known = None;
        self.writes += self.switch.clear() as u64;
        std::future::ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
