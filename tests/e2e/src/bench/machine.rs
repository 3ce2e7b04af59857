//! Description of the machine that a benchmark runs on.

use std::{fmt, fs, path::Path, thread};

use anyhow::{Context as _, Result};
use nix::sys::{
    statfs::{TMPFS_MAGIC, statfs},
    utsname::uname,
};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Machine {
    kernel: String,
    processor: String,
    processors: usize,
    load: String,
    /// False if stores keep their files on tmpfs, where fsync is free.
    store_on_disk: bool,
}

pub(super) fn describe() -> Result<Machine> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo")?;
    let processor = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let load = fs::read_to_string("/proc/loadavg")?;
    let scratch = testkit::scratch_dir("machine")?;
    Ok(Machine {
        kernel: uname().context("uname")?.release().to_string_lossy().into_owned(),
        processor: processor.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
        processors: thread::available_parallelism()?.get(),
        load: load.split(' ').next().unwrap_or_default().to_owned(),
        store_on_disk: on_disk(scratch.path())?,
    })
}

fn on_disk(path: &Path) -> Result<bool> {
    Ok(statfs(path).context("query the file system")?.filesystem_type() != TMPFS_MAGIC)
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = if self.store_on_disk { "on disk" } else { "on tmpfs (fsync is free)" };
        write!(
            f,
            "Linux {}, {} x {}, load before {}, stores {store}",
            self.kernel, self.processors, self.processor, self.load
        )
    }
}
