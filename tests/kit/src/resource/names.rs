//! Names and locations of the resources of a test process.

use std::{fs, io, path::Path, process};

use nix::mount::{MntFlags, umount2};

pub(crate) const NETNS_DIRECTORY: &str = "/run/netns";
pub(crate) const BPF_MOUNT_POINT: &str = "/sys/fs/bpf";
/// Not `$TMPDIR`, which can be long: the path of a Unix socket has at most 108 bytes.
pub(crate) const SCRATCH_PARENT: &str = "/tmp";

/// Prefix of all resources of this process, which the cleanup of a later process recognises.
pub(crate) fn owned_prefix() -> String {
    format!("ctvk{}-", process::id())
}

/// The pid in a name made with [`owned_prefix`].
pub(crate) fn owner(name: &str) -> Option<u32> {
    name.strip_prefix("ctvk")?.split_once('-')?.0.parse().ok()
}

/// Unmounts and removes the file of a network namespace.
pub(crate) fn remove_netns(path: &Path) -> io::Result<()> {
    match umount2(path, MntFlags::MNT_DETACH) {
        // Not a mount point: `create` was interrupted.
        Ok(()) | Err(nix::Error::EINVAL) => {}
        Err(nix::Error::ENOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
