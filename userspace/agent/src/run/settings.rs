use std::time::Duration;

use contiv_daemon::modes::{FwdMode, name};
use contiv_model::key::Key;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::state::Reader;

/// Interval between log lines while waiting.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// Waits for the global settings and compares them with this node's.
pub(super) async fn wait(reader: &Reader, mode: FwdMode) -> anyhow::Result<()> {
    loop {
        // netmaster fills in the mode from its flags after its start.
        let mode_set = reader.wait(|state| {
            state.config().map(|config| config.fwd_mode.clone()).filter(|mode| !mode.is_empty())
        });
        match timeout(REMINDER_INTERVAL, mode_set).await {
            Ok(global) => return check(&global, mode),
            Err(_) => {
                tracing::warn!("waiting for {} in the store (is netmaster running?)", Key::MasterConfig);
            }
        }
    }
}

/// Logs that the global settings contradict this node's. The state has changed its plan already: the node follows.
pub(super) async fn follow(reader: &Reader, mode: FwdMode, stop: CancellationToken) -> anyhow::Result<()> {
    let local = name(&mode);
    let other = reader.wait(|state| {
        let global = &state.config()?.fwd_mode;
        (!global.is_empty() && *global != local).then(|| global.clone())
    });
    tokio::select! {
        () = stop.cancelled() => {}
        global = other => {
            tracing::warn!(
                "the forward mode is {global:?} by the global settings; the next start needs --fwdmode {global}"
            );
            stop.cancelled().await;
        }
    }
    Ok(())
}

/// Compares the forward modes. The error text is the original's.
fn check(global: &str, mode: FwdMode) -> anyhow::Result<()> {
    let local = name(&mode);
    if global == local {
        return Ok(());
    }
    anyhow::bail!("netplugin's local forward mode {local:?} doesn't match global settings {global:?}")
}
