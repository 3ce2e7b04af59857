//! Which processor a thread runs on.

use anyhow::{Context as _, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Keeps the calling thread, and those that it starts from now on, on one processor.
pub fn stay_on(number: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(number).with_context(|| format!("there is no processor {number}"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("stay on processor {number}"))
}
