//! A reader-writer lock on the machine for the tests of one program.
//!
//! Tests that start daemons hold it shared and run beside each other. Tests that load the CPUs on purpose, count lost
//! packets at a high rate or measure hold it exclusively.

use std::{
    cell::Cell,
    env,
    fs::OpenOptions,
    io::Write as _,
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
    time::Instant,
};

/// Names the file that gets one line per test: seconds that it ran, seconds that it waited for the lock, its name.
pub const TIMES_VARIABLE: &str = "CONTIV_TEST_TIMES";

static MACHINE: RwLock<()> = RwLock::new(());

thread_local! {
    static HELD: Cell<bool> = const { Cell::new(false) };
}

/// The machine lock, held until this is dropped.
#[derive(Debug)]
pub struct MachineLock {
    waiting_since: Instant,
    running_since: Instant,
    _guard: Guard,
}

#[derive(Debug)]
#[expect(dead_code, reason = "the guards are held for their Drop")]
enum Guard {
    Shared(RwLockReadGuard<'static, ()>),
    Exclusive(RwLockWriteGuard<'static, ()>),
}

/// Waits until no test of this program holds the machine exclusively.
///
/// # Panics
///
/// Panics when the thread already holds the lock: a second acquisition could deadlock.
pub fn shared() -> MachineLock {
    lock(|| Guard::Shared(MACHINE.read().unwrap_or_else(PoisonError::into_inner)))
}

/// Waits until no other test of this program holds the machine.
///
/// # Panics
///
/// Panics when the thread already holds the lock.
pub fn exclusive() -> MachineLock {
    lock(|| Guard::Exclusive(MACHINE.write().unwrap_or_else(PoisonError::into_inner)))
}

fn lock(acquire: impl FnOnce() -> Guard) -> MachineLock {
    assert!(!HELD.replace(true), "the test already holds the machine lock");
    let waiting_since = Instant::now();
    let guard = acquire();
    MachineLock { waiting_since, running_since: Instant::now(), _guard: guard }
}

impl Drop for MachineLock {
    fn drop(&mut self) {
        HELD.set(false);
        let Some(path) = env::var_os(TIMES_VARIABLE) else { return };
        let (ran, waited) = (self.running_since.elapsed(), self.running_since - self.waiting_since);
        let line = format!(
            "{:.1} {:.1} {}\n",
            ran.as_secs_f64(),
            waited.as_secs_f64(),
            thread::current().name().unwrap_or("unnamed")
        );
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut log| log.write_all(line.as_bytes()));
        if let Err(error) = written {
            eprintln!("{TIMES_VARIABLE} = {}: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn exclusive_holder_runs_alone() {
        let alone = exclusive();
        let entered = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _machine = shared();
                entered.store(true, Ordering::SeqCst);
            });
            while alone.running_since.elapsed().as_millis() < 50 {
                assert!(!entered.load(Ordering::SeqCst));
                thread::yield_now();
            }
            drop(alone);
        });
        assert!(entered.load(Ordering::SeqCst));
    }

    #[test]
    fn second_acquisition_panics() {
        let refused = thread::spawn(|| {
            let _machine = shared();
            shared();
        });
        assert!(refused.join().is_err());
        drop(exclusive());
    }
}
