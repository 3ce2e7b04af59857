use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use contiv_daemon::modes::{FwdMode, name};
use contiv_model::key::Key;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    config::Flags,
    state::{Reader, Writer},
};

/// Interval between log lines while waiting.
const REMINDER_INTERVAL: Duration = Duration::from_secs(10);

/// Sets the parts of the state that come from the flags. Must be called before the first update.
pub(super) fn configure(writer: &mut Writer, flags: &Flags) {
    if flags.routes_vlans() {
        writer.route_vlans();
    }
    if flags.has_host_access() {
        writer.allow_host_access();
    }
}

/// Forward mode of the flags. It must equal that of the global settings when the process starts. Afterwards the process,
/// including its later runs, uses the mode of the global settings.
#[derive(Clone, Debug)]
pub(super) struct LocalMode {
    mode: FwdMode,
    /// Set after it has equalled that of the global settings.
    has_matched: Arc<AtomicBool>,
}

impl LocalMode {
    pub(super) fn new(mode: FwdMode) -> LocalMode {
        LocalMode { mode, has_matched: Arc::default() }
    }

    /// Compares the mode with that of the global settings when the process starts. The error text is that of the original
    /// Contiv.
    fn check(&self, global: &str) -> anyhow::Result<()> {
        let local = name(&self.mode);
        if global != local && !self.has_matched.load(Ordering::Relaxed) {
            anyhow::bail!(
                "netplugin's local forward mode {local:?} doesn't match global settings {global:?}"
            );
        }
        self.has_matched.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// Waits for the global settings and compares them with this node's.
pub(super) async fn wait(reader: &Reader, mode: &LocalMode) -> anyhow::Result<()> {
    loop {
        // netmaster sets the mode from its flags after its start.
        let mode_set = reader.wait(|state| {
            state.config().map(|config| config.fwd_mode.clone()).filter(|mode| !mode.is_empty())
        });
        match timeout(REMINDER_INTERVAL, mode_set).await {
            Ok(global) => return mode.check(&global),
            Err(_) => {
                tracing::warn!("waiting for {} in the store (is netmaster running?)", Key::MasterConfig);
            }
        }
    }
}

/// Reports that the global settings contradict this node's flags, or that they no longer do. The state has already
/// changed its plan: the node uses the global settings.
pub(super) async fn follow(
    reader: &Reader,
    mode: &LocalMode,
    report: impl Fn(Option<String>),
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let local = name(&mode.mode);
    let mut known = None;
    loop {
        let changed = reader.wait(|state| {
            let global = &state.config()?.fwd_mode;
            let other = (!global.is_empty() && *global != local).then(|| global.clone());
            (other != known).then_some(other)
        });
        let Some(other) = stop.run_until_cancelled(changed).await else { return Ok(()) };
        let why = other.as_ref().map(|global| {
            format!(
                "forward mode: {global} by the global settings, which the node follows, and {local} by its flags; the next \
                 start needs --fwdmode {global}"
            )
        });
        match &why {
            Some(why) => tracing::warn!("{why}"),
            None => tracing::info!("the forward mode is {local} again, as in the flags"),
        }
        report(why);
        known = other;
    }
}

#[cfg(test)]
mod tests {
    use contiv_model::{event::Event, global::Config};
    use tokio::sync::watch;

    use super::*;
    use crate::{
        source::{SETTINGS, prefixes},
        state::{self, ClusterObject, Update, Writer},
    };

    fn set(writer: &mut Writer, mode: &str) {
        let config = Config { fwd_mode: mode.to_owned(), ..Config::default() };
        let event = Event::Apply(Key::MasterConfig, Ok(ClusterObject::Config(config)));
        writer.apply(Update { source: SETTINGS.into(), revision: 1, event });
    }

    #[tokio::test]
    async fn later_runs_of_a_process_follow_the_settings() {
        let (mut writer, _, reader, _) = state::new(prefixes());
        let (mode, other) = (LocalMode::new(FwdMode::Bridge), LocalMode::new(FwdMode::Bridge));
        set(&mut writer, "bridge");
        wait(&reader, &mode).await.unwrap();
        set(&mut writer, "routing");
        wait(&reader, &mode.clone()).await.unwrap();
        let error = wait(&reader, &other).await.unwrap_err().to_string();
        assert_eq!(
            error,
            r#"netplugin's local forward mode "bridge" doesn't match global settings "routing""#
        );
    }

    #[tokio::test]
    async fn a_contradiction_is_reported_while_it_lasts() {
        let (mut writer, _, reader, _) = state::new(prefixes());
        let (sender, mut reported) = watch::channel(None::<String>);
        let stop = CancellationToken::new();
        set(&mut writer, "bridge");
        let (watched, stopping) = (reader.clone(), stop.clone());
        let following = tokio::spawn(async move {
            let report = |why: Option<String>| drop(sender.send_replace(why));
            follow(&watched, &LocalMode::new(FwdMode::Bridge), report, stopping).await
        });
        for (mode, is_reported) in [("routing", true), ("bridge", false), ("routing", true), ("", false)] {
            set(&mut writer, mode);
            let why = reported.wait_for(|why| why.is_some() == is_reported).await.unwrap().clone();
            assert!(why.is_none_or(|why| why.ends_with("the next start needs --fwdmode routing")));
        }
        stop.cancel();
        following.await.unwrap().unwrap();
    }
}
