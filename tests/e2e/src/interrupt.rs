//! Ctrl-C and SIGTERM as a flag that work looks at, so that everything is taken down in order.

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

/// 128 + SIGINT, as shells have it.
const EXIT_CODE: i32 = 130;

/// From now on signals only set the flag; the second one ends the process at once, and what is left is swept by the
/// next run. Programs that are spawned get their signals as ever: handlers do not pass through exec.
pub fn catch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("catch signals")?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                process::exit(EXIT_CODE);
            }
            eprintln!("interrupted: taking everything down (once more ends at once)");
            let _guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
            WAITING.1.notify_all();
        }
    })?;
    Ok(())
}

pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) {
        bail!("interrupted");
    }
    Ok(())
}

/// Forgets the signal: it was the word to go on, with taking down.
pub fn reset() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Until there is a signal.
pub fn wait() {
    let mut guard = WAITING.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !INTERRUPTED.load(Ordering::SeqCst) {
        guard = WAITING.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}
