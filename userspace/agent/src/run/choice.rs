//! The datapath that an operator has chosen for this node (`netctl node set-datapath`). It takes precedence over the
//! flag.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::Context as _;
use contiv_model::{event::Event, key::Key, name::HostName, node::ChosenDatapath};
use contiv_store::Store;
use futures::StreamExt as _;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{atomic_file, config::Flags, datapath::Kind, error::one_line};

/// Time limit for the store at the start: the agent must start without it.
const READ_TIMEOUT: Duration = Duration::from_secs(3);

/// The datapath is not possible on this node. Only this error makes the node keep its other datapath; an unavailable
/// store, for example, does not.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct Refused(pub(super) anyhow::Error);

/// File with the chosen datapath of the node: an agent that starts while the store is unavailable must not use another
/// datapath than its pods.
#[derive(Clone, Debug)]
pub(super) struct ChosenFile(PathBuf);

impl ChosenFile {
    pub(super) fn beside(socket: &Path) -> ChosenFile {
        ChosenFile(socket.with_extension("datapath"))
    }

    /// Returns `None` if nothing has been chosen.
    pub(super) fn read(&self) -> anyhow::Result<Option<Kind>> {
        match fs::read_to_string(&self.0) {
            Ok(text) => kind(text.trim()).map(Some).with_context(|| {
                format!("{}: {text:?}; accepted: ovs, ebpf; or delete the file", self.0.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", self.0.display())),
        }
    }

    /// Removes the file, if it exists.
    pub(super) fn remove(&self) -> anyhow::Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", self.0.display()))
            }
            _ => Ok(()),
        }
    }

    /// Replaces the file atomically. Writes nothing if it already contains the choice: each start calls this, and the
    /// file system may be full.
    pub(super) fn write(&self, kind: Kind) -> anyhow::Result<()> {
        if matches!(self.read(), Ok(Some(present)) if present == kind) {
            return Ok(());
        }
        atomic_file::replace(&self.0, format!("{kind}\n").as_bytes())
            .with_context(|| format!("write {}", self.0.display()))
    }
}

/// Returns the choice in the store; `None` without one, and while the store is unavailable.
pub(super) async fn stored(flags: &Flags) -> Option<Kind> {
    let read = async {
        let store = Store::connect(&flags.access.access().config(flags.store())?).await?;
        let host = flags.node()?.host;
        anyhow::Ok(store.get(&Key::NodeDatapath(host).to_string()).await?)
    };
    let chosen = match timeout(READ_TIMEOUT, read).await {
        Ok(Ok(chosen)) => chosen?,
        Ok(Err(error)) => {
            tracing::warn!("read the datapath that was chosen for this node: {}", one_line(&*error));
            return None;
        }
        Err(_) => {
            tracing::warn!("read the datapath that was chosen for this node: the store does not respond");
            return None;
        }
    };
    parse(&chosen.value)
}

/// Reports whether the choice in the store, which was unavailable at the start, is another datapath than `own`. If so,
/// the run ends before it changes the datapath, and a run with the chosen one follows.
pub(super) async fn was_missed(
    (store, host): (&Store, &HostName),
    own: Kind,
    refused: Option<Kind>,
    next: &NextDatapath,
) -> bool {
    let chosen = match store.get(&Key::NodeDatapath(host.clone()).to_string()).await {
        Ok(chosen) => chosen.and_then(|chosen| parse(&chosen.value)),
        // From now on the run watches the choice.
        Err(error) => {
            tracing::warn!("read the datapath that was chosen for this node: {}", one_line(&error));
            None
        }
    };
    let Some(chosen) = chosen.filter(|kind| *kind != own && Some(*kind) != refused) else { return false };
    tracing::info!("the {chosen} datapath was chosen while the store was away");
    // The only writer: the choice is not watched yet.
    let _is_first = next.0.set(chosen).is_ok();
    true
}

fn parse(value: &[u8]) -> Option<Kind> {
    let chosen = serde_json::from_slice::<ChosenDatapath>(value).map_err(|error| error.to_string());
    let known = chosen.and_then(|ChosenDatapath { datapath, .. }| {
        kind(&datapath).ok_or_else(|| format!("{datapath:?}: expected ovs or ebpf"))
    });
    known
        .inspect_err(|why| tracing::error!("the datapath that was chosen for this node: {why}; ignored"))
        .ok()
}

pub(super) fn kind(name: &str) -> Option<Kind> {
    [Kind::Ovs, Kind::Ebpf].into_iter().find(|kind| kind.to_string() == name)
}

/// The choice that ends a run of the agent. The next run uses this datapath.
#[derive(Clone, Debug, Default)]
pub(super) struct NextDatapath(Arc<OnceLock<Kind>>);

impl NextDatapath {
    pub(super) fn get(&self) -> Option<Kind> {
        self.0.get().copied()
    }
}

/// Ends the run by cancelling `run` when another datapath than `own` is chosen. A refused datapath is not tried again
/// until the agent is restarted.
pub(super) async fn follow(
    (store, host): (Store, HostName),
    own: Kind,
    refused: Option<Kind>,
    next: NextDatapath,
    run: CancellationToken,
) -> anyhow::Result<()> {
    let key = Key::NodeDatapath(host).to_string();
    let mut watch = store.watch(&key);
    loop {
        let update = tokio::select! {
            () = run.cancelled() => return Ok(()),
            update = watch.next() => update,
        };
        let Some(update) = update else { anyhow::bail!("watch of {key} ended") };
        let (Event::InitApply(changed, value) | Event::Apply(changed, value)) = update.event else {
            continue;
        };
        // The watch covers all keys with this prefix.
        if changed != key {
            continue;
        }
        if let Some(chosen) = parse(&value.value).filter(|kind| *kind != own && Some(*kind) != refused) {
            tracing::info!("changing to the {chosen} datapath, which an operator has chosen");
            // The only writer.
            let _is_first = next.0.set(chosen).is_ok();
            run.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_their_cause() {
        let cause = anyhow::Error::from(io::Error::other("no BPF file system"));
        let error = anyhow::Error::from(Refused(cause.context("prepare the datapath")));
        assert!(error.is::<Refused>() && !anyhow::anyhow!("the store is away").is::<Refused>());
        assert_eq!(one_line(&*error), "prepare the datapath: no BPF file system");
        assert_eq!(format!("{error:#}"), "prepare the datapath: no BPF file system");
    }

    #[test]
    fn the_file_holds_the_choice() {
        let folder = tempfile::tempdir().unwrap();
        let file = ChosenFile::beside(&folder.path().join("cni.sock"));
        assert_eq!(file.read().unwrap(), None);
        for kind in [Kind::Ebpf, Kind::Ovs] {
            file.write(kind).unwrap();
            assert_eq!(file.read().unwrap(), Some(kind));
        }
        fs::write(folder.path().join("cni.datapath"), "dpdk\n").unwrap();
        let error = format!("{:#}", file.read().unwrap_err());
        assert!(error.contains("cni.datapath") && error.contains("accepted: ovs, ebpf"), "{error}");
        file.write(Kind::Ovs).unwrap();
        assert_eq!(file.read().unwrap(), Some(Kind::Ovs));
    }

    #[test]
    fn the_same_choice_is_not_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = ChosenFile::beside(&folder.path().join("cni.sock"));
        file.write(Kind::Ebpf).unwrap();
        // The file can no longer be replaced, as on a full file system.
        fs::create_dir(folder.path().join("cni.datapath.new")).unwrap();
        file.write(Kind::Ebpf).unwrap();
        let error = format!("{:#}", file.write(Kind::Ovs).unwrap_err());
        assert!(error.contains("write") && error.contains("cni.datapath"), "{error}");
        assert_eq!(file.read().unwrap(), Some(Kind::Ebpf));
    }
}
