//! SIGINT, SIGTERM and SIGHUP set a flag that long operations check, so that resources are removed in order.

use std::{
    process,
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, bail};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITING: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

/// 128 + SIGINT, as in shells.
const EXIT_CODE: i32 = 130;

/// Installs the handlers. A second signal ends the process at once; the next run removes its resources then. Child
/// processes keep the default handlers, because exec resets them.
pub fn catch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catch signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                process::exit(EXIT_CODE);
            }
            eprintln!("interrupted: cleaning up (interrupt again to exit at once)");
            let _guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
            WAITING.1.notify_all();
        }
    })?;
    Ok(())
}

/// Fails after a signal.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Clears the flag, so that the cleanup can run.
pub fn reset() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Blocks until there is a signal.
pub fn wait() {
    let mut guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !INTERRUPTED.load(Ordering::SeqCst) {
        guard = WAITING.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}
