//! A backup and its restoration while no netmaster runs.

use std::{sync::PoisonError, time::Duration};

use anyhow::{Context as _, Result, bail};
use testkit::{scratch_dir, wait_until};

use super::STOP_TIMEOUT;
use crate::{
    binaries::Binary,
    faults::{client::Gate, topology::Topology},
};

/// Other faults may stop etcd meanwhile.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Clients wait meanwhile: what they write between the backup and its restoration would be lost.
pub(super) fn restore(topology: &Topology, gate: &Gate) -> Result<()> {
    let _closed = gate.close();
    let mut masters: Vec<_> = topology
        .masters
        .iter()
        .map(|site| site.program.lock().unwrap_or_else(PoisonError::into_inner))
        .collect();
    for master in &mut masters {
        master.process().terminate(STOP_TIMEOUT)?;
    }
    let directory = scratch_dir("backup")?;
    let file = directory.path().join("backup");
    let run = |arguments: &[&str]| {
        let endpoints = topology.endpoints().join(",");
        topology.hub.run(|| {
            let mut command = Binary::Netmaster.command()?;
            let output = command.args(arguments).arg(&file).args(["--etcd", &endpoints]).output()?;
            match output.status.success() {
                true => Ok(()),
                false => bail!("{}", String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            }
        })
    };
    // The lock of a netmaster that was killed lasts as long as its lease.
    for arguments in [&["backup"][..], &["restore", "--replace"]] {
        let mut last = None;
        wait_until(TIMEOUT, &format!("netmaster {}", arguments.join(" ")), || {
            last = run(arguments).err();
            Ok(last.is_none().then_some(()))
        })
        .with_context(|| format!("{last:?}"))?;
    }
    masters.iter_mut().try_for_each(|master| master.relaunch())
}
