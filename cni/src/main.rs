//! `contivk8s`: see the library.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

use contivk8s::plugin::{self, Outcome};

fn main() -> ExitCode {
    let asked = env::args_os().nth(1);
    let outcome = match asked.as_ref().and_then(|asked| asked.to_str()) {
        Some("-version" | "--version" | "-V") => {
            Outcome { stdout: format!("contivk8s {}\n", env!("CARGO_PKG_VERSION")), status: 0 }
        }
        _ => plugin::run(|name| env::var_os(name), io::stdin()),
    };
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(outcome.stdout.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => ExitCode::from(outcome.status),
        Err(error) => {
            // Standard error may be closed as well.
            drop(writeln!(io::stderr(), "contivk8s: write the answer to standard output: {error}"));
            ExitCode::FAILURE
        }
    }
}
