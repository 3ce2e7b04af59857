//! Completion of OVS without a store, after it has taken over from eBPF.
//!
//! While eBPF exists, OVS has neither tunnels nor interfaces to the node's kernel, because eBPF uses the UDP port and the
//! names. If the agent is killed between the takeover and their creation, the next process may have no store. So the
//! records of the store are written to a file before eBPF stops. They have the same form as in the store, which agents of
//! all releases can read.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use contiv_model::name::HostName;
use contiv_store::{Error, Store};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use crate::{
    atomic_file,
    attach::link::Links,
    config::Flags,
    datapath::{
        ebpf::{Ebpf, Options},
        ovs::Ovs,
    },
    error::one_line,
    reconcile::Reconciler,
    run::{RESYNC_INTERVAL, interfaces::recover, settings::configure},
    source::{Record, list_records, snapshot_of},
    state::{self, Reader},
};

/// Interval between attempts to read the records.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// File with the records from which the plan of the node is computed.
#[derive(Clone, Debug)]
pub(super) struct RecordsFile(PathBuf);

#[derive(Serialize, Deserialize)]
struct Content {
    records: Vec<Record>,
}

impl RecordsFile {
    /// Returns the file next to that of the stopped datapath.
    pub(super) fn beside(stopped: &Path) -> RecordsFile {
        RecordsFile(stopped.with_extension("records.json"))
    }

    /// Path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces the file with the current records of the store. Returns when the store has answered. A failure is logged:
    /// then only an agent with a store completes the change.
    pub(super) async fn save(&self, (store, reader): (&Store, &Reader), host: &HostName) {
        let records = read_records(store, reader, host).await.map_err(|error| one_line(&error));
        let saved = records.and_then(|records| self.write(records).map_err(|error| error.to_string()));
        if let Err(error) = saved {
            tracing::warn!("write {}: {error}", self.0.display());
        }
    }

    /// Replaces the file atomically.
    fn write(&self, records: Vec<Record>) -> io::Result<()> {
        atomic_file::replace(&self.0, &serde_json::to_vec(&Content { records })?)
    }

    /// Reads the records; `None` if there is no file.
    pub(super) fn read(&self) -> Result<Option<Vec<Record>>> {
        let what = || format!("read {}", self.0.display());
        match fs::read(&self.0) {
            Ok(text) => {
                let content: Content = serde_json::from_slice(&text).with_context(what)?;
                Ok(Some(content.records))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(what),
        }
    }
}

/// Reads the records. Retries without limit, because eBPF forwards meanwhile.
async fn read_records(store: &Store, reader: &Reader, host: &HostName) -> Result<Vec<Record>, Error> {
    let needs = reader.needs(host, &BTreeSet::new());
    loop {
        match list_records(store, &needs).await {
            Err(error) if error.is_transient() => {
                tracing::warn!("read the records for the other datapath: {}; retrying", one_line(&error));
                sleep(RETRY_INTERVAL).await;
            }
            result => return result,
        }
    }
}

/// Deletes the interfaces of eBPF, and sets the objects in OVS that it could not have while they existed.
pub(super) async fn complete(flags: &Flags, records: Vec<Record>) -> Result<()> {
    Ebpf::new(flags.datapath.ebpf(None, Options::VXLAN_PORT)).delete_devices().await?;
    let node = flags.node()?;
    let (mut writer, attacher, reader, changes) = state::new([]);
    configure(&mut writer, flags);
    writer.apply_all(snapshot_of(records));
    recover(&Links::open().await?, &attacher).await?;
    let ovs = Ovs::new(flags.ovs(node.vtep));
    let (mut reconciler, _handle) = Reconciler::new(ovs, node, reader, changes, RESYNC_INTERVAL);
    ensure!(reconciler.complete_takeover().await, "OVS lacks objects; see the messages before this one");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_releases_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = RecordsFile::beside(&folder.path().join("cni.stopped"));
        assert!(file.read().unwrap().is_none());
        let text = r#"{"records":[{"key":"k","value":"{}","modRevision":7,"later":1}],"later":true}"#;
        fs::write(folder.path().join("cni.records.json"), text).unwrap();
        let records = file.read().unwrap().unwrap();
        assert_eq!(records.len(), 1);
        file.write(records.clone()).unwrap();
        assert_eq!(file.read().unwrap(), Some(records));
        fs::write(file.path(), "{").unwrap();
        let error = format!("{:#}", file.read().unwrap_err());
        assert!(error.contains("cni.records.json"), "{error}");
    }
}
