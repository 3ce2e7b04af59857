//! The term of a leader, from election until leadership ends.

use std::sync::Arc;
use std::time::Duration;

use contiv_store::Store;
use contiv_store::election::Leadership;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cache_watch::Lock;
use super::node_gc;
use super::registration::Registrations;
use crate::aci::{FabricSync, Gateway};
use crate::cache::{SharedCache, StagedTxn};
use crate::commit::{Committer, Deposed};
use crate::go_json;
use crate::leadership::{Identity, Leader, LinearizableRead, Role};
use crate::metrics::Metrics;
use crate::objects::{Cluster, Defaults, put_identity};
use crate::problem::one_line;
use crate::{audit, repair, restore};

/// Differences that are logged one by one.
const MAX_LOGGED_DIFFERENCES: usize = 20;
/// Time limit for committing accepted requests at shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);
/// Time limit for releasing the leader lock.
const RESIGN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for merging journals at shutdown.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(1);

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
    pub(super) lock: &'a watch::Sender<Lock>,
    pub(super) registrations: &'a Registrations,
    pub(super) role: &'a watch::Sender<Role>,
}

impl Term<'_> {
    /// Leads until `stop` is cancelled or leadership is lost.
    pub(super) async fn lead(self, leadership: Leadership, stop: &CancellationToken) {
        // Requests wait while this process is elected and its cache is not current yet.
        self.role.send_replace(Role::Following { leader: Some(self.identity.address.clone()) });
        let ended = self.term(&leadership, stop).await;
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
        match ended {
            Ok(()) => tracing::info!("stopped leading"),
            Err(Deposed) => tracing::warn!("leadership lost; following"),
        }
    }

    async fn term(&self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Deposed> {
        Committer::recover(self.store, leadership).await?;
        let mut lock = self.lock.subscribe();
        let current =
            |lock: &Lock| lock.complete && !lock.pending && lock.since >= leadership.create_revision();
        tokio::select! {
            () = leadership.lost() => return Err(Deposed),
            () = stop.cancelled() => return Ok(()),
            // This process owns the sender, so it cannot be closed.
            _ = lock.wait_for(current) => {}
        }

        let (queue, mut committer) =
            Committer::new(self.store.clone(), self.cache.clone(), self.metrics.clone());
        committer.reload_stale(leadership).await?;
        let defaults = self.defaults.clone();
        let plan = move |staged: &mut StagedTxn<'_>| {
            put_identity(staged);
            defaults.put(staged).map(|()| vec![])
        };
        if let Err(problem) = committer.commit(leadership, Box::new(plan)).await? {
            tracing::error!(%problem, "write the default settings: failed; set them with `netctl global set`");
        }
        self.restore(&mut committer, leadership).await?;

        let node_gc =
            node_gc::run(self.cache.clone(), queue.clone(), self.metrics.clone(), self.node_gone_after);
        let _node_gc = AbortOnDropHandle::new(tokio::spawn(node_gc));
        let fabric = Arc::new(FabricSync::new(self.gateway.clone()));
        let (sync, cache, queue_of_sync) = (fabric.clone(), self.cache.clone(), queue.clone());
        let _sync =
            AbortOnDropHandle::new(tokio::spawn(async move { sync.run(&cache, &queue_of_sync).await }));
        let (linearizable_read, confirming) = LinearizableRead::new(leadership.read_index());
        let _confirming = AbortOnDropHandle::new(tokio::spawn(confirming));
        self.registrations.set_role("leader");
        self.role.send_replace(Role::Leading(Arc::new(Leader {
            cache: self.cache.clone(),
            queue,
            linearizable_read,
            fabric,
            cluster: self.cluster.clone(),
            identity: self.identity.clone(),
        })));
        tracing::info!(address = self.identity.address, "leading; ready");
        let ended = self.serve(&mut committer, leadership, stop).await;
        self.role.send_replace(Role::Following { leader: None });
        ended
    }

    async fn serve(
        &self,
        committer: &mut Committer,
        leadership: &Leadership,
        stop: &CancellationToken,
    ) -> Result<(), Deposed> {
        {
            let mut run = std::pin::pin!(committer.run(leadership, stop));
            tokio::select! {
                biased;
                // New requests wait for the next leader.
                () = stop.cancelled() => {
                    self.role.send_replace(Role::Following { leader: None });
                }
                ended = &mut run => return ended,
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
        timeout(CHECKPOINT_TIMEOUT, committer.checkpoint(leadership, true)).await.unwrap_or(Ok(()))
    }

    /// Restores and repairs derived state, and logs what remains inconsistent.
    async fn restore(&self, committer: &mut Committer, leadership: &Leadership) -> Result<(), Deposed> {
        let release = self.repair;
        let plan = move |staged: &mut StagedTxn<'_>| {
            restore::restore(staged);
            let mut repaired = repair::mark_in_use(staged);
            if release {
                repaired.extend(repair::release_unused(staged));
            }
            go_json::encode(&(staged.counts(), repaired))
        };
        match committer.commit(leadership, Box::new(plan)).await? {
            Ok(result) => {
                let ((written, deleted), repaired): ((u64, u64), Vec<String>) =
                    serde_json::from_slice(&result).unwrap_or_default();
                for line in repaired.iter().take(MAX_LOGGED_DIFFERENCES) {
                    tracing::warn!("repaired: {line}");
                }
                if repaired.len() > MAX_LOGGED_DIFFERENCES {
                    tracing::warn!(all = repaired.len(), "repaired allocation records");
                }
                let differences = audit::audit(&StagedTxn::new(&self.cache.read()));
                if (written, deleted) != (0, 0) {
                    self.metrics.restored.inc_by(written + deleted);
                    tracing::warn!(written, deleted, "restored derived keys in the store");
                }
                for difference in differences.iter().take(MAX_LOGGED_DIFFERENCES) {
                    tracing::warn!("{difference}");
                }
                if !differences.is_empty() {
                    tracing::warn!(
                        differences = differences.len(),
                        "allocation records are inconsistent; not repaired (run with --repair)"
                    );
                }
            }
            Err(problem) => {
                tracing::error!(%problem, "restore derived keys in the store: failed");
            }
        }
        Ok(())
    }
}
