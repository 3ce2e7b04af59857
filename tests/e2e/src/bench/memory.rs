//! Memory of processes.

use std::{fs, iter::Sum};

use anyhow::{Context as _, Result};
use nix::unistd::Pid;
use serde::Serialize;

/// Resident memory of a process and its peak, in MiB.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Memory {
    pub(super) resident: f64,
    pub(super) peak: f64,
}

impl Memory {
    pub(super) fn of(process: Pid) -> Result<Memory> {
        let status = fs::read_to_string(format!("/proc/{process}/status"))?;
        let megabytes = |name: &str| -> Result<f64> {
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .context("read the memory of a process")?;
            let kilobytes: f64 = line.trim_end_matches("kB").trim().parse()?;
            Ok(kilobytes / 1024.0)
        };
        Ok(Memory { resident: megabytes("VmRSS:")?, peak: megabytes("VmHWM:")? })
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Memory>>(processes: I) -> Memory {
        processes.fold(Memory { resident: 0.0, peak: 0.0 }, |sum, one| Memory {
            resident: sum.resident + one.resident,
            peak: sum.peak + one.peak,
        })
    }
}
