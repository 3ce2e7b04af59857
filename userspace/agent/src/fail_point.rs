//! Steps of requests, and of a change of the datapath, at which a debug build can be killed, so that a test can kill it at each of
//! them.

/// Number of the step at which the process kills itself; all steps are counted from 1.
#[cfg(debug_assertions)]
const VARIABLE: &str = "CONTIV_KILL_AT_STEP";

/// Counts a completed step. Does nothing in release builds.
#[cfg(debug_assertions)]
pub(crate) fn reach(step: &str) {
    use std::sync::atomic::{AtomicUsize, Ordering};

    static REACHED: AtomicUsize = AtomicUsize::new(0);
    let last = std::env::var(VARIABLE).ok().and_then(|number| number.parse::<usize>().ok());
    let Some(last) = last else { return };
    if REACHED.fetch_add(1, Ordering::Relaxed) + 1 == last {
        tracing::warn!("killed after step {last}: {step}");
        if let Err(error) = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL) {
            tracing::error!("kill the process: {error}");
        }
    }
}

/// Counts a completed step. Does nothing in release builds.
#[cfg(not(debug_assertions))]
pub(crate) const fn reach(_step: &str) {}
