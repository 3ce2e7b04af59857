//! `netctl`.

use std::{ffi::OsString, io::Write as _, process::ExitCode};

use clap::CommandFactory as _;
use netctl::{
    cli::{self, Cli},
    output::style,
};

/// Manual section of user commands.
const SECTION: u8 = 1;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = contiv_cli::print(Cli::command(), SECTION, &[], &arguments) {
        return code;
    }
    let cli = match cli::parse(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output; everything else is a usage error.
            let requested = !error.use_stderr();
            return match error.print() {
                Ok(()) if requested => ExitCode::SUCCESS,
                Ok(()) => ExitCode::from(1),
                Err(_) => ExitCode::from(4),
            };
        }
    };
    // Removes colours unless this is a terminal that supports them (NO_COLOR, TERM=dumb).
    let mut out = anstream::stdout().lock();
    match cli::run(&cli, &mut out).and_then(|outcome| Ok((outcome, out.flush()?))) {
        Ok((outcome, ())) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            let code = error.exit_code();
            if !error.is_broken_pipe() {
                report(error);
            }
            ExitCode::from(code)
        }
    }
}

/// Prints one line per error; only files cause several.
fn report(error: netctl::Error) {
    let text = format!("{:#}", anyhow::Error::from(error));
    for line in text.lines() {
        anstream::eprintln!("{} {line}", style::paint(style::BAD, "netctl:"));
    }
}
