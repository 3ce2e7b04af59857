//! Readiness of the agent, and the end of an agent that cannot become ready.

use std::time::Duration;

use contiv_daemon::notify;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{api, reconcile::Status};

/// Time limit for the first full resync to succeed after an error; the original Contiv waited as long for its switch.
const FIRST_RESYNC_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval between checks whether the agent is ready.
const READY_INTERVAL: Duration = Duration::from_millis(200);

/// Notifies the service manager once no condition is pending.
pub(super) async fn notify(parts: api::Parts, stop: CancellationToken) -> anyhow::Result<()> {
    let ready = async {
        while !parts.pending().is_empty() {
            tokio::time::sleep(READY_INTERVAL).await;
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = ready => notify::ready(),
    }
    stop.cancelled().await;
    Ok(())
}

/// Ends the agent if the datapath is not available at the start. If it is lost later, it is retried without limit.
pub(super) async fn first_resync(
    mut status: watch::Receiver<Status>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        if status.wait_for(|status| status.in_sync || status.error.is_some()).await.is_err() {
            return Ok(());
        }
        let in_sync = tokio::time::timeout(FIRST_RESYNC_TIMEOUT, status.wait_for(|status| status.in_sync))
            .await
            .is_ok();
        let error = status.borrow().error.clone();
        match error {
            Some(error) if !in_sync => Err(anyhow::anyhow!(error)),
            _ => Ok(()),
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        result = work => result?,
    }
    stop.cancelled().await;
    Ok(())
}
