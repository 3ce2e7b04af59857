use std::{path::Path, process};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// Not `$TMPDIR`, which can be long: the path of a Unix socket has at most 108 bytes.
const PARENT: &str = "/tmp";

/// Prefix of all resources of this process, which the cleanup of a later process recognises.
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

/// Creates a directory with a short path; it is removed when dropped.
pub fn scratch_dir(label: &str) -> Result<TempDir> {
    crate::sweep::once();
    tempfile::Builder::new()
        .prefix(&format!("{}{label}-", owned_prefix()))
        .tempdir_in(PARENT)
        .with_context(|| format!("create a directory for {label} in {PARENT}"))
}
