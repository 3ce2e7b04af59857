//! CPU affinity, and the CPU time of this process.

use std::{mem, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    errno::Errno,
    libc,
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

/// Pins the calling thread, and the threads that it starts later, to one CPU.
pub fn pin_to(number: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(number).with_context(|| format!("CPU {number} is out of range"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("pin to CPU {number}"))
}

/// CPU time of all threads of this process. It includes the kernel's processing of sent packets as far as it runs in the
/// context of the sender, which is the case between namespaces of one machine.
pub fn cpu_time() -> Result<Duration> {
    // SAFETY: plain numbers, for which zero is a value.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes one timespec.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Errno::result(result).context("read the CPU time of this process")?;
    Ok(Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec.try_into()?))
}
