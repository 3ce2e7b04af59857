//! What all daemons do with command lines.

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::Parser;

/// How a process ends whose command line cannot be used.
#[derive(Debug)]
pub enum Stop {
    /// `--help` and `--version`: text for standard output, and success.
    Told(String),
    /// One line for standard error, and [`BAD_FLAGS`].
    Bad(String),
}

/// The original's exit code for flags that it cannot use.
pub const BAD_FLAGS: u8 = 22;

/// Reads the flags, and the environment for those that are not given.
pub fn parse<F: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<F, Stop> {
    F::try_parse_from(arguments).map_err(|error| match error.use_stderr() {
        false => Stop::Told(error.to_string()),
        true => Stop::Bad(first_paragraph(&error.to_string())),
    })
}

/// clap's message, up to its first empty line, on one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
}

/// The body of `main`: runs `run` with the flags, and says on standard error why it did not end well.
pub fn carry_out<F, E: fmt::Display>(
    program: &str,
    flags: Result<F, Stop>,
    run: impl FnOnce(F) -> Result<(), E>,
) -> ExitCode {
    let flags = match flags {
        Ok(flags) => flags,
        Err(Stop::Told(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Stop::Bad(line)) => {
            eprintln!("{program}: {line}");
            return ExitCode::from(BAD_FLAGS);
        }
    };
    match run(flags) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {}", format!("{error:#}").replace('\n', " "));
            ExitCode::FAILURE
        }
    }
}
