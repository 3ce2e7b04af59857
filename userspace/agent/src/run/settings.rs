use std::time::Duration;

use contiv_daemon::modes::{FwdMode, name};
use contiv_model::key::Key;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::state::Reader;

/// How often an operator is told what is waited for.
const REMINDER: Duration = Duration::from_secs(10);

/// Waits for the cluster's settings, which must agree with this node's.
pub(super) async fn wait(reader: &Reader, mode: FwdMode) -> anyhow::Result<()> {
    loop {
        // Without a mode it is not ready: netmaster has not got its flags into it yet.
        let there = reader.wait(|state| {
            state.config().map(|config| config.fwd_mode.clone()).filter(|mode| !mode.is_empty())
        });
        match timeout(REMINDER, there).await {
            Ok(global) => return check(&global, mode),
            Err(_) => {
                tracing::warn!("waiting for {} in the store (is netmaster running?)", Key::MasterConfig);
            }
        }
    }
}

/// Ends when they do not agree any more.
pub(super) async fn guard(reader: &Reader, mode: FwdMode, stop: CancellationToken) -> anyhow::Result<()> {
    let local = name(&mode);
    let other = reader.wait(|state| {
        let global = &state.config()?.fwd_mode;
        (!global.is_empty() && *global != local).then(|| global.clone())
    });
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        global = other => check(&global, mode),
    }
}

/// The original's words.
fn check(global: &str, mode: FwdMode) -> anyhow::Result<()> {
    let local = name(&mode);
    if global == local {
        return Ok(());
    }
    anyhow::bail!("netplugin's local forward mode {local:?} doesn't match global settings {global:?}")
}
