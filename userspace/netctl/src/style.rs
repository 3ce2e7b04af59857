//! Colours. They are written always, and taken out where the output is no terminal (`main`).

use std::fmt::Display;

use anstyle::{AnsiColor, Style};

/// What is well, or comes.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// What is not quite well.
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default();
/// What is wrong, or goes.
pub const BAD: Style = AnsiColor::Red.on_default();

/// `text` in a colour.
pub fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// A unified diff in the usual colours.
pub fn diff(diff: &str) -> String {
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => paint(GOOD, line) + "\n",
        Some(b'-') => paint(BAD, line) + "\n",
        _ => format!("{line}\n"),
    };
    diff.lines().map(line).collect()
}
