//! Progress of long steps: a spinner on a terminal, plain lines otherwise.

use std::{
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

const TICK: Duration = Duration::from_millis(100);

/// Runs `work` and shows `what`; fails without running it after an interrupt.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    interrupt::check()?;
    let start = Instant::now();
    let spinner = stderr().is_terminal().then(|| {
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        // An invalid template is not fatal.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(TICK);
        spinner
    });
    let result = work();
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    let mark = if result.is_ok() { "ok" } else { "FAILED" };
    eprintln!("  {mark} {what} ({:.1} s)", start.elapsed().as_secs_f64());
    interrupt::check()?;
    result
}
