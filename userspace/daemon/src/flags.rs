//! Command lines of the daemons.

use std::ffi::OsString;
use std::fmt;
use std::process::ExitCode;

use clap::Parser;

/// How a process ends that does not run with its command line.
#[derive(Debug)]
pub enum Exit {
    /// `--help` and `--version`: text for standard output, exit code 0.
    Output(String),
    /// One line for standard error, exit code [`BAD_FLAGS`].
    Usage(String),
}

/// Exit code for invalid flags, as in the original.
pub const BAD_FLAGS: u8 = 22;

/// Parses the flags; flags that are not given are taken from the environment.
pub fn parse<F: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<F, Exit> {
    F::try_parse_from(arguments).map_err(|error| match error.use_stderr() {
        false => Exit::Output(error.to_string()),
        true => Exit::Usage(first_paragraph(&error.to_string())),
    })
}

/// clap's message up to the first empty line, on one line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().take_while(|line| !line.trim().is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ").trim_start_matches("error: ").to_owned()
}

/// The body of `main`: calls `run` with the flags, and prints its error to standard error.
pub fn run_main<F, E: fmt::Display>(
    program: &str,
    flags: Result<F, Exit>,
    run: impl FnOnce(F) -> Result<(), E>,
) -> ExitCode {
    let flags = match flags {
        Ok(flags) => flags,
        Err(Exit::Output(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(Exit::Usage(line)) => {
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
