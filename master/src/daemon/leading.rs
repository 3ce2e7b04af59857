//! From election to deposition.

use std::sync::Arc;
use std::time::Duration;

use contiv_model::key;
use contiv_store::Store;
use contiv_store::election::Leadership;
use futures::StreamExt;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Presence, janitor};
use crate::aci::{Fabric, Gateway};
use crate::api::{Identity, Leader};
use crate::committer::{Committer, Deposed, Shared, one_line};
use crate::metrics::Metrics;
use crate::objects::{self, Cluster, Defaults};
use crate::role::Role;
use crate::world::Draft;

/// Updates that the watch tells at once, at most: readers wait while they are taken in.
const CHUNK: usize = 64;

/// One turn at leading.
pub(super) struct Term<'a> {
    pub(super) store: &'a Store,
    pub(super) identity: &'a Identity,
    pub(super) cluster: &'a Cluster,
    pub(super) defaults: &'a Defaults,
    pub(super) node_gone_after: Option<Duration>,
    pub(super) metrics: &'a Metrics,
    pub(super) gateway: Gateway,
    pub(super) role: &'a watch::Sender<Role>,
}

impl Term<'_> {
    /// Leads until told to stop, or until another may lead.
    pub(super) async fn lead(self, leadership: Leadership, stop: &CancellationToken) -> anyhow::Result<()> {
        // Until the state is read, requests wait: the lock names us, and `Role::Following` says so.
        self.role.send_replace(Role::Following { leader: Some(self.identity.address.clone()) });
        let ended = self.term(&leadership, stop).await;
        self.role.send_replace(Role::Following { leader: None });
        match ended {
            Ok(()) => tracing::info!("stopped leading"),
            Err(Deposed) => tracing::warn!("leadership lost; following"),
        }
        if let Err(error) = leadership.resign().await {
            tracing::warn!(error = one_line(&error), "could not resign; the lock stays until its TTL ends");
        }
        Ok(())
    }

    async fn term(&self, leadership: &Leadership, stop: &CancellationToken) -> Result<(), Deposed> {
        Committer::finish(self.store, leadership).await?;
        let world = Shared::default();
        let mut watch = self.store.watch(key::ROOT);
        loop {
            tokio::select! {
                () = leadership.lost() => return Err(Deposed),
                () = stop.cancelled() => return Ok(()),
                Some(update) = watch.next() => {
                    if world.write().observe(&update) {
                        break;
                    }
                }
            }
        }
        let feed = world.clone();
        let _feed = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut updates = watch.ready_chunks(CHUNK);
            while let Some(updates) = updates.next().await {
                let _gate = feed.gate().await;
                let mut world = feed.write();
                for update in &updates {
                    world.observe(update);
                }
            }
        }));

        let (queue, mut committer) = Committer::new(self.store.clone(), world.clone(), self.metrics.clone());
        let defaults = self.defaults.clone();
        let plan = move |draft: &mut Draft<'_>| defaults.put(draft).map(|()| vec![]);
        if let Err(problem) = committer.commit(leadership, Box::new(plan)).await? {
            tracing::error!(%problem, "could not put the default settings; set them with `netctl global set`");
        }
        self.restore(&mut committer, leadership).await?;
        committer.checkpoint(leadership, true).await?;

        let janitor =
            janitor::look_after(world.clone(), queue.clone(), self.metrics.clone(), self.node_gone_after);
        let _janitor = AbortOnDropHandle::new(tokio::spawn(janitor));
        let presence = Presence::register(self.store, self.identity, "leader");
        let fabric = Arc::new(Fabric::new(self.gateway.clone()));
        let (keeper, known, wanted) = (fabric.clone(), world.clone(), queue.clone());
        let _keeper = AbortOnDropHandle::new(tokio::spawn(async move { keeper.keep(&known, &wanted).await }));
        self.role.send_replace(Role::Leading(Arc::new(Leader {
            world,
            queue,
            fabric,
            cluster: self.cluster.clone(),
            identity: self.identity.clone(),
        })));
        tracing::info!(address = self.identity.address, "leading; ready");
        let ended = committer.run(leadership, stop).await;
        self.role.send_replace(Role::Following { leader: None });
        let folded = match &ended {
            Ok(()) => committer.checkpoint(leadership, true).await,
            Err(Deposed) => Ok(()),
        };
        presence.withdraw().await;
        ended.and(folded)
    }

    /// Makes right what follows from the objects.
    async fn restore(&self, committer: &mut Committer, leadership: &Leadership) -> Result<(), Deposed> {
        let plan = |draft: &mut Draft<'_>| {
            objects::restore(draft);
            objects::json(&draft.counts())
        };
        match committer.commit(leadership, Box::new(plan)).await? {
            Ok(counts) => match serde_json::from_slice(&counts).unwrap_or_default() {
                (0, 0) => {}
                (written, deleted) => {
                    self.metrics.restored.inc_by(written + deleted);
                    tracing::warn!(written, deleted, "the store did not have what follows from its objects");
                }
            },
            Err(problem) => {
                tracing::error!(%problem, "the store does not have all that follows from its objects; it stays so");
            }
        }
        Ok(())
    }
}
