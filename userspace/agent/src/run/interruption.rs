//! A change of the datapath that ended between the stop of one datapath and the takeover by the other: neither forwards.
//!
//! The stopped datapath has all of its state. It goes on at the next start of the agent, before the store is asked, which may be
//! away. The change is repeated when the agent has the store.
//!
//! If the other one has taken over, it goes on, and gets what it could not have beside the stopped one. OVS is removed then, because
//! it keeps packets of tunnels from the other one; eBPF, which only passes packets on, when the agent has the store.

mod completion;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use contiv_model::name::HostName;
use contiv_store::Store;
use tokio::net::UnixStream;

use super::choice::kind;
use crate::{
    config::{DatapathFlags, Flags},
    datapath::{
        Datapath as _, Kind,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
    error::one_line,
    state::Reader,
};
use completion::RecordsFile;

/// The datapath that is being stopped and removed, in a file. Like the forwarding state, it outlives the agent and not a reboot.
#[derive(Clone, Debug)]
pub(super) struct StoppedFile(PathBuf);

impl StoppedFile {
    pub(super) fn beside(socket: &Path) -> StoppedFile {
        StoppedFile(socket.with_extension("stopped"))
    }

    fn read(&self) -> Result<Option<Kind>> {
        match fs::read_to_string(&self.0) {
            // A process was killed while it wrote.
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => kind(text.trim()).map(Some).with_context(|| {
                format!("{}: {text:?}; accepted: ovs, ebpf; or delete the file", self.0.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", self.0.display())),
        }
    }

    /// Remembers the datapath that is about to be stopped. Without the file, only the next start with a store ends an interruption.
    pub(super) fn write(&self, kind: Kind) {
        if let Err(error) = fs::write(&self.0, format!("{kind}\n")) {
            tracing::warn!("write {}: {error}", self.0.display());
        }
    }

    /// Forgets the datapath, which has been removed or forwards.
    pub(super) fn remove(&self) {
        remove(&self.0);
        self.remove_records();
    }

    /// Stores what an agent without a store needs to complete the other datapath. Returns when the store has answered.
    pub(super) async fn save_records(&self, from: (&Store, &Reader), host: &HostName) {
        // Those of an earlier change.
        self.remove_records();
        self.records().save(from, host).await;
    }

    /// Removes the records: the other datapath is complete.
    pub(super) fn remove_records(&self) {
        remove(self.records().path());
    }

    fn records(&self) -> RecordsFile {
        RecordsFile::beside(&self.0)
    }
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("remove {}: {error}", path.display());
        }
        _ => {}
    }
}

/// Lets the stopped datapath go on, unless the other one has begun to take over: then that one forwards, and is completed. What fails
/// is logged; the next start tries again.
pub(super) async fn resume(flags: &Flags) {
    let file = StoppedFile::beside(&flags.cni_socket);
    let resumed = async {
        let Some(stopped) = file.read()? else { return Ok(None) };
        // An agent that is running has stopped it, and goes on with the change.
        if UnixStream::connect(&flags.cni_socket).await.is_ok() {
            return Ok(None);
        }
        let kind = go_on(&flags.datapath, stopped).await?;
        match (stopped, kind) {
            (Kind::Ebpf, Kind::Ovs) => {
                if let Some(records) = file.records().read()? {
                    completion::complete(flags, records).await.context("complete the ovs datapath")?;
                }
            }
            // The tunnels of `netdev` take the packets to the UDP port before the kernel sees them.
            (Kind::Ovs, Kind::Ebpf) => {
                let mut ovs = Ovs::new(flags.datapath.ovs(None));
                ovs.cleanup().await.context("remove the ovs datapath")?;
            }
            _ => {}
        }
        anyhow::Ok(Some(kind))
    };
    match resumed.await {
        Ok(None) => {}
        Ok(Some(kind)) => {
            tracing::warn!("a change of the datapath was interrupted; the {kind} datapath forwards");
            file.remove();
        }
        Err(error) => tracing::warn!("resume an interrupted change of the datapath: {}", one_line(&*error)),
    }
}

/// Returns the datapath that forwards.
async fn go_on(flags: &DatapathFlags, stopped: Kind) -> Result<Kind> {
    let mut ovs = Ovs::new(flags.ovs(None));
    let mut ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
    let has_successor = match stopped {
        Kind::Ovs => ebpf.left_behind().await?.is_some() && !ebpf.is_passive().await?,
        Kind::Ebpf => !ovs.is_closed().await?,
        Kind::Fake => false,
    };
    let kind = forwarding(stopped, has_successor);
    match kind {
        Kind::Ovs => ovs.resume().await?,
        Kind::Ebpf => ebpf.resume().await?,
        Kind::Fake => {}
    }
    Ok(kind)
}

/// The datapath that forwards after an interruption: never both.
fn forwarding(stopped: Kind, has_successor: bool) -> Kind {
    match (stopped, has_successor) {
        (Kind::Ovs, true) => Kind::Ebpf,
        (Kind::Ebpf, true) => Kind::Ovs,
        (stopped, _) => stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_datapath_goes_on_unless_the_other_one_has_taken_over() {
        for (stopped, other) in [(Kind::Ovs, Kind::Ebpf), (Kind::Ebpf, Kind::Ovs)] {
            assert_eq!((forwarding(stopped, false), forwarding(stopped, true)), (stopped, other));
        }
    }

    #[test]
    fn the_file_names_what_is_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let file = StoppedFile::beside(&folder.path().join("cni.sock"));
        assert_eq!(file.read().unwrap(), None);
        for kind in [Kind::Ebpf, Kind::Ovs] {
            file.write(kind);
            assert_eq!(file.read().unwrap(), Some(kind));
        }
        for _ in 0..2 {
            file.remove();
            assert_eq!(file.read().unwrap(), None);
        }
        fs::write(folder.path().join("cni.stopped"), "").unwrap();
        assert_eq!(file.read().unwrap(), None);
        fs::write(folder.path().join("cni.stopped"), "dpdk\n").unwrap();
        let error = format!("{:#}", file.read().unwrap_err());
        assert!(error.contains("cni.stopped") && error.contains("accepted: ovs, ebpf"), "{error}");
    }
}
