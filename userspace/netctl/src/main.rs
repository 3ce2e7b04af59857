//! `netctl`.

use std::{io::Write as _, process::ExitCode};

use clap::Parser as _;
use netctl::cli::{self, Cli};

fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(cli::long_flags(std::env::args_os())) {
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
    let mut out = std::io::stdout().lock();
    match netctl::run(&cli, &mut out).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.exit_code();
            eprintln!("netctl: {:#}", anyhow::Error::from(error));
            ExitCode::from(code)
        }
    }
}
