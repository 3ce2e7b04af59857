//! Reads of the cache: objects, lists and reports.
//!
//! A read takes what it needs out of the cache, which is fast, and then assembles and encodes the
//! response without the cache. Both happen in threads for blocking work, a few at a time, so that
//! neither commits nor other requests wait for reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::cache::{ClusterCache, SharedCache};
use crate::problem::Problem;
use crate::reports::Report;

/// Reads at the same time. More wait, until their client's time limit.
pub const READ_LIMIT: usize = 4;
/// Reads of one client at the same time. However many requests it sends, others get their turn.
const CLIENT_READ_LIMIT: usize = 2;

/// Executes reads of the cache.
#[derive(Clone)]
pub struct Reads {
    cache: SharedCache,
    permits: Arc<Semaphore>,
    /// Permits of the clients with requests in flight, by client.
    clients: Arc<Mutex<HashMap<String, Weak<Semaphore>>>>,
    /// Permits of the client whose reads these are.
    client: Option<Arc<Semaphore>>,
}

impl Reads {
    pub fn new(cache: SharedCache) -> Reads {
        let permits = Semaphore::new(READ_LIMIT).into();
        Reads { cache, permits, clients: Arc::default(), client: None }
    }

    /// Reads for a client, which are limited together.
    pub fn of_client(&self, client: String) -> Reads {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let known = clients.get(&client).and_then(Weak::upgrade);
        let permits = known.unwrap_or_else(|| {
            clients.retain(|_, permits| permits.strong_count() > 0);
            let permits = Arc::new(Semaphore::new(CLIENT_READ_LIMIT));
            clients.insert(client, Arc::downgrade(&permits));
            permits
        });
        Reads { client: Some(permits), ..self.clone() }
    }

    /// Takes a snapshot with `take` and returns the response of the report. If the caller is
    /// dropped, a read that waits is not started, and one that was started ends after its snapshot.
    pub async fn read<T: Send + 'static>(
        &self,
        take: impl FnOnce(&ClusterCache) -> Report<Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let failed = |_| Problem::unavailable("read the cache: failed; see the log");
        let deposed = |_| Problem::deposed();
        let of_client = match &self.client {
            Some(permits) => Some(permits.clone().acquire_owned().await.map_err(deposed)?),
            None => None,
        };
        let permit = self.permits.clone().acquire_owned().await.map_err(deposed)?;
        let (cache, cancelled) = (self.cache.clone(), CancellationToken::new());
        let _cancel = cancelled.clone().drop_guard();
        let read = move || {
            let _permits = (permit, of_client);
            let report = take(&cache.read());
            if cancelled.is_cancelled() {
                return Err(Problem::unavailable("the client disconnected"));
            }
            report()
        };
        spawn_blocking(read).await.map_err(failed)?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use contiv_model::api::Tenant;
    use tokio::time::timeout;

    use super::*;
    use crate::access::Scope;
    use crate::cache::StagedTxn;
    use crate::objects::{IsKnown, Representation, Type};

    /// Waits for something that must not happen.
    const A_MOMENT: Duration = Duration::from_millis(100);
    /// Waits for something that must happen.
    const PATIENCE: Duration = Duration::from_secs(30);

    /// Calls `is_known` of a GET, which comes before the encoding, and holds it there.
    #[tokio::test]
    async fn an_object_is_compared_and_encoded_without_the_cache() {
        for is_known in [false, true] {
            let cache = SharedCache::default();
            {
                let mut cache = cache.write();
                let mut staged = StagedTxn::new(&cache);
                staged.put("t", Tenant { key: "t".to_owned(), ..Tenant::default() });
                let (_, change) = staged.finish().unwrap();
                cache.commit(change, 1_i64);
            }
            let (ready, mut started) = tokio::sync::mpsc::unbounded_channel();
            let (end, wait) = mpsc::channel::<()>();
            let compared: IsKnown = Box::new(move |_| {
                ready.send(()).unwrap();
                // Ends with an error when the sender is dropped.
                let _ended = wait.recv();
                is_known
            });
            let (reads, get) =
                (Reads::new(cache.clone()), Type::by_plural("tenants").unwrap().operations.get);
            let read =
                tokio::spawn(
                    async move { reads.read(move |cache| get(cache, "t", &Scope::All, compared)).await },
                );
            started.recv().await.unwrap();
            // In a thread of its own: a lock that is held would stop the test.
            let write = spawn_blocking(move || drop(cache.write()));
            timeout(PATIENCE, write).await.expect("the cache is locked").unwrap();
            drop(end);
            let Representation { body, .. } = read.await.unwrap().unwrap();
            assert_eq!(body.is_some(), !is_known);
        }
    }

    #[tokio::test]
    async fn reads_of_one_client_leave_permits_for_others() {
        let reads = Reads::new(SharedCache::default());
        let (ready, mut started) = tokio::sync::mpsc::unbounded_channel();
        let (mut ends, mut tasks) = (vec![], vec![]);
        for _ in 0..READ_LIMIT {
            let (end, wait) = mpsc::channel::<()>();
            let (reads, ready) = (reads.of_client("a".to_owned()), ready.clone());
            ends.push(end);
            tasks.push(tokio::spawn(async move {
                let report = move || {
                    ready.send(()).unwrap();
                    // Ends with an error when the sender is dropped.
                    let _ended = wait.recv();
                    Ok(1)
                };
                reads.read(|_| Box::new(report)).await
            }));
        }
        for _ in 0..CLIENT_READ_LIMIT {
            started.recv().await.unwrap();
        }
        assert!(timeout(A_MOMENT, started.recv()).await.is_err(), "one more than the limit of the client");
        let other = reads.of_client("b".to_owned());
        assert_eq!(timeout(PATIENCE, other.read(|_| Box::new(|| Ok(2)))).await, Ok(Ok(2)));
        drop(ends);
        for task in tasks {
            assert_eq!(task.await.unwrap(), Ok(1));
        }
        drop(other);
        let _third = reads.of_client("c".to_owned());
        assert_eq!(reads.clients.lock().unwrap().len(), 1, "clients without requests are forgotten");
    }

    #[tokio::test]
    async fn reads_are_bounded_and_hold_no_lock() {
        let cache = SharedCache::default();
        let reads = Reads::new(cache.clone());
        let (ready, mut started) = tokio::sync::mpsc::unbounded_channel();
        let mut ends = vec![];
        let mut tasks = vec![];
        for _ in 0..READ_LIMIT {
            let (end, wait) = mpsc::channel::<()>();
            let (reads, ready) = (reads.clone(), ready.clone());
            ends.push(end);
            tasks.push(tokio::spawn(async move {
                let report = move || {
                    ready.send(()).unwrap();
                    // Ends with an error when the sender is dropped.
                    let _ended = wait.recv();
                    Ok(vec![1])
                };
                reads.read(|_| Box::new(report)).await
            }));
        }
        for _ in 0..READ_LIMIT {
            started.recv().await.unwrap();
        }
        // All of them assemble their response: the cache can be changed.
        drop(cache.write());
        let mut late = Box::pin(reads.read(|_| Box::new(|| Ok(vec![2]))));
        assert!(timeout(A_MOMENT, &mut late).await.is_err(), "one more than the limit");
        drop(ends.pop());
        assert_eq!(late.await, Ok(vec![2]));
        drop(ends);
        for task in tasks {
            assert_eq!(task.await.unwrap(), Ok(vec![1]));
        }
    }
}
