//! A clean Debian 12 below `.tools`, made of packages, for tests that install something.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result};

use crate::{
    progress::step,
    setup,
    workspace::{Workspace, run_logged},
};

const SUITE: &str = "bookworm";
/// What machines of a cluster have besides Debian's essential packages.
const PACKAGES: [&str; 9] = [
    "ca-certificates",
    "etcd-client",
    "etcd-server",
    "iproute2",
    "iputils-ping",
    "openssl",
    "openvswitch-switch",
    "procps",
    "curl",
];

/// Makes the root unless it is there, and names its directory.
pub(super) fn ensure(workspace: &Workspace) -> Result<PathBuf> {
    let root = workspace.tools().join("debian-12");
    // A root made for another list of packages is made anew.
    let mark = root.join("etc/contiv-root");
    let wanted = PACKAGES.join(" ");
    if fs::read_to_string(&mark).is_ok_and(|made_of| made_of == wanted) {
        return Ok(root);
    }
    setup::ensure_root_builder(workspace)?;
    step("clean Debian 12 root", || {
        if root.exists() {
            fs::remove_dir_all(&root).with_context(|| format!("remove {}", root.display()))?;
        }
        let mut build = workspace.command("mmdebstrap");
        build.args(["--mode=root", "--variant=minbase", "--quiet"]);
        build.arg(format!("--include={}", PACKAGES.join(",")));
        // Services are started by the tests that need them.
        build.arg("--setup-hook=mkdir -p \"$1/usr/sbin\"; printf '#!/bin/sh\\nexit 101\\n' >\"$1/usr/sbin/policy-rc.d\"; chmod 755 \"$1/usr/sbin/policy-rc.d\"");
        // From Debian's mirrors, with updates and security; apt's proxy settings of this machine apply.
        build.arg(SUITE).arg(&root);
        run_logged(&mut build, &setup::debian::log(workspace, "debian-root.log")?)?;
        fs::write(&mark, &wanted).context("mark the Debian root as complete")
    })?;
    Ok(root)
}
