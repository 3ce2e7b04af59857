//! Values that are loaded from files, and loaded again when the files change.

use std::fs;
use std::future::Future;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

/// Interval of checks of the files. Modification times work on every file system; change
/// notifications do not.
const PERIOD: Duration = Duration::from_secs(2);

/// The value of the last successful load.
#[derive(Debug)]
pub struct Reloadable<T>(watch::Receiver<Arc<T>>);

impl<T> Clone for Reloadable<T> {
    fn clone(&self) -> Self {
        Reloadable(self.0.clone())
    }
}

/// Inode, size and modification time, by which a changed or replaced file is detected.
type Mark = Option<(u64, u64, i64, i64)>;

impl<T: Send + Sync + 'static> Reloadable<T> {
    /// Loads the value. Returns it with a future that reloads it while it is polled: on SIGHUP, and
    /// within two seconds of a change. A failed reload is logged, once for each change, and the
    /// last valid value stays.
    pub fn load<E: std::error::Error>(
        what: &'static str,
        files: Vec<PathBuf>,
        load: impl Fn() -> Result<T, E> + Send + 'static,
    ) -> Result<(Reloadable<T>, impl Future<Output = ()> + Send + 'static), E> {
        let mut marks = look(&files);
        let (sender, receiver) = watch::channel(Arc::new(load()?));
        let follow = async move {
            let mut hangup = signal(SignalKind::hangup()).ok();
            let mut ticks = interval(PERIOD);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                let hung_up = async {
                    match &mut hangup {
                        Some(hangup) => hangup.recv().await,
                        None => std::future::pending().await,
                    }
                };
                let requested = tokio::select! {
                    _ = hung_up => true,
                    _ = ticks.tick() => false,
                };
                let now = look(&files);
                if !requested && now == marks {
                    continue;
                }
                marks = now;
                match load() {
                    Ok(value) => {
                        sender.send_replace(Arc::new(value));
                        tracing::info!("{what}: reloaded");
                    }
                    Err(error) => {
                        tracing::error!("{what}: {}; the last valid version stays in use", chain(&error));
                    }
                }
            }
        };
        Ok((Reloadable(receiver), follow))
    }

    pub fn now(&self) -> Arc<T> {
        self.0.borrow().clone()
    }

    /// Waits until the value has been loaded again. The first call on a new or cloned handle may
    /// return at once. Never returns after the future that reloads the value was dropped.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// Follows symbolic links: Kubernetes replaces mounted secrets by changing a link.
fn look(files: &[PathBuf]) -> Vec<Mark> {
    let mark = |path: &PathBuf| {
        let meta = fs::metadata(path).ok()?;
        Some((meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec()))
    };
    files.iter().map(mark).collect()
}

/// An error and its sources, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(|error| error.to_string().replace('\n', " ")).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_changed_file_is_reloaded_and_an_invalid_one_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("number");
        fs::write(&path, "1").unwrap();
        let file = path.clone();
        let load = move || fs::read_to_string(&file).unwrap_or_default().parse::<u32>();
        let (number, follow) = Reloadable::load("number", vec![path.clone()], load).unwrap();
        let following = tokio::spawn(follow);
        let becomes = async |text: &str, expected: u32| {
            fs::write(&path, text).unwrap();
            // Paused time advances as soon as all tasks wait.
            tokio::time::sleep(PERIOD * 3).await;
            assert_eq!(*number.now(), expected);
        };
        becomes("22", 22).await;
        becomes("none", 22).await;
        becomes("333", 333).await;
        let mut waiting = number.clone();
        // For the reloads before.
        waiting.changed().await;
        let changed = tokio::spawn(async move { waiting.changed().await });
        tokio::time::sleep(PERIOD * 3).await;
        assert!(!changed.is_finished());
        becomes("4444", 4444).await;
        changed.await.unwrap();
        following.abort();
    }
}
