//! An interrupted change of the datapath: one datapath was stopped, and the other one has not taken over, so that neither
//! forwards.
//!
//! The stopped datapath still has its whole state. The next start of the agent resumes it before it contacts the store,
//! which may be unavailable. The change is repeated when the agent has reached the store.
//!
//! If the other datapath has taken over, or the stopped one has been removed, the other one is used. It is given the
//! objects that it could not have while the stopped one existed. OVS, if stopped, is removed at once, because it takes
//! tunnel packets from the other datapath. eBPF only passes packets on, and is removed when the agent has reached the
//! store. If eBPF was stopped and the switch, which may have taken over, does not respond, the programs are resumed if
//! their devices exist: OVS deletes these devices when it forwards. The next start then decides again. Until its first
//! full resync with the store, the other datapath may wait for connections or objects, and drop all packets.

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

/// File with the datapath that is being stopped and removed, until the other one forwards. Like the forwarding state, it
/// outlives the agent but not a reboot.
#[derive(Clone, Debug)]
pub(super) struct StoppedFile(PathBuf);

impl StoppedFile {
    pub(super) fn beside(socket: &Path) -> StoppedFile {
        StoppedFile(socket.with_extension("stopped"))
    }

    fn read(&self) -> Result<Option<Kind>> {
        match fs::read_to_string(&self.0) {
            // A process was killed during the write.
            Ok(text) if text.is_empty() => Ok(None),
            Ok(text) => kind(text.trim()).map(Some).with_context(|| {
                format!("{}: {text:?}; accepted: ovs, ebpf; or delete the file", self.0.display())
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", self.0.display())),
        }
    }

    /// Records the datapath that is about to be stopped or removed. Without the file, only the next start with a store
    /// ends an interruption.
    pub(super) fn write(&self, kind: Kind) {
        if let Err(error) = fs::write(&self.0, format!("{kind}\n")) {
            tracing::warn!("write {}: {error}", self.0.display());
        }
    }

    /// Removes the file: this datapath or the other one forwards.
    pub(super) fn remove(&self) {
        remove(&self.0);
        self.remove_records();
    }

    /// Stores the records that an agent without a store needs to complete the other datapath. Returns when the store has
    /// answered.
    pub(super) async fn save_records(&self, from: (&Store, &Reader), host: &HostName) {
        // Removes the records of an earlier change.
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

/// Resumes the stopped datapath, unless the other one has begun to take over: then that one forwards, and is completed.
/// Failures are logged, and the next start tries again.
pub(super) async fn resume(flags: &Flags) {
    let file = StoppedFile::beside(&flags.cni_socket);
    let resumed = async {
        let Some(stopped) = file.read()? else { return Ok(None) };
        // A running agent has stopped it, and continues the change.
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
            // The tunnels of `netdev` take the packets to the UDP port before the kernel receives them. Without a VXLAN
            // device, which eBPF cannot have while the kernel datapath of OVS uses the port, only pods of this node reach
            // each other: the networks in the maps have no tunnels until the first full resync.
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

/// Removes the file when the datapath is in sync with the store, then waits for `stop`.
pub(super) async fn settle(
    file: StoppedFile,
    mut status: watch::Receiver<Status>,
    stop: CancellationToken,
) -> Result<()> {
    let settled = async {
        // Garbage collection ends a takeover.
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

/// Remaining state of a datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// No frame passes the datapath.
    Passive,
    /// The datapath forwards, or is about to.
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

/// Returns the datapath that forwards, and whether that is settled. If it is not, the next start decides.
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

/// Returns the datapath that must forward after an interruption, never both: the stopped one, unless the other one has
/// taken over or is the only one. When OVS takes over, it deletes the VXLAN device. So programs that still have their
/// device are complete.
fn forwarding(stopped: Kind, (programs, has_device): (Left, bool), bridges: Left) -> Kind {
    match (stopped, programs, bridges) {
        (Kind::Ovs, Left::Active, _) | (Kind::Ovs, Left::Passive, Left::Nothing) => Kind::Ebpf,
        (Kind::Ebpf, Left::Nothing, Left::Passive | Left::Active | Left::Unknown) => Kind::Ovs,
        // The programs were resumed while the switch did not respond, or have not been stopped.
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

    /// The stopped datapath was removed before the other one was complete.
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
        // The switch responds again.
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
