use std::{future::Future, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use contiv_store::Store;
use tokio::{sync::watch, task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;

use super::leader;
use crate::attach::{self, link::Links};

/// Time limit for the tasks to end after cancellation.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the task that serves requests, in addition to the time limit for running requests.
const REQUESTS_TIMEOUT: Duration = attach::DRAIN_TIMEOUT.saturating_add(Duration::from_secs(2));
/// Name of the task that serves requests.
const REQUESTS: &str = "cni";

/// All tasks of the agent. None of them normally ends on its own, so the first one to end stops the agent.
pub(super) struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
    /// Cancelled after `stop`, when no request is running.
    halt: CancellationToken,
    serves_requests: bool,
    /// Interfaces that the tasks create.
    links: Arc<Links>,
}

impl Tasks {
    pub(super) fn new(stop: CancellationToken, links: Arc<Links>) -> Tasks {
        Tasks { set: JoinSet::new(), stop, halt: CancellationToken::new(), serves_requests: false, links }
    }

    /// Token that stops the tasks on which requests depend.
    pub(super) fn halt(&self) -> CancellationToken {
        self.halt.clone()
    }

    /// Spawns the task that serves requests. It ends before [`halt`](Self::halt) is cancelled.
    pub(super) fn spawn_requests(&mut self, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.serves_requests = true;
        self.spawn(REQUESTS, task);
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
        self.spawn("leader", leader::follow(store.clone(), sender, self.halt.clone()));
        leader
    }

    /// Waits until a task ends unexpectedly and returns its result.
    pub(super) async fn first_end(&mut self) -> anyhow::Result<()> {
        let ended = self.set.join_next().await.context("no task is running")?;
        self.serves_requests &= !matches!(ended, Ok((REQUESTS, _)));
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
        self.end(result).await
    }

    /// Ends all tasks, first those that accept requests; aborts those that exceed the time limit. No part of the run
    /// continues afterwards, because another run, with another datapath, may follow. Returns `result`.
    pub(super) async fn end(mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        self.stop.cancel();
        if self.serves_requests {
            let served = async {
                while let Some(ended) = self.set.join_next().await {
                    if matches!(ended, Ok((REQUESTS, _)) | Err(_)) {
                        break;
                    }
                }
            };
            // The server interrupts requests that are still running.
            let _ = timeout(REQUESTS_TIMEOUT, served).await;
        }
        self.halt.cancel();
        let drained =
            timeout(SHUTDOWN_TIMEOUT, async { while self.set.join_next().await.is_some() {} }).await;
        if drained.is_err() {
            self.set.shutdown().await;
        }
        // Includes an interface whose task was aborted.
        if timeout(SHUTDOWN_TIMEOUT, self.links.attached()).await.is_err() {
            tracing::warn!("an interface is still being created");
        }
        result
    }
}
