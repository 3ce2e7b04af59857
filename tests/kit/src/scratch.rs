use std::{path::Path, process};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// Unix sockets may have 108 bytes of path, so not `$TMPDIR`, which can be long.
const PARENT: &str = "/tmp";

/// Prefix of all that this process makes and a later one may sweep.
pub(crate) fn owned_prefix() -> String {
    format!("ctvk{}-", process::id())
}

/// The pid in a name made with [`owned_prefix`].
pub(crate) fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("ctvk")?.split_once('-')?.0.parse().ok()
}

pub(crate) fn parent() -> &'static Path {
    Path::new(PARENT)
}

/// A directory with a short path, removed when dropped.
pub fn scratch_dir(label: &str) -> Result<TempDir> {
    crate::sweep::once();
    tempfile::Builder::new()
        .prefix(&format!("{}{label}-", owned_prefix()))
        .tempdir_in(PARENT)
        .with_context(|| format!("make a directory for {label} in {PARENT}"))
}
