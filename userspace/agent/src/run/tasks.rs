use std::{future::Future, time::Duration};

use anyhow::{Context as _, anyhow};
use contiv_store::Store;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::leader;

/// How long the tasks may take to end when they are asked to.
const FAREWELL: Duration = Duration::from_secs(10);

/// Every task of the agent. The first to end ends the agent: none of them is ever done by itself.
pub(super) struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
}

impl Tasks {
    pub(super) fn new(stop: CancellationToken) -> Tasks {
        Tasks { set: JoinSet::new(), stop }
    }

    pub(super) fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Who leads, from now on.
    pub(super) fn leader(&mut self, store: &Store) -> watch::Receiver<Option<String>> {
        let (tell, leader) = watch::channel(None);
        self.spawn("leader", leader::follow(store.clone(), tell, self.stop.clone()));
        leader
    }

    /// Resolves when a task ends that should not have.
    pub(super) async fn first_end(&mut self) -> anyhow::Result<()> {
        let ended = self.set.join_next().await.context("no task runs")?;
        match ended {
            Ok((_, Ok(()))) if self.stop.is_cancelled() => Ok(()),
            Ok((name, Ok(()))) => Err(anyhow!("{name} ended early")),
            // The error says what it is about.
            Ok((_, Err(error))) => Err(error),
            Err(panic) => Err(anyhow!("a task was broken off: {panic}")),
        }
    }

    /// Until told to stop, or until something ends by itself; then ends the rest, in order and in time.
    pub(super) async fn supervise(mut self) -> anyhow::Result<()> {
        let stop = self.stop.clone();
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            result = self.first_end() => result,
        };
        self.end().await?;
        result
    }

    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let drained = timeout(FAREWELL, async { while self.set.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            self.set.shutdown().await;
        }
        Ok(())
    }
}
