//! Whether the store answers this netmaster.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use contiv_store::{Status, Store};
use tokio::sync::watch;

/// Health of the connection to the store, for readiness.
#[derive(Clone, Default)]
pub struct StoreHealth {
    /// Client that sends requests at short intervals.
    store: Arc<OnceLock<Store>>,
    /// Status of the watch that keeps the cache current.
    watch: Arc<Mutex<Option<watch::Receiver<Status>>>>,
}

/// The election asks the store several times per second, so a store that is silent for longer does
/// not answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

impl StoreHealth {
    /// Sets the client that takes part in the election.
    pub fn connected(&self, store: Store) {
        // The process connects once.
        let _known = self.store.set(store);
    }

    /// Sets the status of the cache's watch.
    pub fn watching(&self, status: watch::Receiver<Status>) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// Returns the reason why the store is not usable.
    pub fn check(&self) -> Result<(), String> {
        let Some(store) = self.store.get() else {
            return Err("store: not connected".to_owned());
        };
        if store.silent_for() > SILENCE_LIMIT {
            return Err(format!("store: no answer for {} s", store.silent_for().as_secs()));
        }
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        match watch.as_ref().map(|watch| watch.borrow().clone()) {
            Some(Status::Retrying { error, .. }) => Err(format!("store: {error}")),
            None | Some(Status::Connecting | Status::Connected) => Ok(()),
        }
    }
}
