//! Which processor a thread runs on, and how much of processors' time this process took.

use std::{mem, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    libc,
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Keeps the calling thread, and those that it starts from now on, on one processor.
pub fn stay_on(number: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(number).with_context(|| format!("there is no processor {number}"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("stay on processor {number}"))
}

/// By all threads of this process until now. What the kernel does with packets that they send is in it as far as it is
/// done at once, which it is between namespaces of one machine.
pub fn time_spent() -> Result<Duration> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Errno::result(result).context("ask for the time spent by this process")?;
    Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.try_into()?))
}
