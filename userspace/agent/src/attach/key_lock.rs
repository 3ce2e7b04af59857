use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Mutual exclusion per key: requests for one endpoint are serialised, requests for different endpoints run in parallel.
#[derive(Debug, Default)]
pub(super) struct KeyLock(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

impl KeyLock {
    pub(super) async fn lock(&self, key: &str) -> OwnedMutexGuard<()> {
        self.of(key).lock_owned().await
    }

    /// `None` if the lock is held.
    pub(super) fn try_lock(&self, key: &str) -> Option<OwnedMutexGuard<()>> {
        self.of(key).try_lock_owned().ok()
    }

    fn of(&self, key: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match locks.get(key).and_then(Weak::upgrade) {
            Some(lock) => lock,
            None => {
                locks.retain(|_, lock| lock.strong_count() > 0);
                let lock = Arc::default();
                locks.insert(key.to_owned(), Arc::downgrade(&lock));
                lock
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn locks_of_one_key_exclude_each_other() {
        let locks = KeyLock::default();
        let first = locks.lock("a").await;
        let other = locks.lock("b").await;
        assert!(locks.try_lock("a").is_none() && locks.try_lock("c").is_some());
        let mut second = std::pin::pin!(locks.lock("a"));
        assert!(futures::poll!(&mut second).is_pending());
        drop((first, other));
        assert!(futures::poll!(&mut second).is_ready());
    }
}
