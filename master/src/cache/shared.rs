//! The cache as its readers and its writer share it.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use tokio::sync::{Mutex, MutexGuard};

use super::World;

/// The world as everybody reads it.
#[derive(Clone, Default)]
pub struct Shared {
    world: Arc<RwLock<World>>,
    gate: Arc<Mutex<()>>,
}

impl Shared {
    pub fn read(&self) -> RwLockReadGuard<'_, World> {
        self.world.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Held from the planning of a transaction until it is part of the world, and while the watch is taken in:
    /// the watch may be faster than the answer to a commit, and would be taken for somebody else's change.
    pub async fn gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, World> {
        self.world.write().unwrap_or_else(PoisonError::into_inner)
    }
}
