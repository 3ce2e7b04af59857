//! Steps that take a while: a spinner on a terminal, plain lines in a pipe.

use std::{
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::interrupt;

const TICK: Duration = Duration::from_millis(100);

/// Does `work` while telling `what`; not begun when the user has interrupted.
pub fn step<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    interrupt::check()?;
    let start = Instant::now();
    let spinner = stderr().is_terminal().then(|| {
        let spinner = ProgressBar::new_spinner().with_message(what.to_owned());
        // A template that does not parse is no reason not to work.
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
    let mark = if result.is_ok() { "ok" } else { "no" };
    eprintln!("  {mark} {what} ({:.1} s)", start.elapsed().as_secs_f64());
    interrupt::check()?;
    result
}
