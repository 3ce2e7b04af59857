//! `cargo xtask demo | bench | replay` build the binaries and run this program.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Runs the real binaries")]
struct Cli {
    /// Check the arguments and exit
    #[arg(long, hide = true)]
    parse_only: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run two nodes, netmaster and pods in network namespaces, and check connectivity
    Demo(e2e::demo::Options),
    /// Run benchmarks; `bench equivalence` and `bench fuzz` compare the eBPF programs with the policy model
    Bench(e2e::bench::Options),
    /// Replay recorded REST calls against a new netmaster and compare the responses
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
