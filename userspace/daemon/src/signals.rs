//! SIGTERM and SIGINT: the daemon is to end in order.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Cancelled by the first of the signals, which `says` what follows from it in the log.
pub fn shutdown_token(says: &'static str) -> io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stopping = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("{says}");
        crate::notify::stopping();
        stopping.cancel();
    });
    Ok(stop)
}
