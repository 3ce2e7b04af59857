//! The term of a leader, from election until leadership ends.

use std::sync::Arc;
use std::time::Duration;

use contiv_model::global::ClusterIdentity;
use contiv_store::election::Leadership;
use contiv_store::{Progress, Store};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::cache_watch::Lock;
use super::registration::Registrations;
use super::tasks::{TaskEnded, Tasks};
use super::{node_gc, node_vteps, restoration};
use crate::aci::{FabricSync, Gateway};
use crate::backup;
use crate::cache::{ONLY, SharedCache, StagedTxn};
use crate::commit::{Committer, Deposed};
use crate::leadership::{
    History, Identity, Leader, LinearizableRead, Reads, Role, StoreHealth, WatchBacklogs,
};
use crate::metrics::Metrics;
use crate::objects::{Cluster, Defaults, put_identity};
use crate::problem::one_line;

/// Time limit for committing accepted requests at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for releasing the leader lock.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest number of open watches of clients. Each is a watch of the store.
const MAX_WATCHES: usize = 1024;
/// Time limit for merging journals at shutdown.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before a question is repeated to a store that did not answer.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// One term of a leader.
pub(super) struct Term<'a> {
    pub(super) store: &'a Store,
    pub(super) identity: &'a Identity,
    pub(super) cluster: &'a Cluster,
    pub(super) defaults: &'a Defaults,
    pub(super) node_gone_after: Option<Duration>,
    /// Release addresses without an owner.
    pub(super) repair: bool,
    pub(super) metrics: &'a Metrics,
    pub(super) gateway: Gateway,
    pub(super) cache: &'a SharedCache,
    pub(super) reads: &'a Reads,
    pub(super) lock: &'a watch::Sender<Lock>,
    pub(super) registrations: &'a Registrations,
    pub(super) role: &'a watch::Sender<Role>,
    pub(super) health: &'a StoreHealth,
    /// Counts what the cache receives and applies.
    pub(super) progress: &'a Progress,
    /// Time limit without progress for a cache that is not current after the election.
    pub(super) load_timeout: Duration,
}

/// Reason why a term ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The process stops.
    Stopped,
    /// Another netmaster leads.
    Deposed,
    /// The cache did not become current, and received nothing.
    Behind,
    /// The store was emptied, replaced or restored.
    Replaced,
    /// The store holds a part of a backup.
    HalfRestored,
    /// The embedded store takes no writes any more.
    StoreFailed,
    /// A task of the term ended.
    Task(TaskEnded),
}

impl From<Deposed> for Ended {
    fn from(Deposed: Deposed) -> Ended {
        Ended::Deposed
    }
}

impl Term<'_> {
    /// Leads until `stop` is cancelled or the term ends otherwise. Then resigns.
    pub(super) async fn lead(self, leadership: Leadership, stop: &CancellationToken) -> Ended {
        // Requests wait while this process is elected and its cache is not current yet.
        self.role.send_replace(Role::Following { leader: Some(self.identity.address.clone()) });
        let ended = tokio::select! {
            biased;
            _ = self.health.failed() => Ended::StoreFailed,
            ended = self.term(&leadership, stop) => ended.map_or_else(|ended| ended, |()| Ended::Stopped),
        };
        self.role.send_replace(Role::Following { leader: None });
        match timeout(RESIGN_TIMEOUT, leadership.resign()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(
                    error = one_line(&error),
                    "release the leader lock: failed; it expires with the lease"
                );
            }
            Err(_) => tracing::warn!("release the leader lock: the store does not respond"),
        }
        self.registrations.set_role("follower");
        match &ended {
            Ended::Stopped => tracing::info!("stopped leading"),
            Ended::Deposed => tracing::warn!("leadership lost; following"),
            Ended::Behind => tracing::error!(
                "load the state: the store's watch has delivered nothing for {:?}; resigned",
                self.load_timeout
            ),
            Ended::Replaced => tracing::error!("the store was replaced; resigned"),
            Ended::HalfRestored => tracing::error!("{}; resigned", backup::Error::Unfinished),
            // The store has logged why.
            Ended::StoreFailed => tracing::error!("the embedded store takes no writes; resigned"),
            Ended::Task(ended) => tracing::error!("{ended}; resigned"),
        }
        ended
    }

    async fn term(&self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Ended> {
        tokio::select! {
            biased;
            () = leadership.lost() => return Err(Ended::Deposed),
            () = stop.cancelled() => return Ok(()),
            // No restoration begins while there is a leader.
            unfinished = self.holds_unfinished_restoration() => if unfinished {
                return Err(Ended::HalfRestored);
            },
        }
        Committer::recover(self.store, leadership).await?;
        let mut lock = self.lock.subscribe();
        // This very lock: after the store was emptied or replaced, the cache may have a later one of the other store. A
        // later one of this store means that this term is over.
        let current =
            |lock: &Lock| lock.complete && !lock.pending && lock.since == leadership.create_revision();
        tokio::select! {
            () = leadership.lost() => return Err(Ended::Deposed),
            () = stop.cancelled() => return Ok(()),
            () = stalled(self.progress, self.load_timeout) => return Err(Ended::Behind),
            // This process owns the sender, so it cannot be closed.
            _ = lock.wait_for(current) => {}
        }
        let generation = lock.borrow().generation;

        let (queue, mut committer) =
            Committer::new(self.store.clone(), self.cache.clone(), self.metrics.clone());
        committer.reload_stale(leadership).await?;
        // Requests wait: without what this writes, they would get wrong answers, or addresses that others have.
        tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(()),
            begun = self.begin(&mut committer, leadership) => begun?,
        }
        let history = tokio::select! {
            biased;
            () = leadership.lost() => return Err(Ended::Deposed),
            () = stop.cancelled() => return Ok(()),
            history = self.history() => history,
        };

        let node_gc =
            node_gc::run(self.cache.clone(), queue.clone(), self.metrics.clone(), self.node_gone_after);
        let mut tasks = Tasks::default();
        tasks.spawn("node garbage collection", node_gc);
        let policies = restoration::restore_policies(
            self.store.clone(),
            self.cache.clone(),
            queue.clone(),
            self.metrics.clone(),
        );
        tasks.spawn("restoration of policies", policies);
        tasks.spawn("VTEPs of nodes", node_vteps::run(self.cache.clone(), queue.clone()));
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        let fabric = FabricSync::new(self.gateway.clone(), leadership.read_index(), over);
        let fabric = Arc::new(fabric);
        let (sync, cache, queue_of_sync) = (fabric.clone(), self.cache.clone(), queue.clone());
        tasks.spawn("ACI synchronisation", async move { sync.run(&cache, &queue_of_sync).await });
        let (linearizable_read, confirming) = LinearizableRead::new(leadership.read_index());
        tasks.spawn("linearizable reads", confirming);
        self.registrations.set_role("leader");
        let ended = stop.child_token();
        let _end = ended.clone().drop_guard();
        self.role.send_replace(Role::Leading(Arc::new(Leader {
            cache: self.cache.clone(),
            queue,
            reads: self.reads.clone(),
            linearizable_read,
            fabric,
            cluster: self.cluster.clone(),
            identity: self.identity.clone(),
            store: self.store.clone(),
            history,
            watch_permits: Semaphore::new(MAX_WATCHES).into(),
            watch_backlogs: WatchBacklogs::default(),
            ended: ended.clone(),
        })));
        tracing::info!(address = self.identity.address, "leading; ready");
        let replaced = async {
            // This process owns the sender, so it cannot be closed.
            let _lock = lock.wait_for(|lock| lock.generation != generation).await.is_ok();
        };
        let ended = tokio::select! {
            ended = self.serve(&mut committer, &mut tasks, leadership, stop) => ended,
            () = replaced => Err(Ended::Replaced),
        };
        self.role.send_replace(Role::Following { leader: None });
        ended
    }

    /// Writes what requests are planned on.
    async fn begin(&self, committer: &mut Committer, leadership: &Leadership) -> Result<(), Deposed> {
        let defaults = self.defaults.clone();
        let plan = move |staged: &mut StagedTxn<'_>| {
            put_identity(staged);
            defaults.put(staged).map(|()| vec![])
        };
        if let Err(problem) = committer.commit_or_retry(leadership, plan).await? {
            tracing::error!(%problem, "write the default settings: failed; set them with `netctl global set`");
        }
        restoration::before_leading(committer, leadership, self.cache, self.metrics, self.repair).await
    }

    /// Asks the store until it answers.
    async fn holds_unfinished_restoration(&self) -> bool {
        loop {
            match backup::is_unfinished(self.store).await {
                Ok(unfinished) => return unfinished,
                Err(error) => {
                    tracing::warn!(
                        error = one_line(&error),
                        "find out whether the store was restored; retrying"
                    );
                    sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Asks the store for its cluster id until it answers. The cache has the identity.
    async fn history(&self) -> History {
        let position = loop {
            match self.store.position().await {
                Ok(position) => break position,
                Err(error) => {
                    tracing::warn!(error = one_line(&error), "read the cluster id of the store; retrying");
                    sleep(RETRY_INTERVAL).await;
                }
            }
        };
        let cache = self.cache.read();
        let identity = cache.get::<ClusterIdentity>(ONLY).map(|identity| identity.id.as_str());
        History::new(position.cluster, identity.unwrap_or_default())
    }

    async fn serve(
        &self,
        committer: &mut Committer,
        tasks: &mut Tasks,
        leadership: &Leadership,
        stop: &CancellationToken,
    ) -> Result<(), Ended> {
        {
            let mut run = std::pin::pin!(committer.run(leadership, stop));
            tokio::select! {
                biased;
                // New requests wait for the next leader.
                () = stop.cancelled() => {
                    self.role.send_replace(Role::Following { leader: None });
                }
                ended = &mut run => return Ok(ended?),
                ended = tasks.ended() => return Err(Ended::Task(ended)),
            }
            match timeout(DRAIN_TIMEOUT, run).await {
                Ok(ended) => ended?,
                Err(_) => {
                    tracing::warn!(
                        "commit accepted requests: the store does not respond; stopping without them"
                    );
                    return Ok(());
                }
            }
        }
        // If the time limit is reached, the next leader merges the remaining journals.
        let checkpointed = timeout(CHECKPOINT_TIMEOUT, committer.checkpoint(leadership)).await;
        Ok(checkpointed.unwrap_or(Ok(()))?)
    }
}

/// Resolves when there was no progress for `limit`.
async fn stalled(progress: &Progress, limit: Duration) {
    let (mut reached, mut since) = (progress.value(), Instant::now());
    while since.elapsed() < limit {
        sleep(limit / 10).await;
        let now = progress.value();
        if std::mem::replace(&mut reached, now) != now {
            since = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use contiv_store::election::{self, Timing};
    use contiv_store::{Config, embedded};

    use super::*;

    /// The watch of a netmaster that wins the election delivers nothing.
    #[tokio::test]
    async fn a_leader_that_cannot_load_its_state_resigns() {
        lead_without_a_watch(&Progress::default(), Lock::default()).await;
    }

    /// The store was replaced by an older one, and the watch has not noticed: the cache has a lock of the other store,
    /// with a revision that this store reaches later.
    #[tokio::test]
    async fn a_leader_does_not_begin_with_the_state_of_another_store() {
        let lock = Lock { complete: true, since: 1 << 40, ..Lock::default() };
        lead_without_a_watch(&Progress::default(), lock).await;
    }

    /// The listing takes longer than the time limit, but pages arrive. Then they cease to.
    #[tokio::test]
    async fn a_leader_that_loads_a_large_state_does_not_resign() {
        const PAGES: u32 = 12;
        let (progress, start) = (Progress::default(), Instant::now());
        let arriving = progress.clone();
        let pages = tokio::spawn(async move {
            for _ in 0..PAGES {
                sleep(LIMIT / 4).await;
                arriving.advance();
            }
        });
        lead_without_a_watch(&progress, Lock::default()).await;
        assert!(start.elapsed() > LIMIT * PAGES / 4, "resigned after {:?}", start.elapsed());
        pages.await.unwrap();
    }

    const LIMIT: Duration = Duration::from_secs(1);

    /// Leads with what the watch has said of the lock, until the leader resigns because its cache does not become current.
    async fn lead_without_a_watch(progress: &Progress, lock: Lock) {
        let dir = tempfile::tempdir().unwrap();
        let server = embedded::Server::open(dir.path(), ([127, 0, 0, 1], 0).into()).await.unwrap();
        let address = server.endpoint();
        let store = Store::connect(&Config::new([address])).await.unwrap();
        let identity = Identity { address: "127.0.0.1:1".to_owned(), ip: "127.0.0.1".to_owned() };
        let registrations = Registrations::register(&store, &identity);
        let (role, _roles) = crate::leadership::Roles::new(&identity.address);
        let timing = Timing { ttl: Duration::from_secs(30), staleness: Duration::from_secs(1) };
        let elected = election::campaign(&store, "lock", &identity.address, timing).await.unwrap();
        let term = Term {
            store: &store,
            identity: &identity,
            cluster: &Cluster::default(),
            defaults: &Defaults { infra: "default".into(), fwd_mode: "bridge".into() },
            node_gone_after: None,
            repair: false,
            metrics: &Metrics::default(),
            gateway: Gateway::new("http://127.0.0.1:1".into(), None).unwrap().0,
            cache: &SharedCache::default(),
            reads: &Reads::new(SharedCache::default()),
            lock: &watch::Sender::new(lock),
            registrations: &registrations,
            role: &role,
            health: &StoreHealth::default(),
            progress,
            load_timeout: LIMIT,
        };
        let ended = term.lead(elected, &CancellationToken::new()).await;
        assert!(matches!(ended, Ended::Behind), "{ended:?}");
        assert_eq!(store.get("lock").await.unwrap(), None, "another netmaster can be elected");
    }
}
