//! Whether the store answers this netmaster.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use contiv_store::{Alarm, Status, Store};
use tokio::sync::watch;

/// Health of the connection to the store, for readiness.
#[derive(Clone, Default)]
pub struct StoreHealth {
    /// Client that sends requests at short intervals.
    store: Arc<OnceLock<Store>>,
    /// Status of the watch that keeps the cache current.
    watch: Arc<Mutex<Option<watch::Receiver<Status>>>>,
    alarms: Arc<Mutex<Vec<Alarm>>>,
    /// Why the embedded store of this process takes no writes.
    failure: Arc<OnceLock<watch::Receiver<Option<Arc<str>>>>>,
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

    /// Sets the failure of the embedded store of this process.
    pub fn embedded(&self, failure: watch::Receiver<Option<Arc<str>>>) {
        // The process opens one.
        let _known = self.failure.set(failure);
    }

    /// Why the embedded store takes no writes until this process is restarted.
    pub fn failure(&self) -> Option<Arc<str>> {
        self.failure.get().and_then(|failure| failure.borrow().clone())
    }

    /// Resolves when the embedded store of this process takes no writes any more.
    pub async fn failed(&self) -> Arc<str> {
        let Some(failure) = self.failure.get() else { return std::future::pending().await };
        let mut failure = failure.clone();
        let failed = failure.wait_for(Option::is_some).await;
        match failed.as_ref().map(|failed| failed.as_ref().map(Arc::clone)) {
            Ok(Some(why)) => why,
            // The store is closed: the process stops.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// Sets the status of the cache's watch.
    pub fn watching(&self, status: watch::Receiver<Status>) {
        *self.watch.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
    }

    /// Sets the alarms of the store's database. Logs those that begin and end.
    pub fn set_alarms(&self, alarms: Vec<Alarm>) {
        let mut known = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        for alarm in alarms.iter().filter(|alarm| !known.contains(alarm)) {
            tracing::error!(%alarm, "etcd: {}", meaning(*alarm));
        }
        for alarm in known.iter().filter(|alarm| !alarms.contains(alarm)) {
            tracing::info!(%alarm, "etcd: the alarm has ended");
        }
        *known = alarms;
    }

    /// What the store's alarms mean, one line each. Reads may still be answered, by every netmaster
    /// alike, so alarms do not end readiness.
    pub fn alarms(&self) -> Vec<String> {
        let alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.iter().map(|alarm| format!("etcd alarm {alarm}: {}", meaning(*alarm))).collect()
    }

    /// Returns the reason why the store is not usable.
    pub fn check(&self) -> Result<(), String> {
        if let Some(failure) = self.failure() {
            return Err(failure.to_string());
        }
        let Some(store) = self.store.get() else {
            return Err("store: not connected".to_owned());
        };
        if store.silent_for() > SILENCE_LIMIT {
            return Err(format!("store: no answer for {} s", store.silent_for().as_secs()));
        }
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        match watch.as_ref().map(|watch| watch.borrow().clone()) {
            // Probes need no credentials. The log has the error, with the key and the addresses of etcd.
            Some(Status::Retrying { failures, .. }) => {
                Err(format!("store: the watch failed {failures} times; see the log of netmaster"))
            }
            None | Some(Status::Connecting | Status::Connected) => Ok(()),
        }
    }
}

fn meaning(alarm: Alarm) -> &'static str {
    match alarm {
        Alarm::NoSpace => {
            "the database has reached its quota, changes are refused; compact and defragment it, then run `etcdctl alarm disarm`"
        }
        Alarm::Corrupt => "the members' data differs, requests are refused; replace the corrupt member",
    }
}
