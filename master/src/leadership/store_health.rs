//! Whether the store answers this netmaster.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use contiv_store::{Status, Store};
use tokio::sync::watch;

/// Health of the connection to the store, for readiness.
#[derive(Clone, Default)]
pub struct StoreHealth(Arc<OnceLock<Connection>>);

struct Connection {
    /// Client that sends requests at short intervals.
    store: Store,
    /// Status of the watch that keeps the cache current.
    watch: watch::Receiver<Status>,
}

/// The election asks the store several times per second, so a store that is silent for longer does
/// not answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

impl StoreHealth {
    /// Sets the client that takes part in the election, and the status of the cache's watch.
    pub fn connected(&self, store: Store, watch: watch::Receiver<Status>) {
        // The process connects once.
        let _known = self.0.set(Connection { store, watch });
    }

    /// Returns the reason why the store is not usable.
    pub fn check(&self) -> Result<(), String> {
        let Some(Connection { store, watch }) = self.0.get() else {
            return Err("store: not connected".to_owned());
        };
        if store.silent_for() > SILENCE_LIMIT {
            return Err(format!("store: no answer for {} s", store.silent_for().as_secs()));
        }
        match &*watch.borrow() {
            Status::Connecting | Status::Connected => Ok(()),
            Status::Retrying { error, .. } => Err(format!("store: {error}")),
        }
    }
}
