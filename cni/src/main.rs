//! `contivk8s`: see the library.

use std::{
    env,
    io::{self, Write as _},
    process::ExitCode,
};

fn main() -> ExitCode {
    let asked = env::args().nth(1);
    if matches!(asked.as_deref(), Some("-version" | "--version" | "-V")) {
        println!("contivk8s {}", env!("CARGO_PKG_VERSION"));
        return ExitCode::SUCCESS;
    }
    let outcome = contivk8s::plugin::run(|name| env::var(name).ok(), io::stdin());
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(outcome.stdout.as_bytes()).and_then(|()| stdout.flush());
    match written {
        Ok(()) => ExitCode::from(outcome.status),
        Err(error) => {
            eprintln!("contivk8s: write the answer to standard output: {error}");
            ExitCode::FAILURE
        }
    }
}
