//! Client certificates that are replaced while the process runs.

use crate::Config;
use crate::error::one_line;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of checks of the files.
const PERIOD: Duration = Duration::from_secs(2);

/// Inode, size and modification time, by which a changed or replaced file is detected.
type Mark = Option<(u64, u64, i64, i64)>;

/// The TLS files of a configuration.
pub(crate) struct Files {
    config: Config,
    paths: Vec<PathBuf>,
}

impl Files {
    /// Returns `None` without TLS files.
    pub(crate) fn of(config: &Config) -> Option<Files> {
        let tls = config.tls.as_ref()?;
        let identity = tls.identity.iter().flat_map(|identity| [&identity.certificate, &identity.key]);
        let paths: Vec<PathBuf> = tls.ca.iter().chain(identity).cloned().collect();
        (!paths.is_empty()).then(|| Files { config: config.clone(), paths })
    }

    /// Calls `reconnect` with new options after each change of the files, until it returns `None`.
    /// Options with which it fails are tried again at the next check.
    pub(crate) async fn follow<A>(self, mut reconnect: impl FnMut(etcd_client::ConnectOptions) -> A)
    where
        A: Future<Output = Option<Result<(), etcd_client::Error>>>,
    {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut used, mut logged) = (self.marks(), None);
        loop {
            ticks.tick().await;
            let now = self.marks();
            if now == used {
                continue;
            }
            let result = match self.config.options().await {
                Ok(options) => match reconnect(options).await {
                    Some(result) => result.map_err(|e| e.to_string()),
                    None => return,
                },
                Err(e) => Err(one_line(&e)),
            };
            match result {
                Ok(()) => {
                    tracing::info!("TLS files of the store client: reloaded");
                    used = now;
                }
                Err(error) if logged.as_ref() != Some(&now) => {
                    tracing::error!(
                        "TLS files of the store client: {error}; the last valid version stays in use"
                    );
                    logged = Some(now);
                }
                Err(_) => {}
            }
        }
    }

    /// Follows symbolic links: Kubernetes replaces mounted secrets by changing a link.
    fn marks(&self) -> Vec<Mark> {
        let mark = |path: &PathBuf| {
            let meta = fs::metadata(path).ok()?;
            Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
        };
        self.paths.iter().map(mark).collect()
    }
}
