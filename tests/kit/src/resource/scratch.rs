use anyhow::{Context as _, Result};
use tempfile::TempDir;

use super::{
    names::{SCRATCH_PARENT, owned_prefix},
    sweep,
};

/// Creates a directory with a short path; it is removed when dropped.
pub fn scratch_dir(label: &str) -> Result<TempDir> {
    sweep::once();
    tempfile::Builder::new()
        .prefix(&format!("{}{label}-", owned_prefix()))
        .tempdir_in(SCRATCH_PARENT)
        .with_context(|| format!("create a directory for {label} in {SCRATCH_PARENT}"))
}
