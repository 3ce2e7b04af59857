//! The packages on clean machines: the installation page is followed to the letter, and an upgrade loses no packet.

use std::path::Path;

use anyhow::Result;

use super::{cargo_deb, debian_root, debs};
use crate::{
    lab,
    workspace::{Workspace, execute},
};

/// Relative to the checkout.
const INSTALL_PAGE: &str = "docs/src/install.md";
/// Debian revision of the packages that are upgraded to; the others have 1.
const NEXT_REVISION: &str = "2";

pub(super) fn run(workspace: &Workspace, packages: &Path) -> Result<()> {
    debs(workspace, &cargo_deb(workspace)?, &packages.join("next"), Some(NEXT_REVISION))?;
    let root = debian_root::ensure(workspace)?;
    let program = lab::build_check(workspace)?;
    let mut check = workspace.command(program);
    check.arg("install-check").arg("--packages").arg(packages).arg("--root").arg(root);
    execute(check.arg("--page").arg(workspace.path(INSTALL_PAGE)))
}
