//! Keeps the fabric in the state that the store describes.

use std::sync::Arc;
use std::time::Duration;

use contiv_model::api::AppProfile;
use contiv_store::election::ReadIndex;
use tokio::sync::Mutex;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::Gateway;
use crate::cache::{Pending, SharedCache, StagedTxn};
use crate::commit::{Plan, Queue};
use crate::domain::fabric::{Spec, is_enabled, is_enabled_in};
use crate::problem::{Answer, Problem, one_line};

/// A plan that is run once without a commit, and once more to commit it.
pub type RepeatablePlan = Arc<dyn Fn(&mut StagedTxn<'_>) -> Answer + Send + Sync>;

pub struct FabricSync {
    gateway: Gateway,
    /// Confirms that this netmaster leads.
    leadership: ReadIndex,
    /// Cancelled when its leadership ends.
    ended: CancellationToken,
    /// Serialises exchanges with the gateway.
    exchange_lock: Mutex<()>,
}

/// Interval for checking pending profiles.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Longest interval between retries.
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(60);

impl FabricSync {
    pub fn new(gateway: Gateway, leadership: ReadIndex, ended: CancellationToken) -> FabricSync {
        FabricSync { gateway, leadership, ended, exchange_lock: Mutex::new(()) }
    }

    /// Performs a request to the gateway as the leader. The gateway cannot tell the requests of a
    /// deposed leader from those of its successor.
    async fn fenced(&self, request: impl Future<Output = Result<(), Problem>>) -> Result<(), Problem> {
        match self.leadership.confirm().await {
            Ok(true) => {}
            Ok(false) => return Err(Problem::deposed()),
            Err(error) => return Err(Problem::unavailable(format!("store: {}", one_line(&error)))),
        }
        tokio::select! {
            biased;
            () = self.ended.cancelled() => Err(Problem::deposed()),
            done = request => done,
        }
    }

    /// Commits `plan`, which creates, changes or deletes the application profile `key`, after the
    /// gateway accepted it.
    pub async fn change(
        &self,
        cache: &SharedCache,
        queue: &Queue,
        key: &str,
        plan: RepeatablePlan,
    ) -> Answer {
        if !is_enabled_in(&cache.read()) {
            return queue.submit(unsent(key, plan), true).await;
        }
        let _exchange = self.exchange_lock.lock().await;
        let (known, desired) = {
            let cache = cache.read();
            let mut staged = StagedTxn::new(&cache);
            plan(&mut staged)?;
            // A profile that is pending may be in the fabric, too.
            let known = cache.get::<AppProfile>(key).is_some() || cache.get::<Pending>(key).is_some();
            (known, desired(key, &staged)?)
        };
        let id = key.to_owned();
        let mark = move |staged: &mut StagedTxn<'_>| {
            staged.put(&id, Pending { id: id.clone() });
            Ok(vec![])
        };
        queue.submit(Box::new(mark), true).await?;
        match &desired {
            Some(spec) => {
                if known {
                    self.fenced(self.gateway.delete_if_present(&Spec::named(key))).await?;
                }
                self.fenced(self.gateway.create(spec)).await?;
            }
            None => self.fenced(self.gateway.delete(&Spec::named(key))).await?,
        }
        let key = key.to_owned();
        let change = move |staged: &mut StagedTxn<'_>| {
            let answer = plan(staged)?;
            // If other changes were committed meanwhile, the profile stays pending.
            if self::desired(&key, staged).ok().as_ref() == Some(&desired) {
                clear_pending(&key, staged);
            }
            Ok(answer)
        };
        queue.submit(Box::new(change), true).await
    }

    /// Sends pending profiles to the gateway. Never returns.
    pub async fn run(&self, cache: &SharedCache, queue: &Queue) {
        let mut interval = POLL_INTERVAL;
        loop {
            sleep(interval).await;
            let pending: Vec<String> = cache.read().table::<Pending>().keys().cloned().collect();
            let mut failed = false;
            for key in pending {
                if let Err(problem) = self.push(cache, queue, &key).await {
                    tracing::warn!(profile = key, %problem, "synchronise a profile with the ACI gateway: failed; retrying");
                    failed = true;
                }
            }
            interval = if failed { (interval * 2).min(MAX_RETRY_INTERVAL) } else { POLL_INTERVAL };
        }
    }

    async fn push(&self, cache: &SharedCache, queue: &Queue, key: &str) -> Result<(), Problem> {
        let _exchange = self.exchange_lock.lock().await;
        let desired = {
            let cache = cache.read();
            if cache.get::<Pending>(key).is_none() {
                return Ok(());
            }
            let staged = StagedTxn::new(&cache);
            is_enabled(&staged).then(|| desired(key, &staged)).transpose()?
        };
        // Outside ACI mode there is nothing to send.
        if let Some(desired) = &desired {
            self.fenced(self.gateway.delete_if_present(&Spec::named(key))).await?;
            if let Some(spec) = desired {
                self.fenced(self.gateway.create(spec)).await?;
            }
        }
        let (id, sent) = (key.to_owned(), desired);
        let done = move |staged: &mut StagedTxn<'_>| {
            // If the profile changed meanwhile, it stays pending.
            let now = is_enabled(staged).then(|| self::desired(&id, staged)).transpose();
            if now.ok().as_ref() == Some(&sent) {
                clear_pending(&id, staged);
            }
            Ok(vec![])
        };
        queue.submit(Box::new(done), true).await.map(drop)
    }
}

/// Plan of a change of the application profile `key` that is not sent to the gateway first. If ACI mode
/// was switched on meanwhile, the profile is marked pending: the change of the mode marked only the
/// profiles that existed.
pub fn unsent(key: &str, plan: RepeatablePlan) -> Plan {
    let key = key.to_owned();
    Box::new(move |staged: &mut StagedTxn<'_>| {
        let answer = plan(staged)?;
        if is_enabled(staged) {
            staged.put(&key, Pending { id: key.clone() });
        }
        Ok(answer)
    })
}

/// Desired state of the profile in the fabric; none if the profile does not exist.
fn desired(key: &str, staged: &StagedTxn<'_>) -> Result<Option<Spec>, Problem> {
    staged.get::<AppProfile>(key).map(|profile| Spec::of(&profile, staged)).transpose()
}

fn clear_pending(key: &str, staged: &mut StagedTxn<'_>) {
    if staged.get::<Pending>(key).is_some() {
        staged.delete::<Pending>(key);
    }
}
