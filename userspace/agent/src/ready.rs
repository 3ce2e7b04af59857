//! What the agent still waits for, by name.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Ready when nothing is waited for.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<Mutex<BTreeSet<&'static str>>>);

/// One thing that is waited for. Dropping it is not the same as being done: who died will never be ready.
#[must_use]
#[derive(Debug)]
pub struct Pending(Ready, &'static str);

impl Ready {
    /// Not ready before the answer is [`Pending::done`].
    pub fn wait_for(&self, name: &'static str) -> Pending {
        self.lock().insert(name);
        Pending(self.clone(), name)
    }

    /// What is waited for.
    pub fn pending(&self) -> Vec<&'static str> {
        self.lock().iter().copied().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    /// It is there.
    pub fn done(self) {
        self.0.lock().remove(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dying_is_not_being_done() {
        let ready = Ready::default();
        let (store, maps) = (ready.wait_for("store"), ready.wait_for("maps"));
        maps.done();
        drop(store);
        assert_eq!(ready.pending(), ["store"]);
    }
}
