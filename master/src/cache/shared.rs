//! Shared handle of the cluster cache.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::{Mutex, MutexGuard};

use super::ClusterCache;

/// Cluster cache with one writer at a time and many readers.
#[derive(Clone, Default)]
pub struct SharedCache {
    cache: Arc<RwLock<ClusterCache>>,
    gate: Arc<Mutex<()>>,
}

impl SharedCache {
    pub fn read(&self) -> RwLockReadGuard<'_, ClusterCache> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held from planning a transaction until it is applied to the cache, and while updates of the
    /// watch are applied. Without it the watch could deliver a commit before its response, and it
    /// would look like a foreign change.
    pub async fn lock_commits(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, ClusterCache> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}
