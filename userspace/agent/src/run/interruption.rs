//! A change of the datapath that ended between the stop of one datapath and the takeover by the other: neither forwards.
//!
//! The stopped datapath has all of its state. It goes on at the next start of the agent, before the store is asked, which may be
//! away. The change is repeated when the agent has the store.
//!
//! If the other one has taken over, or the stopped one is gone, the other one goes on, and gets what it could not have beside the stopped
//! one. OVS is removed then, because it keeps packets of tunnels from the other one; eBPF, which only passes packets on, when the agent
//! has the store. Programs that have been stopped go on while the switch, which may have taken over, does not respond, if they have their
//! devices: OVS deletes those when it forwards. The next start then decides again. Until its first full resync with the store, the other one may wait for connections or objects, and let nothing pass.

mod completion;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use contiv_model::name::HostName;
use contiv_store::Store;
use tokio::{net::UnixStream, sync::watch};
use tokio_util::sync::CancellationToken;

use super::choice::kind;
use crate::{
    config::{DatapathFlags, Flags},
    datapath::{
        Datapath as _, Kind,
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
    error::one_line,
    reconcile::Status,
    state::Reader,
};
use completion::RecordsFile;

/// The datapath that is being stopped and removed, in a file, until the other one forwards. Like the forwarding state, it outlives the agent and not a reboot.
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

    /// Remembers the datapath that is about to be stopped or removed. Without the file, only the next start with a store ends an interruption.
    pub(super) fn write(&self, kind: Kind) {
        if let Err(error) = fs::write(&self.0, format!("{kind}\n")) {
            tracing::warn!("write {}: {error}", self.0.display());
        }
    }

    /// Forgets the datapath: it forwards, or the other one does.
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
        let (kind, is_settled) = go_on(&flags.datapath, stopped).await?;
        match (stopped, kind) {
            (Kind::Ebpf, Kind::Ovs) => {
                if let Some(records) = file.records().read()? {
                    completion::complete(flags, records).await.context("complete the ovs datapath")?;
                }
            }
            // The tunnels of `netdev` take the packets to the UDP port before the kernel sees them. Without a VXLAN device, which eBPF
            // cannot have beside the kernel's switch, only pods of this node reach each other: the networks in the maps have no tunnels
            // until the first full resync.
            (Kind::Ovs, Kind::Ebpf) => {
                let mut ovs = Ovs::new(flags.datapath.ovs(None));
                ovs.cleanup().await.context("remove the ovs datapath")?;
            }
            _ => {}
        }
        anyhow::Ok(Some((kind, is_settled)))
    };
    match resumed.await {
        Ok(None) => {}
        Ok(Some((kind, true))) => {
            tracing::warn!("a change of the datapath was interrupted; the {kind} datapath forwards");
            file.remove();
        }
        Ok(Some((kind, false))) => {
            tracing::warn!(
                "a change of the datapath was interrupted, and Open vSwitch does not respond; the {kind} datapath \
                 forwards until the agent is started with it"
            );
        }
        Err(error) => tracing::warn!("resume an interrupted change of the datapath: {}", one_line(&*error)),
    }
}

/// Forgets what was stopped when the datapath forwards as the store says, then waits for `stop`.
pub(super) async fn settle(
    file: StoppedFile,
    mut status: watch::Receiver<Status>,
    stop: CancellationToken,
) -> Result<()> {
    let settled = async {
        // The collection of garbage ends a takeover.
        let is_settled = |status: &Status| status.in_sync && status.garbage.is_none();
        if status.wait_for(is_settled).await.is_ok() {
            file.remove();
        }
    };
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = settled => {}
    }
    stop.cancelled().await;
    Ok(())
}

/// What is left of a datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// No frame passes it.
    Passive,
    /// It forwards, or is about to.
    Active,
    /// The switch does not respond.
    Unknown,
}

impl Left {
    async fn of_ebpf(ebpf: &Ebpf) -> Result<Left> {
        Ok(match ebpf.left_behind().await? {
            None => Left::Nothing,
            Some(_) if ebpf.is_passive().await? => Left::Passive,
            Some(_) => Left::Active,
        })
    }

    async fn of_ovs(ovs: &Ovs) -> Left {
        if ovs.left_behind().await.is_some_and(|bridges| bridges.is_empty()) {
            return Left::Nothing;
        }
        match ovs.is_closed().await {
            Ok(true) => Left::Passive,
            Ok(false) => Left::Active,
            Err(error) => {
                tracing::debug!("{}", one_line(&error));
                Left::Unknown
            }
        }
    }
}

/// Returns the datapath that forwards, and whether that is settled: else the next start decides.
async fn go_on(flags: &DatapathFlags, stopped: Kind) -> Result<(Kind, bool)> {
    let mut ovs = Ovs::new(flags.ovs(None));
    let mut ebpf = Ebpf::new(flags.ebpf(None, Options::VXLAN_PORT));
    let (programs, bridges) = (Left::of_ebpf(&ebpf).await?, Left::of_ovs(&ovs).await);
    let kind = forwarding(stopped, (programs, ebpf.has_vxlan_device()), bridges);
    match kind {
        Kind::Ovs => {
            if stopped == Kind::Ebpf
                && programs == Left::Active
                && let Err(error) = ebpf.stop().await
            {
                tracing::warn!("packets may arrive twice: {}", one_line(&error));
            }
            ovs.resume().await?;
        }
        Kind::Ebpf => {
            if stopped == Kind::Ebpf && bridges == Left::Active {
                ovs.stop().await?;
            }
            ebpf.resume().await?;
        }
        Kind::Fake => {}
    }
    let is_settled = (stopped, kind, bridges) != (Kind::Ebpf, Kind::Ebpf, Left::Unknown);
    Ok((kind, is_settled))
}

/// The datapath that forwards after an interruption, never both: the stopped one, unless the other one has taken over or is the only
/// one. OVS, when it has taken over, deletes the VXLAN device: programs that have theirs are complete.
fn forwarding(stopped: Kind, (programs, has_device): (Left, bool), bridges: Left) -> Kind {
    match (stopped, programs, bridges) {
        (Kind::Ovs, Left::Active, _) | (Kind::Ovs, Left::Passive, Left::Nothing) => Kind::Ebpf,
        (Kind::Ebpf, Left::Nothing, Left::Passive | Left::Active | Left::Unknown) => Kind::Ovs,
        // They went on while the switch did not respond, or have not been stopped.
        (Kind::Ebpf, Left::Active, Left::Active) if has_device => Kind::Ebpf,
        (Kind::Ebpf, _, Left::Active) => Kind::Ovs,
        (Kind::Ebpf, _, Left::Unknown) if !has_device => Kind::Ovs,
        _ => stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stopped_datapath_goes_on_unless_the_other_one_has_taken_over() {
        use Left::{Active, Nothing, Passive};
        for (programs, bridges, stopped, expected) in [
            (Passive, Passive, Kind::Ovs, Kind::Ovs),
            (Nothing, Passive, Kind::Ovs, Kind::Ovs),
            (Active, Passive, Kind::Ovs, Kind::Ebpf),
            (Passive, Passive, Kind::Ebpf, Kind::Ebpf),
            (Passive, Nothing, Kind::Ebpf, Kind::Ebpf),
            (Active, Passive, Kind::Ebpf, Kind::Ebpf),
            (Passive, Active, Kind::Ebpf, Kind::Ovs),
        ] {
            assert_eq!(
                forwarding(stopped, (programs, true), bridges),
                expected,
                "{programs:?} {bridges:?} {stopped}"
            );
        }
    }

    /// It was removed before the other one had everything.
    #[test]
    fn the_other_datapath_goes_on_alone() {
        for left in [Left::Passive, Left::Active] {
            assert_eq!(forwarding(Kind::Ovs, (left, false), Left::Nothing), Kind::Ebpf);
            assert_eq!(forwarding(Kind::Ebpf, (Left::Nothing, true), left), Kind::Ovs);
        }
    }

    #[test]
    fn stopped_programs_with_devices_go_on_while_the_switch_does_not_respond() {
        let of = |programs, has_device, bridges| forwarding(Kind::Ebpf, (programs, has_device), bridges);
        for programs in [Left::Passive, Left::Active] {
            assert_eq!(of(programs, true, Left::Unknown), Kind::Ebpf);
            assert_eq!(of(programs, false, Left::Unknown), Kind::Ovs);
            assert_eq!(of(programs, false, Left::Active), Kind::Ovs);
        }
        // When it responds again.
        assert_eq!(of(Left::Active, true, Left::Active), Kind::Ebpf);
        assert_eq!(of(Left::Active, true, Left::Passive), Kind::Ebpf);
        assert_eq!(of(Left::Passive, true, Left::Active), Kind::Ovs);
    }

    #[tokio::test]
    async fn what_was_stopped_is_remembered_until_the_other_datapath_forwards() {
        let folder = tempfile::tempdir().unwrap();
        let file = StoppedFile::beside(&folder.path().join("cni.sock"));
        file.write(Kind::Ovs);
        let (status, statuses) = watch::channel(Status::default());
        let stop = CancellationToken::new();
        let settling = tokio::spawn(settle(file.clone(), statuses, stop.clone()));
        // The takeover has not ended.
        status.send_replace(Status { in_sync: true, garbage: Some("flows".to_owned()), ..Status::default() });
        tokio::task::yield_now().await;
        assert_eq!(file.read().unwrap(), Some(Kind::Ovs));
        status.send_replace(Status { in_sync: true, ..Status::default() });
        let removed = async {
            while file.read().unwrap().is_some() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), removed).await.expect("the file is removed");
        stop.cancel();
        settling.await.unwrap().unwrap();
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
