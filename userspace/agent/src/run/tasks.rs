use std::{future::Future, time::Duration};

use anyhow::{Context as _, anyhow};
use contiv_store::Store;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::leader;

/// Time limit for the tasks to end after cancellation.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// All tasks of the agent. None of them ends on its own, so the first one to end stops the agent.
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

    /// Spawns the watch of the leader's address.
    pub(super) fn leader(&mut self, store: &Store) -> watch::Receiver<Option<String>> {
        let (sender, leader) = watch::channel(None);
        self.spawn("leader", leader::follow(store.clone(), sender, self.stop.clone()));
        leader
    }

    /// Waits until a task ends unexpectedly and returns its result.
    pub(super) async fn first_end(&mut self) -> anyhow::Result<()> {
        let ended = self.set.join_next().await.context("no task is running")?;
        match ended {
            Ok((_, Ok(()))) if self.stop.is_cancelled() => Ok(()),
            Ok((name, Ok(()))) => Err(anyhow!("{name} ended early")),
            // The error names its operation.
            Ok((_, Err(error))) => Err(error),
            Err(panic) => Err(anyhow!("a task panicked: {panic}")),
        }
    }

    /// Runs until `stop` is cancelled or a task ends, then stops all tasks within the time limit.
    pub(super) async fn supervise(mut self) -> anyhow::Result<()> {
        let stop = self.stop.clone();
        let result = tokio::select! {
            () = stop.cancelled() => Ok(()),
            result = self.first_end() => result,
        };
        self.end().await?;
        result
    }

    /// Cancels all tasks and waits for them; aborts those that exceed the time limit.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        self.stop.cancel();
        let drained =
            timeout(SHUTDOWN_TIMEOUT, async { while self.set.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            self.set.shutdown().await;
        }
        Ok(())
    }
}
