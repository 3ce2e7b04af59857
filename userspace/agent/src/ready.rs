//! Start-up conditions of the agent, by name.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Set of pending conditions; the agent is ready when it is empty.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<Mutex<BTreeSet<&'static str>>>);

/// A pending condition. Dropping it does not complete it: a task that ended early leaves the agent not ready.
#[must_use]
#[derive(Debug)]
pub struct Pending(Ready, &'static str);

impl Ready {
    /// Adds a condition, pending until [`Pending::done`].
    pub fn wait_for(&self, name: &'static str) -> Pending {
        self.lock().insert(name);
        Pending(self.clone(), name)
    }

    /// Names of the pending conditions.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// Completes the condition.
    pub fn done(self) {
        self.0.lock().remove(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_condition_stays_pending() {
        let ready = Ready::default();
        let (store, maps) = (ready.wait_for("store"), ready.wait_for("maps"));
        maps.done();
        drop(store);
        assert_eq!(ready.pending(), ["store"]);
    }
}
