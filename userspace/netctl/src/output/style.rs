//! Colours. They are always written; `main` removes them if the output is not a terminal.

use std::fmt::Display;

use anstyle::{AnsiColor, Style};

/// Good states, and additions.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Degraded states.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// Errors, and removals.
pub const BAD: Style = AnsiColor::Red.on_default();

/// Returns `text` in a style.
pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Returns a unified diff with additions in green and removals in red.
pub fn diff(diff: &str) -> String {
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => paint(GOOD, line) + "\n",
        Some(b'-') => paint(BAD, line) + "\n",
        _ => format!("{line}\n"),
    };
    diff.lines().map(line).collect()
}
