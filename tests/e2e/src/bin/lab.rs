//! `cargo xtask demo | bench | replay` build the binaries and start this.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Runs the real binaries")]
struct Cli {
    /// Only check that the words make sense
    #[arg(long, hide = true)]
    parse_only: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Two nodes in namespaces, a master, agents, and pods that talk
    Demo(e2e::demo::Options),
    /// Measure; `bench equivalence` and `bench fuzz` hold the eBPF programs to the model
    Bench(e2e::bench::Options),
    /// Play recorded REST conversations against a fresh netmaster and compare
    Replay(e2e::replay::Options),
    /// Run the commands of the install page on three machines made from namespaces
    InstallCheck(e2e::install::Options),
    /// PID 1 of such a machine
    #[command(hide = true)]
    InstallMachine(e2e::install::Inside),
}

fn main() -> ExitCode {
    if let Some(code) = e2e::install::stand_in() {
        return code;
    }
    let cli = Cli::parse();
    if cli.parse_only {
        return ExitCode::SUCCESS;
    }
    let result = match cli.command {
        Command::Demo(options) => e2e::demo::run(&options).map(|()| true),
        Command::Bench(options) => e2e::bench::run(&options).map(|()| true),
        Command::Replay(options) => e2e::replay::run(&options),
        Command::InstallCheck(options) => e2e::install::run(&options).map(|()| true),
        Command::InstallMachine(inside) => inside.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
