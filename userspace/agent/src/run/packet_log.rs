//! Packet events in the agent's log.

use std::time::Duration;

use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Monitor, MonitorError},
    error::one_line,
    reconcile::Status,
};

/// Delay before the next subscription to events.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Writes packet events to the agent's log (`--bpf-log`).
pub(super) async fn write(
    monitor: Monitor,
    mut status: watch::Receiver<Status>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let work = async {
        // An error means that the reconciler, and therefore the agent, has ended.
        while status.wait_for(|status| status.in_sync).await.is_ok() {
            let mut events = match monitor.subscribe() {
                Ok(events) => events,
                Err(error) => {
                    tracing::warn!("--bpf-log: {}", one_line(&error));
                    match error {
                        MonitorError::Unsupported => return,
                        MonitorError::Failed(_) => sleep(RETRY_INTERVAL).await,
                    }
                    continue;
                }
            };
            while let Some(event) = monitor.next(&mut events).await {
                tracing::info!(target: "netplugin::bpf", "{event}");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = work => {}
    }
    stop.cancelled().await;
    Ok(())
}
