//! `netctl`.

use std::{ffi::OsString, io::Write as _, process::ExitCode};

use clap::{CommandFactory as _, Parser as _, error::ErrorKind};
use netctl::{
    cli::{self, Cli},
    style,
};

/// What was typed. A command without its subcommand shows its help, as the original does.
fn typed() -> Result<Cli, clap::Error> {
    let args = || cli::long_flags(std::env::args_os());
    Cli::try_parse_from(args()).or_else(|error| match error.kind() {
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Cli::try_parse_from(args().chain(["--help".into()]))
        }
        _ => Err(error),
    })
}

/// Section of the manual for programs of users.
const SECTION: u8 = 1;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = contiv_cli::print(Cli::command(), SECTION, &[], &arguments) {
        return code;
    }
    let cli = match typed() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers; everything else is a mistake in what was typed.
            let asked = !error.use_stderr();
            return match error.print() {
                Ok(()) if asked => ExitCode::SUCCESS,
                Ok(()) => ExitCode::from(1),
                Err(_) => ExitCode::from(4),
            };
        }
    };
    // Takes colours out unless this is a terminal that wants them (NO_COLOR, TERM=dumb).
    let mut out = anstream::stdout().lock();
    match netctl::run(&cli, &mut out).and_then(|outcome| Ok((outcome, out.flush()?))) {
        Ok((outcome, ())) => ExitCode::from(outcome.exit_code()),
        Err(error) => {
            let code = error.exit_code();
            if !error.is_broken_pipe() {
                tell(error);
            }
            ExitCode::from(code)
        }
    }
}

/// A mistake is a line; only files can hold several.
fn tell(error: netctl::Error) {
    let text = format!("{:#}", anyhow::Error::from(error));
    for line in text.lines() {
        anstream::eprintln!("{} {line}", style::paint(style::BAD, "netctl:"));
    }
}
