use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount},
    sys::statfs::{BPF_FS_MAGIC, statfs},
};

use super::{
    names::{BPF_MOUNT_POINT, owned_prefix},
    sweep,
};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A directory for pinned BPF objects; removed with all pins when dropped.
#[derive(Debug)]
pub struct BpfDir(PathBuf);

impl BpfDir {
    /// Creates a directory. Mounts the BPF file system if it is not mounted, and leaves it mounted.
    pub fn new(label: &str) -> Result<BpfDir> {
        sweep::once();
        if statfs(BPF_MOUNT_POINT)
            .with_context(|| format!("query the file system at {BPF_MOUNT_POINT}"))?
            .filesystem_type()
            != BPF_FS_MAGIC
        {
            mount(Some("bpf"), BPF_MOUNT_POINT, Some("bpf"), MsFlags::empty(), None::<&str>)
                .with_context(|| format!("mount the BPF file system at {BPF_MOUNT_POINT}: needs root"))?;
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(BPF_MOUNT_POINT).join(format!("{}{count}-{label}", owned_prefix()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        Ok(BpfDir(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for BpfDir {
    fn drop(&mut self) {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                eprintln!("remove the pins in {}: {error}", self.0.display());
            }
            _ => {}
        }
    }
}
