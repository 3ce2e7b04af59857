//! Folders that are complete if they exist.

use std::{fs, io, path::Path, path::PathBuf};

use anyhow::{Context as _, Result};

/// Calls `build` with a temporary folder beside `target`, which then replaces `target`.
pub(super) fn replace(target: &Path, build: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let (work, previous) = (sibling(target, "partial"), sibling(target, "previous"));
    remove(&work)?;
    fs::create_dir_all(&work).with_context(|| format!("create {}", work.display()))?;
    build(&work)?;
    remove(&previous)?;
    if target.exists() {
        fs::rename(target, &previous).with_context(|| format!("rename the old {}", target.display()))?;
    }
    fs::rename(&work, target).with_context(|| format!("rename a folder to {}", target.display()))?;
    remove(&previous)
}

fn sibling(target: &Path, suffix: &str) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.with_context(|| format!("remove {}", path.display())),
    }
}
