//! Linearizable reads.
//!
//! A leader that hung or lost its connection to the store may have been replaced without knowing
//! it. Before it answers a read from the cache, it confirms with the store that it still holds the
//! leader lock. Then no other netmaster has written, and the cache holds every acknowledged write.
//! One confirmation serves all requests that wait when it is sent.

use std::time::Duration;

use contiv_store::election::ReadIndex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::commit::store_problem;
use crate::problem::{Problem, one_line};

type Waiter = oneshot::Sender<Result<(), Problem>>;

/// Requests a confirmation.
#[derive(Clone)]
pub struct LinearizableRead(mpsc::Sender<Waiter>);

const QUEUE: usize = 1024;
/// Time limit for the store's response.
const TIMEOUT: Duration = Duration::from_secs(2);

impl LinearizableRead {
    /// Creates the handle and the task that confirms leadership. The caller must run the task.
    pub fn new(read_index: ReadIndex) -> (LinearizableRead, impl Future<Output = ()> + Send) {
        let (sender, mut requests) = mpsc::channel::<Waiter>(QUEUE);
        let confirming = async move {
            let mut waiters = Vec::new();
            while requests.recv_many(&mut waiters, QUEUE).await > 0 {
                let answer = confirm_leadership(&read_index).await;
                for waiter in waiters.drain(..) {
                    // The client may have disconnected.
                    let _disconnected = waiter.send(answer.clone());
                }
            }
        };
        (LinearizableRead(sender), confirming)
    }

    /// Confirms that this netmaster led at or after the time of the call.
    pub async fn confirm(&self) -> Result<(), Problem> {
        let (waiter, answer) = oneshot::channel();
        self.0.send(waiter).await.map_err(|_| Problem::deposed())?;
        answer.await.map_err(|_| Problem::deposed())?
    }
}

async fn confirm_leadership(read_index: &ReadIndex) -> Result<(), Problem> {
    match timeout(TIMEOUT, read_index.confirm()).await {
        Ok(Ok(true)) => Ok(()),
        Ok(Ok(false)) => Err(Problem::deposed()),
        Ok(Err(error)) => {
            tracing::warn!(error = one_line(&error), "confirm leadership");
            Err(store_problem(&error))
        }
        Err(_) => Err(Problem::unavailable(format!("store: no response within {TIMEOUT:?}; retry"))),
    }
}
