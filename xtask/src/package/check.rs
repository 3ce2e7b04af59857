//! The packages on clean machines: the installation page is followed to the letter, and an upgrade and a downgrade lose no
//! packet.

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
};

use anyhow::{Context as _, Result};

use super::{cargo_deb, debian_root, debs};
use crate::{
    lab,
    workspace::{Workspace, execute, output},
};

/// Relative to the checkout.
const INSTALL_PAGE: &str = "docs/src/install.md";
/// Debian revision of the packages that are upgraded to; the others have 1.
const NEXT_REVISION: &str = "2";

pub(super) fn run(workspace: &Workspace, packages: &Path) -> Result<()> {
    let next = packages.join("next");
    debs(workspace, &cargo_deb(workspace)?, &next, Some(NEXT_REVISION))?;
    for entry in fs::read_dir(&next)?.collect::<Result<Vec<_>, _>>()? {
        let deb = entry.path();
        change_configuration(workspace, &deb).with_context(|| format!("change {}", deb.display()))?;
    }
    let root = debian_root::ensure(workspace)?;
    let program = lab::build_check(workspace)?;
    let mut check = workspace.command(program);
    check.arg("install-check").arg("--packages").arg(packages).arg("--root").arg(root);
    execute(check.arg("--page").arg(workspace.path(INSTALL_PAGE)))
}

/// Appends a comment to the configuration files of a package. dpkg then asks which file to keep, unless it is told.
fn change_configuration(workspace: &Workspace, deb: &Path) -> Result<()> {
    let content = deb.with_extension("content");
    output(workspace.command("dpkg-deb").arg("--raw-extract").arg(deb).arg(&content))?;
    let configuration = content.join("etc/contiv");
    if configuration.is_dir() {
        for file in fs::read_dir(configuration)? {
            let mut file = File::options().append(true).open(file?.path())?;
            writeln!(file, "# A comment of the next release")?;
        }
        let mut build = workspace.command("dpkg-deb");
        output(build.args(["--build", "--root-owner-group", "-Zgzip"]).arg(&content).arg(deb))?;
    }
    fs::remove_dir_all(content)?;
    Ok(())
}
