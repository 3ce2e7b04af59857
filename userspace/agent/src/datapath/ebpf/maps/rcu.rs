//! Waits for BPF programs that may still hold a reference to removed entries.

/// Returns when every program that ran when it was called has ended, so that what was taken out of their reach may be
/// removed.
///
/// `MEMBARRIER_CMD_GLOBAL` waits for a grace period of RCU, in which the programs run. A kernel with cores set aside
/// (`nohz_full`) refuses it; there, programs of microseconds are given long enough.
pub(crate) fn synchronize() {
    // SAFETY: a call without memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
