//! Waits for BPF programs that may still use removed entries.

/// Returns when every program run that started before the call has ended. Entries that programs can no longer reach may
/// then be reused.
///
/// `MEMBARRIER_CMD_GLOBAL` waits for an RCU grace period, and BPF programs run inside RCU read-side sections. Kernels with
/// `nohz_full` cores refuse the command; the function then sleeps for 50 ms, far longer than a program runs.
pub(crate) fn synchronize() {
    // SAFETY: the call passes no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result < 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}
