use anyhow::Result;

use crate::{lint, setup, suite, vm, workspace::Workspace};

/// What the README promises. Other kernels come first, so that the last line of it all is that of the tests here.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    setup::run(workspace, &setup::Options::default())?;
    lint::run(workspace, &lint::Options::default())?;
    vm::run(workspace, &vm::Options::ci())?;
    suite::run(workspace, &suite::Options::strict())
}
