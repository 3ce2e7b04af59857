use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Requests about one endpoint take turns; requests about different ones do not wait for each other.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<String, Weak<AsyncMutex<()>>>>);

impl Turns {
    pub(super) async fn take(&self, endpoint: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match locks.get(endpoint).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    locks.retain(|_, lock| lock.strong_count() > 0);
                    let lock = Arc::default();
                    locks.insert(endpoint.to_owned(), Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_endpoint_is_one_queue() {
        let turns = Turns::default();
        let first = turns.take("a").await;
        let other = turns.take("b").await;
        let mut second = std::pin::pin!(turns.take("a"));
        assert!(futures::poll!(&mut second).is_pending());
        drop((first, other));
        assert!(futures::poll!(&mut second).is_ready());
    }
}
