//! A thread of its own for the election.

use super::{Leadership, Timing, campaign_with};
use crate::{Config, Error, Store};
use std::io;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

/// A thread that campaigns and keeps leaderships alive, with a runtime and connections of its own.
///
/// Keep-alives do not wait for the other tasks of the process, however long these occupy the threads
/// of their runtime. Dropping it ends all keep-alives: drop it after the [`Leadership`]s.
pub struct ElectionThread {
    runtime: Handle,
    store: Store,
    _stop: DropGuard,
}

/// Why an election thread was not started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operating system refused the thread or its resources.
    #[error("start the election's thread")]
    Thread(#[from] io::Error),
    /// The store cannot be connected.
    #[error(transparent)]
    Store(#[from] Error),
}

impl ElectionThread {
    /// Starts the thread and connects to the store.
    ///
    /// # Errors
    ///
    /// Fails if the thread cannot be started, or as [`Store::connect`].
    pub async fn start(config: &Config) -> Result<ElectionThread, StartError> {
        let (stop, config) = (CancellationToken::new(), config.clone());
        let (started, connected) = oneshot::channel();
        let stopped = stop.clone();
        std::thread::Builder::new().name("election".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(StartError::Thread(error)))),
            };
            runtime.block_on(async {
                let store = Store::connect(&config).await.map_err(StartError::Store);
                // If the caller is gone, `stop` is cancelled.
                let _gone = started.send(store.map(|store| (store, Handle::current())));
                stopped.cancelled().await;
            });
        })?;
        let stop = stop.drop_guard();
        let ended = |_| StartError::Thread(io::Error::other("the thread ended"));
        let (store, runtime) = connected.await.map_err(ended)??;
        Ok(ElectionThread { runtime, store, _stop: stop })
    }

    /// The thread's client of the store. It sends requests several times per [`Timing::staleness`].
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Like [`super::campaign`]; the keep-alives run in this thread. Commits and reads of the
    /// leadership use `store`.
    ///
    /// # Errors
    ///
    /// As [`super::campaign`].
    ///
    /// # Panics
    ///
    /// Panics if the campaign panics.
    pub async fn campaign(
        &self,
        store: &Store,
        key: &str,
        value: &str,
        timing: Timing,
    ) -> Result<Leadership, Error> {
        let (own, store) = (self.store.clone(), store.clone());
        let (key, value) = (key.to_owned(), value.to_owned());
        let task = async move { campaign_with((&own, &store), &key, &value, timing, None).await };
        match AbortOnDropHandle::new(self.runtime.spawn(task)).await {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
