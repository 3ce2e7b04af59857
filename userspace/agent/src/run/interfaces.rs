//! Interfaces of endpoints that an earlier process has left, or that have vanished.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    attach::{Pods, link::Links},
    state::{Attacher, Attachment, Reader},
};

/// Interval between checks of the node's interfaces.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between checks of the VTEP address, of the MTU and of the kernel's connection tracking.
const UNDERLAY_INTERVAL: Duration = Duration::from_secs(5);

/// Restores the attachments of an earlier process, which the kernel stores.
pub(super) async fn recover(links: &Links, attacher: &Attacher) -> anyhow::Result<()> {
    let attachments = links.attachments().await?;
    if !attachments.is_empty() {
        tracing::info!(interfaces = attachments.len(), "recovered the interfaces of endpoints");
    }
    for attachment in attachments {
        attacher.attach(&attachment.endpoint, Attachment { port: attachment.port, owner: attachment.owner });
    }
    Ok(())
}

/// Compares the state with the interfaces of the node until `stop` is cancelled.
pub(super) async fn check(pods: Pods, reader: Reader, stop: CancellationToken) -> anyhow::Result<()> {
    if let Err(error) = pods.refresh_underlay().await {
        tracing::warn!("read the node's interfaces: {error:#}");
    }
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = reader.synced() => {}
    }
    loop {
        if let Err(error) = pods.remove_vanished().await {
            tracing::warn!("check for deleted interfaces: {error:#}");
        }
        if let Err(error) = pods.recover_missed().await {
            tracing::warn!("check for interfaces that were missed: {error:#}");
        }
        pods.report_orphans();
        // May be dropped at any time: the next agent finishes what it has begun.
        if let Some(Err(failure)) = stop.run_until_cancelled(pods.release_lost()).await {
            tracing::warn!("release attachments without an interface: {failure}");
        }
        let next = tokio::time::Instant::now() + CHECK_INTERVAL;
        while tokio::time::Instant::now() < next {
            if let Err(error) = pods.refresh_underlay().await {
                tracing::warn!("read the node's interfaces: {error:#}");
            }
            pods.check_tracking();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(UNDERLAY_INTERVAL) => {}
            }
        }
    }
}
