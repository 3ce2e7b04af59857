//! The start of a run: until the agent knows the global settings and its datapath is in operation, requests of container
//! runtimes are not executed. While the store is unavailable, they are rejected with the reason.

use std::{sync::Arc, time::Duration};

use contiv_store::{Config, Store};
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{continuity::Regression, error::one_line};

/// Interval between attempts to reach a store that does not answer.
const STORE_INTERVAL: Duration = Duration::from_secs(1);
/// The reason while the store answers.
const WAITING: &str = "the datapath does not follow the store yet";

#[derive(Clone)]
pub(super) struct Start {
    /// Reason why the start has not ended.
    why: Arc<watch::Sender<Option<String>>>,
    /// Cancelled when the store is unavailable.
    is_away: CancellationToken,
}

impl Default for Start {
    fn default() -> Start {
        let (why, _) = watch::channel(Some(WAITING.to_owned()));
        Start { why: Arc::new(why), is_away: CancellationToken::new() }
    }
}

impl Start {
    /// Returns the reason why the start has not ended; `None` when it has.
    pub(super) fn unsettled(&self) -> watch::Receiver<Option<String>> {
        self.why.subscribe()
    }

    /// Ends the start: requests are executed from now on.
    pub(super) fn done(&self) {
        self.why.send_replace(None);
    }

    /// Reports whether the store did not answer at first.
    pub(super) fn was_away(&self) -> bool {
        self.is_away.is_cancelled()
    }

    /// Waits until requests must be answered: the start has ended, or the store is unavailable or regressed. Until then
    /// they wait in the queue of the socket, so that no request fails during the start of an agent with a store.
    pub(super) async fn until_served(&self, mut regression: watch::Receiver<Option<Regression>>) {
        let mut unsettled = self.unsettled();
        tokio::select! {
            () = self.is_away.cancelled() => {}
            // Errors mean that the agent stops.
            Ok(_) = unsettled.wait_for(Option::is_none) => {}
            Ok(_) = regression.wait_for(Option::is_some) => {}
        }
    }

    /// Waits for the store, then until `stop` is cancelled.
    ///
    /// Fails if the store rejects this agent, because a retry cannot succeed.
    pub(super) async fn reach(
        self,
        store: Store,
        config: Config,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        if let Some(reached) = stop.run_until_cancelled(self.until_reached(&store, &config)).await {
            reached?;
        }
        stop.cancelled().await;
        Ok(())
    }

    async fn until_reached(&self, store: &Store, config: &Config) -> Result<(), contiv_store::Error> {
        loop {
            match store.reach(config).await {
                Ok(()) => break,
                Err(error) if error.is_transient() => self.report_away(one_line(&error)),
                Err(error) => return Err(error),
            }
            sleep(STORE_INTERVAL).await;
        }
        if self.was_away() {
            tracing::info!("the store answers");
        }
        self.set(WAITING.to_owned());
        Ok(())
    }

    fn report_away(&self, why: String) {
        if !self.was_away() {
            tracing::warn!("{why}; forwarding is unchanged and new pods are refused until the store answers");
        }
        self.set(why);
        self.is_away.cancel();
    }

    /// Changes the reason, unless the start has ended.
    fn set(&self, reason: String) {
        self.why.send_if_modified(|why| {
            let is_changed = why.as_ref().is_some_and(|before| *before != reason);
            if is_changed {
                *why = Some(reason);
            }
            is_changed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn requests_are_answered_when_the_store_is_away_and_carried_out_at_the_end() {
        let start = Start::default();
        let (_sender, regression) = watch::channel(None);
        let why = || start.unsettled().borrow().clone();
        let waiting = start.until_served(regression.clone());
        assert!(futures::FutureExt::now_or_never(waiting).is_none());
        assert_eq!(why().as_deref(), Some(WAITING));

        start.report_away("no connection".to_owned());
        start.until_served(regression.clone()).await;
        assert_eq!(why().as_deref(), Some("no connection"));
        start.done();
        start.until_served(regression).await;
        // The store may become unavailable again.
        start.report_away("no connection".to_owned());
        assert_eq!(why(), None);
    }
}
