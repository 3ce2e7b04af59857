//! Steps that take a while: a spinner on a terminal, plain lines in a pipe.

use std::{
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

const TICK: Duration = Duration::from_millis(100);

/// Runs `work`, shows `what` meanwhile, and prints how long it took.
pub(crate) fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    let spinner = stderr().is_terminal().then(|| {
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        // Without the template the default style is used.
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
            spinner.set_style(style);
        }
        spinner.enable_steady_tick(TICK);
        spinner
    });
    if spinner.is_none() {
        eprintln!("  ... {what}");
    }
    let result = work();
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    let mark = if result.is_ok() { "ok" } else { "failed" };
    eprintln!("  {mark:>3} {what} ({:.1} s)", start.elapsed().as_secs_f64());
    result
}
