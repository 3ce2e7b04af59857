use anyhow::Result;

use crate::{lint, setup, suite, workspace::Workspace};

/// What the README promises, in its order. The last line of it all is that of the tests.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    setup::run(workspace, &setup::Options::default())?;
    lint::run(workspace, &lint::Options::default())?;
    suite::run(workspace, &suite::Options::strict())
}
