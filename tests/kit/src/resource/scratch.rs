use std::{fs, path::Path};

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

/// Copies a folder with everything below it into the folder `to`, which is created if necessary.
pub fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy_folder(&entry.path(), &target)?,
            false => drop(fs::copy(entry.path(), target)?),
        }
    }
    Ok(())
}
