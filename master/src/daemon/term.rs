//! From election to deposition.

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
use super::registration::Presence;
use crate::aci::{Fabric, Gateway};
use crate::cache::{Draft, Shared};
use crate::commit::{Committer, Deposed};
use crate::go_json;
use crate::leadership::{Assurance, Identity, Leader, Role};
use crate::metrics::Metrics;
use crate::objects::{Cluster, Defaults};
use crate::problem::one_line;
use crate::{audit, repair, restore};

/// So many differences in the books of addresses and tags are logged one by one.
const DIFFERENCES_TOLD: usize = 20;
/// A netmaster that stops carries out what it has accepted, as long as the store answers.
const FINISH: Duration = Duration::from_secs(3);
/// So long it tries to give its lock back.
const RESIGN: Duration = Duration::from_secs(2);
/// A netmaster that stops writes the records of large networks whole, if that does not hold up the next leader.
const FOLD: Duration = Duration::from_secs(1);

/// One turn at leading.
pub(super) struct Term<'a> {
    pub(super) store: &'a Store,
    pub(super) identity: &'a Identity,
    pub(super) cluster: &'a Cluster,
    pub(super) defaults: &'a Defaults,
    pub(super) node_gone_after: Option<Duration>,
    /// Release the addresses that nobody has.
    pub(super) repair: bool,
    pub(super) metrics: &'a Metrics,
    pub(super) gateway: Gateway,
    pub(super) world: &'a Shared,
    pub(super) lock: &'a watch::Sender<Lock>,
    pub(super) presence: &'a Presence,
    pub(super) role: &'a watch::Sender<Role>,
}

impl Term<'_> {
    /// Leads until told to stop, or until another may lead.
    pub(super) async fn lead(self, leadership: Leadership, stop: &CancellationToken) {
        // Until the view is current, requests wait: the lock names us, and `Role::Following` says so.
        self.role.send_replace(Role::Following { leader: Some(self.identity.address.clone()) });
        let ended = self.term(&leadership, stop).await;
        self.role.send_replace(Role::Following { leader: None });
        match timeout(RESIGN, leadership.resign()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(error = one_line(&error), "could not resign; others wait for a sign of life");
            }
            Err(_) => tracing::warn!("the store does not answer; could not resign"),
        }
        self.presence.becomes("follower");
        match ended {
            Ok(()) => tracing::info!("stopped leading"),
            Err(Deposed) => tracing::warn!("leadership lost; following"),
        }
    }

    async fn term(&self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Deposed> {
        Committer::finish(self.store, leadership).await?;
        let mut lock = self.lock.subscribe();
        let current =
            |lock: &Lock| lock.complete && !lock.pending && lock.since >= leadership.create_revision();
        tokio::select! {
            () = leadership.lost() => return Err(Deposed),
            () = stop.cancelled() => return Ok(()),
            // The sender is ours.
            _ = lock.wait_for(current) => {}
        }

        let (queue, mut committer) =
            Committer::new(self.store.clone(), self.world.clone(), self.metrics.clone());
        committer.catch_up(leadership).await?;
        let defaults = self.defaults.clone();
        let plan = move |draft: &mut Draft<'_>| defaults.put(draft).map(|()| vec![]);
        if let Err(problem) = committer.commit(leadership, Box::new(plan)).await? {
            tracing::error!(%problem, "could not put the default settings; set them with `netctl global set`");
        }
        self.restore(&mut committer, leadership).await?;

        let janitor = node_gc::look_after(
            self.world.clone(),
            queue.clone(),
            self.metrics.clone(),
            self.node_gone_after,
        );
        let _janitor = AbortOnDropHandle::new(tokio::spawn(janitor));
        let fabric = Arc::new(Fabric::new(self.gateway.clone()));
        let (keeper, known, wanted) = (fabric.clone(), self.world.clone(), queue.clone());
        let _keeper = AbortOnDropHandle::new(tokio::spawn(async move { keeper.keep(&known, &wanted).await }));
        let (assurance, answering) = Assurance::new(leadership.read_index());
        let _answering = AbortOnDropHandle::new(tokio::spawn(answering));
        self.presence.becomes("leader");
        self.role.send_replace(Role::Leading(Arc::new(Leader {
            world: self.world.clone(),
            queue,
            assurance,
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
                // Whoever asks from now on waits for the next leader.
                () = stop.cancelled() => {
                    self.role.send_replace(Role::Following { leader: None });
                }
                ended = &mut run => return ended,
            }
            match timeout(FINISH, run).await {
                Ok(ended) => ended?,
                Err(_) => {
                    tracing::warn!(
                        "the store does not answer; stopping without the requests that wait for it"
                    );
                    return Ok(());
                }
            }
        }
        // One that is cut off leaves a journal, which the next leader folds.
        timeout(FOLD, committer.checkpoint(leadership, true)).await.unwrap_or(Ok(()))
    }

    /// Makes right what follows from the objects.
    async fn restore(&self, committer: &mut Committer, leadership: &Leadership) -> Result<(), Deposed> {
        let release = self.repair;
        let plan = move |draft: &mut Draft<'_>| {
            restore::restore(draft);
            let mut mended = repair::mark_held(draft);
            if release {
                mended.extend(repair::release_unheld(draft));
            }
            go_json::encode(&(draft.counts(), mended))
        };
        match committer.commit(leadership, Box::new(plan)).await? {
            Ok(told) => {
                let ((written, deleted), mended): ((u64, u64), Vec<String>) =
                    serde_json::from_slice(&told).unwrap_or_default();
                for line in mended.iter().take(DIFFERENCES_TOLD) {
                    tracing::warn!("mended: {line}");
                }
                if mended.len() > DIFFERENCES_TOLD {
                    tracing::warn!(all = mended.len(), "mended the books of addresses");
                }
                let differences = audit::audit(&Draft::new(&self.world.read()));
                if (written, deleted) != (0, 0) {
                    self.metrics.restored.inc_by(written + deleted);
                    tracing::warn!(written, deleted, "the store did not have what follows from its objects");
                }
                for difference in differences.iter().take(DIFFERENCES_TOLD) {
                    tracing::warn!("{difference}");
                }
                if !differences.is_empty() {
                    tracing::warn!(
                        differences = differences.len(),
                        "addresses or tags are not as the store's books say; they stay so"
                    );
                }
            }
            Err(problem) => {
                tracing::error!(%problem, "the store does not have all that follows from its objects; it stays so");
            }
        }
        Ok(())
    }
}
